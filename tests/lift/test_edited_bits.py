"""Floats whose bits a program edits: rounded by hand to TF32 or bfloat16, that is a cast and no other function."""

import re

import numpy as np
import pytest
import torch

import driftscope as ds

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(6, 8, generator=GENERATOR)
W = torch.randn(8, 5, generator=GENERATOR)


def _tf32(x):
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def _bfloat16_cut(x):
    return (x.view(torch.int32) & -65536).view(torch.float32)


def _np_tf32(x):
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _plain(x):
    return x @ W


NUMPY_W = W.numpy()
ROUNDED = {
    "TF32": lambda x: _tf32(x) @ _tf32(W),
    "bfloat16": lambda x: _bfloat16_cut(x) @ W,
    "TF32 of numpy": ds.program(lambda x: _np_tf32(x) @ NUMPY_W, framework="numpy"),
}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("side", "AB")
def test_a_format_rounded_to_by_hand_is_named_with_its_side_and_its_replay(name, side):
    reference = ds.program(lambda x: x @ NUMPY_W, framework="numpy") if "numpy" in name else _plain
    pair = (ROUNDED[name], reference) if side == "A" else (reference, ROUNDED[name])
    c = ds.compare(*pair, (X,), isolate=False)
    assert c.verdict == "PRECISION"
    assert re.search(rf"explained by rounding to {name.split()[0]} at .* in {side}\b", c.reason), c.reason


@pytest.mark.parametrize("mask", [~0x1FFF, -1])
def test_bits_that_only_look_rounded_or_are_not_edited_decide_as_they_natively_are(mask):
    """A number made of bits, such as the first guess of an inverse root, is no rounding of the number they were."""

    def guess(x):
        bits = x.abs().contiguous().view(torch.int32)
        return (0x5F3759DF - (bits >> 1) & mask).view(torch.float32)

    assert ds.compare(guess, guess, (X,), isolate=False).verdict == "IDENTICAL"
    c = ds.compare(guess, lambda x: x.abs().rsqrt(), (X,), isolate=False)
    assert c.verdict == "DIFFERENT"


def test_a_value_moved_by_its_bits_beyond_rounding_is_found():
    def doubled(x):
        return (x.contiguous().view(torch.int32) + (1 << 23)).view(torch.float32) @ W

    assert ds.compare(_plain, doubled, (X,), isolate=False).verdict == "DIFFERENT"
    assert ds.compare(lambda x: 2.0 * x @ W, doubled, (X,), isolate=False).verdict in ("IDENTICAL", "ROUNDING")


def test_few_elements_are_explained_where_they_fit_to_many_digits():
    """Five outputs carry the error, and the replay predicts each of them to three digits."""
    row = X[:1]
    c = ds.compare(_plain, lambda x: x.half().float() @ W, (row,), isolate=False)
    assert "explained by rounding to float16" in c.reason


def test_constants_rounded_on_the_way_say_the_format():
    c = ds.compare(_plain, lambda x: x @ W.bfloat16().float(), (X,), isolate=False)
    assert c.verdict == "PRECISION"
    assert "constants rounded to bfloat16 in B" in c.reason


def test_rounded_weights_do_not_hide_what_else_is_rounded():
    rounded = W.half().float().numpy()
    a = ds.program(lambda x: x @ NUMPY_W, framework="numpy")
    b = ds.program(lambda x: x.astype(np.float16).astype(np.float32) @ rounded, framework="numpy")
    c = ds.compare(a, b, (X,), isolate=False)
    assert c.reason.startswith("B is A with weights rounded to float16")
    assert re.search(r"the rest is explained by rounding to float16 at .* in B", c.reason)
    alone = ds.program(lambda x: x @ rounded, framework="numpy")
    assert "the rest" not in ds.compare(a, alone, (X,), isolate=False).reason

"""Layers of a fixed order: the compiled ones and their list of operations in torch have the same bits, everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import driftscope as ds
from accumulation.exact_truth import bits
from accumulation.exact_ways import need_compiled, only_integers
from driftscope.accumulation.exact import compiled
from driftscope.accumulation.exact.compiled import Instructions
from driftscope.accumulation.exact.fixed import kernels, operations

SPECIAL = (0.0, -0.0, 1.0, -1.0, 88.0, -88.0, 103.9, -104.1, 0.55, 14.5, 1e-40, -1e-45, 3.4e38, -3.4e38, 1e4, -1e4,
           math.inf, -math.inf, math.nan)  # fmt: skip
seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, *shape: int, special: float = 0.05) -> torch.Tensor:
    """Numbers of many sizes, now and then one that a kernel may treat otherwise."""
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape) * 2.0 ** r.integers(-6, 5)
    odd = r.random(shape) < special
    return torch.from_numpy(np.where(odd, r.choice(SPECIAL, shape), x).astype(np.float32))


def strided(x: torch.Tensor, seed: int) -> torch.Tensor:
    """The same numbers, laid out in another way."""
    way = seed % 3
    if way == 0 or x.dim() < 2:
        return x
    if way == 1:
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 3), 7.0)
    wide[..., 2:-1] = x
    return wide[..., 2:-1]


def same_everywhere(monkeypatch, call) -> torch.Tensor:
    """Run a call in torch and with each instruction set and thread count of this machine; all bits must agree."""
    with only_integers(monkeypatch):
        plain = call()
    before = torch.get_num_threads()
    try:
        for level in Instructions:
            assert compiled.use(level) <= level
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found = call()
                assert bits(found) == bits(plain)
    finally:
        torch.set_num_threads(before)
        compiled.use(Instructions.AVX512)
    return plain


@pytest.fixture
def everywhere(monkeypatch):
    need_compiled()
    return lambda call: same_everywhere(monkeypatch, call)


@pytest.fixture(autouse=True)
def small_work_in_threads(monkeypatch):
    """Let two threads share even these rows."""
    monkeypatch.setattr("driftscope.accumulation.exact.rows._PER_THREAD", 64)
    monkeypatch.setattr(kernels, "_PER_THREAD", 64)


#: The fixtures of a test are the same for every example.
shared = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared
@given(seeds, st.integers(0, 5), st.integers(0, 70), st.booleans())
def test_softmax(everywhere, seed, rows, n, masked):
    x = strided(drawn(seed, rows, n), seed)
    everywhere(lambda: kernels.softmax(x, 1, masked_rows_are_zero=masked))


@shared
@given(seeds, st.integers(1, 5), st.integers(1, 70), st.sampled_from([None, "weight", "both"]))
def test_layer_norm(everywhere, seed, rows, n, factors):
    x, w, b = strided(drawn(seed, rows, n), seed), drawn(seed + 1, n, special=0), drawn(seed + 2, n, special=0)
    given = (None if factors is None else w, b if factors == "both" else None)
    everywhere(lambda: torch.cat([p.reshape(-1) for p in kernels.layer_norm(x, (n,), *given, 1e-5)]))


@shared
@given(seeds, st.sampled_from(sorted(operations.ELEMENTS)), st.integers(0, 90))
def test_functions_of_elements(everywhere, seed, name, n):
    x = drawn(seed, n, special=0.3)
    everywhere(lambda: kernels.elements(name, x))
    if n:
        assert bits(kernels.elements(name, x[n // 2 :])) == bits(kernels.elements(name, x)[n // 2 :])


@shared
@given(seeds, st.tuples(*[st.integers(0, 20)] * 3), st.integers(0, 2), st.booleans(), st.booleans())
def test_products(everywhere, seed, sizes, batch, with_bias, double):
    rows, depth, columns = sizes
    lead = (batch,) if batch else ()
    a, b = strided(drawn(seed, *lead, rows, depth), seed), strided(drawn(seed + 1, *lead, depth, columns), seed // 3)
    bias = drawn(seed + 2, columns) if with_bias else None
    if double:
        a, b, bias = a[..., :1, :].double(), b[..., :3].double(), None
    everywhere(lambda: kernels.product(a, b, bias))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_bias_is_added_to_the_zero_of_a_product_without_terms(everywhere, rows, depth):
    """A chain begins at +0, so that a bias of -0 becomes +0, with or without terms."""
    a, b = torch.zeros(rows, depth), torch.zeros(depth, 40)
    found = everywhere(lambda: kernels.product(a, b, torch.full((40,), -0.0)))
    assert bits(found) == bits(torch.zeros(rows, 40))


@shared
@given(seeds, st.integers(1, 20), st.integers(1, 20), st.sampled_from(["none", "causal", "added", "column"]))
def test_attention(everywhere, seed, queries, keys, mask):
    q, k, v = (drawn(seed + i, 2, 2, n, 8, special=0.002) for i, n in enumerate((queries, keys, keys)))
    hidden = {
        "none": None,
        "causal": torch.full((queries, keys), -math.inf).triu(1),
        "added": drawn(seed + 3, 2, 1, queries, keys, special=0.3),
        "column": torch.where(drawn(seed + 4, 2, 1, 1, keys) > 0, 0.0, -math.inf),
    }[mask]
    everywhere(lambda: kernels.attention(q, k, strided(v, seed), hidden, 0.3)[0])


@pytest.mark.slow
def test_long_rows_and_blocks_of_queries(everywhere):
    everywhere(lambda: kernels.softmax(drawn(3, 2, 4500, special=0), 1))
    q = drawn(4, 1, 1, 200, 8, special=0)
    everywhere(lambda: kernels.attention(q, q, q, None, 0.3)[0])
    a, b, bias = drawn(5, 14, 600, special=0), drawn(6, 600, 40, special=0), drawn(7, 40, special=0)
    everywhere(lambda: kernels.product(a, b, bias))
    assert bits(kernels.product(a, b, bias)) == bits(ds.exact.matmul(a, b) + bias)


@pytest.mark.parametrize(
    ("name", "ulps"), [("sigmoid", 3), ("tanh", 3), ("silu", 4), ("gelu", 8), ("gelu_of_tanh", 128)]
)
def test_functions_of_elements_are_right_to_some_ulps(name, ulps):
    """The form with tanh multiplies the rounding of its cubic by its size, far out where the value is 1e-30."""
    reference = {
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "silu": F.silu,
        "gelu": lambda x: x * torch.special.erfc(-x / math.sqrt(2)) / 2,
        "gelu_of_tanh": lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    }[name]  # fmt: skip
    x = torch.cat([torch.linspace(-12, 12, 20_001), torch.logspace(-30, 1, 2_000), -torch.logspace(-30, 0.9, 2_000)])
    found, true = kernels.elements(name, x).double(), reference(x.double())
    unit = torch.maximum(true.abs() * 2.0**-23, torch.tensor(2.0**-149).double())
    assert ((found - true).abs() / unit).max() <= ulps


def test_padding_a_row_on_either_side_changes_no_bit():
    x = drawn(1, 3, 37, special=0)
    whole = kernels.softmax(x, 1)
    for left, right in ((0, 5), (5, 0), (16, 3)):
        padded = kernels.softmax(F.pad(x, (left, right), value=-math.inf), 1)
        assert bits(padded[:, left : left + 37]) == bits(whole)


def test_attention_is_the_plain_formula(monkeypatch):
    """Whichever way torch takes for these strides, the fused one or products and a softmax, the bits are the same."""
    q, k, v = (drawn(i, 2, 3, 10, 8, special=0) for i in range(3))
    mask = torch.full((10, 10), -math.inf).triu(1)
    fused, _ = kernels.attention(q, k, v, mask, 8**-0.5)
    with torch.no_grad(), ds.reproducible():
        root = math.sqrt(8**-0.5)
        plain = ((q * root) @ (k * root).transpose(-1, -2) + mask).softmax(-1) @ v
        assert bits(F.scaled_dot_product_attention(q, k, v, is_causal=True)) == bits(fused)
        with sdpa_kernel(SDPBackend.MATH):
            assert bits(F.scaled_dot_product_attention(q, k, v, is_causal=True)) == bits(fused)
    assert bits(plain) == bits(fused)


def test_a_library_built_before_these_layers_serves_for_the_rest(monkeypatch):
    need_compiled()
    x = drawn(0, 8, 33, special=0)

    def results():
        with torch.no_grad(), ds.reproducible():
            return [bits(y) for y in (x.softmax(-1), F.layer_norm(x, (33,)), x @ x.t())]

    now = results()
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_LAYERS", {**compiled._LAYERS, "driftscope_absent": ([], None)})
        compiled._declared.cache_clear()
        assert compiled.library() is not None
        assert compiled.layers() is None
        assert results() == now
    compiled._declared.cache_clear()
    assert compiled.layers() is not None

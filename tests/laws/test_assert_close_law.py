"""The law of assert_close: it accepts exactly what torch.testing.assert_close accepts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.testing import assert_close

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8,
          torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn]  # fmt: skip
TOLERANCES = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float32: (1.3e-6, 1e-5),
              torch.float64: (1e-7, 1e-7)}  # fmt: skip


def outcome(check, actual, expected, options):
    """Return None when accepted, else the kind of exception."""
    try:
        check(actual, expected, **options)
    except Exception as error:
        return type(error)
    return None


def agree(actual, expected, **options):
    ours, theirs = (outcome(f, actual, expected, options) for f in (assert_close, torch.testing.assert_close))
    assert ours == theirs, (actual, expected, options)
    return ours


@st.composite
def tolerances(draw):
    sizes = st.sampled_from([0.0, 1e-7, 1e-5, 1.3e-6, 1e-3, 0.1, 3.0, math.inf])
    both = st.tuples(sizes, sizes) | st.just((None, None))
    one = st.sampled_from([(1e-3, None), (None, 0.0), (-1.0, 0.0)])
    rtol, atol = draw(st.integers(0, 9).flatmap(lambda k: one if k == 0 else both))
    return {"rtol": rtol, "atol": atol}


@st.composite
def options(draw):
    names = ("equal_nan", "check_dtype", "check_layout", "check_stride", "check_device", "allow_subclasses")
    chosen = {name: draw(st.booleans()) for name in draw(st.sets(st.sampled_from(names), max_size=2))}
    return {**draw(tolerances()), **chosen}


@st.composite
def on_the_edge(draw, dtype=None):
    """Two tensors whose differences lie within a few roundings of the allowed ones."""
    dtype = dtype or draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    expected = (torch.randn(shape, dtype=torch.float64) * 10.0 ** draw(st.integers(-6, 3))).to(dtype)
    kind = draw(st.sampled_from(["same", "edge", "far", "special"]))
    actual = expected.clone()
    if kind == "edge":
        rtol, atol = TOLERANCES.get(dtype, (0.0, 0.0))
        exact = expected.to(torch.complex128 if dtype.is_complex else torch.float64)
        slack = 1 + 1e-3 * torch.randn(shape, dtype=torch.float64) * draw(st.sampled_from([0.0, 1e-4, 1.0]))
        actual = (exact + (atol + rtol * exact.abs()) * slack).to(dtype)
    elif kind == "far" and expected.numel():
        actual.view(-1)[draw(st.integers(0, expected.numel() - 1))] = 1
    elif kind == "special" and dtype not in (torch.bool, torch.int64, torch.int8, torch.uint8) and expected.numel():
        for x in (actual, expected):
            x.view(-1)[draw(st.integers(0, expected.numel() - 1))] = draw(
                st.sampled_from([math.nan, math.inf, -math.inf])
            )
    return actual, expected


@given(on_the_edge(), options())
@settings(max_examples=250)
def test_tensors(pair, chosen):
    agree(*pair, **chosen)


@given(st.sampled_from(sorted(TOLERANCES, key=str)), st.integers(0, 2**31))
@settings(max_examples=150)
@pytest.mark.slow
def test_default_tolerances_at_their_last_bit(dtype, seed):
    torch.manual_seed(seed)
    rtol, atol = TOLERANCES[dtype]
    # Where the tolerance is larger than the values, a difference is rounded, and torch decides by the rounded one.
    expected = (torch.randn(24, dtype=torch.float64) * 10.0 ** torch.linspace(-7, 2, 24)).to(dtype)
    actual = (expected.double() + atol + rtol * expected.double().abs()).to(dtype)
    for x, y in zip(actual, expected, strict=True):
        agree(x, y)


LEAVES = [
    None, True, False, 1, 1.0, 1.0 + 1e-9, 2 + 1j, math.nan, math.inf, "a", "b", object,
    np.float32(1), np.float64(1), np.bool_(True), np.ones(2), np.ones(2, dtype=np.float32), np.ones(4)[::2],
    np.ones(2)[::-1], np.array(["a"]), torch.ones(2), torch.ones(2) + 1e-7, torch.ones(2, 1), torch.ones(2).double(),
    torch.ones(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.nn.Parameter(torch.ones(2)), torch.ones(2, 2).t(),
    torch.ones(2, device="meta"), torch.tensor([math.nan, 1.0]), torch.ones(2, dtype=torch.complex64),
]  # fmt: skip
trees = st.recursive(
    st.integers(0, len(LEAVES) - 1),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=5,
)


def grow(tree):
    if isinstance(tree, dict):
        return {k: grow(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(grow(v) for v in tree)
    return LEAVES[tree]


def same_outcome(actual, expected, chosen):
    # Torch ends at the first thing it meets, we collect; which exception a doubly wrong tree ends in may differ.
    ours, theirs = (outcome(f, actual, expected, chosen) for f in (assert_close, torch.testing.assert_close))
    assert (ours is None) is (theirs is None), (actual, expected, chosen)


@given(trees, options())
@settings(max_examples=200)
def test_a_tree_against_itself(tree, chosen):
    same_outcome(grow(tree), grow(tree), chosen)


@given(trees, trees, options())
@settings(max_examples=300)
def test_two_trees_are_accepted_or_rejected_alike(one, other, chosen):
    same_outcome(grow(one), grow(other), chosen)


@pytest.mark.parametrize("i", range(len(LEAVES)))
def test_every_pair_of_leaves(i):
    for other in LEAVES:
        agree(LEAVES[i], other)


def test_the_law_has_teeth():
    one_ulp_outside = torch.tensor([1.0 + 1e-5 + 1.3e-6 + 2.4e-7])
    just_inside = torch.tensor([1.0 + 1e-5 + 1.0e-6])
    assert agree(one_ulp_outside, torch.ones(1)) is AssertionError
    assert agree(just_inside, torch.ones(1)) is None

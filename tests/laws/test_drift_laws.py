"""Laws of measured drift: exact answers computed one element at a time, in Python, with nothing shared."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.comparison.leaves import compare_leaves
from driftscope.comparison.measuring.metrics import measure
from driftscope.comparison.measuring.pieces import pieces, position, position_of, same_bits
from driftscope.programs.value_trees import flatten
from driftscope.testing import max_diff

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
ODD = [0.0, -0.0, 1.0, -1.0, 1.0000001, 1e-45, 65504.0, 3e38, 1e-5, math.inf, -math.inf, math.nan]


@st.composite
def pairs(draw, dtypes=tuple(FLOATS), specials=True):
    """Two tensors of one shape that agree in most places, differ by little in some and by much in few."""
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    a = torch.randn(shape, dtype=torch.float64) * 10.0 ** draw(st.integers(-8, 4))
    b = a * (1 + draw(st.sampled_from([0.0, 1e-7, 1e-3, 1.0])) * torch.randn(shape, dtype=torch.float64))
    a, b = a.to(dtype), b.to(dtype)
    for x in (a, b):
        for value in draw(st.lists(st.sampled_from(ODD if specials else ODD[:9]), max_size=3)):
            if x.numel():
                x.view(-1)[draw(st.integers(0, x.numel() - 1))] = value
    return a, b


def plain_loop(a, b, offset=0.0):
    """The definition, element by element in Python floats."""
    sizes, ratios, nans, differing = [0.0], [0.0], 0, 0
    for x, y in zip(a.double().reshape(-1).tolist(), b.double().reshape(-1).tolist(), strict=True):
        if math.isnan(x) or math.isnan(y):
            nans += math.isnan(x) is not math.isnan(y)
            differing += math.isnan(x) is not math.isnan(y)
            continue
        differing += x != y
        if math.isfinite(x) and math.isfinite(y):
            d = abs(y - x)
            sizes.append(d)
            ratios.append(0.0 if d == 0 else d / (abs(x) + offset) if abs(x) + offset else math.inf)
    return max(sizes), max(ratios), math.fsum(sizes), nans, differing


@given(pairs())
def test_the_pass_agrees_with_a_plain_loop(pair):
    a, b = pair
    drift = measure(a, b)
    largest, ratio, total, nans, differing = plain_loop(a, b)
    assert (drift.max_abs, drift.max_rel) == (largest, ratio)
    assert drift.sum_abs == pytest.approx(total, rel=1e-12)
    assert (drift.nan_a + drift.nan_b, drift.differing, drift.count) == (nans, differing, a.numel())


@given(pairs(dtypes=(torch.float64, torch.float32), specials=False))
def test_max_diff_agrees_with_a_plain_loop(pair):
    a, b = pair
    found = max_diff(a, b, hist=[0.0, 1e-3])
    largest, ratio, total, nans, _ = plain_loop(a, b, offset=1e-3)
    assert (found["abs"], found["dnan"], found["n"]) == (largest, nans, a.numel())
    assert found["rel"] == pytest.approx(ratio, rel=1e-15)
    assert found["sum"] == pytest.approx(total, rel=1e-12)
    gaps = (a.double() - b.double()).abs()
    assert found["rep"] == {">0.0": int((gaps > 0).sum()), ">0.001": int((gaps > 1e-3).sum())}


@given(pairs())
def test_what_should_be_symmetric_is(pair):
    a, b = pair
    one, two = measure(a, b), measure(b, a)
    for name in ("count", "mismatched", "differing", "nan_both", "inf_both", "inf_differ", "max_abs", "max_ulp",
                 "worst_index", "rms", "sum_abs"):  # fmt: skip
        assert getattr(one, name) == getattr(two, name), name
    assert (one.nan_a, one.nan_b) == (two.nan_b, two.nan_a)


@given(pairs())
def test_drift_is_zero_exactly_for_equal_values(pair):
    a, b = pair
    drift = measure(a, b)
    equal = bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())
    assert drift.same_values is equal
    assert (drift.worst_index is None) is equal
    if drift.special_differ == 0:
        assert (drift.max_abs == 0) is equal
        assert (drift.max_ulp == 0) is equal
    assert measure(a, a.clone()).same_bits


@given(pairs(), st.integers(1, 40))
def test_the_size_of_a_piece_changes_nothing(pair, size):
    a, b = pair
    one, many = measure(a, b, thresholds=(1e-3,)), measure(a, b, thresholds=(1e-3,), size=size)
    assert many.rms == pytest.approx(one.rms, rel=1e-12)
    assert many.sum_abs == pytest.approx(one.sum_abs, rel=1e-12)
    for name in ("mismatched", "differing", "nan_a", "nan_b", "nan_both", "inf_both", "inf_differ", "max_abs",
                 "max_rel", "max_ulp", "worst_index", "worst_values", "above"):  # fmt: skip
        assert getattr(many, name) == getattr(one, name), name


@given(pairs(), st.integers(1, 40), st.data())
def test_pieces_cover_every_element_once_in_order(pair, size, data):
    a, b = pair
    order = data.draw(st.permutations(range(a.dim())))
    x, y = a.permute(order), b.permute(order)
    walked = list(pieces(x, y, size))
    assert [start for start, _, _ in walked] == [sum(p.numel() for _, p, _ in walked[:i]) for i in range(len(walked))]
    assert all(0 < p.numel() <= size for _, p, _ in walked)
    for side, original in ((1, x), (2, y)):
        flat = torch.cat([w[side] for w in walked]) if walked else x.reshape(-1)
        assert same_bits(flat, original.reshape(-1))


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_positions_and_indices_are_inverse(shape, data):
    flat = data.draw(st.integers(0, math.prod(shape) - 1))
    index = position(flat, tuple(shape))
    assert position_of(index, tuple(shape)) == flat
    assert int(torch.arange(math.prod(shape)).view(shape)[index]) == flat


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.data())
def test_integers_are_subtracted_exactly(one, other, data):
    values = []
    for dtype in (one, other):
        info = torch.iinfo(dtype)
        near = st.sampled_from([info.min, info.max, info.max - 1, 0, 1])
        values.append(data.draw(st.lists(near | st.integers(info.min, info.max), min_size=3, max_size=3)))
    a, b = torch.tensor(values[0], dtype=one), torch.tensor(values[1], dtype=other)
    drift = measure(a, b)
    gaps = [abs(y - x) for x, y in zip(*values, strict=True)]
    assert drift.max_abs == float(max(gaps))
    assert drift.differing == sum(g != 0 for g in gaps)
    if drift.worst_index is not None:
        # Gaps that differ by less than a float64 can hold are equally large to it; the first of them is named.
        assert float(gaps[drift.worst_index[0]]) == drift.max_abs


@given(st.integers(-(2**63), 2**63 - 1), st.floats(-1e19, 1e19))
def test_integers_against_floats_are_exact(n, x):
    drift = measure(torch.tensor([n]), torch.tensor([x], dtype=torch.float64))
    assert (drift.max_abs == 0) is (Fraction(x) == n)
    exact = abs(Fraction(x) - n)
    assert drift.max_abs == pytest.approx(float(exact), rel=1e-15)


@given(pairs(dtypes=(torch.float32,)), pairs(dtypes=(torch.float32,)))
@settings(max_examples=50)
@pytest.mark.slow
def test_a_complex_number_is_its_two_parts(real, imaginary):
    (a, b), (c, d) = real, imaginary
    if a.shape != c.shape:
        return
    drift = measure(torch.complex(a, c), torch.complex(b, d))
    parts = [measure(a, b), measure(c, d)]
    for name, join in (
        ("count", sum),
        ("differing", sum),
        ("nan_a", sum),
        ("inf_differ", sum),
        ("max_abs", max),
        ("max_ulp", max),
    ):
        assert getattr(drift, name) == join(getattr(p, name) for p in parts), name


@given(
    st.recursive(
        st.integers(-3, 3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    )
)
def test_a_tree_is_the_same_as_itself_and_every_changed_leaf_is_named(tree):
    leaves = flatten(tree)[0]
    tensors = [(path, torch.tensor(float(n))) for path, n in leaves]
    changed = [(path, x + (i % 2)) for i, (path, x) in enumerate(tensors)]
    assert all(leaf.same_bits for leaf in compare_leaves(tensors, tensors))
    found = compare_leaves(tensors, changed)
    assert [leaf.path for leaf in found if leaf.kind == "value"] == [path for path, _ in leaves[1::2]]
    assert len(found) == len(leaves)

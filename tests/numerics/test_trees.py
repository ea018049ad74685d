"""Summation trees: what is the same tree, how it is replayed, named, and told apart from its neighbours."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.numerics.trees.balanced import balanced_rows, scale_for
from driftscope.numerics.trees.families import family_of, width
from driftscope.numerics.trees.naming import describe
from driftscope.numerics.trees.replay import SumArithmetic, replay
from driftscope.numerics.trees.rounding import aligned_sum, exact_sum, fma, sum_to_odd
from driftscope.numerics.trees.tree import SumTree


def random_tree(n: int, rng: np.random.Generator) -> SumTree:
    """Join two random nodes until one is left."""
    nodes, left, right = list(range(n)), [], []
    for k in range(n - 1):
        i, j = rng.choice(len(nodes), 2, replace=False)
        left.append(nodes[i])
        right.append(nodes[j])
        nodes = [node for place, node in enumerate(nodes) if place not in (i, j)] + [n + k]
    return SumTree.from_additions(n, left, right)


def pairwise(lo: int, hi: int):
    return lo if hi - lo == 1 else (pairwise(lo, (lo + hi) // 2), pairwise((lo + hi) // 2, hi))


def folded(parts):
    total, *rest = parts
    for part in rest:
        total = (total, part)
    return total


def added(nested, row):
    """Add as the nested tuples say, one operation at a time."""
    if isinstance(nested, tuple):
        parts = [added(part, row) for part in nested]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
    return row[nested]


# --- trees --------------------------------------------------------------------------------------------------


def test_the_order_of_operands_and_of_writing_does_not_matter():
    assert SumTree.of(((0, 1), (2, 3))) == SumTree.of(((3, 2), (1, 0)))
    assert hash(SumTree.of(((0, 1), (2, 3)))) == hash(SumTree.of(((3, 2), (1, 0))))


@pytest.mark.parametrize("other", [(((0, 1), 2), 3), ((0, 2), (1, 3)), (0, 1, 2, 3), ((0, 1, 2), 3), ((0, 1), 2)])
def test_another_grouping_is_another_tree(other):
    assert SumTree.of(((0, 1), (2, 3))) != SumTree.of(other)


@pytest.mark.parametrize("nested", [((0, 1), 1), ((0, 2), 3), ((0,), 1)])
def test_terms_must_each_be_used_once(nested):
    with pytest.raises(ValueError):
        SumTree.of(nested)


@pytest.mark.parametrize(
    ("tree", "depth", "additions"),
    [
        (SumTree.of(0), 0, 0),
        (SumTree.sequential(5), 4, 4),
        (SumTree.of(pairwise(0, 8)), 3, 7),
        (SumTree.of((0, 1, 2, (3, 4))), 2, 2),
        (SumTree.of(((0, 1, 2), 3, 4, 5)), 2, 2),
    ],
)
def test_depth_and_number_of_roundings(tree, depth, additions):
    assert (tree.depth, tree.additions) == (depth, additions)


def test_a_chain_of_many_terms_is_no_deep_recursion():
    tree = SumTree.of(folded(range(5000)))
    assert tree == SumTree.sequential(5000)
    assert str(describe(tree)) == "fold(5000)"


# --- replay -------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
@settings(max_examples=40)
def test_replay_is_adding_one_by_one(n, seed, dtype):
    rng = np.random.default_rng(seed)
    tree = random_tree(n, rng)
    x = (rng.standard_normal((5, n)) * 4.0 ** rng.integers(-3, 4, (5, n))).astype(getattr(ml_dtypes, dtype, dtype))
    values = list(x.T)
    for a, b in zip(tree.left, tree.right, strict=True):
        values.append(values[a] + values[b])
    assert replay(tree, x, SumArithmetic(dtype), dtype).tobytes() == values[-1].tobytes()


def rounded_once(exact: Fraction, dtype) -> float:
    """The nearest number of a format to a rational: the best of three neighbours, ties to an even significand."""
    near = np.asarray(float(exact)).astype(dtype)
    with np.errstate(over="ignore"):
        three = [np.nextafter(near, dtype(-np.inf)), near, np.nextafter(near, dtype(np.inf))]
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return float(min(three, key=lambda v: (abs(Fraction(float(v)) - exact), int(np.asarray(v).view(bits)) & 1)))


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60)
def test_fma_rounds_once(seed, dtype):
    rng = np.random.default_rng(seed)
    a, b, c = (rng.standard_normal(8) * 2.0 ** rng.integers(-12, 13, 8) for _ in range(3))
    a, b = a.astype(dtype), b.astype(dtype)
    # Half of them cancel: then what a rounded product lost is all that is left.
    c = np.where(np.arange(8) % 2, c, -(a * b)).astype(dtype)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    assert fma(a, b, c).tolist() == [rounded_once(e, dtype) for e in exact]


def test_fma_in_float32_is_not_the_product_in_float64_plus_c():
    """A double rounding: the float64 sum is a tie of float32 that the exact sum is not."""
    a = np.float32([1 + 2.0**-23])
    b = np.float32([1 + 2.0**-23])
    c = np.float32([2.0**-60 - 2.0**-22 + 2.0**-24])
    tie = np.float32([1.0]), np.float32([1.0]), np.float32([2.0**-24 + 2.0**-47])
    twice = (tie[0].astype(np.float64) * tie[1] + tie[2]).astype(np.float32)
    assert fma(*tie)[0] == twice[0] == np.float32(1 + 2.0**-23)
    low = np.float32([2.0**-30]), np.float32([2.0**-30 + 2.0**-40]), np.float32([1 + 2.0**-23])
    assert fma(*low)[0] == low[2][0]
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0]))
    assert float(fma(a, b, c)[0]) == rounded_once(exact, np.float32)


def test_rounding_to_odd_prevents_double_rounding():
    big, small = np.float64([1 + 2.0**-24]), np.float64([2.0**-80])
    assert (big + small).astype(np.float32)[0] == 1.0  # a tie, rounded to even
    assert sum_to_odd(big, small).astype(np.float32)[0] == np.float32(1 + 2.0**-23)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=9))
def test_a_step_of_many_terms_is_their_exact_sum_rounded_once(terms):
    exact = sum(Fraction(t) for t in terms)
    got = exact_sum(np.float32(terms)[:, None], np.dtype(np.float32))
    assert float(got[0]) == rounded_once(exact, np.float32)


def test_infinities_of_both_signs_add_up_to_nothing_and_of_one_sign_to_themselves():
    terms = np.float32([[np.inf, np.inf, -np.inf], [-np.inf, 1.0, 2.0], [1.0, 2.0, 3.0]])
    got = exact_sum(terms, np.dtype(np.float32))
    assert np.isnan(got[0])
    assert got[1:].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(("extra", "expected"), [(0, 1.0), (1, 1.0), (2, 1 + 2.0**-23)])
def test_aligned_sums_lose_what_lies_below_the_kept_bits(extra, expected):
    terms = np.float32([1, 2.0**-25, 2.0**-25, 2.0**-25, 2.0**-25])[:, None]
    assert aligned_sum(terms, extra)[0] == np.float32(expected)


def test_aligned_sums_cut_toward_zero():
    assert aligned_sum(np.float32([[1], [2.0**-24], [2.0**-25]]), 3)[0] == 1.0
    assert aligned_sum(np.float32([[-1], [-(2.0**-24)], [-(2.0**-25)]]), 3)[0] == -1.0


# --- rows on which an order shows ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("float32", "float64"),
    ],
)
def test_balanced_rows_tell_neighbouring_trees_apart(dtype, accumulator):
    nested = folded([folded(range(b, b + 16)) for b in range(0, 128, 16)])
    tree = SumTree.of(nested)
    # One change, as local as can be: two terms of one block trade places.
    near = SumTree.of(folded([folded([*range(16, 22), 23, 22, *range(24, 32)]) if b == 16 else folded(range(b, b + 16))
                              for b in range(0, 128, 16)]))  # fmt: skip
    assert near != tree
    x = balanced_rows(tree, 1024, dtype, scale_for(dtype, accumulator), np.random.default_rng(0))
    own, other = (replay(t, x, SumArithmetic(accumulator), dtype) for t in (tree, near))
    assert (own == replay(tree, x, SumArithmetic(accumulator), dtype)).all()
    assert (own != other).mean() > 0.01


def test_ordinary_rows_of_bfloat16_do_not_tell_them_apart():
    """Why the rows are made from the tree: normal draws give the same bits for quite different orders."""
    x = np.random.default_rng(0).standard_normal((256, 64)).astype(ml_dtypes.bfloat16)
    trees = SumTree.sequential(64), SumTree.of(pairwise(0, 64))
    results = [replay(t, x, SumArithmetic("float32"), "bfloat16") for t in trees]
    assert (results[0] != results[1]).mean() < 0.01
    y = balanced_rows(trees[0], 256, "bfloat16", scale_for("bfloat16", "float32"), np.random.default_rng(0))
    results = [replay(t, y, SumArithmetic("float32"), "bfloat16") for t in trees]
    assert (results[0] != results[1]).mean() > 0.5


# --- names --------------------------------------------------------------------------------------------------

LANES = folded([folded(range(lane, 32, 8)) for lane in range(8)])
BLOCKS = folded([folded(range(b, b + 8)) for b in range(0, 32, 8)])
NAMED = [
    (0, "x", "a single term"),
    ((0, 1), "pair(+1: x)", "pairwise"),
    (folded(range(9)), "fold(9)", "sequential"),
    (folded(range(8, -1, -1)), "fold(9 × -1: x)", "sequential, backwards"),
    (pairwise(0, 16), "tree16[+8,+4,+2,+1](x)", "pairwise"),
    (LANES, "fold(8 × +1: fold(4 × +8: x))", "8 lanes, lanes joined one after another"),
    (BLOCKS, "fold(4 × +8: fold(8))", "blocks of 8, blocks joined one after another"),
    ((folded(range(8)), folded(range(8, 11))), "(fold(8) then fold(3)@+8)", "sequential blocks: 1 of 8, 1 of 3"),
    ((folded(range(8)), folded(range(8, 16))), "pair(+8: fold(8))", "split in 2 halves, each: sequential"),
    (folded([5, 6, 7, 0, 1, 2, 3, 4]), "(fold(3) then 5 × x@-5+1)",
     "sequential, but not from the first term to the last"),
    (folded([3, 4, 2, 1, 0]), "(pair(+1: x) then 3 × x@-1-1)", "sequential, backwards"),
    (folded([0, 4, 2, 1, 3]), "(pair(+4: x) then 2 × x@+2-1 then x@+3)",
     "sequential, but not from the first term to the last"),
    (folded([folded(range(b, b + 8)) for b in (16, 0, 24, 8)]), "(pair(-16: fold(8)) then 2 × fold(8)@+8-16)",
     "blocks of 8, blocks joined one after another, but not from the first term to the last"),
    (folded([folded(range(lane, 17, 4)) for lane in range(4)]), "(fold(5 × +4: x) then 3 × fold(4 × +4: x)@+1+1)",
     "4 lanes, lanes joined one after another, with an uneven rest"),
    ((folded(range(8)), folded(range(8, 17))), "(fold(9) then fold(8)@-8)", "sequential blocks: 1 of 8, 1 of 9"),
    (folded([folded(range(4)), folded(range(4, 8)), 8, 9, folded(range(10, 14))]),
     "(pair(+4: fold(4)) then 2 × x@+8+1 then fold(4)@+10)", "terms and blocks of up to 4, one after another"),
    ((0, 1, 2, 3, 4), "fused(5 × +1: x)", "all at once, rounded once"),
]  # fmt: skip


@pytest.mark.parametrize(("nested", "pattern", "family"), NAMED)
def test_patterns_and_families(nested, pattern, family):
    described = describe(SumTree.of(nested))
    assert str(described) == pattern
    assert family_of(described) == family


@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_a_description_is_of_all_terms(n, seed):
    described = describe(random_tree(n, np.random.default_rng(seed)))
    assert width(described) == n
    assert family_of(described)

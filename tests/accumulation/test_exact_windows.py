"""Sums of a block under a guessed window of exponents: numbers at, inside and outside of its edges.

Everything large cancels, so that a single lost bit of a small number is the whole error.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

import driftscope as ds
from accumulation.exact_truth import DTYPES, bits, fractions, nearest, same
from driftscope.accumulation.exact import compiled
from driftscope.accumulation.exact.compiled import Instructions

#: binades between the largest and the smallest number
SPREADS = (0, 12, 15, 16, 17, 20, 22, 24, 28, 31, 32, 34, 40, 60, 86, 130)
KINDS = ("plain", "zeros", "zeros first", "an outlier", "an outlier last", "powers of two", "subnormal", "in order")


@pytest.fixture(params=list(Instructions))
def instructions(request):
    if compiled.library() is None or compiled.use(request.param) is not request.param:
        pytest.skip(f"no compiled code for {request.param.name} here")
    yield request.param
    compiled.use(Instructions.AVX512)


def cancelling(r: np.random.Generator, dtype: torch.dtype, n: int, spread: int, kind: str) -> torch.Tensor:
    """Return numbers whose sum is that of the few smallest ones."""
    top = int(r.integers(-3, 12))
    half = torch.from_numpy(r.standard_normal(n // 2 - 4) * 2.0**top).to(dtype)
    if kind == "powers of two":
        half = torch.exp2(torch.from_numpy(r.integers(top - 6, top, n // 2 - 4).astype(float))).to(dtype)
    if kind.startswith("zeros"):
        half[:: 3 if kind == "zeros" else 1][: n // 4] = 0
    small = torch.from_numpy(r.choice([-1.0, 1.0], 8) * (1 + r.random(8)) * 2.0 ** (top - spread)).to(dtype)
    if kind == "subnormal":
        tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # its upper bits are all zero
        small = torch.tensor([tiny, tiny, 0, 0, 0, 0, 0, tiny], dtype=dtype)
    x = torch.cat([half.abs(), -half.abs(), small] if kind == "in order" else [half, -half, small])
    if kind in ("zeros first", "in order"):
        return x
    x = x[torch.from_numpy(r.permutation(len(x)))]
    if kind.startswith("an outlier"):
        place = len(x) - 1 if kind.endswith("last") else n // 2
        x[place] = min(2.0 ** (top + 2 + SPREADS.index(spread)), torch.finfo(dtype).max)
        x[place - 1] = -x[place]
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(16)
def test_no_bit_is_lost_at_the_edges_of_a_window(instructions, dtype, kind):
    wrong = []
    for spread in SPREADS:
        for n in (130, 2046):
            x = cancelling(np.random.default_rng([spread, n, KINDS.index(kind)]), dtype, n, spread, kind)
            if not same(ds.exact.sum(x), nearest(sum(fractions(x), Fraction(0)), dtype)):
                wrong.append((spread, n))
    assert wrong == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_special_values_anywhere_in_a_block_are_seen(instructions, dtype, value):
    for place in (0, 5, 511, 700, 2040, 2047):
        x = torch.randn(2048, generator=torch.Generator().manual_seed(place)).to(dtype)
        x[place] = value
        assert bits(ds.exact.sum(x).reshape(1)) == bits(torch.tensor([value], dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_numbers_do_not_overflow_on_the_way(instructions, dtype):
    most = torch.finfo(dtype).max
    x = torch.full((2048,), most, dtype=dtype)
    x[1::2] = -most
    x[7] = 1.0
    x[9] = -1.0
    assert float(ds.exact.sum(x)) == float(torch.tensor(2 * most, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_one_element_too_small_for_the_sum_is_seen_wherever_it_stands(instructions, dtype):
    # Everything else adds exactly and cancels: what is left is the small one, or nothing where it was lost.
    small = torch.tensor([2.0**-100], dtype=dtype)
    for place in range(1055):
        ones = torch.ones(1054, dtype=dtype)
        ones[1::2] = -1
        assert same(ds.exact.sum(torch.cat([ones[:place], small, ones[place:]])), 2.0**-100)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [2048, 8192])
def test_blocks_that_are_rounded_and_blocks_that_are_not_follow_one_another(instructions, dtype, length):
    generator = np.random.default_rng(7)
    for pattern in ((1, 0, 0, 1, 1), (1, 1, 1, 0, 0, 0, 0, 0, 1, 0)):
        blocks = []
        for wide in pattern:
            block = generator.standard_normal(length)
            blocks.append(np.ldexp(block, generator.integers(-60, 60, length)) if wide else block)
        x = torch.from_numpy(np.concatenate(blocks)[: generator.integers(length, length * len(blocks))]).to(dtype)
        assert same(ds.exact.sum(x), nearest(sum(fractions(x), Fraction(0)), dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_one_element_too_small_is_seen_in_each_block_of_a_stretch(instructions, dtype):
    small = torch.tensor([2.0**-100], dtype=dtype)
    ones = torch.ones(20000, dtype=dtype)
    ones[1::2] = -1
    for place in (0, 2047, 2048, 6143, 6144, 8191, 8192, 16384, 20000):
        assert same(ds.exact.sum(torch.cat([ones[:place], small, ones[place:]])), 2.0**-100)

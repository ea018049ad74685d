"""An overflow inside one side that leaves finite, wrong results is named; a drift of another cause is not one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds


class Norm(nn.Module):
    """A norm written out, in the format it is given or in float32 and back, as careful models write it."""

    def __init__(self, scale: float, wide: bool, shift: float = 0.0):
        super().__init__()
        self.scale, self.wide, self.shift = scale, wide, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float() if self.wide else x
        h = h * self.scale
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5) + self.shift
        return y.to(x.dtype)


X = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)).half()


@pytest.mark.parametrize("swapped", [False, True])
def test_heisenbug_finite_results_of_an_infinite_square_are_an_overflow(swapped):
    narrow, wide = Norm(300.0, wide=False), Norm(300.0, wide=True)
    assert torch.isfinite(narrow(X)).all()
    c = ds.compare(*((wide, narrow) if swapped else (narrow, wide)), [X])
    assert c.verdict is ds.Verdict.PRECISION
    assert c.first.code == "N004"
    assert c.first.where.operator == "aten.pow"
    assert c.first.where.line
    assert f"overflow in {'B' if swapped else 'A'}" in c.reason


def test_the_same_norm_within_range_is_rounding():
    assert ds.compare(Norm(1.0, wide=False), Norm(1.0, wide=True), [X]).verdict <= ds.Verdict.ROUNDING


def test_another_function_is_not_excused_by_an_overflow():
    c = ds.compare(Norm(300.0, wide=False), Norm(300.0, wide=True, shift=0.5), [X])
    assert c.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("swapped", [False, True])
def test_an_overflow_of_float32_is_told_from_a_sentinel_of_its_mask(swapped):
    def steady(x):
        return x.var(0)

    def by_sums(x):
        d = x - x[:1]
        return (d.square().sum(0) - d.sum(0) ** 2 / x.shape[0]) / (x.shape[0] - 1)

    x = torch.randn(300, 8, generator=torch.Generator().manual_seed(1))
    pair = (by_sums, steady) if swapped else (steady, by_sums)
    c = ds.compare(*pair, [x * 1e18])
    assert c.verdict is ds.Verdict.PRECISION
    assert f"overflow in {'A' if swapped else 'B'}" in c.reason
    assert ds.compare(*pair, [x]).verdict is ds.Verdict.ROUNDING

    mask = torch.zeros(300, 8).index_fill(1, torch.tensor([3]), torch.finfo(torch.float32).min)
    broken = ds.compare(
        lambda x: (x + mask).softmax(-1), lambda x: (x + mask).softmax(-1) / (x - x), [x], explain=False
    )
    assert "overflow" not in broken.reason


def by_squares(x):
    return x / torch.sqrt((x * x).sum(-1, keepdim=True))


def by_the_norm(x):
    return x / x.norm(dim=-1, keepdim=True)


TINY = torch.linspace(-9e-6, 9e-6, 64).reshape(4, 16).half()
LARGE = torch.linspace(250, 290, 64).reshape(4, 16).half()

LEAVES = {
    "a square that becomes zero": (by_the_norm, by_squares, TINY, "underflow", "aten.mul"),
    "an exponential far beyond the largest": (
        torch.tanh, lambda x: 1 - 2 * torch.exp(-x) / (torch.exp(x) + torch.exp(-x)) * torch.exp(x) / torch.exp(x),
        LARGE, "overflow", "aten.exp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", LEAVES)
def test_infinities_and_nan_are_explained_on_the_side_that_has_them(name, swapped):
    good, bad, x, words, operator = LEAVES[name]
    found = ds.compare(*((bad, good) if swapped else (good, bad)), [x])
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert f"{words} in {'A' if swapped else 'B'}" in found.reason
    assert found.first.where.operator == operator
    assert str(found).startswith(f"PRECISION: {words} in ")


@pytest.mark.parametrize("swapped", [False, True])
def test_where_both_sides_overflow_the_one_with_nan_is_named(swapped):
    def product(x):
        return torch.mm(x, x.T)

    def signed(x):
        return (x.relu() @ x.T) - (x.neg().relu() @ x.T)

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).mul(1e3).half()
    found = ds.compare(*((signed, product) if swapped else (product, signed)), [x], explain=False)
    assert "NaN in " in found.reason
    assert f"overflow in {'A' if swapped else 'B'}" in found.reason


def test_nan_of_another_cause_is_not_an_underflow():
    def small(x):
        return torch.sqrt((x * x).sum(-1, keepdim=True)) * 0 + x

    found = ds.compare(small, lambda x: small(x) + torch.log(x).clamp(0, 0), [TINY], explain=False)
    assert found.verdict is ds.Verdict.DIFFERENT
    assert "underflow" not in found.reason


WIDE = 12 * torch.randn(8, 32, generator=torch.Generator().manual_seed(2))
ENDS = {
    "a logit": (lambda x: x.sigmoid().logit(), "aten.sigmoid", "logit"),
    "an inverse error function": (lambda x: (x / 4).erf().erfinv(), "aten.erf", "erfinv"),
    "the complement of a probability": (lambda x: (1 - x.softmax(-1)).log(), "aten._softmax", "log"),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", ENDS)
def test_a_value_rounded_to_the_end_of_a_domain_is_named_on_the_side_that_rounds(name, swapped):
    function, operator, then = ENDS[name]

    def wide(x):
        return function(x.double()).to(x.dtype)

    pair = (wide, function) if swapped else (function, wide)
    found = ds.compare(*pair, [WIDE.bfloat16()])
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert (found.first.code, found.first.where.operator) == ("N004", operator)
    assert str(found).startswith(f"PRECISION: rounding in {'B' if swapped else 'A'} at ")
    assert f"becomes {'-' if '-1 in' in found.reason else ''}1 in bfloat16, where {then} (" in found.reason
    other = ds.compare(function, lambda x: wide(x) * 1.01, [WIDE.bfloat16()], explain=False)
    assert other.verdict is ds.Verdict.DIFFERENT


def test_a_value_a_little_above_one_is_said_so():
    def slope(x):
        return 1 / (torch.cosh(x) - 1)

    x = torch.tensor([0.001, 0.01, 0.02, 0.5, 1.0, 2.0], dtype=torch.bfloat16)
    found = ds.compare(slope, lambda x: slope(x.double()).to(x.dtype), [x])
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert "1 + 0.0002 becomes 1 in bfloat16, where " in found.reason


@pytest.mark.parametrize("swapped", [False, True])
def test_a_side_without_infinities_is_behind_none(swapped):
    """Both underflow; only the logarithm of the sigmoid makes an infinity of it."""
    x = WIDE.half()

    def fused(x):
        return torch.nn.functional.logsigmoid(x) + torch.exp(-x.abs() - 5)

    def parts(x):
        return torch.log(torch.sigmoid(x)) + torch.exp(-x.abs() - 5)

    found = ds.compare(*((parts, fused) if swapped else (fused, parts)), [x])
    assert found.verdict is ds.Verdict.PRECISION
    assert f"underflow in {'A' if swapped else 'B'}" in found.reason
    assert found.first.where.operator == "aten.sigmoid"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("squash", [torch.sigmoid, nn.functional.hardsigmoid, lambda x: (x.tanh() + 1) / 2])
def test_noise_carries_no_probability_out_of_its_domain(squash, dtype):
    def entropy(x):
        return nn.functional.binary_cross_entropy(squash(x), (x > 0.5).to(x.dtype), reduction="none")

    def wide(x):
        return entropy(x.double()).to(x.dtype)

    x = (WIDE * 5).to(dtype)
    assert ds.compare(entropy, wide, [x], explain=False).verdict in (ds.Verdict.ROUNDING, ds.Verdict.PRECISION)
    assert ds.compare(entropy, lambda x: wide(x) * 1.01, [x], explain=False).verdict is ds.Verdict.DIFFERENT

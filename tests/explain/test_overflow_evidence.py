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

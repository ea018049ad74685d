"""Attention in a file of integers: masks of its own, roots of the scale, a range that nothing fills."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.zoo.tools import quantised_statically
from torch import nn
from torch.nn import functional

import driftscope as ds

BEFORE = torch.ones(6, 6, dtype=torch.bool).tril()


class Attending(nn.Module):
    """Two layers of attention: one is given a mask of numbers, the other one of truths (a window of ``width``)."""

    def __init__(self, width: int = 3, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.width, self.size = nn.Linear(8, 8), nn.Linear(8, 8), width, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = BEFORE & ~BEFORE.tril(-self.width)
        numbers = torch.zeros(6, 6).masked_fill(~BEFORE, torch.finfo(torch.float32).min)
        for layer, mask in ((self.first, near), (self.second, numbers)):
            y = self.size * layer(x)
            x = x + functional.scaled_dot_product_attention(y, y, x, attn_mask=mask)
        return x


X = torch.randn(2, 2, 6, 8, generator=torch.Generator().manual_seed(2))


def excluded(model: nn.Module, folder: Path) -> Path:
    """The quantised file of a model."""
    made: Path = quantised_statically("QDQ")(model, (X,), folder)
    return made


@pytest.mark.sampled(1)
@torch.no_grad()
@pytest.mark.parametrize("swapped", [False, True])
def test_masks_and_roots_are_no_weights_quantised_wrongly(tmp_path: Path, swapped: bool) -> None:
    # What the masks do to the ranges of the scores is told; that they are stored as the largest number is no defect.
    file = excluded(Attending(), tmp_path)
    found = ds.compare(*((file, Attending()) if swapped else (Attending(), file)), (X,))
    codes = {f.code for f in found.findings if not f.note}
    assert codes <= {"W012", "W013"}, found
    assert not any("is not" in f.what or "infinit" in f.what for f in found.findings), found
    assert all(f.verified for f in found.findings if f.code == "W012"), found


@torch.no_grad()
def test_another_window_is_no_quantisation(tmp_path: Path) -> None:
    found = ds.compare(Attending(width=2), excluded(Attending(), tmp_path), (X,))
    assert found.verdict is ds.Verdict.DIFFERENT
    first = found.first
    assert first is not None
    assert first.code in ("N001", "W011"), found  # the table, or where it is read
    assert "infinit" not in first.what, found


class Averaging(nn.Module):
    """Attention without a mask over more positions than a range of 0 to 1 in 255 steps can weigh, if it is ``flat``."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.size = nn.Linear(8, 8), 0.02 if flat else 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.size * (self.query(x) @ x.transpose(-2, -1))
        return x + 30.0 * (torch.softmax(scores, -1) @ x)


LONG = torch.randn(1, 600, 8, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("flat", [True, False])
def test_a_range_that_nothing_fills_is_told_as_that(tmp_path: Path, flat: bool) -> None:
    made = quantised_statically("QDQ")(Averaging(flat), (LONG,), tmp_path)
    told = [f for f in ds.compare(Averaging(flat), made, (LONG,)).findings if f.code == "W012"]
    assert any("for a range to 1, and its numbers go to 0.00" in f.what for f in told) is flat
    assert not any("because its range goes to 0.00" in f.what for f in told)

"""Results of a split that stand in each other's places are one finding; one wire of them alone is that wire."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import driftscope as ds

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


class Mixing(nn.Module):
    """A projection split in two: one half goes through a convolution, the other gates it."""

    def __init__(self, order: tuple[int, int] = (0, 1)) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.order = order
        self.first, self.last = nn.Linear(8, 16), nn.Linear(8, 4)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        halves = self.first(x).transpose(1, 2).chunk(2, 1)
        taken, gate = (halves[k] for k in self.order)
        return self.last((torch.tanh(self.conv(taken)) * torch.sigmoid(gate)).transpose(1, 2))


@pytest.mark.parametrize("swapped", [False, True])
def test_results_of_a_split_that_are_exchanged_are_one_finding_at_the_split(swapped: bool) -> None:
    pair = (Mixing(), Mixing((1, 0)))
    c = ds.compare(*(pair[::-1] if swapped else pair), X)
    causes = [f for f in c.findings if not f.note]
    assert len(causes) == 1, [str(f) for f in causes]
    assert "split" in causes[0].where.operator
    assert "in each other's places" in causes[0].why
    assert causes[0].verified


@pytest.mark.parametrize("swapped", [False, True])
def test_one_wrong_wire_from_a_split_is_not_an_exchange(swapped: bool) -> None:
    pair = (Mixing(), Mixing((1, 1)))
    c = ds.compare(*(pair[::-1] if swapped else pair), X)
    assert c.first is not None
    assert "in each other's places" not in c.first.why
    assert ds.compare(Mixing(), Mixing(), X).verdict == "IDENTICAL"

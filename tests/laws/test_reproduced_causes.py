"""The law that the whole suite is held to can be broken, and is kept by a cause that was reproduced."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import driftscope as ds
from laws.reproduced import unreproduced


class Halved(nn.Module):
    def __init__(self, narrow: bool):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.narrow = nn.Linear(32, 48), nn.Linear(48, 32), narrow

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.one(x))
        return self.two(y.half().float() if self.narrow else y)


@pytest.fixture(scope="module")
def explained() -> ds.Comparison:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    return ds.compare(Halved(False), Halved(True), (x,))


def test_a_cause_that_was_reproduced_keeps_the_law(explained):
    assert "explained by" in explained.reason
    assert unreproduced(explained) == []


def test_a_cause_without_its_replay_breaks_it(explained):
    evidence = {k: v for k, v in explained.evidence.items() if k != "replays"}
    assert unreproduced(dataclasses.replace(explained, evidence=evidence))

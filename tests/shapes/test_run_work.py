"""How many points a model is asked at follows from what its run does, not from how busy the machine is."""

from __future__ import annotations

import pytest
import torch

from driftscope.shapes.probe import original
from driftscope.shapes.probe.axes import arguments_of
from driftscope.shapes.probe.building import InputBuilder
from driftscope.shapes.probe.original import Original


class Busy:
    """A processor on which every run takes ``seconds``."""

    def __init__(self, seconds: float):
        self.seconds, self.now = seconds, 0.0

    def process_time(self) -> float:
        self.now += self.seconds
        return self.now


def cost_of(model, *inputs):
    return Original(model, InputBuilder(arguments_of(model, inputs))).cost


class Deep(torch.nn.Module):
    def forward(self, x):
        for _ in range(1000):
            x = torch.sin(x)
        return x


class Wide(torch.nn.Module):
    def forward(self, x):
        return x @ x.T


@pytest.mark.parametrize(
    ("model", "x", "least", "most"),
    [(torch.nn.ReLU(), torch.ones(3, 4), 0.005, 0.005), (Deep(), torch.ones(3), 0.01, 0.02),
     (Wide(), torch.ones(512, 512), 0.02, 0.05)],
    ids=["cheap", "many calls", "many operations"],
)  # fmt: skip
@pytest.mark.parametrize("busy", [0.001, 0.004, 0.05])
def test_a_run_is_counted_and_no_load_changes_it(monkeypatch, model, x, least, most, busy):
    monkeypatch.setattr(original, "time", Busy(busy))
    assert least <= cost_of(model, x) <= most


def test_what_takes_far_longer_than_its_kernels_is_timed(monkeypatch):
    monkeypatch.setattr(original, "time", Busy(2.0))
    assert 2.0 <= cost_of(torch.nn.ReLU(), torch.ones(3, 4)) <= 8.0

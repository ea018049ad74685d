"""A model that takes long to export is not exported in every way, and the report says what was left out."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import driftscope as ds
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture import export_costs
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.capture.export_costs import ExportCosts
from driftscope.shapes.check import Effort
from driftscope.shapes.probe.axes import arguments_of
from driftscope.shapes.probe.exploration import ProbePlan


class FixesItsSize(torch.nn.Module):
    """Every way of exporting loses sizes: all of them are tried, and further examples too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[i] * i for i in range(x.shape[0])])


def cost(monkeypatch, seconds: float) -> None:
    """Let every export cost the same."""
    monkeypatch.setattr(export_costs.TraceWork, "seconds", property(lambda work: seconds))


@pytest.mark.parametrize(("seconds", "further"), [(0.5, 50), (2.0, 2), (20.0, 0)])
def test_dear_exports_are_followed_by_fewer(monkeypatch, seconds, further):
    cost(monkeypatch, seconds)
    costs = ExportCosts()
    made = 0
    while (not made or costs.allows("more")) and made <= 50:
        costs.timed(lambda: None)
        made += 1
    assert made == further + 1
    assert costs.left_out == ([] if seconds < 1 else ["more"])


class Windows(torch.nn.Module):
    """Cheap to run, and full of questions about sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, h, w, c = x.shape
        return x.view(b, h // 3, 3, w // 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, c)


def counted(model, x) -> ExportCosts:
    arguments, costs = arguments_of(model, (x,)), ExportCosts()
    made = costs.timed(lambda: capture(model, arguments, Attempt(Mode.AUTO, (Dim.AUTO,) * len(arguments.axes))))
    assert isinstance(made, Capture)
    return costs


@pytest.mark.slow
def test_the_same_export_costs_the_same_whatever_ran_before_and_however_busy_the_machine_is():
    cold, warm = counted(Windows(), torch.ones(2, 6, 9, 4)), counted(Windows(), torch.ones(2, 6, 9, 4))
    assert cold.least == warm.least
    assert 0.02 < cold.least < 1.0
    assert counted(torch.nn.ReLU(), torch.ones(2, 6)).least < cold.least / 2


@pytest.mark.parametrize("seconds", [pytest.param(0.01, marks=pytest.mark.slow), 40.0])
def test_what_was_left_out_is_told(monkeypatch, seconds):
    cost(monkeypatch, seconds)
    # Left to us, ONNX is left out where exporting is dear; the twin has no need to convert.
    targets = None if seconds > 1 else ()
    effort = Effort(ProbePlan(most=60), valid=30, invalid=10, ranked=20)
    report = ds.check_shapes(FixesItsSize(), (torch.randn(3, 4),), targets=targets, effort=effort)
    told = [finding for finding in report.findings if finding.code == "S035"]
    unconverted = [f for f in report.findings if f.code == "S030" and "a converter traces it again" in f.what]
    if seconds < 1:
        assert not told
        assert not unconverted
    else:
        assert told[0].evidence["left_out"]
        assert told[0].note
        assert unconverted
        assert "onnx" not in report.record.targets
    assert report.program is not None


class LoopsOverRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape[1])
        for row in range(x.shape[0]):
            total = torch.tanh(total + x[row])
        return total


class Reshapes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(3, 4) * 2


@pytest.mark.parametrize(("model", "unrolled"), [(LoopsOverRows(), True), (Reshapes(), False)])
def test_a_loop_over_a_size_is_named_as_what_fixed_it(model, unrolled):
    effort = Effort(ProbePlan(most=60), valid=30, invalid=10, ranked=20)
    report = ds.check_shapes(model, (torch.randn(3, 4),), targets=(), effort=effort)
    told = [finding.why for finding in report.findings if "was unrolled for the example's size" in finding.why]
    assert bool(told) == unrolled
    if unrolled:
        assert "`for row in range(x.shape[0])`" in told[0]

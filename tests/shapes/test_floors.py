"""Where an answer is farther off than rounding usually is, the model's own rounding at that point decides."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.shapes.probe.floors import Floors
from driftscope.shapes.probe.judging_runs import Ran, difference

SIZES = [(8, 64), (16, 65), (5, 256)]


class FarFromZero(torch.nn.Module):
    """A variance in one pass: it loses what the mean is larger than the spread, squared."""

    def forward(self, x):
        shifted = x + 300.0
        return (shifted * shifted).mean(-1) - shifted.mean(-1) ** 2


def drawn(point):
    return (torch.randn(point, generator=torch.Generator().manual_seed(sum(point))),), {}


def otherwise(x):
    """The same function, added up in another order."""
    shifted = (x + 300.0).flip(-1)
    return (shifted * shifted).cumsum(-1)[..., -1] / x.shape[-1] - (shifted.cumsum(-1)[..., -1] / x.shape[-1]) ** 2


@pytest.mark.parametrize("point", SIZES)
def test_what_cancellation_loses_is_rounding_and_more_is_not(point):
    model, floors = FarFromZero(), Floors(FarFromZero(), drawn)
    (x,), _ = drawn(point)
    reference, other = model(x), Ran(otherwise(x))
    assert difference(reference, other), "it is farther off than rounding usually is"
    assert floors.explain(point, reference, other)
    assert not floors.explain(point, reference, Ran(other.value + 2.0))
    assert not floors.explain(point, reference, Ran(torch.full_like(reference, torch.nan)))
    assert not floors.explain(point, reference, Ran(other.value.double()))
    assert not floors.explain(point, (reference, torch.arange(3)), Ran((other.value, torch.arange(3) + 1)))


def test_an_ordinary_program_gains_no_room():
    model, floors = torch.nn.Softmax(-1), Floors(torch.nn.Softmax(-1), drawn)
    (x,), _ = drawn((3, 64))
    assert not floors.explain((3, 64), model(x), Ran(model(x) * 1.001))


def test_after_some_in_vain_nothing_more_is_measured():
    asked = []

    def counted(point):
        asked.append(point)
        return drawn(point)

    model, floors = torch.nn.Softmax(-1), Floors(torch.nn.Softmax(-1), counted)
    for rows in range(2, 12):
        (x,), _ = drawn((rows, 8))
        assert not floors.explain((rows, 8), model(x), Ran(model(x) + 1.0))
    assert 0 < len(asked) < 6


@pytest.mark.slow
def test_a_file_is_not_called_wrong_where_its_model_cancels():
    report = ds.check_shapes(FarFromZero(), (torch.randn(3, 64),))
    told = [f.what for f in report.findings if "times what rounding may do" in f.what]
    assert not told
    assert [c for c in report.record.candidates if c.chosen]

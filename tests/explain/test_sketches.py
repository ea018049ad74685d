"""Sketches: what is added up row by row is what is added up at once, and what differs in one element differs."""

from __future__ import annotations

import pytest
import torch

from driftscope.explain.locate import fingerprints
from driftscope.explain.locate.fingerprints import AGREE, Trail, sketch
from driftscope.lift.steps import Rounding, Step
from driftscope.programs.state.by_tensor import ByTensor
from driftscope.records.finding import Where

ROW = 65521


def _drawn(count: int) -> torch.Tensor:
    return torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [1, 7, ROW - 1, ROW, ROW + 1, 2 * ROW, 3 * ROW + 5])
def test_the_sums_are_those_of_all_elements(count):
    value = _drawn(count)
    found = sketch(value)
    size = float(value.square().mean().sqrt())
    assert found.count == count
    assert found.size == pytest.approx(size, rel=1e-12)
    fourth = float(value.pow(4).sum().sqrt()) / (count**0.5 * size**2)
    wanted = float(value.mean()) / size, float(value.abs().mean()) / size, fourth, float(value.abs().max()) / size
    assert found.sums == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    assert not found.plain


@pytest.mark.parametrize("count", [40, 3 * ROW + 5])
def test_one_other_element_and_another_order_are_seen(count):
    value = _drawn(count)
    turned, moved = value.flip(0), value.clone()
    moved[count - 2] += 1e-6 * count**0.5
    assert sketch(value).same(sketch(value.clone()))
    assert sketch(value).agrees(sketch(turned))
    assert not sketch(value).same(sketch(turned))
    assert not sketch(value).agrees(sketch(moved), AGREE)


@pytest.mark.parametrize("put", [torch.inf, -torch.inf, torch.nan, -3e38])
@pytest.mark.parametrize("place", [0, ROW + 3])
def test_holes_are_counted_and_left_out(put, place):
    value, without = _drawn(2 * ROW), _drawn(2 * ROW)
    value[place], without[place] = put, 0.0
    assert sketch(value).holes[0] == 1
    assert sketch(value).sums == sketch(without).sums
    assert sketch(torch.full((5,), put)) is None


@pytest.mark.parametrize("count", [2, ROW + 1])
def test_one_number_many_times_is_plain_and_so_are_integers(count):
    assert sketch(torch.full((count,), 0.3)).plain
    assert sketch(torch.arange(count)).plain
    assert not sketch(torch.full((count,), 0.3).index_fill_(0, torch.tensor([1]), 0.4)).plain
    assert not sketch(torch.tensor([0.3])).plain


X = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("source", "made", "looks"),
    [
        (X, X.reshape(6, 4), 1),
        (X, X[None], 1),
        (X.transpose(0, 2), X.transpose(0, 2)[:, None], 1),
        (X, X.transpose(1, 2), 2),
        (X, X.clone(), 2),
        (X, X[:1], 2),
    ],
)
def test_a_value_is_not_looked_at_again_in_another_shape(source, made, looks, monkeypatch):
    looked = []
    monkeypatch.setattr(fingerprints, "sketch", lambda value: looked.append(value) or sketch(value))
    trail = Trail(known=ByTensor())
    for value, name in ((source, "x"), (made, "y")):
        trail(Step(0, name, "Reshape", Where(), ["x"], [name], [source], [value], [torch.float32], Rounding(), {}))
    assert len(looked) == looks
    assert [s.sketches for s in trail.steps] == [(sketch(source),), (sketch(made),)]


def test_a_value_that_was_written_meanwhile_is_looked_at_again():
    value, trail = X.clone(), Trail(known=ByTensor())
    trail(Step(0, "x", "Add", Where(), [], ["x"], [], [value], [torch.float32], Rounding(), {}))
    value.mul_(2.0)
    view = value.reshape(24)
    trail(Step(1, "y", "Reshape", Where(), ["x"], ["y"], [value], [view], [torch.float32], Rounding(), {}))
    assert trail.steps[1].sketches == (sketch(view),) != trail.steps[0].sketches

"""The original is asked how its sizes move; what is tried includes the sizes at which programs are known to change."""

from __future__ import annotations

import pytest
import torch

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import capture
from driftscope.shapes.conditions.expressions import Size
from driftscope.shapes.conditions.parsing import parse_text
from driftscope.shapes.conditions.solving import bounded_on_both_sides
from driftscope.shapes.probe.axes import arguments_of
from driftscope.shapes.probe.building import InputBuilder
from driftscope.shapes.probe.directions import Direction, directions_of
from driftscope.shapes.probe.domain import CRASH, INVALID, LOST, MORE, RIGHT, UNASKED, WRONG, outcome
from driftscope.shapes.probe.exploration import ProbePlan, explore, lattice, pattern, spread
from driftscope.shapes.probe.judging_runs import Crashed, NotAsked, Ran, Refused, difference
from driftscope.shapes.probe.original import Original
from shapes.harder.small import WithPast
from shapes.small_models import CenterAlways, Folded, Gated, Halved, PoolAndAdd, pool_inputs, seeded


def original(model, inputs) -> Original:
    return Original(model, InputBuilder(arguments_of(model, inputs)))


def found(model, inputs):
    one = original(model, inputs)
    names = [axis.name for axis in one.builder.axes]
    directions = explore(one, range(len(names)), [], ProbePlan())
    return one, {tuple((names[a], slope) for a, slope in d.steps) for d in directions}


def test_an_axis_that_moves_alone_and_axes_that_move_together():
    _, steps = found(Gated(), (seeded(3, 6), seeded(3, 6)))
    assert (("x.shape[0]", 1), ("gate.shape[0]", 1)) in steps
    assert not any("x.shape[1]" in dict(one) for one in steps), "six columns are fixed by the layer"


def test_a_size_that_follows_from_another_by_a_factor():
    _, steps = found(PoolAndAdd(), pool_inputs())
    assert (("left.shape[0]", 1), ("long.shape[0]", 2)) in steps
    assert (("right.shape[0]", 1), ("long.shape[0]", 2)) in steps


@pytest.mark.parametrize(
    ("model", "inputs", "present"),
    [
        (CenterAlways(), (seeded(4, 3),), {(0, 3), (1, 3), (2, 3)}),
        (Folded(), (seeded(2, 12),), {(2, 0), (1, 12), (2, 3)}),
    ],
)
def test_zero_one_and_two_are_always_tried(model, inputs, present):
    one, _ = found(model, inputs)
    assert present <= set(one.known)
    assert all(one.known[point] for point in present)


def test_a_point_at_which_the_model_refuses_is_known_as_such():
    one, _ = found(Folded(), (seeded(2, 12),))
    assert one.known[(2, 13)] is False


@pytest.mark.slow
def test_however_many_axes_are_asked_about_the_points_along_them_are_tried():
    """mask == past + step on eleven axes: guessing combinations used up every run, and no decode step was tried."""
    torch.manual_seed(0)
    past = (torch.randn(2, 4, 4), torch.randn(2, 4, 4))
    model, inputs = WithPast(), (torch.randn(2, 3, 4), (torch.rand(2, 7) > 0.3).float(), past)
    arguments = arguments_of(model, inputs)
    made = capture(model, arguments, Attempt(Mode.AUTO, tuple(torch.export.Dim.AUTO for _ in arguments.axes)))
    one = Original(model, InputBuilder(arguments))
    explore(one, range(len(arguments.axes)), [made.relations], ProbePlan())
    running = [point for point, runs in one.known.items() if runs]
    assert len(running) >= 100
    assert {(point[1], point[6]) for point in running} >= {(1, 4), (3, 1), (3, 8)}, "steps, sizes of the past"


def test_indices_too_large_for_a_size_say_nothing_about_the_size():
    def take(x, index):
        return x[index]

    one = original(take, (seeded(6, 2), torch.tensor([5, 4, 0])))
    assert one.runs((2, 2, 3)), "the indices are drawn again where the example's do not fit"
    assert not one.runs((0, 2, 3))


def test_chosen_points_differ_in_kind():
    points = [(a, b) for a in range(9) for b in range(9)]
    assert len({pattern(p, (4, 4)) for p in spread(points, 25, (4, 4))}) == 25


def test_a_lattice_has_no_point_twice_and_no_negative_size():
    one, _ = found(Halved(), (seeded(7, 2),))
    made = lattice(explore(one, [0], [], ProbePlan()), one.example, 200, seed=1)
    assert len(made) == len(set(made))
    assert min(min(point) for point in made) >= 0


TENSOR = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("reference", "other", "expected"),
    [
        (Ran(TENSOR), Ran(TENSOR.clone()), RIGHT),
        (Ran(TENSOR), Ran(TENSOR * (1 + 1e-6)), RIGHT),
        (Ran(TENSOR), Ran(TENSOR * 1.05), WRONG),
        (Ran(TENSOR), Ran(TENSOR[None]), WRONG),
        (Ran(TENSOR), Ran((TENSOR,)), WRONG),
        (Ran({"a": TENSOR}), Ran([TENSOR], flat=True), RIGHT),
        (Ran({"a": TENSOR, "n": 3}), Ran([TENSOR, torch.tensor(3)], flat=True), RIGHT),
        (Ran(torch.tensor([1, 2])), Ran(torch.tensor([1, 3])), WRONG),
        (Ran(torch.full((2,), torch.nan)), Ran(torch.full((2,), torch.nan)), RIGHT),
        (Ran(TENSOR), Refused("no"), LOST),
        (Ran(TENSOR), Crashed("signal 6"), CRASH),
        (Ran(TENSOR), NotAsked(), UNASKED),
        (Refused("no"), Ran(TENSOR), MORE),
        (Refused("no"), Refused("neither"), INVALID),
    ],
)
def test_outcome_table(reference, other, expected):
    assert outcome(reference, other).outcome == expected


def test_a_difference_says_where_and_how_much():
    words = difference({"a": TENSOR, "b": TENSOR}, Ran({"a": TENSOR, "b": TENSOR + 1}))
    assert words.startswith("out['b']: 1 against 2 at (0,): ")


class IndexedMask(torch.nn.Module):
    """A cache of two tensors; the mask may have more rows than the inputs and more columns than are read."""

    def forward(self, step, keys, values, mask):
        both = torch.cat([keys + values, step], 1)
        rows = torch.arange(step.shape[0])
        return both * mask[rows][:, : both.shape[1]]


def test_axes_that_a_trace_ties_are_moved_with_those_that_the_model_needs():
    one = original(IndexedMask(), (seeded(2, 3), seeded(2, 5), seeded(2, 5), seeded(2, 8)))
    step, keys, values, mask = range(0, 8, 2)
    tied = [
        Direction(step, ((step, 1), (keys, 1), (values, 1))),
        Direction(step + 1, ((step + 1, 1), (mask + 1, 1))),
        Direction(keys + 1, ((keys + 1, 1), (mask + 1, 1))),
    ]
    found = {frozenset(axis for axis, _ in d.steps) for d in directions_of(one, range(8), (), tied)}
    assert {step, keys, values, mask} in found, "a mask of two rows is too short for three inputs"
    assert {keys + 1, values + 1, mask + 1} in found
    assert {step + 1, mask + 1} in found
    assert {mask} in found


def line(text: str):
    return parse_text(text, Size)


@pytest.mark.parametrize(
    ("bounds", "lines"),
    [
        (("a + b - c <= 0", "c <= b + a"), 1),
        (("c >= a + b", "c <= a + b"), 1),
        (("c >= a + b", "c <= a + b + 1"), 0),
        (("c <= a + b", "c <= a + b"), 0),
        (("a + b - c < 0", "c <= a + b"), 0),
    ],
)
def test_what_is_bounded_on_both_sides_is_an_equation(bounds, lines):
    found = bounded_on_both_sides([line(text) for text in bounds])
    assert len(found) == lines
    assert all(set(one.slopes) == {"a", "b", "c"} for one in found)

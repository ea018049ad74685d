"""How sizes may move from the example: found by solving what a trace recorded, and by asking the original.

One axis alone, axes together, one by a multiple of another, a sum with its parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.conditions.solving import bounded_on_both_sides, equation_of, steps_together
from driftscope.shapes.probe.original import Original, Point

_SLOPES = (1, 2, 3, 4)
_LARGEST_SUBSET = 4
_SLOPED = 100  # pairs of an axis and a multiple that are tried per axis


@dataclass(frozen=True, slots=True)
class Direction:
    """Axes that move together: ``steps[i]`` is added to axis i for every step of the first axis.

    Parameters
    ----------
    lead : int
        The axis whose size names the place on the direction.
    steps : tuple of (int, int)
        Axis and slope, the lead with slope 1 first.
    """

    lead: int
    steps: tuple[tuple[int, int], ...]

    def moved(self, point: Point, by: int) -> Point:
        """The point ``by`` steps further."""
        sizes = list(point)
        for axis, slope in self.steps:
            sizes[axis] += slope * by
        return tuple(sizes)


def solved_directions(original: Original, relations: Sequence[Relations], free: Sequence[int]) -> list[Direction]:
    """Directions that keep every equation of a trace: ``mask == past + step`` gives one for past and one for step."""
    axes = original.builder.axes
    place = {axis.name: number for number, axis in enumerate(axes)}
    example = {axis.name: axis.size for axis in axes}
    found: list[Direction] = []
    for one in relations:
        # Without the sizes that the trace fixed, and with them free: a trace fixes more than the model does.
        equations = [line for c in one.recorded if c.kind != "static" and (line := equation_of(c.condition))]
        equations += bounded_on_both_sides([c.condition for c in one.recorded])
        for step in steps_together(equations, example):
            direction = Direction(place[next(iter(step))], tuple((place[name], slope) for name, slope in step.items()))
            if len(step) > 1 and direction not in found and all(axis in free for axis, _ in direction.steps):
                found.append(direction)
    return found


def directions_of(
    original: Original,
    free: Sequence[int],
    hints: Iterable[Sequence[int]] = (),
    solved: Sequence[Direction] = (),
    calls: int = 2_000,
) -> list[Direction]:
    """Find how sizes may move from the example, by asking the original.

    Parameters
    ----------
    original : Original
    free : sequence of int
        Axes that may move.
    hints : iterable of sequences of int
        Axes that are believed to move together, tried first.
    solved : sequence of Direction
        Directions that keep what a trace recorded.
    calls : int
        Runs of the original after which combinations of axes are no longer guessed; axes alone, and what a trace
        recorded, are always tried.

    Returns
    -------
    list of Direction
        An axis that nothing moves is in none of them.
    """
    example = original.example
    found: list[Direction] = []
    bound: list[int] = []
    for axis in free:
        alone = Direction(axis, ((axis, 1),))
        if _moves(original, alone):
            found.append(alone)
        else:
            bound.append(axis)
    most = original.calls + calls
    for direction in solved:
        # Where its axes move alone as well, the relation is the trace's and not the model's, but for a sum of sizes:
        # a mask longer than past and step is taken too, and what users give is a mask of just that length.
        unbound = [axis for axis, _ in direction.steps if axis not in bound]
        if not unbound or (_adds_up(direction, solved) and original.calls < most):
            tied = {axis for other in found if len(other.steps) > 1 for axis, _ in other.steps}
            moving = _moving(original, direction, [axis for axis in free if axis not in tied])
            found += [moving] if moving is not None else []
    led = {axis for direction in found for axis, _ in direction.steps}
    open_axes = [axis for axis in bound if axis not in led]
    most = original.calls + calls
    for group in _groups(bound, example, hints):
        if original.calls < most and all(axis in open_axes for axis in group):
            together = Direction(group[0], tuple((axis, 1) for axis in group))
            if _moves(original, together):
                found.append(together)
                open_axes = [axis for axis in open_axes if axis not in group]
    if original.calls < most:
        found += list(_summed(original, open_axes))
    moved = {axis for direction in found for axis, _ in direction.steps}
    found += list(_sloped(original, [axis for axis in open_axes if axis not in moved], free, most))
    return found


def _adds_up(direction: Direction, solved: Sequence[Direction]) -> bool:
    """Whether an axis of a direction moves with another direction as well: its size is a sum."""
    axes = {axis for axis, _ in direction.steps}
    return any(axes & {axis for axis, _ in other.steps} for other in solved if other != direction)


def _moving(original: Original, direction: Direction, others: Sequence[int]) -> Direction | None:
    """The direction, or the least of it and further axes of its lead's size along which the original runs.

    A trace ties fewer axes than the model does where a mask or a part of a cache is only indexed: a mask of more rows
    may stand beside the inputs, one of fewer rows may not.
    """
    if _moves(original, direction):
        return direction
    size, taken = original.example[direction.lead], {axis for axis, _ in direction.steps}
    more = [axis for axis in others if original.example[axis] == size and axis not in taken]
    whole = Direction(direction.lead, (*direction.steps, *((axis, 1) for axis in more)))
    if not more or not _moves(original, whole):
        return None
    for axis in more:
        fewer = Direction(whole.lead, tuple(step for step in whole.steps if step[0] != axis))
        if _moves(original, fewer):
            whole = fewer
    return whole


def _summed(original: Original, open_axes: list[int]) -> Iterator[Direction]:
    """Axes of one size that move together only if another, which is a sum of sizes, moves with them."""
    alike: dict[int, list[int]] = {}
    for axis in open_axes:
        alike.setdefault(original.example[axis], []).append(axis)
    for axes in alike.values():
        for other in open_axes:
            if other in axes:
                continue
            together = Direction(axes[0], tuple((axis, 1) for axis in (*axes, other)))
            if _moves(original, together):
                yield together
                break


def _tries(original: Original, direction: Direction) -> Iterator[bool]:
    """Whether the original runs at sizes along a direction; those that broadcast do not count."""
    start = original.example[direction.lead]
    tries = dict.fromkeys((start + 1, start + 2, start - 1, 2 * start, start + 3, start + 4, start // 2))
    return (runs_along(original, direction, size) for size in tries if size > 1 and size != start)


def _moves(original: Original, direction: Direction) -> bool:
    """Whether the original runs anywhere else along a direction."""
    return any(_tries(original, direction))


def _groups(bound: list[int], example: Point, hints: Iterable[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Sets of axes worth moving together: hints, then axes of one size, small sets first."""
    for hint in hints:
        group = tuple(axis for axis in hint if axis in bound)
        if len(group) > 1:
            yield group
    alike: dict[int, list[int]] = {}
    for axis in bound:
        alike.setdefault(example[axis], []).append(axis)
    for axes in alike.values():
        for count in range(2, min(_LARGEST_SUBSET, len(axes)) + 1):
            yield from itertools.islice(itertools.combinations(axes, count), 60)
        if len(axes) > _LARGEST_SUBSET:
            yield tuple(axes)


def _sloped(original: Original, open_axes: list[int], free: Sequence[int], most: int) -> Iterator[Direction]:
    """Axes that move only when another moves by a multiple, a sum of sizes or a difference."""
    for axis in open_axes:
        others = [a for a in open_axes if a != axis] + [a for a in free if a != axis and a not in open_axes]
        choices = [*itertools.product(others, _SLOPES), *itertools.product(others, (-1,))][:_SLOPED]
        made = [Direction(axis, ((axis, 1), (other, slope))) for other, slope in choices]
        counts = [sum(_tries(original, direction)) if original.calls < most else 0 for direction in made]
        if any(counts):
            yield made[counts.index(max(counts))]


def runs_along(original: Original, direction: Direction, size: int) -> bool:
    return original.runs(direction.moved(original.example, size - original.example[direction.lead]))

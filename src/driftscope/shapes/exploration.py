"""Which shapes to try: sizes inside and just outside what a program was made for, found by asking the original.

Nothing here knows a model. The original is asked how its sizes may move from the example: one axis alone, axes
together, one by a multiple of another. These directions span a lattice whose small points are tried; solutions of
recorded relations are added, and moves that break them: 0, 1, one more, one less, twice, broadcast, exchanged.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.shapes.expressions import Operation, holds
from driftscope.shapes.original import Original, Point
from driftscope.shapes.relations import Clause, Relations

#: Sizes at which programs are known to change: nothing, one (broadcasting), the first that is neither, small primes
#: that divide nothing, 4 and 8 and their multiples, by which kernels and reshapes divide.
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
LARGER = (10, 12, 14, 16, 20, 24, 28, 32)
_SLOPES = (1, 2, 3, 4)
_LARGEST_SUBSET = 4
_GRID = 200_000
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


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to ask.

    Parameters
    ----------
    seconds : float
        For runs of the original.
    most, fewest : int
        Bounds of the number of runs, whatever a run costs.
    seed : int
    """

    seconds: float = 4.5
    most: int = 900
    fewest: int = 60
    seed: int = 0

    def calls(self, original: Original) -> int:
        """How many runs of this model that is."""
        return int(min(self.most, max(self.fewest, self.seconds / original.cost)))


def directions_of(original: Original, free: Sequence[int], hints: Iterable[Sequence[int]] = ()) -> list[Direction]:
    """Find how sizes may move from the example, by asking the original.

    Parameters
    ----------
    original : Original
    free : sequence of int
        Axes that may move.
    hints : iterable of sequences of int
        Axes that are believed to move together, tried first.

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
    open_axes = list(bound)
    for group in _groups(bound, example, hints):
        if all(axis in open_axes for axis in group):
            together = Direction(group[0], tuple((axis, 1) for axis in group))
            if _moves(original, together):
                found.append(together)
                open_axes = [axis for axis in open_axes if axis not in group]
    found += list(_sloped(original, open_axes, free))
    return found


def _moves(original: Original, direction: Direction) -> int:
    """At how many sizes along a direction the original runs; those that broadcast do not count."""
    start = original.example[direction.lead]
    tries = dict.fromkeys((start + 1, start + 2, start - 1, 2 * start, start + 3, start + 4, start // 2))
    return sum(size > 1 and size != start and _runs(original, direction, size) for size in tries)


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


def _sloped(original: Original, open_axes: list[int], free: Sequence[int]) -> Iterator[Direction]:
    """Axes that move only when another moves by a multiple, a sum of sizes or a difference."""
    for axis in open_axes:
        others = [a for a in open_axes if a != axis] + [a for a in free if a != axis and a not in open_axes]
        choices = [*itertools.product(others, _SLOPES), *itertools.product(others, (-1,))][:_SLOPED]
        made = [Direction(axis, ((axis, 1), (other, slope))) for other, slope in choices]
        best = max(made, key=lambda direction: _moves(original, direction), default=None)
        if best is not None and _moves(original, best):
            yield best


def lattice(directions: Sequence[Direction], example: Point, limit: int, seed: int) -> list[Point]:
    """Points whose directions stand at small sizes, each alone first, then in all combinations, drawn evenly."""
    rng = random.Random(seed)
    alone = [
        d.moved(example, size - example[d.lead])
        for d in directions
        for size in (*SIZES, example[d.lead] + 1, 2 * example[d.lead], *LARGER)
    ]
    if len(SIZES) ** len(directions) <= limit:
        combinations: Iterable[tuple[int, ...]] = itertools.product(SIZES, repeat=len(directions))
    else:
        combinations = [tuple(rng.choice(SIZES) for _ in directions) for _ in range(limit)]
    # A direction whose lead must be a multiple of 4 meets few of the small sizes.
    combinations = [*combinations, *(tuple(rng.choice(SIZES + LARGER) for _ in directions) for _ in range(limit // 3))]
    points = list(alone)
    for sizes in combinations:
        point = example
        for direction, size in zip(directions, sizes, strict=True):
            point = direction.moved(point, size - example[direction.lead])
        points.append(point)
    return _admissible(points)


def inside(relations: Relations, limit: int, seed: int) -> list[Point]:
    """Solutions of what a trace assumed, at small sizes; also of its equations alone, without ranges and exceptions."""
    equations = [c for c in relations.recorded if _is_equation(c)]
    without_static = [c for c in equations if c.kind != "static"]
    points: list[Point] = []
    for clauses, share in ((list(relations.recorded), 2), (equations, 3), (without_static, 6)):
        points += _solutions(relations, clauses, limit // share, seed)
    return _admissible(points)


def _is_equation(clause: Clause) -> bool:
    return clause.kind in ("static", "equal", "derived") or (
        isinstance(clause.condition, Operation) and clause.condition.operator == "=="
    )


def _solutions(relations: Relations, clauses: list[Clause], limit: int, seed: int) -> list[Point]:
    rng = np.random.default_rng(seed)
    pinned = any(c.kind == "static" for c in clauses)
    named = {name for c in relations.recorded if c.kind == "static" for name in c.names}
    classes = relations.classes
    if not classes.groups:
        return []
    values = [
        [example] if pinned and relations.axes[group[0]].name in named else [*range(13), example, 2 * example]
        for group, example in zip(classes.groups, classes.example, strict=True)
    ]
    total = int(np.prod([float(len(v)) for v in values]))
    if total <= _GRID:
        grid = np.array(list(itertools.product(*values)), np.int64).reshape(-1, len(values))
    else:
        grid = np.stack([rng.choice(v, _GRID // 4) for v in values], axis=1).astype(np.int64)
    points = classes.spread(grid)
    sizes = relations.columns(points)
    keep = np.ones(len(points), bool)
    for clause in clauses:
        keep &= holds(clause.condition, sizes, len(points))
    points = points[keep]
    if len(points) > limit:
        points = points[rng.choice(len(points), limit, replace=False)]
    return [tuple(int(size) for size in row) for row in points]


def outside(bases: Sequence[Point], directions: Sequence[Direction], free: Sequence[int], limit: int) -> list[Point]:
    """Moves off a few points: every axis alone, every direction, broadcasting, exchanged sizes."""
    points: list[Point] = []
    for base in bases:
        for axis in free:
            size = base[axis]
            points += [_with(base, {axis: new}) for new in (1, 0, size - 1, size + 1, 2 * size, 2)]
        for direction in directions:
            size = base[direction.lead]
            points += [direction.moved(base, new - size) for new in (0, 1, 2, size - 1, size + 1, 2 * size)]
        for direction in directions:
            for kept, _ in direction.steps:
                points.append(_with(base, {axis: 1 for axis, _ in direction.steps if axis != kept}))
        for a, b in itertools.combinations(free, 2):
            points += [_with(base, {a: 1, b: 1}), _with(base, {a: base[b], b: base[a]})]
    return _admissible(points)[:limit]


def broadcasts(base: Point, free: Sequence[int], limit: int) -> list[Point]:
    """One, two and three axes of a point set to 1, and all of them."""
    points = [
        _with(base, dict.fromkeys(axes, 1)) for count in (1, 2, 3) for axes in itertools.combinations(free, count)
    ]
    return _admissible([*points[:limit], _with(base, dict.fromkeys(free, 1))])


def edges(original: Original, direction: Direction) -> list[Point]:
    """Points on both sides of where the original stops running along a direction, found by halving."""
    example = original.example
    start = example[direction.lead]
    bad = next((size for size in (2 * start + 1, 4 * start + 1, 33) if not _runs(original, direction, size)), None)
    if bad is None:
        return []
    good = start
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _runs(original, direction, middle) else (good, middle)
    return [direction.moved(example, size - start) for size in (good - 1, good, bad)]


def _runs(original: Original, direction: Direction, size: int) -> bool:
    return original.runs(direction.moved(original.example, size - original.example[direction.lead]))


def _with(point: Point, changes: dict[int, int]) -> Point:
    return tuple(changes.get(axis, size) for axis, size in enumerate(point))


def _admissible(points: Iterable[Point]) -> list[Point]:
    """Each point once, none with a negative size."""
    return [point for point in dict.fromkeys(points) if min(point, default=0) >= 0]


def explore(original: Original, free: Sequence[int], relations: Sequence[Relations], plan: Plan) -> list[Direction]:
    """Ask the original at every kind of point worth asking at; ``original.known`` holds the answers.

    Parameters
    ----------
    original : Original
        Must run at its example.
    free : sequence of int
        Axes that may vary.
    relations : sequence of Relations
        Of every capture there is: their solutions and classes are tried.
    plan : Plan

    Returns
    -------
    list of Direction
        How sizes may move.
    """
    original.runs(original.example)
    calls = plan.calls(original)
    hints = [group for r in relations for group in r.classes.groups if len(group) > 1]
    directions = directions_of(original, free, dict.fromkeys(tuple(h) for h in hints))
    example = original.example
    queue: list[list[Point]] = [
        outside([example], directions, free, calls // 4),
        [point for direction in directions for point in edges(original, direction)],
        broadcasts(example, free, calls // 6),
        *(inside(r, calls // (3 * max(len(relations), 1)), plan.seed) for r in relations),
        lattice(directions, example, calls // 2, plan.seed),
    ]
    fixed = [axis for axis in range(len(example)) if axis not in set(free)]
    for point in _interleaved(queue):
        if original.calls >= calls:
            break
        # Solutions of relations move every axis that the trace left open, also those that are not to vary.
        if all(point[axis] == example[axis] for axis in fixed):
            original.runs(point)
    if original.calls < calls:
        bases = spread([p for p, runs in original.known.items() if runs and min(p, default=0) > 1], 5, example)
        for point in outside(bases, directions, free, calls - original.calls):
            original.runs(point)
    return directions


def _interleaved(queues: list[list[Point]]) -> Iterator[Point]:
    """One of each list in turn, so that a short budget sees every kind."""
    for row in itertools.zip_longest(*queues):
        yield from (point for point in row if point is not None)


def spread(points: Sequence[Point], count: int, example: Point) -> list[Point]:
    """Choose points that differ in kind: from every pattern of zeros, ones, smaller, equal and larger sizes in turn."""
    patterns: dict[tuple[int, ...], list[Point]] = {}
    for point in points:
        patterns.setdefault(pattern(point, example), []).append(point)
    chosen: list[Point] = []
    for row in itertools.zip_longest(*patterns.values()):
        chosen += [point for point in row if point is not None]
        if len(chosen) >= count:
            break
    return chosen[:count]


def pattern(point: Point, example: Point) -> tuple[int, ...]:
    """Where each size stands: 0, 1, then 2 below, 3 at, 4 above the example's."""
    return tuple(
        size if size < 2 else 3 + (size > old) - (size < old) for size, old in zip(point, example, strict=True)
    )

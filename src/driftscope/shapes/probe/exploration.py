"""Which shapes to try: sizes inside and just outside what a program was made for, found by asking the original.

Nothing here knows a model. The original is asked how its sizes may move from the example: one axis alone, axes
together, one by a multiple of another. These directions span a lattice whose small points are tried; solutions of
recorded relations are added, and moves that break them: 0, 1, one more, one less, twice, broadcast, exchanged.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.shapes.conditions.expressions import Operation, holds
from driftscope.shapes.conditions.relations import Clause, Relations
from driftscope.shapes.probe.directions import Direction, directions_of, runs_along, solved_directions
from driftscope.shapes.probe.original import Original, Point

#: Sizes at which programs are known to change: nothing, one (broadcasting), the first that is neither, small primes
#: that divide nothing, 4 and 8 and their multiples, by which kernels and reshapes divide.
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
LARGER = (10, 12, 14, 16, 20, 24, 28, 32)
#: Sizes that nothing is chosen by, for holding conditions against what they were not made from.
FAR = (11, 13, 17, 18, 19, 21, 23, 27, 31, 33, 36, 40, 47, 48, 63, 64, 65, 96)
_GRID = 200_000
#: Most inequalities of a trace that are looked for exceptions, points for each, and sizes that move at once.
_EXCEPTIONS, _PER_EXCEPTION, _MOVED = 8, 8, 3
#: Sizes up to which exceptions are looked for, by how many move at once.
_WIDEST = {1: 513, 2: 129, 3: 33}


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """How much to ask.

    Parameters
    ----------
    seconds : float
        Of processor time, for runs of the original.
    most, fewest : int
        Bounds of the number of runs, whatever a run costs.
    seed : int
    """

    seconds: float = 3.5
    most: int = 900
    fewest: int = 60
    seed: int = 0

    def calls(self, original: Original) -> int:
        """How many runs of this model that is."""
        return int(min(self.most, max(self.fewest, self.seconds / original.cost)))


def lattice(directions: Sequence[Direction], example: Point, limit: int, seed: int) -> list[Point]:
    """Points whose directions stand at small sizes, each alone, and in combinations, drawn evenly."""
    rng = random.Random(seed)
    alone = [
        d.moved(example, (example[d.lead] + 1, 2 * example[d.lead], *SIZES, *LARGER)[number] - example[d.lead])
        for number in range(2 + len(SIZES) + len(LARGER))
        for d in directions
    ]
    if len(SIZES) ** len(directions) <= limit:
        combinations: Iterable[tuple[int, ...]] = itertools.product(SIZES, repeat=len(directions))
    else:
        combinations = [tuple(rng.choice(SIZES) for _ in directions) for _ in range(limit)]
    # A direction whose lead must be a multiple of 4 meets few of the small sizes.
    combinations = [*combinations, *(tuple(rng.choice(SIZES + LARGER) for _ in directions) for _ in range(limit // 3))]
    together = []
    for sizes in combinations:
        point = example
        for direction, size in zip(directions, sizes, strict=True):
            point = direction.moved(point, size - example[direction.lead])
        together.append(point)
    # In turn: whoever can afford few points sees sizes that move at once, too.
    return _admissible(_interleaved([alone, together]))


def inside(relations: Relations, limit: int, seed: int) -> list[Point]:
    """Solutions of what a trace assumed, at small sizes; also of its equations alone, without ranges and exceptions."""
    equations = [c for c in relations.recorded if _is_equation(c)]
    without_static = [c for c in equations if c.kind != "static"]
    points: list[Point] = []
    for clauses, share in ((list(relations.recorded), 2), (equations, 3), (without_static, 6)):
        points += _solutions(relations, clauses, limit // share, seed)
    return _admissible(points)


def exceptions(relations: Relations, limit: int, seed: int) -> list[Point]:
    """Points at which one recorded ``!=`` is broken and everything else that is checked holds.

    The trace took the other side of a branch there (a table of positions that fits without interpolation); points of a
    lattice hardly ever meet such a coincidence of two sizes.
    """
    rng = random.Random(f"exceptions {seed}")
    enforced = [c for c in relations.recorded if c.enforced]
    points: list[Point] = []
    broken = [c for c in enforced if isinstance(c.condition, Operation) and c.condition.operator == "!="]
    for clause in broken[:_EXCEPTIONS]:
        others = [c for c in enforced if c is not clause]
        found = _broken_alone(relations, clause, others)
        # Where sizes are equal as well, then near the example: coincidences come together.
        found.sort(key=lambda point: (len(set(point)), sum(point)))
        points += [*found[: limit // 2], *rng.sample(found[limit // 2 :], min(limit // 2, len(found[limit // 2 :])))]
    return _admissible(points)


def _broken_alone(relations: Relations, clause: Clause, others: Sequence[Clause]) -> list[Point]:
    classes = relations.classes
    moved = [any(relations.axes[i].name in clause.names for i in group) for group in classes.groups]
    if not 1 <= sum(moved) <= _MOVED:
        return []
    values = [
        [*range(_WIDEST[sum(moved)]), size, 2 * size] if moves else [size]
        for moves, size in zip(moved, classes.example, strict=True)
    ]
    points = classes.spread(np.array(list(itertools.product(*values)), np.int64).reshape(-1, len(values)))
    sizes = relations.columns(points)
    keep = ~np.asarray(holds(clause.condition, sizes, len(points)))
    for other in others:
        keep &= holds(other.condition, sizes, len(points))
    return [tuple(int(size) for size in row) for row in np.unique(points[keep], axis=0)]


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
    bad = next((size for size in (2 * start + 1, 4 * start + 1, 33) if not runs_along(original, direction, size)), None)
    if bad is None:
        return []
    good = start
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if runs_along(original, direction, middle) else (good, middle)
    return [direction.moved(example, size - start) for size in (good - 1, good, bad)]


def held_out(
    original: Original, directions: Sequence[Direction], admits: Callable[[Point], bool], count: int, seed: int
) -> list[Point]:
    """Points that nobody chose conditions by: beside those that were asked, and far away.

    Parameters
    ----------
    original : Original
    directions : sequence of Direction
        How sizes may move.
    admits : callable
        Only points that it admits.
    count : int
        At most so many, about half of them far away.
    seed : int

    Returns
    -------
    list of Point
        At all of them the original runs, and was not asked before.
    """
    rng = random.Random(f"held out {seed}")
    known = original.known
    bases = [point for point, runs in known.items() if runs]
    rng.shuffle(bases)
    near = [moved for point in bases[:count] for moved in _beside(point, directions)]
    far = []
    for _ in range(4 * count):
        point = original.example
        for direction in directions:
            size = rng.choice(SIZES + LARGER + FAR)
            point = direction.moved(point, size - original.example[direction.lead])
        far.append(point)
    far += [d.moved(original.example, size - original.example[d.lead]) for d in directions for size in FAR]
    found: list[Point] = []
    for points in (near, far):
        new = [p for p in _admissible(points) if p not in known]
        rng.shuffle(new)
        left, asked = count // 2, 0
        for point in new:
            if not left or asked > count:
                break
            if admits(point):
                asked += 1
                if original.runs(point):
                    found.append(point)
                    left -= 1
    return found


def _beside(point: Point, directions: Sequence[Direction]) -> Iterator[Point]:
    for direction in directions:
        yield from (direction.moved(point, by) for by in (-2, -1, 1, 2))
    for axis in range(len(point)):
        yield from (_with(point, {axis: size}) for size in (point[axis] - 1, point[axis] + 1, 1, 2))


def _with(point: Point, changes: dict[int, int]) -> Point:
    return tuple(changes.get(axis, size) for axis, size in enumerate(point))


def _admissible(points: Iterable[Point]) -> list[Point]:
    """Each point once, none with a negative size."""
    return [point for point in dict.fromkeys(points) if min(point, default=0) >= 0]


def explore(
    original: Original, free: Sequence[int], relations: Sequence[Relations], plan: ProbePlan
) -> list[Direction]:
    """Ask the original at every kind of point worth asking at; ``original.known`` holds the answers.

    Parameters
    ----------
    original : Original
        Must run at its example.
    free : sequence of int
        Axes that may vary.
    relations : sequence of Relations
        Of every capture there is: their solutions and classes are tried.
    plan : ProbePlan

    Returns
    -------
    list of Direction
        How sizes may move.
    """
    original.runs(original.example)
    calls = plan.calls(original)
    hints = [group for r in relations for group in r.classes.groups if len(group) > 1]
    solved = solved_directions(original, relations, free)
    directions = directions_of(original, free, dict.fromkeys(tuple(h) for h in hints), solved, calls // 2)
    # However long the directions took to find, points along them are what is being looked for.
    most = max(calls, original.calls + calls // 2)
    example = original.example
    queue: list[list[Point]] = [
        outside([example], directions, free, calls // 4),
        [point for direction in directions for point in edges(original, direction)],
        broadcasts(example, free, calls // 6),
        *(inside(r, calls // (3 * max(len(relations), 1)), plan.seed) for r in relations),
        lattice(directions, example, calls // 2, plan.seed),
        *(exceptions(r, _PER_EXCEPTION, plan.seed) for r in relations),
    ]
    fixed = [axis for axis in range(len(example)) if axis not in set(free)]
    for point in _interleaved(queue):
        if original.calls >= most:
            break
        # Solutions of relations move every axis that the trace left open, also those that are not to vary.
        if all(point[axis] == example[axis] for axis in fixed):
            original.runs(point)
    if original.calls < most:
        bases = spread([p for p, runs in original.known.items() if runs and min(p, default=0) > 1], 5, example)
        for point in outside(bases, directions, free, most - original.calls):
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

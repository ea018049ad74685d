"""Why shapes are lost or wrong: points grouped by the condition that explains them, with the consequence everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.shapes.conditions.expressions import holds
from driftscope.shapes.conditions.relations import Clause, Relations
from driftscope.shapes.probe.domain import RIGHT, Domain
from driftscope.shapes.probe.original import Point


@dataclass(frozen=True, slots=True)
class Group:
    """Points with one explanation.

    Parameters
    ----------
    target : str
    outcome : str
        ``"wrong"``, ``"lost"`` or ``"crash"``.
    points : tuple of Point
        The plainest first.
    clause : Clause or None
        The condition they break; None where they break nothing that was recorded.
    """

    target: str
    outcome: str
    points: tuple[Point, ...]
    clause: Clause | None

    def count(self, domain: Domain, target: str, outcome: str) -> int:
        """At how many of the points another target had an outcome."""
        seen = domain.seen.get(target, {})
        return sum(point in seen and seen[point].outcome == outcome for point in self.points)

    def consequences(self, domain: Domain) -> dict[str, dict[str, int]]:
        """What every target does at these points: ``{"onnx": {"wrong": 12}}``."""
        told: dict[str, dict[str, int]] = {}
        for target, seen in domain.seen.items():
            for point in self.points:
                if point in seen:
                    counts = told.setdefault(target, {})
                    counts[seen[point].outcome] = counts.get(seen[point].outcome, 0) + 1
        return told


def groups(
    domain: Domain, relations: Relations, example: Point, target: str, outcome: str, *, checked: bool | None = None
) -> list[Group]:
    """Group the points at which a target had an outcome by the conditions they break.

    Conditions are taken greedily: the one that most of the points break and fewest right ones do. Points that break
    nothing recorded make a group of their own.

    Parameters
    ----------
    domain : Domain
    relations : Relations
    example : Point
        Points nearest to it are the plainest.
    target, outcome : str
    checked : bool or None
        Only conditions that the program checks, or only those it does not; None for all.

    Returns
    -------
    list of Group
        The largest first.
    """
    left = domain.of(target, outcome)
    clauses = [c for c in relations.clauses if checked is None or c.enforced is checked]
    broken = _broken(clauses, relations, left)
    broken_right = _broken(clauses, relations, domain.of(target, RIGHT))
    found: list[Group] = []
    open_ = np.ones(len(left), bool)
    while open_.any() and clauses:
        caught = (broken & open_).sum(axis=1)
        spoiled = broken_right.sum(axis=1)
        best = max(
            range(len(clauses)), key=lambda i: (caught[i] > 0, -_spoiled_share(spoiled[i], caught[i]), caught[i])
        )
        if not caught[best]:
            break
        members = [left[i] for i in np.flatnonzero(broken[best] & open_)]
        found.append(Group(target, outcome, _plainest(members, example), clauses[best]))
        open_ &= ~broken[best]
    rest = [left[i] for i in np.flatnonzero(open_)]
    if rest:
        found.append(Group(target, outcome, _plainest(rest, example), None))
    return sorted(found, key=lambda group: -len(group.points))


def _spoiled_share(spoiled: int, caught: int) -> float:
    return spoiled / (spoiled + caught) if caught else 1.0


def _broken(clauses: Sequence[Clause], relations: Relations, points: Sequence[Point]) -> np.ndarray:
    """Which clause each point breaks; (clauses, points) of bool."""
    array = np.asarray(points, np.int64).reshape(len(points), len(relations.axes))
    sizes = relations.columns(array)
    known = set(sizes)
    rows = [
        ~holds(c.condition, sizes, len(points)) if c.names <= known else np.zeros(len(points), bool) for c in clauses
    ]
    return np.stack(rows) if rows else np.zeros((0, len(points)), bool)


def _plainest(points: Iterable[Point], example: Point) -> tuple[Point, ...]:
    """Points ordered by how many sizes differ from the example, then by how much."""

    def distance(point: Point) -> tuple[int, int, Point]:
        changed = [(a, b) for a, b in zip(point, example, strict=True) if a != b]
        return len(changed), sum(abs(a - b) for a, b in changed), point

    return tuple(sorted(points, key=distance))


def needless(group: Group, domain: Domain, unguarded: str) -> bool:
    """Whether the program without its checks is right at every one of these points."""
    return group.count(domain, unguarded, RIGHT) == len(group.points)


Changed = Callable[[Point], list[tuple[str, int]]]


def changed_sizes(point: Point, example: Point, names: Sequence[str]) -> list[tuple[str, int]]:
    """Sizes of a point that differ from the example's, by name; all of them where none does."""
    changed = [(n, a) for n, a, b in zip(names, point, example, strict=True) if a != b]
    return changed or list(zip(names, point, strict=True))

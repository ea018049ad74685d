"""Broadcasting: which of the sizes that go together may be 1 instead, and which capture keeps which of these ways.

``x * y`` of one axis each runs in four configurations: (p, p), (1, p), (p, 1) and (1, 1). A trace decides once
whether two sizes are equal, so one capture keeps some of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.probe.original import Original, Point

#: Most configurations that are tried; beyond it, those with the fewest ones.
MOST = 96


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way of broadcasting.

    Parameters
    ----------
    axes : tuple of int
        Axes that go together with others.
    ones : tuple of bool
        Which of them are 1.
    point : Point
    """

    axes: tuple[int, ...]
    ones: tuple[bool, ...]
    point: Point


def tied_axes(relations: Iterable[Relations], free: Sequence[int]) -> list[tuple[int, ...]]:
    """Groups of axes that some trace found to be equal, and that may vary."""
    found: list[tuple[int, ...]] = []
    for one in relations:
        for group in one.classes.groups:
            members = tuple(axis for axis in group if axis in free)
            if len(members) > 1 and not any(set(members) & set(other) for other in found):
                found.append(members)
    return found


def configurations(original: Original, groups: Sequence[Sequence[int]], most: int = MOST) -> list[Configuration]:
    """Every way of setting tied axes to 1 in which the original runs, the example's first.

    Parameters
    ----------
    original : Original
    groups : sequence of sequences of int
        Axes that go together.
    most : int
        Most ways that are tried.
    """
    example = original.example
    axes = tuple(sorted(axis for group in groups for axis in group if example[axis] > 1))
    subsets = (ones for count in range(len(axes) + 1) for ones in itertools.combinations(axes, count))
    found = []
    for ones in itertools.islice(subsets, most):
        point = tuple(1 if axis in ones else size for axis, size in enumerate(example))
        if original.runs(point):
            found.append(Configuration(axes, tuple(axis in ones for axis in axes), point))
    return found if len(found) > 1 else []

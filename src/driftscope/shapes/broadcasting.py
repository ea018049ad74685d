"""Broadcasting: which of the sizes that go together may be 1 instead, and which capture keeps which of these ways.

``x * y`` of one axis each runs in four configurations: (p, p), (1, p), (p, 1) and (1, 1). A trace decides once
whether two sizes are equal, so one capture keeps some of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftscope.records.finding import Finding
from driftscope.records.shape_report import ShapeBroadcast
from driftscope.shapes.domain import RIGHT, Domain, probe
from driftscope.shapes.original import Original, Point
from driftscope.shapes.relations import Relations
from driftscope.shapes.runners import TorchRunner

if TYPE_CHECKING:
    from driftscope.shapes.checking import Check

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


def broadcast_record(check: Check) -> tuple[ShapeBroadcast, ...]:
    """What every candidate and every target does in each configuration."""
    if check.original is None or check.arguments is None:
        return ()
    points = [one.point for one in check.broadcasts]
    outcomes: list[dict[str, str]] = [{} for _ in points]
    for candidate in check.candidates:
        made = candidate.capture
        if made is None or not points:
            continue
        seen = probe(check.original, [TorchRunner("tried", made.module, check.original)], points, Domain())
        for told, point in zip(outcomes, points, strict=True):
            told.setdefault(made.mode.value, seen.seen["tried"][point].outcome)
    for target, answers in check.domain.seen.items():
        for told, point in zip(outcomes, points, strict=True):
            if target != "export" and point in answers:
                told[target] = answers[point].outcome
    names = [axis.name for axis in check.arguments.axes]
    return tuple(
        ShapeBroadcast(tuple(names[i] for i in one.axes), one.ones, told)
        for one, told in zip(check.broadcasts, outcomes, strict=True)
    )


def broadcast_finding(broadcasts: Sequence[ShapeBroadcast], mode: str) -> list[Finding]:
    """S031, where the chosen program keeps fewer configurations than the model has."""
    lost = [one for one in broadcasts if one.outcomes.get(mode, RIGHT) != RIGHT]
    if not lost:
        return []
    kept = len(broadcasts) - len(lost)
    shown = "; ".join(words_of(one) for one in lost[:4]) + ("; ..." if len(lost) > 4 else "")
    alone = all(one.outcomes.get("unguarded") == RIGHT for one in broadcasts)
    return [
        Finding(
            "S031",
            f"{mode} keeps {kept} of {len(broadcasts)} broadcasting configurations; lost are {shown}",
            why="a trace decides once whether two sizes are equal",
            fix="ds.cover(model, inputs) keeps them all"
            + (": the program without its checks is right" if alone else ""),
            evidence={"configurations": len(broadcasts), "kept": kept},
            note=True,
            verified=True if alone else None,
        )
    ]


def words_of(one: ShapeBroadcast) -> str:
    """The axes that are 1: ``x.shape[0]=1``; ``all equal`` for none."""
    return ", ".join(f"{name}=1" for name, is_one in zip(one.axes, one.ones, strict=True) if is_one) or "all equal"


def kept_by(broadcasts: Sequence[ShapeBroadcast]) -> Mapping[str, int]:
    """How many configurations each capture or target keeps."""
    told: dict[str, int] = {}
    for one in broadcasts:
        for name, outcome in one.outcomes.items():
            told[name] = told.get(name, 0) + (outcome == RIGHT)
    return told

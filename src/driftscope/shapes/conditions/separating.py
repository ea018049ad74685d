"""The fewest conditions that keep a program away from the points at which it would be wrong.

A trace records many conditions. Most of them refuse points at which the program, left alone, is right. Which of
them are needed is decided by what the program without its checks did: every point at which it answers wrongly must
break one of the conditions that are kept. Where no recorded condition tells a wrong point from the right ones,
conditions of a few plain forms are tried (an axis is not 0, not 1, at least 2, equal to another, ...).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.shapes.conditions.expressions import Number, Operation, Size, Term, holds, sizes_in, text
from driftscope.shapes.conditions.phrasing import always, canonical
from driftscope.shapes.probe.axes import Axis
from driftscope.shapes.probe.original import Point

#: A recorded condition is dropped only if at least so many points that break it, and nothing that is kept, were right.
EVIDENCE = 2


@dataclass(frozen=True, slots=True)
class UncheckedRuns:
    """What a program without checks did.

    Parameters
    ----------
    axes : tuple of Axis
    right, wrong : list of Point
        Where it gives the original's answer, and where another one.
    unwanted : list of Point
        Where it answers although the original refuses: kept away if that costs nothing.
    """

    axes: tuple[Axis, ...]
    right: list[Point]
    wrong: list[Point]
    unwanted: list[Point]


def separate(recorded: Sequence[Term], evidence: UncheckedRuns) -> list[Term] | None:
    """Choose conditions that hold at as many right points as possible and at no wrong one.

    Parameters
    ----------
    recorded : sequence of Term
        Conditions of the trace.
    evidence : UncheckedRuns

    Returns
    -------
    list of Term or None
        All of them together let no wrong point pass; None if nothing that was tried does.
    """
    recorded = distinct(recorded)
    plain = [term for term in plain_forms(evidence.axes) if text(term) not in {text(t) for t in recorded}]
    terms = [*recorded, *plain]
    tables = [_table(terms, evidence.axes, points) for points in (evidence.right, evidence.wrong, evidence.unwanted)]
    right, wrong, unwanted = tables
    kept = _greedy(right, wrong, len(recorded))
    if kept is None:
        return None
    kept = _also_keep_away(kept, right, unwanted)
    kept = _keep_untested(kept, right, len(recorded))
    if not evidence.right or not right[kept].all(axis=0).any():
        # They contradict each other, or the program is right nowhere.
        return None
    return [terms[i] for i in kept]


def distinct(terms: Sequence[Term]) -> list[Term]:
    """Leave out conditions that say nothing (``a == a``, ``min(a, b) <= a``) or what another says (``2*b == 2*a``)."""
    found: dict[object, Term] = {}
    for term in terms:
        if isinstance(term, Number) or not sizes_in(term) or always(term):
            continue
        found.setdefault(canonical(term), canonical(term))
    return list(found.values())


def _greedy(right: np.ndarray, wrong: np.ndarray, recorded: int) -> list[int] | None:
    """Cover the wrong points by conditions that they break, at the smallest loss of right ones."""
    kept: list[int] = []
    still_wrong = np.ones(wrong.shape[1], bool)
    still_right = np.ones(right.shape[1], bool)
    while still_wrong.any():
        caught = (~wrong & still_wrong).sum(axis=1)
        lost = (~right & still_right).sum(axis=1)
        # Recorded conditions come from the program itself and hold beyond the points that were tried; a plain form
        # that only happens to fit must be clearly better.
        doubt = np.where(np.arange(len(caught)) < recorded, 0.0, 0.5)
        score = np.where(caught > 0, (lost + doubt + 1e-3) / np.maximum(caught, 1), np.inf)
        best = int(np.argmin(score))
        if not np.isfinite(score[best]):
            return None
        kept.append(best)
        still_wrong &= wrong[best]
        still_right &= right[best]
    return _without_spare(kept, wrong)


def _without_spare(kept: list[int], wrong: np.ndarray) -> list[int]:
    """Drop conditions whose wrong points the others keep away as well."""
    for candidate in list(kept):
        others = [i for i in kept if i != candidate]
        if not wrong[others].all(axis=0).any():
            kept = others
    return kept


def _also_keep_away(kept: list[int], right: np.ndarray, unwanted: np.ndarray) -> list[int]:
    """Add conditions that keep away points the original refuses and that cost no right point."""
    still = unwanted[kept].all(axis=0) if kept else np.ones(unwanted.shape[1], bool)
    inside = right[kept].all(axis=0) if kept else np.ones(right.shape[1], bool)
    free = ~(~right & inside).any(axis=1)
    while still.any():
        caught = np.where(free, (~unwanted & still).sum(axis=1), 0)
        best = int(np.argmax(caught))
        if not caught[best]:
            break
        kept = [*kept, best]
        still &= unwanted[best]
    return kept


def _keep_untested(kept: list[int], right: np.ndarray, recorded: int) -> list[int]:
    """Keep every recorded condition that hardly any right point breaks: nothing showed that it is needless."""
    for number in range(recorded):
        if number in kept:
            continue
        inside = right[kept].all(axis=0) if kept else np.ones(right.shape[1], bool)
        broken = (~right[number] & inside).sum()
        if 0 < broken < EVIDENCE or (broken == 0 and _never_tested(right, number)):
            kept = [*kept, number]
    return kept


def _never_tested(right: np.ndarray, number: int) -> bool:
    return bool(right[number].all())


def _table(terms: Sequence[Term], axes: tuple[Axis, ...], points: Sequence[Point]) -> np.ndarray:
    """Whether each condition holds at each point; (terms, points) of bool."""
    array = np.asarray(points, np.int64).reshape(len(points), len(axes))
    sizes = {axis.name: array[:, i] for i, axis in enumerate(axes)}
    if not terms:
        return np.ones((0, len(points)), bool)
    return np.stack([holds(term, sizes, len(points)) for term in terms])


def plain_forms(axes: tuple[Axis, ...]) -> list[Term]:
    """Conditions worth trying where no recorded one fits, most general first.

    Only what a program can bake in: that a size is not 0 or 1, that two sizes are one (broadcasting), that a size is
    the example's. An order between sizes, or a bound at the example's size, fits many sets of points by accident.
    """
    sizes = [Size(axis.name) for axis in axes]
    found: list[Term] = []
    for size in sizes:
        found += [Operation("!=", (size, Number(0))), Operation("!=", (size, Number(1)))]
        found += [Operation(">=", (size, Number(2)))]
    pairs = itertools.combinations(list(zip(sizes, axes, strict=True))[:12], 2)
    found += [Operation("==", (a, b)) for (a, x), (b, y) in pairs if x.size == y.size]
    found += [Operation("==", (size, Number(axis.size))) for size, axis in zip(sizes, axes, strict=True)]
    return found

"""Constants that hold the other side's numbers rounded to fewer bits than their format has: fake quantisation, float8.

Exporters write single numbers of a float64 program so, by way of float32. Every element has to be the rounding of its
counterpart, and with the counterparts in their place the two programs have to be the same function: then their
precision is all that differs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import torch

from driftscope.explain.causes.alterations import REFERENCE_ROUNDED, Alteration, in_single, roundings_of
from driftscope.explain.causes.weights import ChangedWeight, changed_weights
from driftscope.explain.quantised.undoing import MEASURED, Quantisation, as_rounded, cost_of, same_as
from driftscope.explain.quantised.weights import IntegerGrid
from driftscope.lift.evidence import Evidence
from driftscope.lift.kept import look
from driftscope.lift.reconcile.matching import Repair, uniform
from driftscope.lift.reconcile.sides import RepairedGraph
from driftscope.lift.steps import Constant, Origin


def rounded_weights(evidence: Evidence) -> Quantisation | None:
    """Say which side's weights are the other side's, rounded; None where that is not all that differs."""
    known = evidence.reconciled
    if known is None:
        return None
    graphs, settled = (evidence.a.graph, evidence.b.graph), (known.repairs_a, known.repairs_b)
    for k in (1, 0):
        own, other = graphs[k], graphs[1 - k]
        if own is None or other is None:
            return None
        # What is computed from a weight follows it.
        constants = [dataclasses.replace(c, frontier=True) for c in own.constants() if c.origin is not Origin.COMPUTED]
        changes = changed_weights(other.constants(), constants, [r.name for r in settled[k]])
        order = {c.name: n for n, c in enumerate(constants)}
        numbers = _rounded_numbers(constants, other.constants(), {r.name for r in settled[k]})
        rounded = sorted(_all_rounded(itertools.chain(changes, numbers)), key=lambda c: order[c.constant.name])
        if not rounded:
            continue
        exact = RepairedGraph(own, [_repair(c) for c in rounded])
        if same_as("AB"[k], other, exact, evidence):
            return _costs("AB"[k], exact, rounded)
    return None


def _all_rounded(changes: Iterable[ChangedWeight]) -> list[ChangedWeight]:
    """Return the changes if every one is a rounding; what says nothing of itself (ones) is one beside such that do.

    The first that is none ends it: each further one costs a look at a weight.
    """
    found: list[tuple[ChangedWeight, list[str]]] = []
    for change in changes:
        own, told = change.constant.value, change.alteration.code == "W007"
        # What it may be, were another one to say so.
        may_be = [] if told else list(roundings_of(own.to(torch.float64), change.value, own.dtype))
        if REFERENCE_ROUNDED in change.alteration.words or not (told or may_be):
            return []
        found.append((change, may_be))
    words = {change.alteration.words for change, may_be in found if not may_be}
    meant = [next((w for w in may_be if w in words), "") for _, may_be in found]
    if any(may_be and not word for (_, may_be), word in zip(found, meant, strict=True)):
        return []
    return [
        dataclasses.replace(change, alteration=Alteration("W007", word)) if word else change
        for (change, _), word in zip(found, meant, strict=True)
    ]


def _rounded_numbers(own: Sequence[Constant], others: Sequence[Constant], settled: set[str]) -> list[ChangedWeight]:
    """Single numbers of float64 that are one of the other side's, rounded to float32, and not to zero or infinity."""
    meant: dict[float, dict[float, Constant]] = {}
    for constant in others:
        number = _double(constant)
        if number is not None and (single := in_single(number)) not in (0.0, number) and math.isfinite(single):
            meant.setdefault(single, {})[number] = constant
    found = []
    for constant in own:
        known = meant.get(_double(constant) or 0.0, {})
        if len(known) == 1 and constant.name not in settled:
            ((number, partner),) = known.items()
            value = torch.full_like(constant.value, number)
            found.append(ChangedWeight(constant, partner, value, Alteration("W007", "rounded to float32")))
    return found


def _double(constant: Constant) -> float | None:
    """The one number of float64 that a constant is."""
    return uniform(constant) if constant.value.dtype is torch.float64 else None


def _repair(change: ChangedWeight) -> Repair:
    words = f"{change.partner.name} {change.alteration.words}"
    return Repair(change.constant.name, change.value, "weight", words, change.constant, (change.partner.name,))


def _costs(side: str, exact: RepairedGraph, rounded: Sequence[ChangedWeight]) -> Quantisation:
    clean, rows = look(exact), []
    for change in rounded[:MEASURED]:
        stored = change.constant.value.double()
        grid = IntegerGrid(change.constant.name, stored, stored, stored.bool())
        moved = look(exact, replace={change.constant.name: stored}, keep=False)
        rows.append(cost_of(grid, change.partner.name, change.value, clean, moved) | {"how": change.alteration.words})
    dearest = max(range(len(rows)), key=lambda k: float(rows[k]["output"]))
    held = "weight" if all(c.constant.value.numel() > 1 for c in rounded) else "constant"
    found = as_rounded(side, held, [c.alteration.words for c in rounded], rows)
    return dataclasses.replace(found, where=rounded[dearest].constant.where)

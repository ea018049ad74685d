"""Lifted drifts: how far the outputs of two lifted programs lie apart, each held against its own limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import Ratio, lifted_drift
from driftscope.comparison.thresholds import Thresholds
from driftscope.lift.finer import evaluate as finer
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.sides import is_tensor
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Origin


@dataclass(frozen=True, slots=True)
class OutputPairing:
    """Which lifted output of B is judged against which of A, with the float64 floor of both sides there.

    ``indices`` are pairs (index in A's outputs, index in B's); ``floor64`` has one noise sample (or None) per pair.
    """

    indices: Sequence[tuple[int, int]]
    floor64: Sequence[torch.Tensor | None]


def within(drift: Ratio) -> bool:
    """Whether a lifted drift is within its own limit."""
    return drift.value <= drift.limit


#: A limit above this hides more than rounded constants do.
WEAK = 1e-11


def is_disputed(drift: Ratio) -> bool:
    """Whether float64 does not decide: a drift beyond its limit, or within one that hides rounded constants too."""
    return bool(drift.value) and (drift.limit > WEAK or drift.value > drift.limit)


def measure(
    a: Sequence[LiftedOutput], b: Sequence[LiftedOutput], pairing: OutputPairing, thresholds: Thresholds
) -> list[Ratio]:
    """Return delta64 per pair; pairs whose shapes differ or that are not floats get ratio 0 (judged elsewhere)."""
    found = []
    for (i, j), floor64 in zip(pairing.indices, pairing.floor64, strict=True):
        x, y = a[i].value, b[j].value
        if x is None or y is None or x.shape != y.shape or not _is_float(x) or not _is_float(y):
            found.append(Ratio(0.0, limit=thresholds.lifted))
            continue
        found.append(
            lifted_drift(x, y.to(x.device), floor64, relative=thresholds.lifted, multiple=thresholds.lifted_floor64)
        )
    return found


_Evaluated = tuple[Lifted, Sequence[Repair], Sequence[finer.Fine | None]]


def floors_of_tables(
    sides: tuple[_Evaluated, _Evaluated], pairing: OutputPairing, chaotic: bool, work: int
) -> list[torch.Tensor | None]:
    """What float64's rounding of the tables that programs compute does to their outputs, all else evaluated finer.

    Parameters
    ----------
    sides : pair of (Lifted, sequence of Repair, sequence of Fine or None)
        Each with its repairs, and its outputs evaluated finer with these.
    pairing : OutputPairing
    chaotic : bool
        Whether the noise of all float64 rounding, which is taken for it, hides everything: then the tables are moved.
    work : int
        As for :func:`~driftscope.lift.finer.evaluate.evaluate`.

    Returns
    -------
    list of Tensor or None
        Per pair; None where neither computes a table.
    """
    if not any(map(_is_table, (c for graph, _, _ in sides for c in graph.constants()))):
        return [None] * len(pairing.indices)
    if not chaotic:
        return list(pairing.floor64)
    one, other = (_moved(*side, work, seed) for seed, side in enumerate(sides))
    pairs = [(one[i] if i < len(one) else None, other[j] if j < len(other) else None) for i, j in pairing.indices]
    known = zip(pairs, pairing.floor64, strict=True)
    return [floor if x is None or y is None or x.shape != y.shape else torch.hypot(x, y) for (x, y), floor in known]


def _moved(
    graph: Lifted, repairs: Sequence[Repair], fine: Sequence[finer.Fine | None], work: int, seed: int
) -> list[torch.Tensor | None]:
    """By how much the outputs move when every element of every table does, by up to half an ulp."""
    values, generator = graph.constant_values(replace={r.name: r.value for r in repairs}), torch.Generator()
    generator.manual_seed(seed)
    tables = list(repairs)
    for c in filter(_is_table, graph.constants()):
        if c.name in values:
            by = torch.rand(values[c.name].shape, generator=generator, dtype=torch.float64) * 2.0 - 1.0
            tables.append(Repair(c.name, values[c.name] * (1.0 + by * 2.0**-53), "table", "", c))
    again = finer.evaluate(graph, tables, work) if len(tables) > len(repairs) else fine
    return [None if x is None or y is None else y.value - x.value for x, y in zip(fine, again, strict=False)]


def _is_table(constant: Constant) -> bool:
    return constant.origin is Origin.COMPUTED and constant.frontier and is_tensor(constant)


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex

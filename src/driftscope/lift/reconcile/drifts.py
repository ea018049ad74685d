"""Lifted drifts: how far the outputs of two lifted programs lie apart, each held against its own limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import Ratio, lifted_drift
from driftscope.comparison.thresholds import Thresholds
from driftscope.lift.steps import LiftedOutput


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


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex

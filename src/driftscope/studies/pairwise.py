"""Results of several variants beside each other: classes of equal bits, pairwise distances, errors in floors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.numerics.formats import FORMATS

SAME_BITS, ROUNDING, LARGE, MORE = "same bits", "rounding", "unusually large rounding", "more than rounding"


@dataclass(frozen=True, slots=True)
class Gap:
    """How far two results are apart.

    Parameters
    ----------
    max_abs, rms : float
        Absolute; NaN where one side is not finite.
    columns : torch.Tensor
        Largest absolute difference in each column, shape ``(N,)``, float32.
    """

    max_abs: float
    rms: float
    columns: torch.Tensor


def bit_classes(results: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Number the classes of results with equal bits, from 1 in the order of appearance."""
    leaders: list[torch.Tensor] = []
    found: dict[str, int] = {}
    for name, y in results.items():
        bits = y.contiguous().view(torch.uint8)
        known = next((i for i, other in enumerate(leaders) if _equal(other, bits)), None)
        if known is None:
            leaders.append(bits)
            known = len(leaders) - 1
        found[name] = known + 1
    return found


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    # Results that differ mostly do so in their first row.
    return torch.equal(a[:1], b[:1]) and torch.equal(a, b)


def distance(a: torch.Tensor, b: torch.Tensor) -> Gap:
    """Measure two results of shape ``(M, N)``, given in float32 or float64, in one pass over blocks of rows.

    A block stays in the cache between the difference, its largest element and its squares.
    """
    columns = torch.zeros(a.shape[1], dtype=torch.float32)
    total = 0.0
    step = max(1, (1 << 16) // max(a.shape[1], 1))
    for start in range(0, len(a), step):
        difference = (a[start : start + step] - b[start : start + step]).abs_()
        torch.maximum(columns, difference.amax(0).float(), out=columns)
        total += float(torch.linalg.vector_norm(difference, dtype=torch.float64)) ** 2
    return Gap(float(columns.max()), math.sqrt(total / a.numel()), columns)


def verdict_of(floors: float) -> str:
    """Name a drift in floors; the same thresholds as every comparison."""
    if floors <= THRESHOLDS.rounding:
        return ROUNDING
    return LARGE if floors <= THRESHOLDS.large else MORE


def ulp_at(dtype: str, scale: float) -> float:
    """Return one unit in the last place of a format at a scale; that is what a single rounding can do there."""
    return FORMATS[dtype].ulp(scale)


def pairs_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return all pairs, each once, in the order of names."""
    return [(one, other) for index, one in enumerate(names) for other in names[index + 1 :]]

"""How the terms of a sum are grouped, and how the error of one rounding grows over that tree of additions.

A grouping is the numbers of operands of nested left folds, innermost first; their product is the number of terms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Root mean square of the error of one rounding to nearest, in units of ``u * |y|``. The error is uniform in half an
#: ulp either way and an ulp is constant over a binade: sqrt(1/3 * mean of 1/m^2) is 0.408 for a significand m that is
#: uniform in [1, 2) and 0.425 for one that is log-uniform.
ROUNDING_RMS = 0.415


@dataclass(frozen=True, slots=True)
class Growth:
    """How the error of a sum grows: variance = (0.415 u)^2 (terms * sum t^2 + total * S^2)."""

    terms: float
    total: float


def sequential(length: int) -> tuple[float, ...]:
    """One running sum over all terms."""
    return (float(max(length, 1)),)


def blocked(length: int, block: int) -> tuple[float, ...]:
    """Running sums over blocks of ``block`` terms, then a running sum of the blocks (matrix products)."""
    inner = min(max(length, 1), block)
    return (float(inner), max(length, 1) / inner)


def lanes(length: int, width: int) -> tuple[float, ...]:
    """``width`` interleaved running sums, added in pairs at the end (vectorised reductions)."""
    if length <= width:
        return sequential(length)
    return (length / width, *(2.0,) * int(math.log2(width)))


def cascade(length: int) -> tuple[float, ...]:
    """Four levels of running sums in 8 x 4 lanes: ``torch.sum`` on CPU (aten/native/cpu/SumKernel.cpp)."""
    if length < 64:
        return sequential(length)
    rest = length / 32
    step = 2.0 ** max(4, math.ceil(math.log2(rest)) // 4)
    folds = []
    for _ in range(3):
        folds.append(min(step, rest))
        rest /= folds[-1]
    return (*folds, rest, 4.0, 8.0)


def growth(folds: Sequence[float], *, products: bool = False) -> Growth:
    """Grow the rounding error of a sum over its tree of additions.

    Every addition rounds its partial sum: variance (0.415 u)^2 times the mean square of that partial sum. Terms
    are taken as independent draws, so a partial sum of ``p`` out of ``n`` terms is, given the total ``S`` and the
    spread ``V = sum t^2 - S^2 / n``, distributed as a bridge: mean square ``p/n (1 - p/n) V + (p/n)^2 S^2``.

    Parameters
    ----------
    folds : sequence of float
        Operands of each nested fold, innermost first.
    products : bool
        Terms are products, accumulated with fused multiply-add: the first one of each innermost fold is rounded too.

    Returns
    -------
    Growth
        For one running sum of ``n``: ``n/6 * sum t^2 + n/3 * S^2`` up to lower orders; for ``b``-blocks about
        ``(b + n/b) / 2`` for terms of mean zero.
    """
    length = math.prod(folds)
    linear = quadratic = 0.0
    below = 1.0
    for level, fold in enumerate(folds):
        first = 1.0 if products and level == 0 else 0.0
        linear += (fold * (fold + 1) / 2 - 1 + first) / fold
        quadratic += below * (fold * (fold + 1) * (2 * fold + 1) / 6 - 1 + first) / (fold * length)
        below *= fold
    spread = max(linear - quadratic, 0.0)
    return Growth(spread, max(quadratic - spread / length, 0.0))

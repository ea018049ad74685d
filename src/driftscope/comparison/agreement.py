"""Whether two values agree: one judge for comparisons, shapes, transforms and batches.

With a measured floor the question is answered in floors, as :mod:`driftscope.comparison.judge` does. Where no floor was
measured (a shape probed, a batched call tried), a difference is rounding while it stays within what the format loses
in an ordinary program: :data:`driftscope.comparison.thresholds.AGREEMENT`. What cannot be compared never agrees.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.comparison.leaves import LeafComparison, compare_leaf, place_words
from driftscope.comparison.measuring.operands import operand
from driftscope.comparison.measuring.pieces import position
from driftscope.comparison.measuring.spread import Ratio, drift_in_floors, finite
from driftscope.comparison.thresholds import THRESHOLDS, Allowance, Thresholds, allowance
from driftscope.records.paths import Path


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two values agree.

    Parameters
    ----------
    kind : str
        ``"same"`` (equal values), ``"rounding"``, or what is wrong: ``"value"``, ``"nan"``, ``"dtype"``, ``"shape"``,
        ``"kind"``, ``"structure"``, ``"opaque"`` (objects that know no ``==``).
    path : Path
    detail : str
        In words; "" for the same bits.
    excess : float
        Largest difference in units of what was allowed; at most 1 for rounding, ``inf`` for what has no size.
    max_abs : float
        Largest difference.
    index : tuple of int
        Where it exceeds what is allowed most.
    rho : Ratio or None
        The difference in floors, where a floor was given.
    """

    kind: str
    path: Path = field(default_factory=Path)
    detail: str = ""
    excess: float = 0.0
    max_abs: float = 0.0
    index: tuple[int, ...] = ()
    rho: Ratio | None = None

    @property
    def agrees(self) -> bool:
        """Whether it is no more than rounding."""
        return self.kind in ("same", "rounding")


def agreement(
    expected: Any,
    actual: Any,
    *,
    noises: Sequence[torch.Tensor] = (),
    scale: float | None = None,
    flat: bool = False,
    path: Path | None = None,
    thresholds: Thresholds = THRESHOLDS,
) -> Agreement:
    """Judge whether one value is another one, but for rounding.

    Parameters
    ----------
    expected, actual : tensor, array, number, text or None
        One leaf each; nothing is broadcast.
    noises : sequence of Tensor, in the values' shape
        Noise samples of both sides, where a floor was measured: they decide then, and nothing else does.
    scale : float or None
        Size of what the values were computed from, for values that are small by cancellation; the largest finite
        expected value when None. Used only without `noises`.
    flat : bool
        Compare a Python number with a tensor by value.
    path : Path or None
        Their place, for words.
    thresholds : Thresholds

    Returns
    -------
    Agreement
        Integers, booleans and text agree when they are equal; floats of one format when rounding explains the
        difference; values that cannot be compared do not agree.

    Raises
    ------
    InputError
        If a tensor has no values (meta device).
    """
    place = Path() if path is None else path
    x, y = operand(expected), operand(actual)
    leaf = compare_leaf(place, x, y, flat=flat)
    if leaf.kind == "same":
        return Agreement("same", place, leaf.detail)
    if leaf.kind != "value" or not leaf.floating or x.tensor is None or y.tensor is None:
        return _refused(leaf)
    a, b = _wide(x.tensor).cpu(), _wide(y.tensor).cpu()
    if noises:
        rho = drift_in_floors(finite(b - a), list(noises))
        kind = "rounding" if rho.value <= thresholds.large else "value"
        return Agreement(kind, place, leaf.detail, rho.value / thresholds.large, _largest(leaf), (), rho)
    return _within(leaf, a, b, allowance(leaf.a_dtype or "", leaf.b_dtype or ""), scale)


def _refused(leaf: LeafComparison) -> Agreement:
    index = leaf.drift.worst_index if leaf.drift is not None and leaf.drift.worst_index is not None else ()
    return Agreement(leaf.kind, leaf.path, leaf.detail, math.inf, _largest(leaf), index)


def _largest(leaf: LeafComparison) -> float:
    return leaf.drift.max_abs if leaf.drift is not None else 0.0


def _within(
    leaf: LeafComparison, a: torch.Tensor, b: torch.Tensor, allowed: Allowance, scale: float | None
) -> Agreement:
    gap = torch.where(a == b, torch.zeros((), dtype=torch.float64, device=a.device), (b - a).abs())
    gap = torch.where(torch.isfinite(a) & torch.isfinite(b), gap, gap.new_zeros(()))
    size = torch.where(torch.isfinite(a), a.abs(), gap.new_zeros(()))
    largest = float(size.max()) if scale is None else scale
    limit = allowed.relative * size + allowed.of_scale * largest
    share = torch.where(gap > 0, gap / limit, gap)
    at = int(share.reshape(-1).argmax())
    index = position(at, tuple(a.shape))
    excess = float(share.reshape(-1)[at])
    if excess <= 1.0:
        return Agreement("rounding", leaf.path, leaf.detail, excess, float(gap.max()), index)
    values = " against ".join(told_apart(a[index].item(), b[index].item()))
    words = f"{values}{place_words(index)}: {excess:.2g} times what rounding may do there"
    return Agreement("value", leaf.path, words, excess, float(gap.max()), index)


def told_apart(one: complex, other: complex) -> tuple[str, str]:
    """Write two numbers with nine digits, which name any float32, or with all where nine do not tell them apart."""
    if not all(isinstance(x, (float, complex)) for x in (one, other)):
        return repr(one), repr(other)
    short = f"{one:.9g}", f"{other:.9g}"
    return short if short[0] != short[1] else (repr(one), repr(other))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)

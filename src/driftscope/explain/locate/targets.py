"""How far a run is from what it should give: in floors where a floor is known, and in float64 where that is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from driftscope.comparison.measuring.spread import Ratio, drift_in_floors, finite, rms
from driftscope.comparison.thresholds import THRESHOLDS

# Without a lift there is no floor: this many roundings of the format, relative to the output, stand in for it.
_ROUNDINGS = 8.0


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one run is from its target.

    Parameters
    ----------
    ratio : Ratio
        Native drift, the worst output; ``inf`` where NaN or infinities differ, or shapes.
    lifted : Ratio or None
        Lifted drift with its limit, where the function was in question.
    moved : float
        Largest absolute difference of any output.
    """

    ratio: Ratio
    lifted: Ratio | None = None
    moved: float = 0.0

    @property
    def floors(self) -> float:
        """Native drift as a record shows it: over the whole tensor, unless a slice or the tail is worse."""
        whole = self.ratio.place == "tensor" and not math.isnan(self.ratio.whole)
        return self.ratio.whole if whole else self.ratio.value

    @property
    def fine(self) -> bool:
        """Whether ordinary rounding explains it."""
        function = self.lifted is None or self.lifted.value <= self.lifted.limit
        return function and self.ratio.value <= THRESHOLDS.large


@dataclass(frozen=True, slots=True)
class Target:
    """What outputs should be.

    Parameters
    ----------
    values : mapping of int to Tensor
        Per output of the examined program that has a counterpart: the reference's native value.
    noises : mapping of int to list of Tensor
        What ordinary rounding does to each, both sides; empty lists where no floor is known.
    words : str
        What the reference is.
    function : callable or None
        Told a graph of the runtime, gives its worst lifted drift from the file; None where the function is not in
        question.
    """

    values: Mapping[int, torch.Tensor]
    noises: Mapping[int, Sequence[torch.Tensor]]
    words: str = "the reference"
    function: Callable[[Any], Ratio | None] | None = field(default=None)

    @property
    def measured(self) -> bool:
        """Whether every output has a floor of its own."""
        return all(self.noises.get(k) for k in self.values)

    def distance(self, outputs: Sequence[Any], graph: Any = None) -> Distance:
        """Measure a run: the worst of its outputs, and its graph where the function is in question."""
        worst, moved = Ratio(0.0), 0.0
        for k, wanted in self.values.items():
            got = outputs[k] if k < len(outputs) else None
            ratio, by = _of_output(wanted, got, list(self.noises.get(k, ())))
            worst, moved = max(worst, ratio, key=lambda r: r.value), max(moved, by)
        lifted = self.function(graph) if self.function is not None and graph is not None else None
        return Distance(worst, lifted, moved)


_ELSEWHERE = Ratio(math.inf, "values that are not finite")


def _of_output(wanted: torch.Tensor, got: Any, noises: list[torch.Tensor]) -> tuple[Ratio, float]:
    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        return _ELSEWHERE, math.inf
    if not wanted.is_floating_point():
        return (Ratio(0.0), 0.0) if torch.equal(wanted, got) else (_ELSEWHERE, math.inf)
    x, y = as_double(wanted), as_double(got)
    if not torch.equal(torch.isnan(x), torch.isnan(y)) or not torch.equal(x[torch.isinf(x)], y[torch.isinf(x)]):
        return _ELSEWHERE, math.inf
    if bool((torch.isinf(y) & ~torch.isinf(x)).any()):
        return _ELSEWHERE, math.inf
    drift = finite(y - x)
    fitting = [n for n in noises if n.shape == drift.shape]
    moved = float(drift.abs().max()) if drift.numel() else 0.0
    return drift_in_floors(drift, fitting or [_stand_in(wanted, got, x)]), moved


def _stand_in(wanted: torch.Tensor, got: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    unit = max(torch.finfo(t.dtype).eps / 2 if t.is_floating_point() else 0.0 for t in (wanted, got))
    return torch.full_like(x, _ROUNDINGS * unit * rms(finite(x)))


def as_double(value: torch.Tensor) -> torch.Tensor:
    """A native value in float64, on the CPU."""
    return value.detach().cpu().to(torch.float64)


def same_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two runs gave the same tensors, bit by bit (the payload of NaN aside, its place not)."""
    return len(one) == len(other) and all(_equal(x, y) for x, y in zip(one, other, strict=True))


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return same_bits(x, y)  # a sequence of tensors is one value of an ONNX graph
    if isinstance(x, np.ndarray) or isinstance(y, np.ndarray):
        return np.array_equal(x, y)  # strings: torch has none
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return bool(x is y or x == y)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if not x.is_floating_point():
        return torch.equal(x, y)
    signs = torch.signbit(x) == torch.signbit(y)
    return bool((((x == y) & signs) | (torch.isnan(x) & torch.isnan(y))).all())


def largest_gap(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Largest absolute difference of two runs; ``inf`` where NaN, infinities or shapes differ."""
    worst = 0.0
    for x, y in zip(one, other, strict=False):
        if _equal(x, y):
            continue
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.shape != y.shape:
            return math.inf
        gap = (as_double(x) - as_double(y)).abs()
        gap = torch.where(as_double(x) == as_double(y), torch.zeros((), dtype=gap.dtype), gap)
        worst = max(worst, float(gap.max()) if not bool(torch.isnan(gap).any()) else math.inf)
    return worst

"""Where a value leaves the range of its format: the first step whose float64 value the format cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from driftscope.lift.steps import Lifted, Step
from driftscope.records.finding import Where


@dataclass(frozen=True, slots=True)
class Overflow:
    """A step whose result its native format cannot hold.

    Parameters
    ----------
    where : Where
        The step.
    magnitude : float
        Largest |value| in float64.
    largest : float
        Largest finite number of the format.
    format : str
    """

    where: Where
    magnitude: float
    largest: float
    format: str

    def __str__(self) -> str:
        place = f" at {self.where.node} ({self.where.operator})" if self.where.node else ""
        return f"{self.magnitude:.3g} exceeds the largest {self.format}, {self.largest:.5g}{place}"


# Larger than what adding to float32's largest number, or rounding it to bfloat16, can make of it.
_BEYOND = 3.5e38


@dataclass(slots=True)
class _RangeWatch:
    """An observer that remembers the steps whose finite values exceed their native format, in order."""

    found: list[Overflow] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        if step.constant:
            return
        for value, fmt in zip(step.outputs, step.formats, strict=True):
            if value is None or fmt is None or not fmt.is_floating_point or not value.dtype.is_floating_point:
                continue
            largest = torch.finfo(fmt).max
            finite = value[torch.isfinite(value)].abs()
            # A sentinel of a wider format (finfo.min of float32 or float64 in a mask) is not a result that overflowed.
            finite = finite[finite < 1e30] if largest < 1e30 else finite[(finite > _BEYOND) & (finite < 1e300)]
            if finite.numel() and float(finite.max()) > largest:
                name = str(fmt).removeprefix("torch.")
                where = Where(
                    node=step.name, operator=step.operator, module=step.where.module, file=step.where.file,
                    line=step.where.line, expression=step.where.expression,
                )  # fmt: skip
                self.found.append(Overflow(where, float(finite.max()), largest, name))
                return


def first_overflow(graph: Lifted, replace: Mapping[str, torch.Tensor] | None = None) -> Overflow | None:
    """Run a lifted graph once and return the first step whose result its format cannot hold, if any."""
    watch = _RangeWatch()
    graph.run(observe=watch, replace=replace)
    return watch.found[0] if watch.found else None

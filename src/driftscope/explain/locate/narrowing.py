"""Where a program passes through a format that its reference never uses: an inserted cast, a narrower store."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import torch

from driftscope.lift.steps import Lifted, Step
from driftscope.numerics.formats import format_of
from driftscope.records.finding import Where


@dataclass(slots=True)
class _FormatWatch:
    """An observer that remembers the float formats of a run, with their unit roundoffs, and the first step in each."""

    first: dict[str, tuple[float, Where]] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        if step.constant:
            return
        for fmt in step.formats:
            if fmt is None or not fmt.is_floating_point:
                continue
            name, roundoff = str(fmt).removeprefix("torch."), 0.5 * torch.finfo(fmt).eps
            if step.rounding.bits is not None:
                name, roundoff = _kept(step.rounding.bits, fmt)
            if name not in self.first:
                where = dataclasses.replace(step.where, node=step.name, operator=step.operator)
                self.first[name] = roundoff, where


# What a float32 is called that keeps so many of its bits.
_BY_BITS = {format_of(name).p: format_of(name).name for name in ("tf32", "bfloat16")}  # type: ignore[union-attr]


def _kept(bits: torch.Tensor, fmt: torch.dtype) -> tuple[str, float]:
    """The format that a program rounds to by hand: by the significand bits that its numbers have."""
    mantissa = torch.frexp(bits[torch.isfinite(bits)])[0]
    whole = 1 - round(math.log2(torch.finfo(fmt).eps))
    for count in range(1, whole):
        scaled = torch.ldexp(mantissa, torch.tensor(count))
        if torch.equal(scaled, scaled.round()):
            return _BY_BITS.get(count, f"{count} significand bits"), 2.0**-count
    return str(fmt).removeprefix("torch."), 2.0**-whole


_PRINTED = {"tf32": "TF32"}


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A format narrower than any of the reference's, and the first step that has it."""

    where: Where
    format: str

    def __str__(self) -> str:
        return f"{_PRINTED.get(self.format, self.format)} at {self.where.node} ({self.where.operator})"


def first_narrowing(reference: Lifted, graph: Lifted) -> Narrowing | None:
    """Find where ``graph`` first stores a float in a format with fewer significand bits than any of ``reference``."""
    theirs, own = _FormatWatch(), _FormatWatch()
    reference.run(observe=theirs)
    graph.run(observe=own)
    coarsest = max((roundoff for roundoff, _ in theirs.first.values()), default=0.0)
    for name, (roundoff, where) in own.first.items():
        if roundoff > coarsest > 0.0:
            return Narrowing(where, name)
    return None

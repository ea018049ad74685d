"""Where a program passes through a format that its reference never uses: an inserted cast, a narrower store."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch

from driftscope.lift.steps import Lifted, Step
from driftscope.records.finding import Where


@dataclass(slots=True)
class _FormatWatch:
    """An observer that remembers the float formats of a run and the first step in each."""

    first: dict[torch.dtype, Where] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        if step.constant:
            return
        for fmt in step.formats:
            if fmt is not None and fmt.is_floating_point and fmt not in self.first:
                self.first[fmt] = dataclasses.replace(step.where, node=step.name, operator=step.operator)


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A format narrower than any of the reference's, and the first step that has it."""

    where: Where
    format: str

    def __str__(self) -> str:
        return f"{self.format} at {self.where.node} ({self.where.operator})"


def first_narrowing(reference: Lifted, graph: Lifted) -> Narrowing | None:
    """Find where ``graph`` first stores a float in a format with fewer significand bits than any of ``reference``."""
    theirs, own = _FormatWatch(), _FormatWatch()
    reference.run(observe=theirs)
    graph.run(observe=own)
    coarsest = max((torch.finfo(f).eps for f in theirs.first), default=0.0)
    for fmt, where in own.first.items():
        if torch.finfo(fmt).eps > coarsest > 0.0:
            return Narrowing(where, str(fmt).removeprefix("torch."))
    return None

"""The numbers that a program was written with, as its kernels read them: rounded to the format that they compute in.

``x - 0.1`` takes 0.10000000149 from float32 numbers. Beside numbers that are near 0.1, or after many divisors of a
remainder, that is far more than the rounding of the one operator, and no kernel is at fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.lift.outline import tell_steps
from driftscope.lift.steps import Lifted, Origin, Step
from driftscope.records.words import counted


def numbers_read_in(graph: Lifted, name: str) -> dict[str, torch.Tensor]:
    """Give the written numbers that a format, or with ``""`` that of each result, does not hold, rounded, by name."""
    formats: dict[str, Sequence[torch.dtype]] = {}

    def look(step: Step) -> None:
        formats[step.name] = [f for f in step.formats if f is not None and f.is_floating_point]

    literals = [c for c in graph.constants() if c.origin is Origin.LITERAL and c.frontier and not c.value.dim()]
    if literals:
        tell_steps(graph, look)
    found = {}
    for c in literals:
        own = formats.get(c.name.rpartition(".")[0], ())
        coarsest = max(own, key=lambda fmt: torch.finfo(fmt).eps, default=torch.float64)
        read = torch.float32 if name and coarsest is not torch.float64 else coarsest
        rounded = c.value.to(read).to(torch.float64)
        if bool(torch.isfinite(rounded)) and not torch.equal(rounded, c.value.to(torch.float64)):
            found[c.name] = rounded
    return found


def rounding_of_numbers(graph: Lifted, name: str) -> str:
    """Say which written number is rounded most, and how many more there are."""
    found = numbers_read_in(graph, name)
    meant = {c.name: float(c.value) for c in graph.constants() if c.name in found}
    first = max(meant, key=lambda one: abs(float(found[one]) / meant[one] - 1.0) if meant[one] else 0.0)
    more = f", and of {counted(len(found) - 1, 'more number')}," if len(found) > 1 else ""
    return f"the rounding of {meant[first]:.9g} ({first}) to {float(found[first]):.9g}{more}"

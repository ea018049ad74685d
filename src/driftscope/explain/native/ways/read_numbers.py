"""The numbers that a program was written with, as its kernels read them: rounded to the format that they compute in.

``x - 0.1`` takes 0.10000000149 from float32 numbers. Beside numbers that are near 0.1, or after many divisors of a
remainder, that is far more than the rounding of the one operator, and no kernel is at fault.
"""

from __future__ import annotations

import torch

from driftscope.lift.reconcile.uses import written_numbers
from driftscope.lift.steps import Lifted
from driftscope.records.words import counted


def numbers_read_in(graph: Lifted, name: str) -> dict[str, torch.Tensor]:
    """Give the written numbers that a format, or with ``""`` that of each result, does not hold, rounded, by name."""
    found = {}
    for c, coarsest in written_numbers(graph):
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

"""The numbers that a program was written with, as its kernels read them: rounded to the format that they compute in.

``x - 0.1`` takes 0.10000000149 from float32 numbers. Beside numbers that are near 0.1, or after many divisors of a
remainder, that is far more than the rounding of the one operator, and no kernel is at fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.lift.reconcile.uses import written_numbers
from driftscope.lift.steps import Lifted, LiftedOutput
from driftscope.records.words import counted

# Numbers that are each rounded alone, to see which of them it was.
_TRIED = 16


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
    """Say which written number's rounding moves the results most by itself, and how many more there are."""
    found = numbers_read_in(graph, name)
    if len(found) > _TRIED:
        return f"the rounding of {len(found)} numbers that it was written with"
    first = next(iter(found))
    if len(found) > 1:
        plain = graph.run()
        first = max(found, key=lambda one: _moved(plain, graph.run(replace={one: found[one]})))
    meant = next(float(c.value) for c in graph.constants() if c.name == first)
    more = f", and of {counted(len(found) - 1, 'more number')}," if len(found) > 1 else ""
    return f"the rounding of {meant:.9g} ({first}) to {float(found[first]):.9g}{more}"


def _moved(plain: Sequence[LiftedOutput], rounded: Sequence[LiftedOutput]) -> float:
    """How far results lie from where they lay, the largest of them in units of its size."""
    gaps = ((one, other.less(one)) for one, other in zip(plain, rounded, strict=True))
    sized = ((rms(gap), rms(finite(one.value))) for one, gap in gaps if gap is not None and one.value is not None)
    return max((gap / (size or 1.0) for gap, size in sized), default=0.0)

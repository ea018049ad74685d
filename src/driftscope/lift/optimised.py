"""Whether what the optimisers of a runtime did to a graph shows in its results, or integers were rounded otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from driftscope.comparison.measuring.pieces import same_bits
from driftscope.comparison.measuring.spread import finite, rms
from driftscope.errors import DriftscopeError
from driftscope.lift.steps import LiftedOutput
from driftscope.programs.protocol import Bound
from driftscope.programs.value_trees import flatten

# How many times as far as its kernels are from its float64 run two writings of one quantised graph may be apart.
_TIMES = 2.0


def optimisers_show(bound: Bound, file: Sequence[LiftedOutput], optimised: Sequence[LiftedOutput]) -> bool:
    """Run a program as it is and with nothing optimised; whether the optimised graph is another one by its results.

    Float64 rounds to other integers than the kernels do, and to others again in a graph that is written otherwise: of
    a quantised graph it says nothing where the results have the same bits, or where the two graphs are no further
    apart than the kernels are from the file's float64 run. True where nothing can be run.

    Parameters
    ----------
    bound : Bound
    file, optimised : sequence of LiftedOutput
        The outputs of the file, and of the graph that the runtime made of it, in float64.
    """
    try:
        plain = bound.program.unoptimised()
        results = bound.program(bound), plain(plain.bind(bound.feeds if bound.inputs is None else bound.inputs))
    except (DriftscopeError, RuntimeError, TypeError, ValueError):
        return True
    one, other = ([leaf for _, leaf in flatten(values)[0]] for values in results)
    tensors = all(isinstance(leaf, torch.Tensor) for leaf in (*one, *other))
    if tensors and len(one) == len(other) and all(map(same_bits, one, other)):
        return False
    rounded = max((_apart(native, k.value) for native, k in zip(other, file, strict=False)), default=0.0)
    return (
        max((_apart(k.value, m.value) for k, m in zip(optimised, file, strict=False)), default=0.0) > _TIMES * rounded
    )


def _apart(value: Any, exact: Any) -> float:
    """How far a value is from an exact one, relative to its size."""
    if not isinstance(value, torch.Tensor) or not isinstance(exact, torch.Tensor) or value.shape != exact.shape:
        return 0.0
    held = exact.detach().cpu().to(torch.float64)
    return rms(finite(value.detach().cpu().to(torch.float64) - held)) / (rms(finite(held)) or 1.0)

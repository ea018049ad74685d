"""Whether what the optimisers of a runtime did to a graph shows in any bit of its results."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.errors import DriftscopeError
from driftscope.programs.protocol import Bound
from driftscope.programs.value_trees import flatten


def optimisers_show(bound: Bound) -> bool:
    """Run a program as it is and with nothing optimised; whether any output differs. True where that cannot be run.

    Float64 rounds to other integers than the kernels do, and to others again in a graph that is written otherwise: of
    a quantised graph it says nothing that its own results do not say better.

    Parameters
    ----------
    bound : Bound
    """
    try:
        plain = bound.program.unoptimised()
        results = bound.program(bound), plain(plain.bind(bound.feeds if bound.inputs is None else bound.inputs))
    except (DriftscopeError, RuntimeError, TypeError, ValueError):
        return True
    one, other = ([leaf for _, leaf in flatten(values)[0]] for values in results)
    return len(one) != len(other) or not all(map(_same, one, other))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.dtype != other.dtype:
        return False
    return one.shape == other.shape and torch.equal(one.isnan(), other.isnan()) and bool(
        (one == other).logical_or_(one.isnan()).all()
    )  # fmt: skip

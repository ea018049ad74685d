"""A program without a graph, run on float64 arrays: its own code, where that follows the format of what it is given.

A function on numpy arrays has no graph to lift, but most of them compute in the format of their inputs. Whether this
one does is measured: its results have to be float64, and have to move in proportion when the inputs move by many
steps of float32 and by far less than one. What was rounded to float32 on the way stays where it is for the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from driftscope.comparison.measuring.spread import Ratio, drift_in_floors, lifted_drift, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import DriftscopeError
from driftscope.programs.protocol import Bound
from driftscope.programs.value_trees import flatten

# Relative steps of the inputs: many steps of float32, and far less than one but far above the rounding of float64.
_STEP, _SMALLER = 2.0**-18, 2.0**-36
# How far the two answers may be from proportional, as a share of the smaller.
_BENT = 0.25
# Unit roundoffs of float32 by which constants that the function holds in float32 may move a result.
_CONSTANTS = 2.0 * 2.0**-24


def widened_outputs(bound: Bound, seed: int = 0) -> list[torch.Tensor | None]:
    """Run a program that has no graph on float64 inputs.

    Parameters
    ----------
    bound : Bound
    seed : int
        Names the direction in which the inputs are moved to see whether the results follow.

    Returns
    -------
    list of float64 Tensor or None
        One per output leaf; None for one that is not float64 all the way. Empty where the program does not take
        float64 inputs or fails on them.
    """
    try:
        plain, near, nearer = (_leaves(bound.program.widened(bound, step, seed)) for step in (0.0, _STEP, _SMALLER))
    except DriftscopeError:  # it cannot be called so, or its own code does not take float64
        return []
    if not len(plain) == len(near) == len(nearer):
        return []
    return [value if _follows(value, *moved) else None for value, *moved in zip(plain, near, nearer, strict=True)]


def widened_drift(
    a: torch.Tensor, b: torch.Tensor, noises: Sequence[torch.Tensor], floor64: torch.Tensor | None = None
) -> Ratio | None:
    """Hold a widened result against A's lifted one; None where constants that B stores rounded may be the difference.

    Constants cannot be compared one by one, so a difference that float32 cannot hold passes for rounded ones.

    Parameters
    ----------
    a, b : float64 Tensor, shape S
    noises : sequence of Tensor, shape S
        Ordinary rounding of A in its own format: a rounded constant does about as much.
    floor64 : Tensor, shape S, or None
    """
    if a.shape != b.shape or not noises:
        return None
    found = lifted_drift(a, b.to(a.device), floor64, relative=THRESHOLDS.lifted, multiple=THRESHOLDS.lifted_floor64)
    if found.value <= found.limit:
        return found
    if found.value <= _CONSTANTS:
        return replace(found, limit=_CONSTANTS)
    gap = b.to(a.device) - a
    hidden = bool(torch.isfinite(gap).all()) and drift_in_floors(gap, list(noises)).value <= THRESHOLDS.large
    return None if hidden else found


def _leaves(outputs: object) -> list[Any]:
    return [] if outputs is None else [leaf for _, leaf in flatten(outputs)[0]]


def _follows(value: Any, near: Any, nearer: Any) -> bool:
    """Whether the results are float64 and move with their inputs, in proportion."""
    tensors = [v for v in (value, near, nearer) if isinstance(v, torch.Tensor) and v.dtype is torch.float64]
    if len(tensors) < 3 or len({t.shape for t in tensors}) > 1 or not all(bool(t.isfinite().all()) for t in tensors):
        return False
    far, small = tensors[1] - tensors[0], (tensors[2] - tensors[0]) * (_STEP / _SMALLER)
    size = rms(small)
    return size > 0.0 and rms(far - small) <= _BENT * size

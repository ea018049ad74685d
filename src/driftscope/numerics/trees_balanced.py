"""Rows of terms on which a change of the order shows: every partial sum of the supposed tree stays near one.

On ordinary data the large partial sums near the root round away what happened below, and an output of 8 or 11 bits
hides the rest. So the terms are made from the tree: the sum is zero, every node splits its value in two parts of
about one, and all that comes out is the accumulated rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.numerics.formats import FORMATS
from driftscope.numerics.trees import SumTree
from driftscope.numerics.trees_replay import numpy_dtype

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the terms are.

    Parameters
    ----------
    size : float
        Magnitude of the larger terms.
    small : float or None
        Every second term is this much smaller, so that adding it is inexact in an accumulator much wider than the
        terms; None where accumulator and terms are equally wide.
    repairs : int
        Terms per row that are changed to bring the exact sum back to zero after rounding.
    """

    size: float = 1.0
    small: float | None = None
    repairs: int = 0


def scale_for(terms: str, accumulator: str) -> Scale:
    """Return the scale for a format of terms and one of partial sums."""
    p, wide = FORMATS[terms].p, FORMATS[accumulator].p
    # float16 ends at 2**-24: terms near 2**10 leave room below for the small ones.
    size = 2.0**10 if terms == "float16" else 1.0
    if wide <= p:
        return Scale(size)
    return Scale(size, 2.0 ** -(wide - 4), math.ceil((wide + 10) / (p - 1)) + 1)


def balanced_rows(
    tree: SumTree, rows: int, terms: str, scale: Scale, rng: np.random.Generator, weights: Array | None = None
) -> Array:
    """Draw rows whose exact sum of (weighted) terms is near zero while no partial sum is.

    Parameters
    ----------
    tree : SumTree
    rows : int
    terms : str
        Format of the terms.
    scale : Scale
    rng : numpy.random.Generator
    weights : ndarray, shape (n,), or None
        Factors that the terms will be multiplied with; none may be zero.

    Returns
    -------
    ndarray of ``terms``, shape (rows, n)
    """
    values = _split(tree, rows, scale.small, rng)
    values *= scale.size
    if weights is not None:
        values /= weights.astype(np.float32)[:, None]
    dtype = numpy_dtype(terms)
    made = np.ascontiguousarray(values.T).astype(dtype)
    if scale.repairs and tree.n > 2:
        _repair(made, scale.repairs, rng, None if weights is None else weights.astype(np.float64))
    return made


def _split(tree: SumTree, rows: int, small: float | None, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Walk from the root down: a node's value v becomes v/2 + r and v/2 - r with r uniform in (-1, 1).

    Where some terms are to be small, such a term takes r alone, and what it is added to takes the rest.
    """
    noise = rng.random((tree.n, rows), np.float32)
    noise *= 2
    noise -= 1
    share = np.full(tree.n, 0.5, np.float32)
    if tree.n == 1:
        return noise
    if small is not None:
        tiny = np.zeros(tree.n, np.bool_)
        for step in tree.steps:
            tiny[step.of[step.leaf]] = True
        tiny &= rng.random(tree.n) < 0.5
        noise[tiny] *= small
        share[tiny] = 0
    values = np.zeros((tree.n, rows), np.float32)
    for step in reversed(tree.steps):
        for slots in step.fused:
            parts = noise[list(slots[1:])]
            values[list(slots[1:])] = parts
            values[slots[0]] -= parts.sum(axis=0)
        if len(step.into) == 1:
            into, of = step.into[0], step.of[0]
            values[of] = values[into] * share[of] + noise[of]
            values[into] -= values[of]
        elif len(step.into):
            part = values[step.into] * share[step.of, None] + noise[step.of]
            values[step.of] = part
            values[step.into] -= part
    return values


def _repair(made: Array, repairs: int, rng: np.random.Generator, weights: Any) -> None:
    """Move the exact sum of every row towards zero by changing a few of its terms."""
    rows, n = made.shape
    places = np.argsort(np.abs(made.astype(np.float32)) + rng.random(made.shape, np.float32) * 1e-30, axis=1)
    places = places[:, : min(repairs, n)]
    wide = made.astype(np.float64)
    if weights is not None:
        wide *= weights
    # float64 holds the sum of short terms exactly; float32 terms need their sum made without rounding.
    exact = made.dtype.itemsize < 4
    total = wide.sum(axis=1) if exact else np.asarray([math.fsum(row) for row in wide.tolist()])
    line = np.arange(rows)
    for place in reversed(range(places.shape[1])):
        at = places[:, place]
        factor = 1.0 if weights is None else weights[at]
        before = made[line, at].astype(np.float64)
        made[line, at] = (before - total / factor).astype(made.dtype)
        total = total + (made[line, at].astype(np.float64) - before) * factor

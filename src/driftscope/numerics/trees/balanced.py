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

from driftscope.numerics.formats import FORMATS, numpy_dtype
from driftscope.numerics.trees.tree import SumTree

Array = npt.NDArray[Any]


_BLOCK = 1 << 18
_TIMES = 8  # rows made of one
_CANDIDATES = 64
_FULL = 0.92387953251128674  # cos(pi/8)


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
    made = np.empty((rows, tree.n), numpy_dtype(terms))
    # A row times a number that is no power of two has other roundings in the same partial sums: cheaper than another
    # row. Where some terms are small, which ones must vary more.
    times = _TIMES if scale.small is None else _TIMES // 2
    drawn = -(-rows // times)
    # In blocks that fit a core's cache, but of enough rows that a step of one addition is worth its call.
    size = min(drawn, max(_BLOCK // tree.n, tree.depth, 1))
    for at in range(0, drawn, size):
        many = min(size, drawn - at)
        # Values of fewer bits than the terms would be added without rounding.
        values = _split(tree, many, scale.small, rng, np.float64 if terms == "float64" else np.float32)
        values *= scale.size
        if terms == "float16":  # a step of hundreds of terms would leave it
            values *= 2.0 ** min(0, 15 - math.frexp(float(np.abs(values).max()))[1])
        if weights is not None:
            values /= weights.astype(values.dtype)[:, None]
        values = np.ascontiguousarray(values.T)
        for first in range(at, rows, drawn):
            block = made[first : min(first + many, rows)]
            factors = rng.uniform(1, 2, (len(block), 1)) if first > at else np.ones((len(block), 1))
            block[:] = values[: len(block)] * factors.astype(values.dtype)
    if scale.repairs and tree.n > 2:
        _repair(made, scale.repairs, rng, None if weights is None else weights.astype(np.float64))
    return made


def _split(tree: SumTree, rows: int, small: float | None, rng: np.random.Generator, drawn: Any) -> Array:
    """Walk from the root down: a node's value v becomes v/2 + r and v/2 - r with r uniform in (-1, 1).

    Where some terms are to be small, such a term takes r alone, and what it is added to takes the rest.
    """
    values = rng.random((tree.n, rows), drawn)
    # Draws are multiples of one small number and would be added without rounding; products with a full significand
    # are not.
    values -= drawn(0.5)
    values *= drawn(2 * _FULL)
    if tree.n == 1:
        return values
    tiny = None if small is None else _tiny(tree, rows, rng)
    if tiny is not None:
        values *= np.where(tiny, drawn(small), drawn(1))
    values[tree.last_slot] = 0
    for step in reversed(tree.steps):
        for slots in step.fused:
            values[slots[0]] -= values[list(slots[1:])].sum(axis=0)
        if len(step.into) == 0:
            continue
        # Views where there is one addition: a chain has thousands of such steps.
        into, of = (step.into[0], step.of[0]) if len(step.into) == 1 else (step.into, step.of)
        part = values[into] * drawn(0.5)
        if tiny is not None:
            part *= ~tiny[of]
        part += values[of]
        values[of] = part
        values[into] -= part
    return values


def _tiny(tree: SumTree, rows: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Choose the small terms, in every row others: a change between two larger ones would not show."""
    single = np.zeros(tree.n, np.bool_)
    for step in tree.steps:
        single[step.of[step.leaf]] = True
    coins = np.frombuffer(rng.bytes(-(-tree.n * rows // 8)), np.uint8)
    chosen = np.unpackbits(coins, count=tree.n * rows).reshape(tree.n, rows).view(np.bool_)
    chosen &= single[:, None]
    return chosen


def _repair(made: Array, repairs: int, rng: np.random.Generator, weights: Any) -> None:
    """Move the exact sum of every row towards zero by changing a few of its terms."""
    rows, n = made.shape
    # Small terms take the rest most exactly; a few candidates hold enough of them.
    candidates = rng.choice(n, min(n, _CANDIDATES), replace=False)
    places = candidates[np.argsort(np.abs(made[:, candidates].astype(np.float32)), axis=1)[:, : min(repairs, n)]]
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

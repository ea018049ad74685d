"""Adding in the order of a tree: the same bits as the kernel, when tree and arithmetic are the kernel's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from driftscope.numerics.trees import Step, SumTree
from driftscope.numerics.trees_rounding import aligned_sum, exact_sum, fma

Array = npt.NDArray[Any]

_BLOCK = 1 << 19  # terms replayed at a time: they stay in a core's cache


@dataclass(frozen=True)
class Arithmetic:
    """What a sum does besides its order.

    Parameters
    ----------
    accumulator : str
        Format of partial sums.
    product : str
        ``"none"`` for a sum; ``"rounded"`` where products are rounded before they are added, ``"fma"`` where they are
        not, ``"mixed"`` where ``fma_terms`` says which.
    mean : str
        ``"none"``; ``"divide"`` or ``"reciprocal"`` for a mean made of the sum in the accumulator, ``"divide-last"``
        for one made of the rounded sum, ``"divide-first"`` for one that scales every term.
    fused : str
        How a step of several additions rounds: ``"exact"`` (once) or ``"aligned+k"`` (see
        :func:`driftscope.numerics.trees_rounding.aligned_sum`).
    fma_terms : ndarray of bool, shape (n,), or None
    """

    accumulator: str
    product: str = "none"
    mean: str = "none"
    fused: str = "exact"
    fma_terms: npt.NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype that stores a format, also where numpy has none of its own.

    Raises
    ------
    TypeError
        If there is no such dtype.
    """
    return np.dtype(getattr(ml_dtypes, name, name))


def replay(tree: SumTree, x: Array, arithmetic: Arithmetic, output: str, weights: Array | None = None) -> Array:
    """Add the terms of every row in the order of a tree.

    Parameters
    ----------
    tree : SumTree
    x : ndarray, shape (rows, n)
    arithmetic : Arithmetic
    output : str
        Format of the result.
    weights : ndarray, shape (n,), or None
        Factors of the terms.

    Returns
    -------
    ndarray of ``output``, shape (rows,)
    """
    rows = max(1, _BLOCK // tree.n)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [_block(tree, x[at : at + rows], arithmetic, output, weights) for at in range(0, len(x), rows)]
    return np.concatenate(parts) if parts else np.empty(0, numpy_dtype(output))


def _block(tree: SumTree, x: Array, arithmetic: Arithmetic, output: str, weights: Array | None) -> Array:
    accumulator = numpy_dtype(arithmetic.accumulator)
    terms = np.ascontiguousarray(x.T)
    sums = terms.astype(accumulator)
    factors = None if weights is None else weights.astype(accumulator)[:, None]
    raw = sums
    if factors is not None:
        # Exact in float64 for operands of up to 24 bits, so rounded once.
        raw = sums.copy()
        wide = accumulator if accumulator == np.float64 else np.dtype(np.float64)
        sums = (sums.astype(wide) * factors.astype(wide)).astype(accumulator)
    if arithmetic.mean == "divide-first":
        sums = sums * accumulator.type(1 / tree.n)
    for step in tree.steps:
        _add(sums, raw, factors, step, arithmetic)
    slot = int(tree.steps[-1].into[0]) if tree.steps and len(tree.steps[-1].into) else 0
    if tree.steps and not len(tree.steps[-1].into):
        slot = tree.steps[-1].fused[0][0]
    return _finish(sums[slot], tree.n, arithmetic, numpy_dtype(output))


def _add(sums: Array, raw: Array, factors: Array | None, step: Step, arithmetic: Arithmetic) -> None:
    if factors is None or arithmetic.product not in ("fma", "mixed") or not step.leaf.any():
        _plain(sums, step.into, step.of)
    else:
        unrounded, exchanged = step.leaf, np.zeros_like(step.leaf)
        if arithmetic.fma_terms is not None:
            unrounded = step.leaf & arithmetic.fma_terms[step.of]
            # Of two products one is rounded first; it may be either.
            exchanged = step.both & arithmetic.fma_terms[step.into] & ~unrounded
        rest = ~unrounded & ~exchanged
        _plain(sums, step.into[rest], step.of[rest])
        _product(sums, raw, factors, step.into[unrounded], step.of[unrounded])
        i, k = step.into[exchanged], step.of[exchanged]
        sums[i] = fma(raw[i], factors[i], sums[k])
    for slots in step.fused:
        members = sums[list(slots)]
        if arithmetic.fused == "exact":
            sums[slots[0]] = exact_sum(members, sums.dtype)
        else:
            sums[slots[0]] = aligned_sum(members, int(arithmetic.fused.partition("+")[2]))


def _plain(sums: Array, into: Array, of: Array) -> None:
    if len(into) == 1:
        # Views: a chain has thousands of steps of one addition.
        sums[into[0]] += sums[of[0]]
    elif len(into):
        sums[into] += sums[of]


def _product(sums: Array, raw: Array, factors: Any, into: Array, of: Array) -> None:
    if len(into) == 1:
        i, k = into[0], of[0]
        sums[i] = fma(raw[k], factors[k], sums[i])
    else:
        sums[into] = fma(raw[of], factors[of], sums[into])


def _finish(total: Array, n: int, arithmetic: Arithmetic, output: np.dtype[Any]) -> Array:
    scalar = total.dtype.type
    if arithmetic.mean == "divide":
        total = total / scalar(n)
    elif arithmetic.mean == "reciprocal":
        total = total * (scalar(1) / scalar(n))
    result: Array = total.astype(output)
    if arithmetic.mean == "divide-last":
        result = (result / output.type(n)).astype(output)
    return result

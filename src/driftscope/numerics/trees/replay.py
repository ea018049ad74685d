"""Adding in the order of a tree: the same bits as the kernel, when tree and arithmetic are the kernel's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.trees.rounding import aligned_sum, exact_sum, fma, sum_to_odd
from driftscope.numerics.trees.tree import AddLevel, SumTree

Array = npt.NDArray[Any]

_BLOCK = 3 << 19  # terms replayed at a time


@dataclass(frozen=True)
class SumArithmetic:
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
        :func:`driftscope.numerics.trees.rounding.aligned_sum`).
    fma_terms : ndarray of bool, shape (n,), or None
    """

    accumulator: str
    product: str = "none"
    mean: str = "none"
    fused: str = "exact"
    fma_terms: npt.NDArray[np.bool_] | None = field(default=None, compare=False, repr=False)


def replay(tree: SumTree, x: Array, arithmetic: SumArithmetic, output: str, weights: Array | None = None) -> Array:
    """Add the terms of every row in the order of a tree.

    Parameters
    ----------
    tree : SumTree
    x : ndarray, shape (rows, n)
    arithmetic : SumArithmetic
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


class _Products:
    """Products of terms and weights, not rounded yet.

    Parameters
    ----------
    terms : ndarray, shape (n, rows)
    weights : ndarray, shape (n,)
    accumulator : numpy.dtype
    """

    def __init__(self, terms: Array, weights: Array, accumulator: np.dtype[Any]):
        self._accumulator = accumulator
        self._terms, self._weights = terms, weights.astype(np.float64)[:, None]
        self._exact = None
        if accumulator != np.float64:
            # float64 holds products of up to 24 + 24 bits.
            self._exact = terms.astype(np.float64)
            self._exact *= self._weights

    def rounded(self) -> Array:
        """Return the products in the accumulator's format."""
        if self._exact is not None:
            return self._exact.astype(self._accumulator)
        return np.asarray(self._terms * self._weights)

    def plus(self, places: Any, sums: Array) -> Array:
        """Return some products plus partial sums, rounded once."""
        if self._exact is not None:
            return sum_to_odd(self._exact[places], sums.astype(np.float64)).astype(self._accumulator)
        return fma(self._terms[places], self._weights[places], sums)


def _block(tree: SumTree, x: Array, arithmetic: SumArithmetic, output: str, weights: Array | None) -> Array:
    accumulator = numpy_dtype(arithmetic.accumulator)
    sums = np.array(x.T, accumulator, order="C")
    products = None
    if weights is not None:
        products = _Products(sums if accumulator == np.float64 else x.T, weights, accumulator)
        sums = np.ascontiguousarray(products.rounded())
    if arithmetic.mean == "divide-first":
        sums = sums * accumulator.type(1 / tree.n)
    unrounded = products if arithmetic.product in ("fma", "mixed") else None
    for step in tree.steps:
        _add(sums, unrounded, step, arithmetic)
    return finished(sums[tree.last_slot], tree.n, arithmetic, numpy_dtype(output))


def _add(sums: Array, products: _Products | None, step: AddLevel, arithmetic: SumArithmetic) -> None:
    if products is None or not step.leaf.any():
        _plain(sums, step.into, step.of)
    else:
        _add_products(sums, products, step, arithmetic.fma_terms)
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


def _add_products(sums: Array, products: _Products, step: AddLevel, fma_terms: Any) -> None:
    unrounded = step.leaf if fma_terms is None else step.leaf & fma_terms[step.of]
    into, of = step.into[unrounded], step.of[unrounded]
    if len(into) == 1:
        sums[into[0]] = products.plus(of[0], sums[into[0]])
    else:
        sums[into] = products.plus(of, sums[into])
    if unrounded.all():
        return
    # Of two products that meet, one is rounded first; it may be either.
    exchanged = np.zeros_like(unrounded) if fma_terms is None else step.both & fma_terms[step.into] & ~unrounded
    i, k = step.into[exchanged], step.of[exchanged]
    sums[i] = products.plus(i, sums[k])
    rest = ~unrounded & ~exchanged
    _plain(sums, step.into[rest], step.of[rest])


def finished(total: Array, n: int, arithmetic: SumArithmetic, output: np.dtype[Any]) -> Array:
    """Make the result of sums in the accumulator's format: divide where it is a mean, round to the output."""
    scalar = total.dtype.type
    if arithmetic.mean == "divide":
        total = total / scalar(n)
    elif arithmetic.mean == "reciprocal":
        total = total * (scalar(1) / scalar(n))
    result: Array = total.astype(output)
    if arithmetic.mean == "divide-last":
        result = (result / output.type(n)).astype(output)
    return result

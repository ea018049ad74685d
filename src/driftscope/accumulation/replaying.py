"""Replaying at speed: the compiled library where there is one, numpy where there is not; the bits are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.exact import compiled
from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.trees.replay import SumArithmetic, finished, replay
from driftscope.numerics.trees.tree import SumTree

Array = npt.NDArray[Any]

_KINDS = {"float64": 0, "float32": 1}


def replayed(tree: SumTree, x: Array, arithmetic: SumArithmetic, output: str, weights: Array | None = None) -> Array:
    """Add the terms of every row in the order of a tree, as :func:`driftscope.numerics.trees.replay.replay` does.

    Parameters
    ----------
    tree, x, arithmetic, output, weights
        As there.

    Returns
    -------
    ndarray of ``output``, shape (rows,)
    """
    native = compiled.library()
    known = arithmetic.accumulator in _KINDS and numpy_dtype(arithmetic.accumulator).itemsize >= x.dtype.itemsize
    if native is None or tree.has_fused or not known or not len(x):
        return replay(tree, x, arithmetic, output, weights)
    if weights is not None and arithmetic.accumulator == "float64" and x.dtype == np.float64:
        # Beyond the reach of exact products the two may part (overflow of a split factor): numpy's way is the one.
        limit = 2.0**900
        if not (np.abs(x) < limit).all() or not (np.abs(weights) < limit).all():
            return replay(tree, x, arithmetic, output, weights)
    accumulator = numpy_dtype(arithmetic.accumulator)
    terms = np.ascontiguousarray(x, accumulator)
    if arithmetic.mean == "divide-first":
        if weights is not None:
            return replay(tree, x, arithmetic, output, weights)
        terms = terms * accumulator.type(1 / tree.n)
    total = np.empty(len(x), accumulator)
    given = [np.ascontiguousarray(tree.left), np.ascontiguousarray(tree.right)]
    flags = _unrounded(tree.n, arithmetic) if weights is not None else None
    factors = None if weights is None else np.ascontiguousarray(weights, accumulator)
    failed = native.driftscope_replay(
        _KINDS[arithmetic.accumulator], tree.n, given[0].ctypes.data, given[1].ctypes.data, _pointer(flags),
        terms.ctypes.data, len(terms), _pointer(factors), total.ctypes.data,
    )  # fmt: skip
    if failed:
        raise MemoryError(f"no memory to replay {tree.n} terms")
    with np.errstate(over="ignore", invalid="ignore"):
        return finished(total, tree.n, arithmetic, numpy_dtype(output))


def _unrounded(n: int, arithmetic: SumArithmetic) -> Array | None:
    """One flag per term whose product is added unrounded; None where no product is."""
    if arithmetic.product == "fma":
        return np.ones(n, np.int8)
    if arithmetic.product == "mixed" and arithmetic.fma_terms is not None:
        return np.ascontiguousarray(arithmetic.fma_terms, np.int8)
    return None


def _pointer(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data

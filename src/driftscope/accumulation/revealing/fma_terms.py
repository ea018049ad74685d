"""Which products enter a sum unrounded, term by term."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel
from driftscope.accumulation.revealing.examination import in_rows
from driftscope.numerics.formats import FORMATS, numpy_dtype
from driftscope.numerics.trees.tree import SumTree

_ROUNDS = 24


def fma_terms(kernel: Kernel, tree: SumTree) -> npt.NDArray[np.bool_]:
    """Find the terms whose product is not rounded before it is added.

    A term and its weight are both ``1 + 2**-h``, another term that it meets is ``-(1 + 2**(1-h))`` with weight 1,
    h = 12 in float32 and 27 in float64. Rounded, the product cancels; unrounded, it leaves ``2**-2h``.

    Parameters
    ----------
    kernel : Kernel
        With products, in the format of its terms.
    tree : SumTree

    Returns
    -------
    ndarray of bool, shape (n,)
        False also for terms that no other choice could tell about.
    """
    found = np.zeros(tree.n, np.bool_)
    partners = _partners(tree)
    left = set(range(tree.n))
    rng = np.random.default_rng(5)
    tested = np.zeros(tree.n, np.bool_)
    for number in range(_ROUNDS):
        # A choice and its opposite: of two terms that meet each other, both get their turn.
        tested = ~tested if number % 2 else rng.random(tree.n) < 0.5
        pairs = [(k, next((p for p in partners[k] if not tested[p]), None)) for k in sorted(left) if tested[k]]
        ready = [(k, p) for k, p in pairs if p is not None]
        if not ready:
            continue
        found[[k for k, _ in ready]] |= _ask(kernel, tested, ready)
        left -= {k for k, _ in ready}
        if not left:
            break
    return found


def _ask(kernel: Kernel, tested: npt.NDArray[np.bool_], pairs: list[Any]) -> npt.NDArray[np.bool_]:
    dtype = numpy_dtype(kernel.dtype)
    step = 2.0 ** -((FORMATS[kernel.dtype].p + 1) // 2)
    kernel.use_weights(np.where(tested, 1 + step, 1.0).astype(dtype))
    x = np.zeros((len(pairs), kernel.n), dtype)
    line = np.arange(len(pairs))
    x[line, [k for k, _ in pairs]] = 1 + step
    x[line, [p for _, p in pairs]] = -(1 + 2 * step)
    try:
        unrounded: npt.NDArray[np.bool_] = in_rows(kernel, x) != 0
    finally:
        kernel.use_weights(None)
    return unrounded


def _partners(tree: SumTree) -> list[list[int]]:
    """Return for every term a few of the terms that it meets when it is first added."""
    partners: list[list[int]] = [[] for _ in range(tree.n)]
    # The first few terms under each node are enough to find one with another weight.
    some: list[list[int]] = [[k] for k in range(tree.n)]
    for a, b in zip(tree.left.tolist(), tree.right.tolist(), strict=True):
        if a < tree.n:
            partners[a] = some[b]
        if b < tree.n:
            partners[b] = some[a]
        some.append((some[a] + some[b])[:8])
    return partners

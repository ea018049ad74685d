"""Kernels whose order is known because it is written here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from driftscope.numerics.trees.rounding import aligned_sum
from driftscope.numerics.trees.tree import SumTree


def folded(parts: Any) -> Any:
    """Return parts added one after another, as nested tuples."""
    total, *rest = parts
    for part in rest:
        total = (total, part)
    return total


def pairwise(lo: int, hi: int) -> Any:
    """Return the terms of a range added in halves."""
    return lo if hi - lo == 1 else (pairwise(lo, (lo + hi) // 2), pairwise((lo + hi) // 2, hi))


def random_order(n: int, seed: int) -> Any:
    """Return terms joined at random."""
    rng, parts = np.random.default_rng(seed), list(range(n))
    while len(parts) > 1:
        i, j = sorted(rng.choice(len(parts), 2, replace=False).tolist())
        b, a = parts.pop(j), parts.pop(i)
        parts.append((a, b))
    return parts[0]


def adding(nested: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a kernel that adds the last axis as the nested tuples say, in the dtype of its input."""
    tree = SumTree.of(nested)

    def kernel(x: np.ndarray) -> np.ndarray:
        values = list(x.T)
        for a, b in zip(tree.left.tolist(), tree.right.tolist(), strict=True):
            values.append(np.add(values[a], values[b]))
        return values[-1]

    return kernel


def adding_in_float32(nested: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a kernel with a float32 accumulator whose result is rounded to the dtype of its input."""
    plain = adding(nested)
    return lambda x: plain(x.astype(np.float32)).astype(x.dtype)


def tensor_core(group: int, extra_bits: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a kernel that adds its running sum and the next terms in one truncating step."""

    def kernel(x: np.ndarray) -> np.ndarray:
        total = aligned_sum(x[:, :group].T, extra_bits)
        for at in range(group, x.shape[1], group):
            total = aligned_sum(np.concatenate([total[None], x[:, at : at + group].T]), extra_bits)
        return total

    return kernel


def tensor_core_order(n: int, group: int) -> Any:
    """Return the order of :func:`tensor_core`."""
    nested = tuple(range(group))
    for at in range(group, n, group):
        nested = (nested, *range(at, min(at + group, n)))
    return nested


def welford_mean(x: np.ndarray) -> np.ndarray:
    """Return running means: no tree of additions."""
    mean = np.zeros(len(x), x.dtype)
    for k in range(x.shape[1]):
        mean = mean + (x[:, k] - mean) / x.dtype.type(k + 1)
    return mean


def kahan_sum(x: np.ndarray) -> np.ndarray:
    """Return compensated sums: no tree of additions either."""
    total, lost = np.zeros(len(x), x.dtype), np.zeros(len(x), x.dtype)
    for k in range(x.shape[1]):
        term = x[:, k] - lost
        grown = total + term
        lost = (grown - total) - term
        total = grown
    return total

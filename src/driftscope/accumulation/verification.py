"""A tree is reported only after adding in its order gave the kernel's own bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.examination import in_rows
from driftscope.accumulation.fma_terms import fma_terms
from driftscope.accumulation.kernels import Kernel
from driftscope.accumulation.refusal import RevealError
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.trees import SumTree
from driftscope.numerics.trees_balanced import balanced_rows, scale_for
from driftscope.numerics.trees_replay import Arithmetic, numpy_dtype, replay

Array = npt.NDArray[Any]

_FIRST = 16  # rows that sort out most candidates
_MEANS = ("divide", "reciprocal", "divide-last", "divide-first")
_FUSED = ("exact", "aligned+0", "aligned+1", "aligned+2", "aligned+3")


@dataclass(frozen=True, slots=True)
class Verified:
    """How a tree was verified.

    Parameters
    ----------
    rows : int
        Rows on which adding in the order of the tree gave the kernel's bits; all that were tried.
    miss : float
        Probability that a tree with one pair of additions exchanged would have passed too.
    """

    rows: int
    miss: float

    def __str__(self) -> str:
        chance = f"one local change would go unnoticed with p < {self.miss:.0e}"
        return f"{self.rows} balanced rows replayed bit for bit; {chance}"


#: Share of balanced rows that one exchanged pair of additions changed, and rows to use, by width of the output.
#: Measured by ``python -m benchmarks.reveal --power``.
POWER = {"wide": (0.03, 310), "narrow": (0.015, 700)}


def verify(kernel: Kernel, tree: SumTree, gain: float, rng: np.random.Generator) -> tuple[Arithmetic, Verified]:
    """Find the arithmetic with which a tree gives a kernel's bits on balanced rows.

    Raises
    ------
    RevealError
        If there is none: the tree is not the kernel's.
    """
    accumulators = accumulators_of(kernel, tree, gain)
    scale = scale_for(kernel.dtype, accumulators[0])
    share, rows = POWER["wide" if FORMATS[kernel.output].p >= 24 else "narrow"]
    weights = _weights(kernel, rng) if kernel.products else None
    x = balanced_rows(tree, rows, kernel.dtype, scale, rng, weights)
    native = in_rows(kernel, x) if weights is None else _weighted(kernel, x, weights)
    closest = 0.0
    for number, arithmetic in enumerate(_candidates(kernel, tree, accumulators, gain)):
        # The first candidate is nearly always the one; the others are sorted out on a few rows.
        few = _FIRST if number else 0
        share_equal = _agreement(tree, x[:few], native[:few], arithmetic, kernel, weights) if few else 1.0
        if share_equal == 1.0:
            share_equal = _agreement(tree, x, native, arithmetic, kernel, weights)
            if share_equal == 1.0:
                return arithmetic, Verified(rows, float((1 - share) ** rows))
        closest = max(closest, share_equal)
    raise RevealError(
        f"{kernel.name}: a tree was found, but adding in its order gives the kernel's bits on only {closest:.1%} of"
        " rows, so it is not reported; the kernel rounds in a way not known here, or its order depends on the values"
    )


def _agreement(
    tree: SumTree, x: Array, native: Array, arithmetic: Arithmetic, kernel: Kernel, weights: Array | None
) -> float:
    again = replay(tree, x, arithmetic, kernel.output, weights)
    # Values, not bit patterns: which zero a cancelled sum is says nothing about the order.
    return float((again == native).mean())


def _candidates(kernel: Kernel, tree: SumTree, accumulators: tuple[str, ...], gain: float) -> Iterator[Arithmetic]:
    choices = itertools.product(
        accumulators, _FUSED if tree.has_fused else _FUSED[:1], _MEANS if gain != 1 else ("none",)
    )
    for accumulator, fused, mean in choices:
        if not kernel.products:
            yield Arithmetic(accumulator, "none", mean, fused)
            continue
        # Products that the accumulator holds exactly are the same bits either way.
        exact = 2 * FORMATS[kernel.dtype].p <= FORMATS[accumulator].p
        for product in ("rounded",) if exact else ("fma", "rounded"):
            yield Arithmetic(accumulator, product, mean, fused)
        if not exact and kernel.dtype == accumulator and kernel.n > 1:
            yield Arithmetic(accumulator, "mixed", mean, fused, fma_terms(kernel, tree))


def _weighted(kernel: Kernel, x: Array, weights: Array) -> Array:
    kernel.use_weights(weights)
    try:
        return in_rows(kernel, x)
    finally:
        kernel.use_weights(None)


def _weights(kernel: Kernel, rng: np.random.Generator) -> Array:
    drawn = rng.uniform(1, 2, kernel.n) * rng.choice([-1.0, 1.0], kernel.n)
    weights: Array = drawn.astype(numpy_dtype(kernel.dtype))
    return weights


def accumulators_of(kernel: Kernel, tree: SumTree, gain: float) -> tuple[str, ...]:
    """Find the format of partial sums: one unit beside 2**t vanishes when the format has t bits.

    Returns
    -------
    tuple of str
        A format's name; several where ``n`` is too small to tell.
    """
    known = {FORMATS[name].p: name for name in ("float64", "float32", "float16", "bfloat16")}
    wider = tuple(name for p, name in sorted(known.items()) if p >= FORMATS[kernel.dtype].p and p != 11)
    if kernel.n < 3:
        return (kernel.dtype, *(name for name in wider if name != kernel.dtype))
    both = int(np.flatnonzero((tree.left < tree.n) & (tree.right < tree.n))[0])
    a, b = int(tree.left[both]), int(tree.right[both])
    c = next(k for k in range(3) if k not in (a, b))
    # The unit must still show in a mean of float16; float16 ends at 2**16.
    low = -24 + math.ceil(math.log2(2 / gain)) if "float16" in (kernel.dtype, kernel.output) else 0
    unit, bits = 2.0**low, np.arange(1, min(15 - low, 61) + 1) if kernel.dtype == "float16" else np.arange(1, 62)
    x = np.zeros((len(bits), kernel.n), numpy_dtype(kernel.dtype))
    x[:, a], x[:, b], x[:, c] = unit * 2.0**bits, unit, -unit * 2.0**bits
    lost = in_rows(kernel, x) == 0
    # An exact sum loses nothing; it is replayed in the format of its result.
    return (known.get(int(bits[lost][0]), kernel.output),) if lost.any() else (kernel.output,)

"""A tree is reported only after adding in its order gave the kernel's own bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.examination import in_rows, rows_per_call
from driftscope.accumulation.revealing.fma_terms import fma_terms
from driftscope.accumulation.revealing.refusal import AloneError, RevealError
from driftscope.accumulation.revealing.subnormals import subnormal_rows, subnormal_words
from driftscope.numerics.formats import FORMATS, numpy_dtype
from driftscope.numerics.trees.balanced import Scale, balanced_rows, scale_for
from driftscope.numerics.trees.replay import SumArithmetic, finished
from driftscope.numerics.trees.tree import SumTree
from driftscope.records.words import counted

Array = npt.NDArray[Any]

_FIRST = 16  # rows that sort out most candidates
_DIVIDED = 1 << 12  # terms among which those are looked for that tell two ways of a mean apart
_MOST_TERMS = 1 << 24  # drawn at a time
MEANS = ("divide", "reciprocal", "divide-last", "divide-first")
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
        chance = f"a local change goes unnoticed with p < {self.miss:.0e}"
        return f"{counted(self.rows, 'balanced row')} replayed bit for bit; {chance}"


@dataclass(frozen=True, slots=True)
class Guess:
    """A tree whose arithmetic is known but for its products.

    Parameters
    ----------
    tree : SumTree
    accumulator : str
    means : tuple of str
        Ways to take a mean that fit what was seen; ``("none",)`` for a sum.
    words : str
        What the order is called; empty where its pattern says enough.
    """

    tree: SumTree
    accumulator: str
    means: tuple[str, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Rows that a kernel added: its results, with the weights of one column."""

    x: Array
    native: Array
    weights: Array | None = None


#: Share of balanced rows that one exchanged pair of additions changes at least, and rows to use: by width of the
#: output, and for products in a narrow one. Measured by ``python -m benchmarks.reveal --power``.
POWER = {"wide": (0.06, 180), "narrow": (0.03, 340), "narrow product": (0.015, 620)}
#: Terms of a float16 mean up to which it notices as much as a sum (measured: 5.5 % at 1024, 1.7 % at 4096, 0.7 % at
#: 16384), and the most rows to make up for it.
_SHALLOW = 1024
_MOST_ROWS = 2500
#: Terms of all rows together; a longer sum gets fewer rows, and its verification says so.
_ALL_TERMS = 1 << 27


def verify(
    kernel: Kernel, tree: SumTree, gain: float, rng: np.random.Generator, *, guess: Guess | None = None,
    alone: tuple[Array, Array] | None = None,
) -> tuple[SumArithmetic, Verified]:  # fmt: skip
    """Find the arithmetic with which a tree gives a kernel's bits on balanced rows.

    Parameters
    ----------
    kernel, tree, gain, rng
    guess : Guess, optional
        What is known of the arithmetic already; asked for otherwise.
    alone : pair of arrays, optional
        Rows that were added before, and the results: added again among the others, they must give the same.

    Raises
    ------
    RevealError
        If there is none: the tree is not the kernel's.
    """
    accumulators = accumulators_of(kernel, tree, gain) if guess is None else (guess.accumulator,)
    scale = scale_for(kernel.dtype, accumulators[0])
    means = _means(gain) if guess is None else guess.means
    share, rows = _share_and_rows(kernel, mean="none" not in means)
    draw = _Draw(kernel, tree, scale, rng, accumulators[0] if "none" not in means else "")
    first = min(rows, max(_MOST_TERMS // kernel.length, _FIRST))
    if kernel.products:
        trials = draw.multiplied(rows, _columns(kernel, rows) if scale.repairs == 0 else 1)
    else:
        trials = [draw.added(first, alone)]
    closest = elsewhere = 0.0
    for number, arithmetic in enumerate(_candidates(kernel, tree, accumulators, means)):
        # The first candidate is nearly always the one; the others are sorted out on a few rows.
        few = _FIRST if number else 0
        share_equal = _agreement(tree, trials[:1], arithmetic, kernel.output, few) if few else 1.0
        if share_equal == 1.0:
            share_equal = _agreement(tree, trials, arithmetic, kernel.output)
            many = sum(len(trial.x) for trial in trials)
            while share_equal == 1.0 and many < rows:
                more = [draw.added(min(first, rows - many))]
                share_equal = _agreement(tree, more, arithmetic, kernel.output)
                many += len(more[0].x)
            if share_equal == 1.0:
                usual = draw.on_any_rows(arithmetic)
                if usual == 1.0:
                    return arithmetic, Verified(many, float((1 - share) ** many))
                elsewhere = max(elsewhere, usual)
        closest = max(closest, share_equal)
    if closest == 1.0:
        raise RevealError(
            f"{kernel.name}: a tree was found, but on rows drawn at random adding in its order gives other bits in"
            f" {1 - elsewhere:.0%} of them, so it is not reported; the kernel rounds its result otherwise than its"
            " format does, or its order depends on the values"
        )
    raise RevealError(
        f"{kernel.name}: a tree was found, but adding in its order gives the kernel's bits on only {closest:.1%} of"
        " rows, so it is not reported; the kernel rounds in a way not known here, or its order depends on the values"
    )


@dataclass(frozen=True, slots=True)
class _Draw:
    """Draws rows and has them added; of a mean, ``divided_in`` is the format of its partial sums."""

    kernel: Kernel
    tree: SumTree
    scale: Scale
    rng: np.random.Generator
    divided_in: str = ""
    usual: list[_Trial] = field(default_factory=list)

    def added(self, rows: int, alone: tuple[Array, Array] | None = None) -> _Trial:
        """Add rows; where any number of them goes into a call, all in one, with earlier ones among them.

        Raises
        ------
        AloneError
            If the earlier rows give other bits now.
        """
        kernel = self.kernel
        x = balanced_rows(self.tree, rows, kernel.dtype, self.scale, self.rng)
        if alone is None or kernel.rows is not None:
            return _Trial(x, in_rows(kernel, x))
        # Kernels take rows in groups; the earlier ones come last, in a place of their own.
        usual, small = self._usual_rows(), subnormal_rows(kernel)
        more = np.concatenate([usual, small, alone[0]])
        size = -(-(len(x) + len(more)) // 64) * 64
        together = np.zeros((size, kernel.n), x.dtype)
        together[: len(x)], together[-len(more) :] = x, more
        result = kernel(together, len(x) + len(more))
        if result[-len(alone[0]) :].tobytes() != alone[1].tobytes():
            raise AloneError(f"{kernel.name} adds a row alone otherwise than among others, or is not deterministic")
        found = result[-len(more) :]
        self.usual.append(_Trial(usual, found[: len(usual)]))
        kernel.subnormals = subnormal_words(kernel, found[len(usual) :][: len(small)], 1.0)
        return _Trial(x, result[: len(x)])

    def on_any_rows(self, arithmetic: SumArithmetic) -> float:
        """Replay rows drawn at random, and say which share is the kernel's.

        The sums of balanced rows are short: they fit a narrower format as well, and most ways to divide them.
        """
        kernel = self.kernel
        if kernel.products:
            return 1.0
        if not self.usual:
            x = self._usual_rows()
            self.usual.append(_Trial(x, in_rows(kernel, x)))
        return _agreement(self.tree, self.usual, arithmetic, kernel.output)

    def _usual_rows(self) -> Array:
        kernel = self.kernel
        rows: Array = self.rng.standard_normal((_FIRST, kernel.n)).astype(numpy_dtype(kernel.dtype))
        if self.divided_in:
            rows = np.concatenate([rows, np.zeros_like(rows)])
            rows[_FIRST:, 0] = _telling_terms(kernel, self.divided_in, self.rng)
        return rows

    def multiplied(self, rows: int, columns: int) -> list[_Trial]:
        """Multiply and add rows, with weights of their own in so many columns."""
        kernel = self.kernel
        weights = _weights(kernel, columns, self.rng)
        x = balanced_rows(self.tree, -(-rows // columns), kernel.dtype, self.scale, self.rng, weights[:, 0])
        kernel.use_weights(weights if columns > 1 else weights[:, 0])
        try:
            if columns == 1:
                return [_Trial(x, in_rows(kernel, x), weights[:, 0])]
            results = in_rows(kernel, x, every_column=True)
        finally:
            kernel.use_weights(None)
        # The columns beyond repeat the weights: they must repeat the results.
        for column in range(columns, results.shape[1]):
            if results[:, column].tobytes() != results[:, column % columns].tobytes():
                raise RevealError(f"{kernel.name} adds its columns in several orders")
        each = [(np.ascontiguousarray(results[:, c]), np.ascontiguousarray(weights[:, c])) for c in range(columns)]
        return [_Trial(x, native, w) for native, w in each]


def _agreement(
    tree: SumTree, trials: Sequence[_Trial], arithmetic: SumArithmetic, output: str, few: int | None = None
) -> float:
    shares = []
    for trial in trials:
        again = replayed(tree, trial.x[:few], arithmetic, output, trial.weights)
        # Values, not bit patterns: which zero a cancelled sum is says nothing about the order.
        shares.append(float((again == trial.native[:few]).mean()))
    return min(shares)


def _share_and_rows(kernel: Kernel, *, mean: bool) -> tuple[float, int]:
    """Return which share of rows notices a local change, and how many rows are to be drawn."""
    wide = FORMATS[kernel.output].p >= 24
    share, rows = POWER["wide" if wide else "narrow product" if kernel.products else "narrow"]
    if mean and kernel.output == "float16" and kernel.length > _SHALLOW:
        # Divided by n, most errors fall below the smallest float16.
        share *= _SHALLOW / kernel.length
        rows = min(math.ceil(math.log(1e-4) / math.log1p(-share)), _MOST_ROWS)
    return share, min(rows, max(_ALL_TERMS // kernel.length, _FIRST))


def _telling_terms(kernel: Kernel, accumulator: str, rng: np.random.Generator) -> Array:
    """Draw single terms whose mean has other bits divided by n than times 1/n, as far as there are such terms."""
    terms: Array = rng.uniform(1, 2, _DIVIDED).astype(numpy_dtype(kernel.dtype))
    total, output = terms.astype(numpy_dtype(accumulator)), numpy_dtype(kernel.output)
    divided, times = (
        finished(total, kernel.length, SumArithmetic(accumulator, mean=mean), output) for mean in MEANS[:2]
    )
    return terms[np.argsort(divided == times, kind="stable")[:_FIRST]]


def _means(gain: float) -> tuple[str, ...]:
    return MEANS if gain != 1 else ("none",)


def _candidates(
    kernel: Kernel, tree: SumTree, accumulators: tuple[str, ...], means: tuple[str, ...]
) -> Iterator[SumArithmetic]:
    choices = itertools.product(accumulators, _FUSED if tree.has_fused else _FUSED[:1], means)
    for accumulator, fused, mean in choices:
        if not kernel.products:
            yield SumArithmetic(accumulator, "none", mean, fused)
            continue
        # Products that the accumulator holds exactly are the same bits either way.
        exact = 2 * FORMATS[kernel.dtype].p <= FORMATS[accumulator].p
        for product in ("rounded",) if exact else ("fma", "rounded"):
            yield SumArithmetic(accumulator, product, mean, fused)
        if not exact and kernel.dtype == accumulator and kernel.n > 1:
            yield SumArithmetic(accumulator, "mixed", mean, fused, fma_terms(kernel, tree))


def _columns(kernel: Kernel, rows: int) -> int:
    """Return how many columns of a product get weights of their own: enough that one call has all rows."""
    alike = kernel.columns if kernel.columns is not None else np.ones(1, np.bool_)
    many = len(alike) if alike.all() else 1
    return max(1, min(many, -(-rows // rows_per_call(kernel))))


def _weights(kernel: Kernel, columns: int, rng: np.random.Generator) -> Array:
    """Draw weights; those of a column are those of the first, times one number, so that rows stay balanced."""
    drawn = rng.uniform(1, 2, (kernel.n, 1)) * rng.choice([-1.0, 1.0], (kernel.n, 1))
    factors = np.append(1.0, rng.uniform(1, 2, columns - 1))
    weights: Array = (drawn * factors).astype(numpy_dtype(kernel.dtype))
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

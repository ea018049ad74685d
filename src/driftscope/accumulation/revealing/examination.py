"""Before any order is asked for: is this kernel a sum or a mean that answers the same way every time?"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import CallableKernel, Kernel
from driftscope.accumulation.revealing.refusal import BudgetSpentError, RaisedError, RevealError
from driftscope.numerics.formats import FORMATS, numpy_dtype
from driftscope.records.words import counted

Array = npt.NDArray[Any]

_LIKENESSES = 12  # rows of data on which rows of a shape must agree to be taken for alike
_UNLIKE = 12  # rows that are drawn; a call of more repeats them
_ROWS = 8  # given alone as well
_BYTES = 1 << 20  # of terms per call: they should stay in a core's cache
_MOST_ROWS = 256
_AMOUNT = 1024.0  # of a single term: large enough that a mean of it is no subnormal float16


def examine(kernel: Kernel, rng: np.random.Generator) -> float:
    """Check a kernel and return its gain: the result for a single 1 among zeros.

    Returns
    -------
    float
        1 for a sum, ``1 / n`` for a mean.

    Raises
    ------
    RevealError
        If it raises, returns the wrong shape, changes its input, is not deterministic, or is neither sum nor mean.
    """
    find_calling(kernel, rng)
    rows = cancelling_rows(kernel, rows_per_call(kernel), rng)
    given = rows.copy()
    first = kernel(rows)
    if rows.tobytes() != given.tobytes():
        raise RevealError(f"{kernel.name} changes its input; give it a copy: lambda x: kernel(x.copy())")
    if first.tobytes() != kernel(rows).tobytes():
        raise RevealError(
            f"{kernel.name} is not deterministic: the same call gave other bits the second time; fix its seed, or use"
            " one thread"
        )
    if kernel.rows:
        if not kernel.mapped:
            _rows_alike(kernel, rng)
    elif not isinstance(kernel, CallableKernel) or not kernel.row_by_row:
        some = np.unique([0, len(rows) - 1, *rng.integers(0, len(rows), _ROWS - 2).tolist()])
        alone = np.concatenate([kernel(rows[i : i + 1]) for i in some.tolist()])
        if alone.tobytes() != first[some].tobytes():
            # The order of one row alone is what was asked for.
            kernel.rows = 1
    return _gain(kernel, rng)


def rows_per_call(kernel: Kernel) -> int:
    """Return how many rows every call holds: those of its shape, else as many as fit a core's cache.

    A power of two: kernels that take several rows at a time do so with the last ones too.
    """
    if kernel.alike is not None:
        return len(kernel.alike)
    fitting = _BYTES // (kernel.length * numpy_dtype(kernel.dtype).itemsize)
    return kernel.rows or 1 << (min(max(fitting, 1), _MOST_ROWS).bit_length() - 1)


def find_calling(kernel: Kernel, rng: np.random.Generator) -> None:
    """Find out whether the kernel takes many rows or one, and arrays of which library where its code does not say.

    Raises
    ------
    RevealError
        What it said to many rows, if it takes neither.
    """
    rows = rows_per_call(kernel) if kernel.rows else 2 if kernel.n == 3 else 3
    x = cancelling_rows(kernel, rows, rng)
    try:
        kernel(x.copy())
    except BudgetSpentError:
        raise
    except RevealError as first:
        refusal = first
        if not isinstance(kernel, CallableKernel) or kernel.rows:
            raise
        for framework, row_by_row in kernel.other_ways():
            kernel.be_given(framework, row_by_row=row_by_row)
            try:
                kernel(x.copy())
                return
            except BudgetSpentError:
                raise
            except RevealError as other:
                # What a kernel returned says more than that it does not take these arrays.
                if isinstance(refusal, RaisedError) and not isinstance(other, RaisedError):
                    refusal = other
        raise refusal from None


def cancelling_rows(kernel: Kernel, rows: int, rng: np.random.Generator, raised: int = 0) -> Array:
    """Draw rows of values and their negatives: the result is rounding error alone, so the order shows.

    All values are ``2**raised`` times as large as usual.
    """
    half = (kernel.n + 1) // 2
    unlike = min(rows, _UNLIKE)
    # Short terms are added exactly in float32 unless some are much smaller than others.
    low = -6 if FORMATS[kernel.dtype].p >= 24 else -17
    values = rng.standard_normal((unlike, half)) * 2.0 ** rng.integers(low + raised, 7 + raised, (unlike, half))
    both = np.concatenate([values, -values], axis=1)[:, : kernel.n]
    drawn = rng.permuted(both, axis=1).astype(numpy_dtype(kernel.dtype))
    return np.ascontiguousarray(drawn[np.arange(rows) % unlike])


def _rows_alike(kernel: Kernel, rng: np.random.Generator) -> None:
    """Find the rows of a fixed shape that are added like row 0: kernels treat the last few of a block otherwise."""
    same = np.ones(kernel.rows or 1, np.bool_)
    for row in cancelling_rows(kernel, _LIKENESSES, rng):
        result = kernel(np.repeat(row[None], len(same), axis=0), 1)
        same &= (result == result[0]) | (np.isnan(result) & np.isnan(result[0]))
    if not same.all():
        kernel.alike = np.flatnonzero(same)


def words_of(kernel: Kernel) -> str:
    """Say for which elements of the result an order holds."""
    if kernel.rows == 1 and kernel.shape is None:
        return "a row given alone; rows given together are added in other orders, which shape=(rows, n) tells"
    words = []
    if kernel.rows and kernel.alike is not None:
        words.append(f"{_numbers(kernel.alike)} of {kernel.rows} {kernel.nouns[0]}")
    if kernel.columns is not None and not kernel.columns.all():
        words.append(f"{_numbers(np.flatnonzero(kernel.columns))} of {len(kernel.columns)} {kernel.nouns[1]}")
    return " and ".join(words) or "every element"


def words_of_elements(elements: npt.NDArray[np.bool_]) -> str:
    """Say which elements of a result these are: some rows, some rows and columns, or so many of them."""
    if elements.all():
        return "every element"
    sides = [(np.flatnonzero(elements.reshape(len(elements), -1).any(axis=1)), len(elements), "rows")]
    if elements.ndim == 2:
        sides.append((np.flatnonzero(elements.any(axis=0)), elements.shape[1], "columns"))
        if not elements[np.ix_(sides[0][0], sides[1][0])].all():
            return f"{int(elements.sum())} of {counted(elements.size, 'element')}"
    return " and ".join(f"{_numbers(places)} of {many} {noun}" for places, many, noun in sides if len(places) < many)


def _numbers(places: npt.NDArray[np.int64]) -> str:
    first, last = int(places[0]), int(places[-1])
    if len(places) == 1:
        return f"number {first}"
    return f"{first} to {last}" if last - first + 1 == len(places) else f"{len(places)} from {first} to {last}"


def _gain(kernel: Kernel, rng: np.random.Generator) -> float:
    places = np.unique([0, kernel.n // 2, kernel.n - 1, *rng.integers(0, kernel.n, 3).tolist()])
    amounts = np.concatenate([np.full(len(places), _AMOUNT), np.full(len(places), -_AMOUNT), [0.0]])
    x = np.zeros((len(amounts), kernel.n), numpy_dtype(kernel.dtype))
    x[np.arange(len(amounts) - 1), np.tile(places, 2)] = amounts[:-1]
    result = in_rows(kernel, x).astype(np.float64)
    if (result == amounts).all():
        return 1.0
    slack = 4 * FORMATS[kernel.output].unit_roundoff
    if np.allclose(result * kernel.length, amounts, rtol=slack, atol=0):
        return 1.0 / kernel.length
    odd = int(np.argmax(result != amounts))
    raise RevealError(
        f"{kernel.name} is neither a sum nor a mean: a single {amounts[odd]:g} among {kernel.n - 1} zeros gave"
        f" {result[odd]:.9g}"
    )


def in_rows(kernel: Kernel, x: Array, *, every_column: bool = False) -> Array:
    """Run any number of rows, in calls of the one size that was examined."""
    size = rows_per_call(kernel)
    parts = []
    for at in range(0, len(x), size):
        block = x[at : at + size]
        filled = np.zeros((size, kernel.n), x.dtype)
        filled[: len(block)] = block
        parts.append(kernel(filled, len(block), every_column=every_column)[: len(block)])
    return np.concatenate(parts)

"""Which elements of a result are added in the same order: kernels treat the last rows and columns of a block otherwise.

All elements are given the same terms; what is left after they cancel is rounding error alone, and every order leaves
another one. Elements that leave the same errors, draw after draw, are one class. Each class is then asked for its order
by itself, and the whole map is checked: every element must have the bits that the order of its class gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel
from driftscope.accumulation.revealing.examination import cancelling_rows
from driftscope.numerics.formats import numpy_dtype

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

UNKNOWN = -1  # the number of an element whose order was not found
_FIRST = (4, 1)  # draws with all weights 1, and with others, that tell whether there is one order or several
_MORE = (12, 4)  # further draws where there are several
_CHECKED = 1 << 26  # additions that checking a map may replay; of a larger one, some elements are checked


def order_map(kernel: Kernel, rng: np.random.Generator) -> Numbers:
    """Number the elements of a result by their order of adding.

    Parameters
    ----------
    kernel : Kernel
        With a fixed number of rows.
    rng : Generator

    Returns
    -------
    ndarray of int, shape (rows, columns)
        0 for the class of the first element, the others as they come; one column for a sum.
    """
    errors = _errors(kernel, rng, *_FIRST)
    if (errors == errors[0, 0]).all():
        return np.zeros(errors.shape[:2], np.int64)
    errors = np.concatenate([errors, _errors(kernel, rng, *_MORE)], axis=2)
    flat = errors.reshape(-1, errors.shape[2])
    _, first, inverse = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))  # classes in the order in which a reader meets them
    return np.asarray(place[inverse.ravel()].reshape(errors.shape[:2]), np.int64)


def _errors(kernel: Kernel, rng: np.random.Generator, plain: int, weighted: int) -> npt.NDArray[np.float64]:
    """Return what each draw leaves in each element, ``(rows, columns, draws)``; -0 and 0 are the same."""
    rows = kernel.rows or 1
    found = [_spread(kernel, row, rows) for row in cancelling_rows(kernel, plain, rng)]
    if kernel.products and weighted:
        weights = rng.uniform(1, 2, kernel.n) * rng.choice([-1.0, 1.0], kernel.n)
        kernel.use_weights(weights.astype(numpy_dtype(kernel.dtype)))
        try:
            found += [_spread(kernel, row, rows) for row in cancelling_rows(kernel, weighted, rng)]
        finally:
            kernel.use_weights(None)
    return np.nan_to_num(np.stack(found, axis=2)) + 0.0


def _spread(kernel: Kernel, row: Array, rows: int) -> npt.NDArray[np.float64]:
    result = kernel(np.repeat(row[None], rows, axis=0), 1, every_column=kernel.products)
    return np.asarray(result, np.float64).reshape(rows, -1)


def ask_about(kernel: Kernel, numbers: Numbers, number: int) -> None:
    """Have a kernel answer for one class alone: for its rows in the column that has the most of them."""
    column = int((numbers == number).sum(axis=0).argmax())
    rows = np.flatnonzero(numbers[:, column] == number)
    kernel.column, kernel.columns = column, None
    kernel.alike = None if len(rows) == len(numbers) else rows


def checked_map(
    kernel: Kernel, numbers: Numbers, replays: Sequence[Callable[[Array, Array | None], Array] | None],
    rng: np.random.Generator,
) -> Numbers:  # fmt: skip
    """Give every element other terms and compare its bits with the order of its class.

    Parameters
    ----------
    kernel, numbers, rng
    replays : sequence of callable or None
        For each class: adds rows ``(rows, n)`` times weights ``(n,)`` in its order; None where none was found.

    Returns
    -------
    ndarray of int
        The map, with :data:`UNKNOWN` where the bits are others or no order was found.
    """
    kernel.alike, kernel.column = None, 0
    rows, columns = numbers.shape
    x = cancelling_rows(kernel, rows, rng)
    weights = None
    if kernel.products:
        dtype = numpy_dtype(kernel.dtype)
        weights = (rng.uniform(1, 2, (kernel.n, columns)) * rng.choice([-1.0, 1.0], (kernel.n, 1))).astype(dtype)
        kernel.use_weights(weights)
    try:
        native = kernel(x, every_column=kernel.products).reshape(rows, columns)
    finally:
        if kernel.products:
            kernel.use_weights(None)
    share = _CHECKED / (numbers.size * kernel.n)
    checked = np.arange(columns) if share >= 1 else np.flatnonzero(rng.random(columns) < max(share, 1 / columns))
    found = numbers.copy()
    for number, replay in enumerate(replays):
        if replay is None:
            found[numbers == number] = UNKNOWN
            continue
        for column in checked.tolist():
            mine = np.flatnonzero(numbers[:, column] == number)
            if len(mine):
                again = replay(x[mine], None if weights is None else weights[:, column])
                found[mine[again != native[mine, column]], column] = UNKNOWN
    return found

"""The reductions under study. Each reduces the last axis of many rows, with the bits of one call for each row.

A vector function (layer norm, softmax) depends on the order of its elements only through a few numbers of the row, its
mean and deviation for instance: element by element it is a map of x and these. That map is monotone in x, and so is
every rounding in it, so the sorted output of a permuted row is the map applied to the sorted row. That is why no output
is ever sorted here, and why rows with equal numbers are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftscope.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class NumpyReduction:
    """A reduction in numpy.

    Parameters
    ----------
    numbers : callable
        ``(rows, n)`` in the working format to the tuple of ``(rows,)`` arrays that depend on the order. It may
        overwrite the rows.
    map : callable or None
        ``map(x, *numbers)`` gives the elements of the output; None when the first number, stored, is the result itself.
    within : str
        Name of a reduction whose first number is the first number of this one: one pass over the rows serves both.
    narrow_beyond : int or None
        Rows of float16 with more elements than this are reduced as they are: numpy groups them in its own way.
    """

    numbers: Callable[[Array], tuple[Array, ...]]
    map: Callable[..., Array] | None = None
    within: str = ""
    narrow_beyond: int | None = None

    def takes_stored(self, dtype: np.dtype[Any], size: int) -> bool:
        """Whether rows are given in the format they are stored in, not in the working one."""
        return dtype == np.float16 and self.narrow_beyond is not None and size > self.narrow_beyond


def working(x: Array) -> Array:
    """Return ``x`` in the format a kernel works in: float32 for 16-bit formats, else its own."""
    wide: Array = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    return wide


def _means(w: Array) -> Array:
    """Return what ``w.mean(axis=-1)`` returns, without the questions it asks first."""
    total: Array = np.add.reduce(w, axis=-1)
    return np.true_divide(total, np.intp(w.shape[-1]), out=total, casting="unsafe")


def _mean(w: Array) -> tuple[Array, ...]:
    # Halves that came as they are stored are added in float32: numpy's own mean knows.
    return (w.mean(axis=-1) if w.dtype == np.float16 else _means(w),)


def _sum(w: Array) -> tuple[Array, ...]:
    return (w.sum(axis=-1),)


def _var(w: Array) -> tuple[Array, ...]:
    return (np.var(w, axis=-1),)


def _norm(w: Array) -> tuple[Array, ...]:
    np.multiply(w, w, out=w)
    return (np.sqrt(w.sum(axis=-1)),)


def _moments(w: Array) -> tuple[Array, ...]:
    mean = _means(w)
    np.subtract(w, mean[..., None], out=w)
    np.multiply(w, w, out=w)
    return mean, np.sqrt(_means(w)) + w.dtype.type(EPSILON)


def _normalised(x: Array, mean: Array, deviation: Array) -> Array:
    y: Array = ((working(x) - mean) / deviation).astype(x.dtype)
    return y


def _denominator(w: Array) -> tuple[Array, ...]:
    largest = w.max(axis=-1)
    np.subtract(w, largest[..., None], out=w)
    np.exp(w, out=w)
    return largest, w.sum(axis=-1)


def _softmax(x: Array, largest: Array, denominator: Array) -> Array:
    y: Array = (np.exp(working(x) - largest) / denominator).astype(x.dtype)
    return y


REDUCTIONS = {
    # A mean of halves is a sum in float32, made buffer by buffer.
    "mean": NumpyReduction(_mean, within="layer_norm", narrow_beyond=np.getbufsize()),
    "sum": NumpyReduction(_sum, narrow_beyond=0),
    "var": NumpyReduction(_var),
    "norm": NumpyReduction(_norm),
    "layer_norm": NumpyReduction(_moments, _normalised),
    "softmax": NumpyReduction(_denominator, _softmax),
}

#: torch's own kernels, by the name the issue of order is usually met under.
TORCH = tuple(f"torch.{name}" for name in REDUCTIONS)


def known(function: str) -> str:
    """Return the function's family, ``"mean"`` for ``"torch.mean"``.

    Raises
    ------
    InputError
        If there is no such function in this study.
    """
    family = function.removeprefix("torch.")
    if family not in REDUCTIONS:
        raise InputError(f"there is no reduction {function!r}; there are {', '.join((*REDUCTIONS, *TORCH))}")
    return family


def outputs_of(function: str, rows: Array, batch: int) -> Array:
    """Run torch's kernel on rows, ``batch`` of them in one call.

    Parameters
    ----------
    rows : ndarray of shape ``(count, n)``
    batch : int
        Rows of one call: a kernel may group the terms of a row otherwise when there are several.

    Returns
    -------
    ndarray of shape ``(count,)`` or ``(count, n)``
        In the dtype of ``rows``.
    """
    import torch

    from driftscope.programs.arrays import array_of, tensor_of

    x = tensor_of(rows)
    kernels: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "torch.mean": lambda t: t.mean(-1),
        "torch.sum": lambda t: t.sum(-1),
        "torch.var": lambda t: t.var(-1, correction=0),
        "torch.norm": lambda t: torch.linalg.vector_norm(t, dim=-1),
        "torch.layer_norm": lambda t: torch.nn.functional.layer_norm(t, t.shape[-1:], eps=EPSILON**2),
        "torch.softmax": lambda t: torch.softmax(t, -1),
    }
    call = kernels[function]
    pieces = [call(chunk[0] if batch == 1 else chunk) for chunk in x.split(batch)]
    whole = torch.stack(pieces) if batch == 1 else torch.cat(pieces)
    answer: Array = array_of(whole)
    return answer

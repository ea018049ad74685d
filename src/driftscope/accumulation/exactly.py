"""Reductions whose result does not depend on any order: ``ds.exact``.

.. code-block:: python

    import driftscope as ds

    ds.exact.sum(x, dim=-1)                       # the exact sum, rounded once
    ds.exact.sum(x) == ds.exact.sum(x.flip(0))    # always, and on every machine

``sum``, ``mean``, ``dot``, ``var`` and ``norm`` return the real number that the definition says, rounded once, to
nearest and ties to even, to the dtype of the result. There is nothing else to specify: threads, blocks, batch size,
strides, permutations and devices cannot change a bit.

Specials: an empty sum is +0 and an empty mean NaN; a sum of nothing but -0 is -0 and any other exact zero is +0; a
NaN, or infinities of both signs, give NaN; the result overflows only where the exact number does. torch and numpy
differ there: they return infinity for ``[max, max, -max]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from driftscope.accumulation.exact_formats import STORED, Reduction
from driftscope.accumulation.exact_operands import Along, Dims, axes_of, like_input, rows_of, stored_as, tensor_of
from driftscope.accumulation.exact_rows import reduced, whole_sum
from driftscope.errors import InputError

__all__ = ["dot", "mean", "norm", "sum", "var"]


def sum(  # noqa: A001 - ds.exact.sum, as in torch.sum
    x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None, keepdims: bool = False
) -> Any:
    """Add elements exactly and round once.

    Parameters
    ----------
    x : Tensor or ndarray of float64, float32, float16 or bfloat16
    dim, axis : int, sequence of int, or None
        Axes to reduce; None is all of them.
    keepdim, keepdims : bool
        Keep reduced axes with size 1.
    dtype : dtype, optional
        Of the result; the input's own unless given. The sum is rounded to it once, not twice.

    Returns
    -------
    Tensor, ndarray or numpy scalar
        The correctly rounded sum, of the kind and on the device of ``x``.

    Raises
    ------
    InputError
        For another kind or dtype of input, an axis that is not there, or a tensor whose gradient is recorded.
    """
    if type(x) is torch.Tensor and dim is axis is dtype is None and not (keepdim or keepdims):
        whole = whole_sum(x)
        if whole is not None:
            return whole
    return _reduce(Reduction.SUM, x, Along(dim, axis, keepdim, keepdims), dtype)


def mean(
    x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None, keepdims: bool = False
) -> Any:
    """Divide the exact sum by the count and round once.

    Parameters, returns and errors are those of :func:`sum`; the mean of nothing is NaN.

    Parameters
    ----------
    x : Tensor or ndarray
    dim, axis, keepdim, keepdims, dtype
        As in :func:`sum`.
    """
    return _reduce(Reduction.MEAN, x, Along(dim, axis, keepdim, keepdims), dtype)


def norm(
    x: Any, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None, axis: Dims = None, keepdims: bool = False
) -> Any:
    """Take the square root of the exact sum of squares and round once: the Euclidean norm.

    No square overflows or underflows on the way. Parameters, returns and errors are those of :func:`sum`.

    Parameters
    ----------
    x : Tensor or ndarray
    dim, axis, keepdim, keepdims, dtype
        As in :func:`sum`.
    """
    return _reduce(Reduction.NORM, x, Along(dim, axis, keepdim, keepdims), dtype)


def var(
    x: Any,
    dim: Dims = None,
    *,
    correction: int = 1,
    keepdim: bool = False,
    dtype: Any = None,
    axis: Dims = None,
    keepdims: bool = False,
) -> Any:
    """Compute the variance exactly and round once.

    ``(n * sum(x**2) - sum(x)**2) / (n * (n - correction))``, every operation exact, the quotient rounded.

    Parameters
    ----------
    x : Tensor or ndarray
    correction : int
        1 as in torch, also for numpy arrays; 0 for the variance of a population. For ``n <= correction`` the
        divisor is taken for zero, as in torch and numpy: NaN, or infinity for elements that differ.
    dim, axis, keepdim, keepdims, dtype
        As in :func:`sum`.

    Returns
    -------
    Tensor, ndarray or numpy scalar
        The correctly rounded variance.

    Raises
    ------
    InputError
        As :func:`sum`, and for a correction that is not a whole number of at least 0.
    """
    if not isinstance(correction, int) or isinstance(correction, bool) or correction < 0:
        raise InputError(
            f"ds.exact.var takes a whole correction of at least 0, not {correction!r}: "
            "1 for a sample, 0 for a population."
        )
    return _reduce(Reduction.VAR, x, Along(dim, axis, keepdim, keepdims), dtype, correction)


def dot(
    a: Any,
    b: Any,
    dim: int = -1,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    axis: int | None = None,
    keepdims: bool = False,
) -> Any:
    """Add the exact products of two tensors along an axis and round once.

    Parameters
    ----------
    a, b : Tensor or ndarray, both of one kind and dtype
        Broadcast against each other.
    dim, axis : int
        The one axis to reduce, the last unless given.
    keepdim, keepdims, dtype
        As in :func:`sum`.

    Returns
    -------
    Tensor, ndarray or numpy scalar
        The correctly rounded sum of products. A factor zero times an infinity is NaN.

    Raises
    ------
    InputError
        As :func:`sum`, and when the operands differ in kind, dtype or device or do not broadcast.
    """
    what = "ds.exact.dot"
    x, y = tensor_of(a, what), tensor_of(b, what)
    if isinstance(a, torch.Tensor) is not isinstance(b, torch.Tensor) or x.dtype != y.dtype or x.device != y.device:
        raise InputError(
            f"{what} takes two operands of one kind, dtype and device, not {_words(a, x)} and {_words(b, y)}: "
            "convert one of them."
        )
    out = stored_as(dtype, x, what)
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        raise InputError(
            f"{what} cannot broadcast the shapes {tuple(x.shape)} and {tuple(y.shape)} against each other: "
            "make every size equal or 1."
        ) from None
    x, y = x.expand(shape), y.expand(shape)
    along = Along(None if axis is not None and dim == -1 else dim, axis, keepdim, keepdims)
    axes = axes_of(along.given, x.ndim, what)
    left, right = (rows_of(operand, axes, along.keep, paired=True) for operand in (x, y))
    result = reduced(Reduction.DOT, left.data, right.data, (STORED[x.dtype], out))
    return like_input(result.reshape(left.shape), a)


def _reduce(op: Reduction, x: Any, along: Along, dtype: Any, correction: int = 1) -> Any:
    what = f"ds.exact.{op.name.lower()}"
    tensor = tensor_of(x, what)
    out = stored_as(dtype, tensor, what)
    rows = rows_of(tensor, axes_of(along.given, tensor.ndim, what), along.keep)
    result = reduced(op, rows.data, None, (STORED[tensor.dtype], out), correction)
    return like_input(result.reshape(rows.shape), x)


def _words(given: Any, x: torch.Tensor) -> str:
    kind = "a tensor" if isinstance(given, torch.Tensor) else "an array"
    return f"{kind} of {str(x.dtype).removeprefix('torch.')} on {x.device}"

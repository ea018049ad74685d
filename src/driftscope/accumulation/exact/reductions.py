"""Reductions whose result does not depend on any order: ``ds.exact``.

.. code-block:: python

    import driftscope as ds

    ds.exact.sum(x, dim=-1)                       # the exact sum, rounded once
    ds.exact.sum(x) == ds.exact.sum(x.flip(0))    # always, and on every machine

``sum``, ``mean``, ``dot``, ``var`` and ``norm`` return the real number that the definition says, rounded once, to
nearest and ties to even, to the dtype of the result. There is nothing else to specify: threads, blocks, batch size,
strides, permutations and devices cannot change a bit. ``layer_norm`` is a fixed formula on such sums, ``matmul`` one
fixed chain of operations per output.

Specials: an empty sum is +0 and an empty mean NaN; a sum of nothing but -0 is -0 and any other exact zero is +0; a
NaN, or infinities of both signs, give NaN; the result overflows only where the exact number does. torch and numpy
differ there: they return infinity for ``[max, max, -max]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from driftscope.accumulation.exact.formats import STORED, Reduction
from driftscope.accumulation.exact.layer_norm import normalised
from driftscope.accumulation.exact.matmul import Order, product
from driftscope.accumulation.exact.operands import (
    Along,
    Dims,
    axes_of,
    like_input,
    pair_of,
    rows_of,
    stored_as,
    tensor_of,
)
from driftscope.accumulation.exact.rows import reduced, whole_sum
from driftscope.errors import InputError

__all__ = ["dot", "layer_norm", "matmul", "mean", "norm", "sum", "var"]


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
    x, y = pair_of(a, b, what)
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


def matmul(a: Any, b: Any, *, order: Order = "sequential-fma") -> Any:
    """Multiply matrices in an order that no machine, thread count or batch size can change.

    Parameters
    ----------
    a, b : Tensor or ndarray, both of one kind and dtype
        Shapes as for ``torch.matmul``: vectors, matrices, batches of matrices that broadcast.
    order : {"sequential-fma", "exact"}
        ``"sequential-fma"``: each output is ``fma(a[k], b[k], sum)`` over k = 0, 1, 2, ... from +0, about as fast
        as torch. float16 and bfloat16 are multiplied in a float32 chain that is rounded once at its end.
        ``"exact"``: each output is the correctly rounded sum of products, independent of any order.

    Returns
    -------
    Tensor or ndarray
        The product, in the dtype of the operands. Of a NaN, only that it is one is specified.

    Raises
    ------
    InputError
        As :func:`dot`, for shapes that do not fit, or for another order.
    """
    what = "ds.exact.matmul"
    if order not in ("sequential-fma", "exact"):
        raise InputError(f"{what} knows the orders 'sequential-fma' and 'exact', not {order!r}: give one of them.")
    x, y = pair_of(a, b, what)
    if not x.ndim or not y.ndim:
        raise InputError(f"{what} takes vectors, matrices and batches, not a scalar: multiply with * instead.")
    left, right = x[None] if x.ndim == 1 else x, y[:, None] if y.ndim == 1 else y
    batch = _batch_of(left, right)
    if batch is None or left.shape[-1] != right.shape[-2]:
        raise InputError(
            f"{what} cannot multiply the shapes {tuple(x.shape)} and {tuple(y.shape)}: "
            "the last axis of a must be as long as the last but one of b, and batch axes must broadcast."
        )
    result = _product_of_batches(left, right, batch, order)
    if x.ndim == 1:
        result = result.squeeze(-2)
    return like_input(result.squeeze(-1) if y.ndim == 1 else result, a)


def _batch_of(x: torch.Tensor, y: torch.Tensor) -> tuple[int, ...] | None:
    """The batch axes of a product, or None if those of the operands do not broadcast."""
    if x.ndim == y.ndim == 2:
        return ()
    try:
        return tuple(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    except ValueError:
        return None


def _product_of_batches(x: torch.Tensor, y: torch.Tensor, batch: tuple[int, ...], order: Order) -> torch.Tensor:
    shape = (*batch, x.shape[-2], y.shape[-1])
    if x.ndim == y.ndim == 2:
        return product(x, y, order)
    if y.ndim == 2:
        return product(x.reshape(math.prod(shape[:-1]), x.shape[-1]), y, order).reshape(shape)
    count = math.prod(batch)
    if not count:
        return x.new_empty(shape)
    left, right = (m.expand(*batch, *m.shape[-2:]).reshape(count, *m.shape[-2:]) for m in (x, y))
    return torch.stack([product(one, other, order) for one, other in zip(left, right, strict=True)]).reshape(shape)


def layer_norm(
    x: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise the last axes by their exact mean and variance; the signature is that of ``torch.nn.functional``.

    With m and v the exact mean and variance (of a population) rounded to float64, the result is
    ``((x - m) * (1 / sqrt(v + eps))) * weight + bias``: every operation in float64, rounded by itself, in this
    order, and one rounding to the dtype of ``x`` at the end.

    Parameters
    ----------
    x : Tensor or ndarray of float64, float32, float16 or bfloat16
    normalized_shape : int or sequence of int
        The sizes of the last axes, over which is normalised.
    weight, bias : Tensor or ndarray of shape ``normalized_shape``, optional
        Of any of the four dtypes.
    eps : float

    Returns
    -------
    Tensor or ndarray
        Of the shape, dtype and kind of ``x``.

    Raises
    ------
    InputError
        As :func:`sum`, and when ``normalized_shape``, weight or bias do not fit the last axes.
    """
    what = "ds.exact.layer_norm"
    tensor = tensor_of(x, what)
    sizes = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not sizes or tuple(tensor.shape[-len(sizes) :]) != sizes:
        raise InputError(
            f"{what} is to normalise the last axes of sizes {sizes}, but the input has the shape "
            f"{tuple(tensor.shape)}: give its last sizes."
        )
    factors = [None if f is None else tensor_of(f, what).to(tensor.device, torch.float64) for f in (weight, bias)]
    for name, factor in zip(("weight", "bias"), factors, strict=True):
        if factor is not None and tuple(factor.shape) != sizes:
            raise InputError(f"{what} needs a {name} of the shape {sizes}, not {tuple(factor.shape)}: reshape it.")
    return like_input(normalised(tensor, len(sizes), factors[0], factors[1], eps), x)


def _reduce(op: Reduction, x: Any, along: Along, dtype: Any, correction: int = 1) -> Any:
    what = f"ds.exact.{op.name.lower()}"
    tensor = tensor_of(x, what)
    out = stored_as(dtype, tensor, what)
    rows = rows_of(tensor, axes_of(along.given, tensor.ndim, what), along.keep)
    result = reduced(op, rows.data, None, (STORED[tensor.dtype], out), correction)
    return like_input(result.reshape(rows.shape), x)

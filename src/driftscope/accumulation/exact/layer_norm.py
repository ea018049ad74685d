"""Layer normalisation on exact statistics: a fixed formula in float64, rounded once at the end."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from driftscope.accumulation.exact.compiled import library
from driftscope.accumulation.exact.formats import STORED, Reduction
from driftscope.accumulation.exact.operands import rows_of
from driftscope.accumulation.exact.rows import reduced, share, threads_for


def normalised(
    x: torch.Tensor, axes: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """Normalise the last axes of a tensor.

    Parameters
    ----------
    x : Tensor
    axes : int
        How many of the last axes.
    weight, bias : Tensor of float64, or None
    eps : float

    Returns
    -------
    Tensor, like ``x``
    """
    rows = rows_of(x, tuple(range(x.ndim - axes, x.ndim)), keep=True)
    native = library() if x.device.type == "cpu" else None
    if native is not None:
        return _compiled(native, rows.data, (weight, bias), eps).reshape(x.shape)
    formats = STORED[x.dtype], STORED[torch.float64]
    mean, var = (
        reduced(op, rows.data, None, formats, correction=0).reshape(rows.shape)
        for op in (Reduction.MEAN, Reduction.VAR)
    )
    # numpy's square root is the processor's, correctly rounded; torch's comes from a vector library and is an ulp off
    # now and then.
    scale = torch.from_numpy(np.asarray(1.0 / np.sqrt(var.numpy() + eps)))
    result = (x.double() - mean.to(x.device)) * scale.to(x.device)
    if weight is not None:
        result = result * weight
    if bias is not None:
        result = result + bias
    return rounded_once(result, x.dtype)


def _compiled(
    native: ctypes.CDLL, rows: torch.Tensor, factors: tuple[torch.Tensor | None, ...], eps: float
) -> torch.Tensor:
    count, n = rows.shape
    code, size = STORED[rows.dtype].code, rows.element_size()
    flat = [None if f is None else f.contiguous() for f in factors]
    weight, bias = (None if f is None else f.data_ptr() for f in flat)
    result = torch.empty_like(rows)
    x, out = rows.data_ptr(), result.data_ptr()

    def some_rows(_: int, start: int, stop: int) -> None:
        offset = start * n * size
        native.driftscope_layer_norm(code, x + offset, weight, bias, eps, stop - start, n, out + offset)

    share(count, threads_for(rows.numel(), count), some_rows)
    return result


def rounded_once(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float64 to a narrower dtype once; torch goes to 16 bits by way of float32, which rounds twice.

    Parameters
    ----------
    x : Tensor of float64
    dtype : torch.dtype

    Returns
    -------
    Tensor of ``dtype``
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return x.to(dtype)
    single = x.float()
    inexact = (single.double() != x) & ~x.isnan()
    # Towards zero, then odd: what is lost stays visible to the second rounding.
    too_large = single.double().abs() > x.abs()
    odd = (single.view(torch.int32) - too_large.int()) | 1
    return torch.where(inexact, odd.view(torch.float32), single).to(dtype)

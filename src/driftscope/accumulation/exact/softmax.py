"""Softmax on an exact sum, with an exponential made of basic operations only.

The exponentials of vector libraries differ between instruction sets in the last bit. This one is a polynomial in
float64 whose products and sums are each rounded by themselves, so every machine gives its bits.
"""

from __future__ import annotations

import math

import torch

from driftscope.accumulation.exact.formats import STORED, Reduction
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.accumulation.exact.operands import axes_of, rows_of
from driftscope.accumulation.exact.rows import reduced

#: ln 2 in two parts: the first has 32 bits, so a whole number of up to 21 bits times it is exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_TERMS = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))


def exponential(x: torch.Tensor) -> torch.Tensor:
    """Compute ``exp(x)`` for ``x <= 0``, to about an ulp of float64.

    Parameters
    ----------
    x : Tensor of float64
        No positive numbers; NaN and -infinity are allowed.

    Returns
    -------
    Tensor of float64
        0 below -708, where normal numbers end.
    """
    whole = torch.round(x.clamp(min=-708.0) * (1.0 / math.log(2.0)))
    rest = (x.clamp(min=-708.0) - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = torch.full_like(rest, _TERMS[0])
    for term in _TERMS[1:]:
        series = series * rest + term
    scale = ((whole.nan_to_num() + 1023).to(torch.int64) << 52).view(torch.float64)
    return torch.where(x < -708.0, torch.zeros_like(x), series * scale)


def softmax(x: torch.Tensor, dim: int, *, masked_rows_are_zero: bool = False) -> torch.Tensor:
    """Normalise exponentials along an axis.

    With m the largest element: ``e = exp(x - m)`` in float64, ``e / s`` with s the exact sum of e rounded to float64,
    and one rounding to the dtype of ``x``.

    Parameters
    ----------
    x : Tensor of float64, float32, float16 or bfloat16
    dim : int
    masked_rows_are_zero : bool
        Return 0 instead of NaN where everything is -infinity, as torch does inside attention.

    Returns
    -------
    Tensor, like ``x``
    """
    if x.numel() == 0:
        return torch.empty_like(x)
    wide = x.double()
    powers = exponential(wide - wide.amax(dim, keepdim=True)) if x.ndim else torch.ones_like(wide)
    rows = rows_of(powers, axes_of(dim, x.ndim, "softmax"), keep=True)
    double = STORED[torch.float64]
    total = reduced(Reduction.SUM, rows.data, None, (double, double)).reshape(rows.shape).to(x.device)
    result = rounded_once(powers / total, x.dtype)
    if masked_rows_are_zero:
        result = result.masked_fill((x == -math.inf).all(dim, keepdim=True), 0.0)
    return result

"""The lists of float32 operations that ``native/elementary.h`` compiles, written in torch: the same bits, slower.

Every step is one IEEE operation on float32, or float64 where it says so; a fused multiply-add is emulated. The
constants are those of ``native/layers.c``.
"""

from __future__ import annotations

import math

import numpy as np
import torch

_LOWEST, _SHIFT, _SHIFT_BITS = -104.0, 1.5 * 2**23, 0x4B400000
_LOG2_E, _LN2_HIGH, _LN2_LOW = (float.fromhex(h) for h in ("0x1.715476p+0", "0x1.62e430p-1", "-0x1.05c610p-29"))
_TANH_NEAR, _FARTHEST, _TWICE_ROOT = 0.55, 14.5, float.fromhex("0x1.988454p+0")

#: Polynomials of least largest relative error, highest power first.
_POWERS = tuple(
    map(float.fromhex, ("0x1.6a1a8ap-10", "0x1.123fb6p-7", "0x1.555916p-5", "0x1.55548ap-3", "0x1.fffffcp-2", "1", "1"))
)
_NEAR_ZERO = tuple(
    map(float.fromhex, ("-0x1.8c4ea8p-8", "0x1.56a096p-6", "-0x1.b8d880p-5", "0x1.110b4ap-3", "-0x1.555544p-2"))
)
_TAIL = tuple(
    map(
        float.fromhex,
        (
            "0x1.c23b6ep-15", "0x1.e4a018p-14", "-0x1.63f9cap-12", "-0x1.01e2e8p-10", "0x1.7cb4bcp-9",
            "0x1.91df12p-8", "-0x1.7a944cp-5", "0x1.f8bad0p-4", "-0x1.a6b66ap-3", "0x1.f1b89cp-4",
        ),
    )
)  # fmt: skip

#: Exponentials are added in units of 2**-51, as integers.
_UNIT = 2.0**-51


def fused(a: torch.Tensor, b: torch.Tensor | float, c: torch.Tensor | float) -> torch.Tensor:
    """``a * b + c`` of float32, rounded once: a float64 sum rounded to odd, then to float32.

    A product of floats is exact in float64. Rounding to odd keeps what the second rounding must know (Boldo and
    Melquiond, *Emulation of FMA and correctly rounded sums*, 2008).
    """
    term = a.double() * (b.double() if isinstance(b, torch.Tensor) else b)
    before = c.double() if isinstance(c, torch.Tensor) else torch.full_like(term, c)
    after = term + before
    back = after - term
    error = (term - (after - back)) + (before - back)
    odd = after.view(torch.int64)
    inexact = (error != 0) & after.isfinite()
    odd = torch.where(inexact, (odd - ((error > 0) != (after > 0)).long()) | 1, odd)
    return odd.view(torch.float64).float()


def power(x: torch.Tensor, rest: torch.Tensor | None = None) -> torch.Tensor:
    """``exp(x + rest)`` for float32 ``x <= 0`` and a rest that is small beside one, to about an ulp."""
    x = torch.where(x < _LOWEST, _LOWEST, x)
    shifted = fused(x, _LOG2_E, _SHIFT)
    whole = shifted - _SHIFT
    r = fused(whole, -_LN2_LOW, fused(whole, -_LN2_HIGH, x))
    r = r if rest is None else r + rest
    p = torch.full_like(r, _POWERS[0])
    for term in _POWERS[1:]:
        p = fused(p, r, term)
    n = torch.where(x.isnan(), 0, shifted.contiguous().view(torch.int32) - _SHIFT_BITS)
    first = n >> 1
    return p * ((first + 127) << 23).view(torch.float32) * ((n - first + 127) << 23).view(torch.float32)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))``."""
    e = power(-x.abs())
    return torch.where(x < 0, e, 1.0) / (e + 1.0)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent: a polynomial near zero, exponentials beyond."""
    a = x.abs()
    e = power(a * -2.0)
    square = a * a
    p = torch.full_like(a, _NEAR_ZERO[0])
    for term in _NEAR_ZERO[1:]:
        p = fused(p, square, term)
    near = fused(a * square, p, a)
    found = torch.where(a < torch.tensor(_TANH_NEAR, dtype=torch.float32, device=x.device), near, (1.0 - e) / (1.0 + e))
    return torch.copysign(found, x)


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(x)``."""
    return x * sigmoid(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """``x`` times the share of a normal distribution below it; of the tail, ``exp(-x*x/2)`` times a slow function."""
    a = x.abs()
    a = torch.where(a > _FARTHEST, _FARTHEST, a)
    square = a * a
    lost = fused(a, a, -square)
    u = (a - 3.0) / (a + 3.0)
    g = torch.full_like(u, _TAIL[0])
    for term in _TAIL[1:]:
        g = fused(g, u, term)
    below = power(square * -0.5, lost * -0.5) * g
    return x * torch.where(x < 0, below, 1.0 - below)


def gelu_of_tanh(x: torch.Tensor) -> torch.Tensor:
    """The approximation of gelu by a hyperbolic tangent, written with the sigmoid that it equals."""
    return x * sigmoid((x + x * x * x * 0.044715) * _TWICE_ROOT)


#: In the order of the numbers that ``native/layers.c`` gives them.
ELEMENTS = {"sigmoid": sigmoid, "tanh": tanh, "silu": silu, "gelu": gelu, "gelu_of_tanh": gelu_of_tanh}


def quiet(x: torch.Tensor) -> torch.Tensor:
    """Give every NaN the same bits; those of an operation are the machine's."""
    return torch.where(x.isnan(), math.nan, x)


def softmax_rows(x: torch.Tensor, *, masked_is_zero: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax of each row of float32, with the largest element and the sum of exponentials of each.

    The exponentials are added as multiples of 2**-51 in integers, which have no order: permuting a row, or padding it
    with -infinity, changes no bit.
    """
    if not x.numel():
        return torch.empty_like(x), x.new_zeros(x.shape[0], 2)
    most = x.amax(1, keepdim=True)
    usable = most.isfinite()
    e = power(torch.where(usable, x - most, 0.0))
    units = (e.double() + 2.0).view(torch.int64) - 0x4000000000000000
    high, low = (units >> 20).sum(1, keepdim=True), (units & 0xFFFFF).sum(1, keepdim=True)
    total = (high.double() * 2.0**-31 + low.double() * _UNIT).float()
    lost = torch.where((most == -math.inf) & masked_is_zero, 0.0, math.nan).float()
    return torch.where(usable, e / total, lost), torch.cat([most, torch.where(usable, total, 0.0)], 1)


def norm_rows(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise each row of float64 numbers: sums in sixteen lanes, then ``((x - m) * s) * weight + bias``.

    Returns
    -------
    normalised : Tensor of float64, shape ``(R, n)``
    statistics : Tensor of float64, shape ``(R, 2)``
        The mean m and ``s = 1 / sqrt(variance + eps)`` of each row.
    """
    n = x.shape[1]
    mean = _in_lanes(x) / n
    away = x - mean
    # numpy's square root is the processor's, correctly rounded; torch's comes from a vector library and is an ulp off
    # now and then.
    var = (_in_lanes(away * away) / n + eps).cpu().numpy()
    with np.errstate(all="ignore"):
        scale = torch.from_numpy(np.asarray(1.0 / np.sqrt(var))).to(x.device)
    result = away * scale
    result = result if weight is None else result * weight.double()
    result = result if bias is None else result + bias.double()
    result = torch.where(mean.isfinite() & scale.isfinite(), result, math.nan)
    return quiet(result), torch.cat([mean, scale], 1)


def _in_lanes(x: torch.Tensor) -> torch.Tensor:
    """Add each row in sixteen lanes, element i in lane ``i % 16``, and join the lanes by halves."""
    lanes = x.new_zeros(x.shape[0], 16)
    for part in torch.nn.functional.pad(x, (0, -x.shape[1] % 16)).split(16, 1):
        lanes = lanes + part
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes

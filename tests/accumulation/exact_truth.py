"""What an exact reduction must return, from rational arithmetic, and the laws its inputs are drawn from.

Nothing of the package is used: the rounding here goes through the list of neighbours that numpy or torch names.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
#: significand bits, smallest exponent of a normal number, largest exponent
_FACTS = {
    torch.float64: (53, -1022, 1023),
    torch.float32: (24, -126, 127),
    torch.float16: (11, -14, 15),
    torch.bfloat16: (8, -126, 127),
}


def nearest(value: Fraction, dtype: torch.dtype) -> float:
    """Round a rational number to nearest, ties to even; the result as a Python float, which holds all four formats."""
    p, emin, emax = _FACTS[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, emin) - p + 1)
    rounded = round(size / step) * step  # Fraction.__round__ takes ties to even
    if rounded >= Fraction(2) ** (emax + 1):
        return math.inf if value > 0 else -math.inf
    return float(rounded) if value > 0 else -float(rounded)


def nearest_root(value: Fraction, dtype: torch.dtype) -> float:
    """Round the square root of a rational number, found by comparing squares."""
    if value == 0:
        return 0.0
    scale = 4 ** (1200 + max(0, -min(0, value.numerator.bit_length() - value.denominator.bit_length())))
    below = Fraction(math.isqrt(value.numerator * scale // value.denominator))
    exact = below * below == value * scale
    # A root that is not rational lies strictly between two integers of this scale, far finer than any format.
    root = (below if exact else below + Fraction(1, 2)) / math.isqrt(scale)
    return nearest(root, dtype)


def fractions(x: torch.Tensor) -> list[Fraction]:
    """Return the elements as rational numbers."""
    return [Fraction(v) for v in x.double().reshape(-1).tolist()]


def bits(x: torch.Tensor | np.ndarray) -> list[int]:
    """Return the bits of each element; every NaN is the same NaN."""
    if isinstance(x, torch.Tensor):
        width = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
        clean = torch.where(x.isnan(), torch.full_like(x, math.nan), x)
        return clean.contiguous().view(width).reshape(-1).tolist()
    clean = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    return np.ascontiguousarray(clean).view(f"i{x.dtype.itemsize}").reshape(-1).tolist()


def same(result: torch.Tensor, expected: float) -> bool:
    """Whether a scalar has the bits of a Python float that its format can hold."""
    return bits(result) == bits(torch.tensor(expected, dtype=torch.float64).to(result.dtype))


# --- laws ------------------------------------------------------------------------------------------------------------


def _limited(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Round to the dtype, keeping what would overflow finite."""
    limit = torch.finfo(dtype).max
    return torch.from_numpy(np.clip(x, -limit, limit)).to(dtype)


def _full_range(r: np.random.Generator, n: int, dtype: torch.dtype) -> torch.Tensor:
    width = {8: np.int64, 4: np.int32, 2: np.int16}[dtype.itemsize]
    raw = r.integers(np.iinfo(width).min, np.iinfo(width).max, n, dtype=width, endpoint=True)
    x = torch.from_numpy(raw).view(dtype)
    return torch.where(x.isfinite(), x, torch.ones_like(x))


def _zero_cancelling(r: np.random.Generator, n: int, dtype: torch.dtype) -> torch.Tensor:
    half = _limited(r.standard_normal(n // 2) * 2.0 ** r.integers(-12, 12, n // 2), dtype)
    x = torch.cat([half, -half, torch.zeros(n % 2, dtype=dtype)])
    return x[torch.from_numpy(r.permutation(n))]


def _subnormal(r: np.random.Generator, n: int, dtype: torch.dtype) -> torch.Tensor:
    tiny = torch.finfo(dtype).smallest_normal
    scale = torch.tensor(tiny, dtype=torch.float64).to(dtype)
    return torch.from_numpy(r.standard_normal(n)).to(dtype) * scale


def _sparse(r: np.random.Generator, n: int, dtype: torch.dtype) -> torch.Tensor:
    x = r.standard_normal(n) * (r.random(n) < 0.05)
    return _limited(np.copysign(x, r.standard_normal(n)), dtype)


LAWS = {
    "normal": lambda r, n, d: _limited(r.standard_normal(n), d),
    "uniform": lambda r, n, d: _limited(r.random(n), d),
    "wide": lambda r, n, d: _limited(r.standard_normal(n) * 2.0 ** r.integers(-60, 61, n), d),
    "zero-cancelling": _zero_cancelling,
    "subnormal": _subnormal,
    "sparse": _sparse,
    "pareto": lambda r, n, d: _limited(r.pareto(1.0, n) + 1, d),
    "near-overflow": lambda r, n, d: _limited(r.choice([-1.0, 1.0], n) * (1 - r.random(n) / 8) * torch.finfo(d).max, d),
    "full-range": _full_range,
}
SIZES = (1, 2, 3, 7, 33, 64, 1000, 2047, 2048, 2049, 5000)

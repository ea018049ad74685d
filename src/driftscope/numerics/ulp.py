"""Distances counted in representable steps, and the size of one step at a scale."""

from __future__ import annotations

import functools

import torch

from driftscope.numerics.formats import Format, format_of

#: Stands for "infinitely far": exactly one side is NaN, or the distance does not fit in an int64.
FAR = torch.iinfo(torch.int64).max

_SIGNED = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def float_format(dtype: torch.dtype) -> Format:
    """Return the format of a real floating dtype.

    Raises
    ------
    ValueError
        If ``dtype`` is not one.
    """
    found = format_of(str(dtype)) if dtype.is_floating_point else None
    if found is None:
        raise ValueError(f"ulps are counted in floating-point formats; {dtype} is not one")
    return found


def line_number(x: torch.Tensor) -> torch.Tensor:
    """Map floats to integers so that neighbours differ by one and order is kept.

    Parameters
    ----------
    x : Tensor, any shape ``S``, a floating dtype of 8, 16, 32 or 64 bits
        NaNs get a number without meaning.

    Returns
    -------
    Tensor of int32 (int64 for float64), shape ``S``
        0 for both zeros; an infinity is one step beyond the largest number.

    Raises
    ------
    ValueError
        If ``x`` is not floating.
    """
    fmt = float_format(x.dtype)
    if fmt.bits <= 8:
        return _counted(x, fmt)
    bits = x.view(_SIGNED[x.dtype.itemsize])
    if x.dtype.itemsize == 2:
        bits = bits.to(torch.int32)
    # Sign-magnitude to two's complement without a branch: sign is -1 for negative floats, and (m ^ -1) + 1 is -m.
    # Adding 2**31 (2**63) through the mask drops the sign bit, so that -0.0 falls on 0.
    sign = bits >> (8 * bits.dtype.itemsize - 1)
    magnitude = bits & (0x7FFF if x.dtype.itemsize == 2 else torch.iinfo(bits.dtype).max)
    return magnitude.bitwise_xor_(sign).sub_(sign)


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Count the representable steps between two tensors, element by element.

    Parameters
    ----------
    a, b : Tensor, any shape ``S``, one floating dtype of 8, 16, 32 or 64 bits
        Values to compare. ``+0.0`` and ``-0.0`` are the same point.

    Returns
    -------
    Tensor of int64, shape ``S``
        Distance in ulps (steps, not multiples of eps). ``2**63 - 1`` where exactly one side is NaN, and where the
        distance is larger than that (float64 of opposite signs); 0 where both are NaN.

    Raises
    ------
    ValueError
        If dtypes or shapes differ: a step is only defined inside one format.

    References
    ----------
    Muller et al., *Handbook of Floating-Point Arithmetic*, 2nd ed., section 2.3.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ValueError(
            f"ulps are counted inside one format and shape, not between {a.dtype} {tuple(a.shape)} and "
            f"{b.dtype} {tuple(b.shape)}"
        )
    steps = line_distance(line_number(a), line_number(b))
    nan_a, nan_b = is_nan(a), is_nan(b)
    return steps.masked_fill_(nan_a ^ nan_b, FAR).masked_fill_(nan_a & nan_b, 0)


def line_distance(m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Return ``|m - n|`` for line numbers as int64, ``2**63 - 1`` where it does not fit."""
    if m.dtype == torch.int32:
        return (m.to(torch.int64) - n).abs_()
    gap = m - n
    # Two numbers of different signs whose difference does not have the first one's sign: it wrapped around.
    wrapped = ((m ^ n) & (m ^ gap)) < 0
    return gap.abs_().masked_fill_(wrapped, FAR)


def ulp_at(scale: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Return the size of one ulp of a format at given magnitudes.

    Parameters
    ----------
    scale : Tensor, any shape ``S``
        Magnitudes at which to measure, usually larger than the values themselves (``sum |a| |x|``): where terms
        cancel, the rounding errors keep the size of the terms.
    fmt : Format

    Returns
    -------
    Tensor of float64, shape ``S``
        ``2**(max(floor(log2 |scale|), emin) - p + 1)``, as :meth:`Format.ulp` gives for one number.
    """
    magnitude = scale.to(torch.float64).abs()
    exponent = torch.frexp(magnitude).exponent - 1
    exponent = torch.where(magnitude == 0, fmt.emin, exponent).clamp_(min=fmt.emin)
    size = torch.ldexp(torch.ones_like(magnitude), exponent - (fmt.p - 1))
    size = torch.where(magnitude > fmt.largest, torch.inf, size)
    return torch.where(torch.isnan(magnitude), torch.nan, size)


def is_nan(x: torch.Tensor) -> torch.Tensor:
    """Return ``torch.isnan(x)``, for 8-bit floats too."""
    return torch.isnan(x.to(torch.float32) if x.dtype.itemsize == 1 else x)


def line_number_in(x: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Return line numbers of numbers that a format of at most 8 bits holds exactly.

    Parameters
    ----------
    x : Tensor of any real dtype, any shape ``S``
    fmt : Format
        For the formats that torch cannot compute with, or has no dtype for.

    Returns
    -------
    Tensor of int32, shape ``S``
        Position among the format's numbers; neighbours differ by one.
    """
    return torch.searchsorted(_numbers(fmt).to(x.device), x.to(torch.float64), out_int32=True)


def _counted(x: torch.Tensor, fmt: Format) -> torch.Tensor:
    zero = line_number_in(torch.zeros((), device=x.device), fmt)
    return line_number_in(x, fmt) - zero


@functools.cache
def _numbers(fmt: Format) -> torch.Tensor:
    """List every number of a small format in order, float64."""
    steps = 2 ** (fmt.p - 1)
    positive = [m * 2.0 ** (e - fmt.p + 1) for e in range(fmt.emin, fmt.emax + 1) for m in range(steps, 2 * steps)]
    positive = positive[: len(positive) - fmt.reserved]
    if fmt.subnormals:
        positive = [m * fmt.smallest_subnormal for m in range(1, steps)] + positive
    if fmt.infinities:
        positive.append(float("inf"))
    values = [-v for v in reversed(positive)] + [0.0] + positive if fmt.signed else positive
    return torch.tensor(values, dtype=torch.float64)

"""Roundings that numpy has no operation for: fused multiply-add and additions of several terms at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]

_SPLITTER = 2.0**27 + 1


def two_sum(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """Return the rounded sum and its error, exactly (Knuth, *TAOCP* 2, 4.2.2, theorem B)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """Return the rounded product and its error, exactly short of over- and underflow (Dekker, 1971)."""
    p = a * b
    a_high, b_high = _high(a), _high(b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def _high(x: Float64) -> Float64:
    t = _SPLITTER * x
    return t - (t - x)


def sum_to_odd(a: Float64, b: Float64) -> Float64:
    """Add in float64, rounding an inexact sum to the neighbour whose last bit is 1.

    Rounded again to nearest in a format of at most 51 bits, this gives the sum rounded once, which rounding to
    nearest twice does not (Boldo and Melquiond, *Emulation of FMA and correctly rounded sums*, 2008).
    """
    s, error = two_sum(a, b)
    bits = s.view(np.int64)
    inexact = error != 0
    # Back to the neighbour toward zero where the sum was rounded away from it, then the last bit set.
    bits -= inexact & ((error > 0) != (s > 0))
    bits |= inexact
    return s


def fma(a: Array, b: Array, c: Array) -> Array:
    """Return ``a * b + c`` rounded once, element by element.

    Parameters
    ----------
    a, b, c : ndarray of one float dtype, shapes that broadcast
        At most 24 significand bits (float32, float16, bfloat16), or float64 short of over- and underflow.

    Returns
    -------
    ndarray of the dtype of ``c``
    """
    if c.dtype == np.float64:
        return _fma64(np.broadcast_arrays(a, b, c))
    product = a.astype(np.float64) * b.astype(np.float64)  # exact: 24 + 24 bits
    return sum_to_odd(product, c.astype(np.float64)).astype(c.dtype)


def _fma64(operands: Any) -> Float64:
    a, b, c = (np.ascontiguousarray(x) for x in operands)
    product, product_error = two_product(a, b)
    low, low_error = two_sum(c, product_error)
    high, high_error = two_sum(product, low)
    return high + sum_to_odd(low_error, high_error)


def exact_sum(terms: Array, dtype: np.dtype[Any]) -> Array:
    """Return sums over the first axis, rounded once to ``dtype``.

    Parameters
    ----------
    terms : ndarray, shape (m, rows)

    Returns
    -------
    ndarray of ``dtype``, shape (rows,)
    """
    columns = terms.astype(np.float64).T.tolist()
    sums = np.asarray([_sum_once(column) for column in columns])
    if dtype == np.float64:
        return sums
    pairs, finite = zip(columns, sums, strict=True), np.isfinite(sums)
    errors = [math.fsum((*column, -s)) if math.isfinite(s) else 0.0 for column, s in pairs]
    rounded = sum_to_odd(np.where(finite, sums, 0.0), np.asarray(errors))
    return np.where(finite, rounded, sums).astype(dtype)


def _sum_once(column: list[float]) -> float:
    """The sum, rounded once; NaN of infinities of both signs, as hardware has it."""
    return math.fsum(column) if all(map(math.isfinite, column)) else sum(column)


def aligned_sum(terms: Array, extra_bits: int) -> npt.NDArray[np.float32]:
    """Return sums over the first axis as tensor cores make them.

    Every term is cut, toward zero, to ``24 + extra_bits`` bits counted from the largest term; the sum of what is
    left is cut to float32.

    Parameters
    ----------
    terms : ndarray of float32, shape (m, rows)
    extra_bits : int
        Bits kept below the last one of the largest term.

    References
    ----------
    Fasi, Higham, Mikaitis and Pranesh, *Numerical behavior of NVIDIA tensor cores*, PeerJ Computer Science, 2021.
    """
    wide = terms.astype(np.float64)
    _, exponent = np.frexp(np.abs(wide).max(axis=0))
    quantum = np.ldexp(1.0, exponent - 24 - extra_bits)
    total = (np.trunc(wide / quantum) * quantum).sum(axis=0)  # integers of fewer than 53 bits: exact
    nearest = total.astype(np.float32)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(total)
    cut: npt.NDArray[np.float32] = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)
    return cut

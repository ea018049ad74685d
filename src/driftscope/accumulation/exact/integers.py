"""Exact reductions in integer arithmetic: the same bits as the compiled library, on any device torch has.

Each element is split into a significand and an exponent. Significands are added, as integers, into 32-bit limbs of a
long fixed-point number per row; integer addition has no order. The few limbs of a row then become one Python integer,
which is rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from driftscope.accumulation.exact.formats import Reduction, StoredFormat
from driftscope.accumulation.exact.triton_sums import device_limbs

_LOW = 0xFFFFFFFF
#: Bits of a piece of a significand: shifted by up to 31 it still fits a signed 64-bit integer.
_PIECE = 27
#: Elements of a row taken at a time. A limb overflows after 2**31 additions; carries are taken after each block.
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class _Split:
    """Elements as ``significand * 2**(position + lowest)``; both int64, the significand with its sign."""

    significand: torch.Tensor
    position: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Total:
    """The exact sum of one row, ``integer * 2**exponent``, and what else was in it."""

    integer: int
    exponent: int
    nan: bool
    plus: bool
    minus: bool
    only_minus_zero: bool


def reduce_rows(
    op: Reduction,
    rows: torch.Tensor,
    others: torch.Tensor | None,
    formats: tuple[StoredFormat, StoredFormat],
    correction: int,
) -> torch.Tensor:
    """Reduce every row of a matrix, correctly rounded.

    Parameters
    ----------
    op : Reduction
    rows : Tensor, shape ``(R, n)``
    others : Tensor, shape ``(R, n)``, or None
        The second operand of DOT.
    formats : (Stored, Stored)
        Of the input and of the result.
    correction : int
        Of VAR.

    Returns
    -------
    Tensor, shape ``(R,)``
        On the host.
    """
    stored, out = formats
    n = rows.shape[1]
    sums = _sums(rows, stored) if op in (Reduction.SUM, Reduction.MEAN, Reduction.VAR) else []
    second = others if op is Reduction.DOT and others is not None else rows
    products = _products(rows, second, stored) if op in (Reduction.DOT, Reduction.NORM, Reduction.VAR) else []
    if op is Reduction.VAR:
        bits = [_variance(s, q, n, correction, out) for s, q in zip(sums, products, strict=True)]
    else:
        bits = [_finish(op, total, n, out) for total in sums or products]
    return from_bits(bits, out)


def from_bits(bits: list[int], stored: StoredFormat) -> torch.Tensor:
    """Make a tensor of the given format from its bits."""
    signed = [b - (1 << stored.bits) if b & stored.sign else b for b in bits]
    return torch.tensor(signed, dtype=stored.integers).view(stored.dtype)


# --- sums as integers ----------------------------------------------------------------------------------------------


def _split(x: torch.Tensor, stored: StoredFormat) -> _Split:
    """Take finite elements apart; NaN and infinities become zero."""
    bits = x.view(stored.integers).to(torch.int64)
    fields = (1 << (stored.bits - stored.p)) - 1
    field = (bits >> (stored.p - 1)) & fields
    significand = bits & ((1 << (stored.p - 1)) - 1)
    significand = torch.where(field > 0, significand | 1 << (stored.p - 1), significand)
    significand = torch.where(field == fields, 0, torch.where(bits < 0, -significand, significand))
    return _Split(significand, (field - 1).clamp_(min=0))


def _add(limbs: torch.Tensor, piece: torch.Tensor, position: torch.Tensor) -> None:
    """Add ``piece * 2**position`` to each row, for pieces below ``2**31``."""
    shifted = piece << (position & 31)
    at = position >> 5
    limbs.scatter_add_(1, at, shifted & _LOW)
    limbs.scatter_add_(1, at + 1, shifted >> 32)


def _carry(limbs: torch.Tensor) -> None:
    for k in range(limbs.shape[1] - 1):
        limbs[:, k + 1] += limbs[:, k] >> 32
        limbs[:, k] &= _LOW


def _empty_limbs(x: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.zeros((x.shape[0], bits // 32 + 6), dtype=torch.int64, device=x.device)


def _integers(limbs: torch.Tensor) -> list[int]:
    totals = []
    for row in limbs.tolist():
        total = 0
        for limb in reversed(row):
            total = (total << 32) + limb
        totals.append(total)
    return totals


def _sums(x: torch.Tensor, stored: StoredFormat) -> list[_Total]:
    limbs = _empty_limbs(x, (1 << (stored.bits - stored.p)) + stored.p)
    by_device = device_limbs(x, stored, limbs)
    if by_device:
        _carry(limbs)
    for start in range(0, 0 if by_device else x.shape[1], _BLOCK):
        split = _split(x[:, start : start + _BLOCK], stored)
        # An arithmetic shift and a mask: low is never negative, high keeps the sign.
        _add(limbs, split.significand & ((1 << _PIECE) - 1), split.position)
        _add(limbs, split.significand >> _PIECE, split.position + _PIECE)
        _carry(limbs)
    minus_zero = (x == 0) & torch.signbit(x)
    return _totals(limbs, stored.lowest, x, minus_zero)


def _products(x: torch.Tensor, y: torch.Tensor, stored: StoredFormat) -> list[_Total]:
    limbs = _empty_limbs(x, 2 * ((1 << (stored.bits - stored.p)) + stored.p))
    mask = (1 << _PIECE) - 1
    for start in range(0, x.shape[1], _BLOCK):
        a, b = (_split(operand[:, start : start + _BLOCK], stored) for operand in (x, y))
        position = a.position + b.position
        for i, left in enumerate((a.significand & mask, a.significand >> _PIECE)):
            for j, right in enumerate((b.significand & mask, b.significand >> _PIECE)):
                product = left * right
                _add(limbs, product & mask, position + _PIECE * (i + j))
                _add(limbs, product >> _PIECE, position + _PIECE * (i + j + 1))
        _carry(limbs)
    # Finite factors have a finite product here, whatever the format would say: only the others are multiplied.
    special = torch.where(x.isfinite() & y.isfinite(), torch.zeros_like(x), x.sign() * y.sign() * math.inf)
    special = torch.where(x.isnan() | y.isnan(), torch.full_like(x, math.nan), special)
    zero = ((x == 0) & y.isfinite()) | ((y == 0) & x.isfinite())
    return _totals(limbs, 2 * stored.lowest, special, zero & (torch.signbit(x) != torch.signbit(y)))


def _totals(limbs: torch.Tensor, exponent: int, x: torch.Tensor, minus_zero: torch.Tensor) -> list[_Total]:
    flags = torch.stack(
        [x.isnan().any(1), (x == math.inf).any(1), (x == -math.inf).any(1), minus_zero.all(1) & (x.shape[1] > 0)], dim=1
    )
    return [
        _Total(integer, exponent, *row) for integer, row in zip(_integers(limbs), flags.tolist(), strict=True)
    ]  # fmt: skip


# --- one rounding --------------------------------------------------------------------------------------------------


def _finish(op: Reduction, total: _Total, n: int, out: StoredFormat) -> int:
    if total.nan or (total.plus and total.minus) or (op is Reduction.MEAN and n == 0):
        return out.nan
    if total.plus or total.minus:
        return out.infinity | (out.sign if total.minus else 0)
    if total.integer == 0:
        return out.sign if total.only_minus_zero else 0
    if op is Reduction.NORM:
        return _round_root(total.integer, total.exponent, out)
    return round_ratio(total.integer, n if op is Reduction.MEAN else 1, total.exponent, out)


def _variance(total: _Total, squares: _Total, n: int, correction: int, out: StoredFormat) -> int:
    if n == 0 or squares.nan or squares.plus:
        return out.nan
    spread = n * squares.integer - total.integer**2
    if n <= correction:
        return out.infinity if spread else out.nan
    return round_ratio(spread, n * (n - correction), squares.exponent, out)


def round_ratio(numerator: int, denominator: int, exponent: int, out: StoredFormat) -> int:
    """Round ``numerator / denominator * 2**exponent`` to nearest, ties to even.

    Returns
    -------
    int
        The bits of the result in the format ``out``.
    """
    sign = out.sign if numerator < 0 else 0
    size = abs(numerator)
    if size == 0:
        return 0
    # At least p + 2 bits of quotient, or every bit down to the last one of a subnormal and two more.
    shift = max(0, out.p + 2 + denominator.bit_length() - size.bit_length())
    quotient, remainder = divmod(size << shift, denominator)
    return sign | _round(quotient, exponent - shift, remainder != 0, out)


def _round_root(integer: int, exponent: int, out: StoredFormat) -> int:
    shift = max(0, 2 * (out.p + 2) - integer.bit_length())
    shift += (exponent - shift) & 1
    scaled = integer << shift
    root = math.isqrt(scaled)
    return _round(root, (exponent - shift) // 2, root * root != scaled, out)


def _round(significand: int, exponent: int, more: bool, out: StoredFormat) -> int:
    """Round a positive number, ``significand * 2**exponent`` and a little more if ``more``."""
    last = max(exponent + significand.bit_length() - out.p, out.lowest)
    drop = last - exponent
    if drop <= 0:
        kept = significand << -drop
    else:
        kept, rest = significand >> drop, significand & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        if rest > half or (rest == half and (more or kept & 1)):
            kept += 1
    return min(((last - out.lowest) << (out.p - 1)) + kept, out.infinity)

"""Quantisation: integers on a grid are real integers, chosen by the native quotient; what follows is exact."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import matrix_product

_SATURATING: ContextVar[bool] = ContextVar("saturating", default=False)
_INT16 = (-32768, 32767)


@contextlib.contextmanager
def sums_of_two_saturate() -> Iterator[None]:
    """Compute integer products inside the block as x86 processors without VNNI do: see :func:`integer_product`."""
    token = _SATURATING.set(True)
    try:
        yield
    finally:
        _SATURATING.reset(token)


def integer_product(a: Tensor, b: Tensor, a_zero: Tensor | None, b_zero: Tensor | None) -> Tensor:
    """``(a - a_zero) @ (b - b_zero)``, whole numbers in float64.

    Where unsigned ``a`` meets signed ``b``, x86 processors without an 8-bit dot product multiply with ``vpmaddubsw``:
    two neighbouring products are added in 16 bits, which saturates at 32767 (Intel's Software Developer's Manual,
    volume 2, PMADDUBSW). Zero points are taken off afterwards, from exact sums of rows and columns.

    Parameters
    ----------
    a : torch.Tensor, (..., M, K)
    b : torch.Tensor, (..., K, N)
    a_zero, b_zero : torch.Tensor or None
        Broadcast with ``a`` and ``b``.
    """
    wide_a, wide_b = a.to(torch.float64), b.to(torch.float64)
    zero_a = 0.0 if a_zero is None else a_zero.to(torch.float64)
    zero_b = 0.0 if b_zero is None else b_zero.to(torch.float64)
    exact = matrix_product(wide_a - zero_a, wide_b - zero_b)
    if not (_SATURATING.get() and a.dtype == torch.uint8 and b.dtype == torch.int8):
        return exact
    lost = torch.zeros_like(exact)
    for k in range(0, a.shape[-1] - 1, 2):
        two = wide_a[..., k : k + 2] @ wide_b[..., k : k + 2, :]
        lost += two.clamp(*_INT16) - two
    return exact + lost


class Undoing:
    """A run in which operators with packed weights multiply floats: nothing is quantised on the way.

    Parameters
    ----------
    exact : mapping of str to torch.Tensor
        By the step that reads it, the weight to multiply with, float64, in the packed weight's shape; any other step
        multiplies with what its integers stand for.

    Attributes
    ----------
    seen : dict of str to tuple of torch.Tensor
        By step: what the integers of its weight stand for, the scale (broadcasts), and where an integer is the
        smallest or largest.
    integers : set of int
        The values of a program that stand unrounded where it has integers.
    """

    def __init__(self, exact: Mapping[str, Tensor]):
        self.exact = exact
        self.integers: set[int] = set()
        self.seen: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def weight(self, step: str, value: Tensor, scale: Tensor, edge: Tensor) -> Tensor:
        """Note a packed weight and give what to multiply with."""
        self.seen[step] = (value, scale, edge)
        return self.exact.get(step, value)


_UNDOING: ContextVar[Undoing | None] = ContextVar("undoing", default=None)


def undoing() -> Undoing | None:
    """The undoing in force; None in an ordinary run."""
    return _UNDOING.get()


@contextlib.contextmanager
def undone(exact: Mapping[str, Tensor]) -> Iterator[Undoing]:
    """Leave the quantisation of packed operators out inside the block (see :class:`Undoing`)."""
    found = Undoing(exact)
    token = _UNDOING.set(found)
    try:
        yield found
    finally:
        _UNDOING.reset(token)


def levels(quotient: Tensor, zero: Tensor | None, limits: tuple[float, float]) -> Tensor:
    """``saturate(round(quotient) + zero)``, halves to even; in the dtype of the quotient."""
    whole = torch.round(quotient)
    return (whole if zero is None else whole + zero).clamp(*limits)


def dequantised(x: Tensor, scale: Tensor | float, zero: Tensor | float | None) -> Tensor:
    """``(x - zero) scale``; the shapes broadcast, the dtypes are those of a computation."""
    return (x if zero is None else x - zero) * scale


def along(parameter: Tensor, axis: int, rank: int) -> Tensor:
    """Scales or zero points (C,) in a shape that broadcasts along one axis of a tensor; a single one as 0-dim."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def blockwise(parameter: Tensor, axis: int, shape: Sequence[int], block: int) -> Tensor:
    """Parameters of blocks of elements along an axis, repeated to one for each element."""
    return parameter.repeat_interleave(block, axis).narrow(axis, 0, shape[axis])

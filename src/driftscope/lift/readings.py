"""What one reading of a stored tensor tells: weights are large, and several steps of a comparison ask the same."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from driftscope.programs.state.by_tensor import ByTensor

T = TypeVar("T")

# Elements looked at in one go: weights are large, and wider copies of them stay in the processor's cache.
PIECE = 1 << 16
_WORD, _HALF = (1 << 64) - 1, (1 << 32) - 1
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MULTIPLIERS = {torch.int32: 0x1E3779B1, torch.int64: 0x9E3779B97F4A7C1}

Fingerprint = tuple[int, int, int]

#: Of a tensor: its version, and a few numbers that were read of it then.
_READ: ContextVar[ByTensor[tuple[int, dict[str, Any]]] | None] = ContextVar("driftscope_readings", default=None)


@contextlib.contextmanager
def readings_kept() -> Iterator[None]:
    """Read every tensor once inside: nobody writes into weights but torch, which counts it."""
    if _READ.get() is not None:
        yield
        return
    token = _READ.set(ByTensor())
    try:
        yield
    finally:
        _READ.reset(token)


def _once(name: str, value: torch.Tensor, read: Callable[[torch.Tensor], T]) -> T:
    kept = _READ.get()
    if kept is None or value.is_inference():
        return read(value)
    version, known = kept.get(value) or (None, {})
    if version != value._version:
        kept[value] = value._version, (known := {})
    if name not in known:
        known[name] = read(value)
    found: T = known[name]
    return found


def fingerprint(value: torch.Tensor, twin: torch.Tensor | None = None) -> Fingerprint:
    """Return a key of the multiset of a tensor's bits: equal for every permutation of the same elements.

    ``twin`` may well hold the same bits: comparing is cheaper than mixing them.
    """

    def read(value: torch.Tensor) -> Fingerprint:
        alike = twin is not None and twin.dtype == value.dtype and is_same(twin, value)
        return fingerprint(twin) if alike and twin is not None else _mixed(value)

    return _once("bits", value, read)


def is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one format hold the same numbers; both may be one place of a file that is mapped."""
    if one.shape != other.shape:
        return False
    alike = one.stride() == other.stride() and one.data_ptr() == other.data_ptr()
    return alike or _of_pair("same", one, other, torch.equal)


def is_transposed(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a matrix is another one transposed, as exporters leave weights: seen without mixing their bits."""
    matrices = one.ndim == 2 and other.ndim == 2 and one.shape == other.mT.shape
    return matrices and _of_pair("transposed", one, other, lambda x, y: torch.equal(x, y.mT))


def _of_pair(
    name: str, one: torch.Tensor, other: torch.Tensor, read: Callable[[torch.Tensor, torch.Tensor], bool]
) -> bool:
    """What one look at two tensors tells, whichever comes first: each of two programs asks it of the other's."""
    if one.is_inference() or other.is_inference():
        return read(one, other)
    first, second = sorted((one, other), key=id)

    def look(value: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], int, bool]:
        return weakref.ref(second), second._version, read(value, second)

    known, version, told = _once(f"{name} {id(second)}", first, look)
    return told if known() is second and version == second._version else read(one, other)


def number_of(value: torch.Tensor) -> float | None:
    """Return the one finite number that all elements are; None where they are several, or more than a million."""
    return _once("number", value, _number)


def norms_of(value: torch.Tensor) -> tuple[float, float]:
    """Return the sum of sizes, and the root of the sum of squares."""
    return _once("norms", value, _norms)


def ends_of(value: torch.Tensor) -> tuple[float, ...]:
    """Return how many elements there are, the smallest and the largest; the first alone where one is not a number."""
    return _once("ends", value, _ends)


def sum_is_finite(value: torch.Tensor) -> bool:
    """Return whether the sum of all elements is finite: then each of them is."""
    return _once("finite", value, lambda value: bool(torch.isfinite(value.sum())))


def _number(value: torch.Tensor) -> float | None:
    flat = value.reshape(-1)
    number = float(flat[0])
    # The last element tells nearly every weight from one number, without a look at all of it.
    if flat.numel() > 1 and (float(flat[-1]) != number or flat.numel() > 1 << 20 or not bool((flat == flat[0]).all())):
        return None
    return number if math.isfinite(number) else None


def _ends(value: torch.Tensor) -> tuple[float, ...]:
    if value.dtype.itemsize == 1 or not value.numel():  # float8 has few operators of its own
        return (value.numel(),)
    low, high = (float(end) for end in torch.aminmax(value))
    return (value.numel(),) if math.isnan(low) else (value.numel(), low, high)


def _mixed(value: torch.Tensor) -> Fingerprint:
    plain = mixed = 0
    for piece in torch.split(value.reshape(-1), PIECE):
        bits = _bits(piece)
        if bits.dtype != torch.int32:
            bits = bits.to(torch.int64)
        plain += int(bits.sum())
        # Wraps modulo 2**64, or 2**32 for the usual float32, so any fixed odd multiplier serves.
        mixed += int((bits * _MULTIPLIERS[bits.dtype]).bitwise_xor_(bits >> 7).sum(dtype=bits.dtype))
    return value.numel(), plain & _WORD, mixed & (_HALF if value.dtype.itemsize == 4 else _WORD)


def _bits(value: torch.Tensor) -> torch.Tensor:
    """The bits of a float tensor as integers; -0.0 counts as +0.0."""
    plain = (value + 0.0) if value.dtype.is_floating_point and value.dtype.itemsize > 1 else value
    return plain.contiguous().view(_INTEGERS[value.dtype.itemsize])


def _norms(value: torch.Tensor) -> tuple[float, float]:
    one = two = 0.0
    for piece in torch.split(value.reshape(-1), PIECE):
        wide = piece.to(torch.float64)
        one += float(torch.linalg.vector_norm(wide, 1.0))
        two += float(torch.dot(wide, wide))
    return one, math.sqrt(two)

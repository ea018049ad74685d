"""Element types: what ONNX calls them, how torch stores them here, and how a value is rounded to them.

A *format* is the torch dtype that names a value's native type. Some formats have no arithmetic in torch, so
the tensor that carries them has another dtype, the *storage*: unsigned integers live in the next wider
signed type, 4-bit integers in 8 bits, 8-bit and 4-bit floats in float32. The format, never the storage,
says what a value is.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch

Format = torch.dtype | None

# torch has these as names without arithmetic, and its annotations do not list them.
UINT4, INT4, UINT2, INT2 = (getattr(torch, name) for name in ("uint4", "int4", "uint2", "int2"))

FORMAT_OF_ELEMENT: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
    21: UINT4,
    22: INT4,
    23: torch.float4_e2m1fn_x2,
    24: torch.float8_e8m0fnu,
    25: UINT2,
    26: INT2,
}
ELEMENT_OF_FORMAT = {dtype: element for element, dtype in FORMAT_OF_ELEMENT.items()}
STRING_ELEMENT = 8


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """An 8-bit or 4-bit float: ``p`` significand bits, hidden one included."""

    p: int
    emin: int
    largest: float
    infinity: bool  # whether overflow has an infinity to go to
    nan: bool = True
    positive: bool = False  # E8M0 holds powers of two only


SMALL_FLOATS = {
    torch.float8_e4m3fn: SmallFloat(4, -6, 448.0, infinity=False),
    torch.float8_e4m3fnuz: SmallFloat(4, -7, 240.0, infinity=False),
    torch.float8_e5m2: SmallFloat(3, -14, 57344.0, infinity=True),
    torch.float8_e5m2fnuz: SmallFloat(3, -15, 57344.0, infinity=False),
    torch.float8_e8m0fnu: SmallFloat(1, -127, 2.0**127, infinity=False, positive=True),
    torch.float4_e2m1fn_x2: SmallFloat(2, 0, 6.0, infinity=False, nan=False),
}

# Integer formats whose storage is wider than they are, with their range.
NARROW_INTEGERS = {
    torch.uint16: (0, 2**16 - 1),
    torch.uint32: (0, 2**32 - 1),
    UINT4: (0, 15),
    INT4: (-8, 7),
    UINT2: (0, 3),
    INT2: (-2, 1),
}

_STORAGE = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
    UINT4: torch.uint8,
    INT4: torch.int8,
    UINT2: torch.uint8,
    INT2: torch.int8,
    **dict.fromkeys(SMALL_FLOATS, torch.float32),
}

_NUMPY_STORAGE: dict[Any, Any] = {
    np.dtype(np.uint16): np.int32,
    np.dtype(np.uint32): np.int64,
    np.dtype(np.uint64): np.int64,
    np.dtype(ml_dtypes.int4): np.int8,
    np.dtype(ml_dtypes.uint4): np.uint8,
    np.dtype(ml_dtypes.int2): np.int8,
    np.dtype(ml_dtypes.uint2): np.uint8,
}


def is_float(format: Format) -> bool:
    """Whether a format is a real floating-point format."""
    return format is not None and format.is_floating_point


@functools.cache
def is_inexact(format: Format) -> bool:
    """Whether values of a format are rounded: real or complex floating point."""
    return is_float(format) or (format is not None and format.is_complex)


@functools.cache
def storage(format: torch.dtype) -> torch.dtype:
    """The torch dtype of the tensor that carries values of a format natively."""
    return _STORAGE.get(format, format)


@functools.cache
def lifted_storage(format: torch.dtype) -> torch.dtype:
    """The torch dtype of a lifted value: float64 for every float, complex128 for every complex."""
    if format.is_floating_point:
        return torch.float64
    return torch.complex128 if format.is_complex else storage(format)


def to_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Bring a tensor of any torch dtype into the storage of its format."""
    return tensor.to(storage(tensor.dtype))


def to_format(tensor: torch.Tensor, format: Format) -> torch.Tensor:
    """Bring a stored tensor into the dtype that names its format, where torch can hold it."""
    if format is None or format in (UINT4, INT4, UINT2, INT2, torch.float4_e2m1fn_x2):
        return tensor
    return tensor.to(format)


def range_of(format: torch.dtype) -> tuple[int, int]:
    """Least and greatest value of an integer format."""
    if format in NARROW_INTEGERS:
        return NARROW_INTEGERS[format]
    info = torch.iinfo(format)
    return int(info.min), int(info.max)


def wrap_integer(tensor: torch.Tensor, format: Format) -> torch.Tensor:
    """Wrap integers that outgrew a format narrower than its storage, as its own arithmetic would."""
    if format not in NARROW_INTEGERS or tensor.is_floating_point():
        return tensor
    low, high = NARROW_INTEGERS[format]
    return torch.remainder(tensor - low, high - low + 1) + low if low else tensor & high


def _round_small(x: torch.Tensor, spec: SmallFloat, saturate: bool) -> torch.Tensor:
    exponent = torch.frexp(x.abs()).exponent - 1
    quantum = torch.ldexp(torch.ones_like(x), exponent.clamp(min=spec.emin) - (spec.p - 1))
    y = torch.round(x / quantum) * quantum
    overflow = y.abs() > spec.largest
    if saturate or not spec.nan:
        y = y.clamp(-spec.largest, spec.largest)
    else:
        beyond = torch.copysign(torch.full_like(y, torch.inf), x) if spec.infinity else torch.full_like(y, torch.nan)
        y = torch.where(overflow, beyond, y)
        if spec.infinity:
            y = torch.where(torch.isinf(x), x, y)
    return torch.where(torch.isnan(x), x, y) if spec.nan else torch.where(torch.isnan(x), 0.0, y)


def round_to(x: torch.Tensor, format: Format, *, saturate: bool = True) -> torch.Tensor:
    """Round real values to a format, to nearest even, and keep the tensor's own dtype.

    Parameters
    ----------
    x : torch.Tensor
        Floating; other dtypes are returned as they are.
    format : torch.dtype or None
        A float format. None and non-float formats leave ``x`` alone.
    saturate : bool
        For 8-bit floats: overflow goes to the largest value instead of Inf or NaN.
    """
    if format is None or not format.is_floating_point or not x.is_floating_point() or format == x.dtype:
        return x
    spec = SMALL_FLOATS.get(format)
    if spec is not None:
        return _round_small(x.to(torch.float64), spec, saturate).to(x.dtype)
    return x.to(format).to(x.dtype)


def array_to_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Bring a numpy array (ml_dtypes included) into a tensor in the storage of its format.

    Parameters
    ----------
    array : ndarray
        Any dtype but strings and objects.
    """
    if array.dtype in _NUMPY_STORAGE:
        return torch.from_numpy(array.astype(_NUMPY_STORAGE[array.dtype]))
    if array.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if array.dtype.kind == "V" or array.dtype.name.startswith("float8"):
        return torch.from_numpy(array.astype(np.float32))
    return torch.from_numpy(np.array(array, copy=True, order="C"))

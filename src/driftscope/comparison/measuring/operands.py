"""What can be compared: any leaf of an output tree, brought to one of two forms.

An :class:`Operand` holds either a plain torch tensor (no subclass, no gradient, no lazy conjugate), or a flat list
of Python objects that can only be equal or not (strings, bytes, anything else). Its native dtype and shape are
kept by name, so that a conversion that had to be made for the arithmetic is never mistaken for the value.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

from driftscope.errors import InputError
from driftscope.numerics.formats import Format, format_of


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a comparison of two leaves.

    Parameters
    ----------
    dtype : str
        Native name: ``"float32"``, ``"bool"``, ``"quint8"``, ``"str"``; a class name for other objects.
    shape : tuple of int or None
        None for what has no shape (None itself, Python objects).
    tensor : Tensor or None
        The numbers. Formats that torch cannot compute with are held in float32, exactly.
    low : Tensor or None
        What ``tensor`` leaves out of a longer format: the value is ``tensor + low``.
    objects : tuple
        The values that are not numbers, in row-major order.
    weak : bool
        A Python number: it takes the dtype of what it is compared with.
    description : str
        More that must agree, as the parameters of a quantisation; "" for nothing.
    """

    dtype: str
    shape: tuple[int, ...] | None
    tensor: torch.Tensor | None = None
    low: torch.Tensor | None = None
    objects: tuple[Any, ...] = field(default=())
    weak: bool = False
    description: str = ""

    @property
    def format(self) -> Format | None:
        """Floating-point format (of the parts, for complex numbers); None for what is not floating."""
        return format_of(self.dtype)

    @property
    def floating(self) -> bool:
        """Whether the numbers are floating-point (or complex)."""
        return self.format is not None or self.low is not None

    @property
    def opaque(self) -> bool:
        """Whether the leaf is an object whose class says nothing about equality."""
        return self.tensor is None and self.shape is None and "__eq__" not in _methods(self.objects[0])

    @property
    def absent(self) -> bool:
        """Whether the leaf is None."""
        return self.dtype == "None"


def _methods(value: Any) -> set[str]:
    return {name for c in type(value).__mro__ if c is not object for name in vars(c)}


def operand(leaf: Any) -> Operand:
    """Bring a leaf to the form in which it is compared.

    Parameters
    ----------
    leaf : object
        Tensor (dense, sparse or quantised), numpy array or scalar (ml_dtypes included), anything with
        ``__array__`` or ``full_tensor``, Python number, string, None, or any object that knows ``==``.

    Raises
    ------
    InputError
        If it is a tensor without values (on the ``meta`` device).
    """
    if leaf is None:
        return Operand("None", None, objects=(None,))
    if isinstance(leaf, torch.Tensor):
        return _from_torch(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _from_numpy(np.asarray(leaf))
    if isinstance(leaf, numbers.Number):
        return _from_number(leaf)
    if hasattr(leaf, "__array__"):
        return _from_numpy(np.asarray(leaf))
    return Operand(type(leaf).__name__, None, objects=(leaf,))


def _from_torch(leaf: torch.Tensor) -> Operand:
    if hasattr(leaf, "full_tensor"):  # a DTensor: its shards are gathered
        leaf = leaf.full_tensor()
    if leaf.is_meta:
        raise InputError(f"a tensor of shape {tuple(leaf.shape)} on the meta device has no values; give a real one")
    name, leaf = dtype_name(leaf.dtype), leaf.detach()
    if leaf.is_nested:
        return _from_nested(name, leaf)
    shape = tuple(leaf.shape)
    if type(leaf) is not torch.Tensor:
        leaf = leaf.as_subclass(torch.Tensor)
    if leaf.is_quantized:
        return Operand(name, shape, leaf.dequantize(), description=_quantisation(leaf))
    if leaf.dtype == torch.float4_e2m1fn_x2:
        return Operand(name, shape, _unpack_float4(leaf))
    if leaf.layout == torch.strided:
        leaf = leaf.resolve_conj().resolve_neg()
    return Operand(name, shape, leaf)


def _from_nested(name: str, leaf: torch.Tensor) -> Operand:
    """Lay the components of a nested tensor end to end; their shapes must agree too."""
    parts = list(leaf.unbind())
    values = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.empty(0, dtype=leaf.dtype)
    shapes = ", ".join(str(tuple(part.shape)) for part in parts)
    return Operand(name, tuple(values.shape), values, description=f"nested {shapes}")


def _quantisation(x: torch.Tensor) -> str:
    if x.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{x.qscheme()} scale={x.q_scale()!r} zero_point={x.q_zero_point()}"
    scales, points = x.q_per_channel_scales().tolist(), x.q_per_channel_zero_points().tolist()
    return f"{x.qscheme()} axis={x.q_per_channel_axis()} scales={scales} zero_points={points}"


def _unpack_float4(x: torch.Tensor) -> torch.Tensor:
    """Two numbers from each byte, the low half first, as float32 (..., 2 n)."""
    magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=x.device)
    numbers_of_code = torch.cat([magnitudes, -magnitudes])
    codes = x.view(torch.uint8).to(torch.int64)
    both = torch.stack([codes & 0xF, codes >> 4], dim=-1)
    values = numbers_of_code[both]
    return values.flatten(-2) if x.dim() else values


def _from_number(leaf: Any) -> Operand:
    name = type(leaf).__name__
    if isinstance(leaf, bool):
        return Operand("bool", (), torch.tensor(leaf), weak=True)
    if isinstance(leaf, int) and -(2**63) <= leaf < 2**63:
        return Operand("int64", (), torch.tensor(leaf, dtype=torch.int64), weak=True)
    if isinstance(leaf, float):
        return Operand("float64", (), torch.tensor(leaf, dtype=torch.float64), weak=True)
    if isinstance(leaf, complex):
        return Operand("complex128", (), torch.tensor(leaf, dtype=torch.complex128), weak=True)
    return Operand(name, (), objects=(leaf,), weak=True)  # large integers, fractions, decimals: exact as they are


_ML_AS_TORCH = {
    np.dtype(getattr(ml_dtypes, name)): (bits, getattr(torch, name))
    for bits, names in (
        (np.int16, ("bfloat16",)),
        (np.uint8, ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")),
    )
    for name in names
}

_ML_OTHERS = {
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
    "int1", "int2", "int4", "uint1", "uint2", "uint4",
}  # fmt: skip


def _from_numpy(leaf: np.ndarray[Any, np.dtype[Any]]) -> Operand:
    dtype = leaf.dtype
    if dtype in _ML_AS_TORCH:
        bits, native = _ML_AS_TORCH[dtype]
        return Operand(dtype.name, leaf.shape, _share(leaf.view(bits)).view(native))
    if dtype.name in _ML_OTHERS:
        exact = np.int8 if "int" in dtype.name else np.float32
        return Operand(dtype.name, leaf.shape, _share(leaf.astype(exact)))
    if dtype.kind == "f" and dtype.itemsize > 8:
        high = leaf.astype(np.float64)
        low = np.where(np.isfinite(high), leaf - high, 0).astype(np.float64)
        return Operand(dtype.name, leaf.shape, _share(high), low=_share(low))
    if dtype.kind in "biuf" or dtype in (np.complex64, np.complex128):
        return Operand(dtype.name, leaf.shape, _share(leaf))
    name = {"U": "str", "S": "bytes", "O": "object", "T": "str"}.get(dtype.kind, dtype.name)
    return Operand(name, leaf.shape, objects=tuple(leaf.ravel().tolist()))


def _share(array: np.ndarray[Any, np.dtype[Any]]) -> torch.Tensor:
    """Wrap an array without a copy where torch can (native byte order, strides of whole non-negative steps)."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    whole = all(stride >= 0 and stride % max(array.itemsize, 1) == 0 for stride in array.strides)
    if not whole:
        array = np.ascontiguousarray(array).reshape(array.shape)
    if not array.flags.writeable:
        array = array.copy()  # torch refuses to share memory that must not be written
    return torch.from_numpy(array)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a torch dtype's plain name, as ``"float32"``."""
    return str(dtype).removeprefix("torch.")

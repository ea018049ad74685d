"""torch tensors into and out of onnxruntime, sharing memory.

Inputs are bound by address: that takes every format onnxruntime knows, bfloat16 and float8 included, on the CPU and
on CUDA. Outputs come back through DLPack, which knows neither bool nor float8; those are viewed or copied by address.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from onnx import TensorProto
from torch.utils.dlpack import from_dlpack

from driftscope.errors import RuntimeRefused
from driftscope.programs.inspection.onnx_signature import ELEMENT_NAMES
from driftscope.programs.runtimes.native.placing import bytes_of

# torch dtype -> TensorProto element type
ELEMENTS: dict[torch.dtype, int] = {
    getattr(torch, name): element for element, name in ELEMENT_NAMES.items() if hasattr(torch, name)
}
_BY_ELEMENT = {element: dtype for dtype, element in ELEMENTS.items()}
_BY_ADDRESS: dict[int, torch.dtype] = {
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
}
_FOUR_BITS: dict[int, bool] = {TensorProto.INT4: True, TensorProto.UINT4: False}


def bindable(tensor: torch.Tensor, on_cuda: bool) -> torch.Tensor:
    """Return a tensor onnxruntime can read in place: dense, contiguous, on a device the session knows."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.device.type != "cpu" and not (on_cuda and plain.device.type == "cuda"):
        plain = plain.cpu()
    return plain.contiguous()


def bind_input(binding: Any, name: str, tensor: torch.Tensor) -> None:
    """Bind a contiguous tensor as an input without copying it."""
    device = tensor.device
    index = device.index or 0
    binding.bind_input(name, device.type, index, ELEMENTS[tensor.dtype], list(tensor.shape), tensor.data_ptr())


def bind_output(binding: Any, name: str, dtype: str | None, cuda: torch.device | None) -> None:
    """Let an output come where the inputs are; formats that DLPack does not know are read on the CPU."""
    if cuda is None or dtype is None or dtype.startswith(("float8", "int4", "uint4")):
        binding.bind_output(name, "cpu")
    else:
        binding.bind_output(name, "cuda", cuda.index or 0)


def tensor_from(value: Any) -> torch.Tensor:
    """Return an OrtValue's tensor; memory is shared where DLPack knows the format.

    Raises
    ------
    RuntimeRefused
        If torch has no such format.
    """
    element = value.element_type()
    if element in _BY_ADDRESS or element in _FOUR_BITS or element not in ELEMENT_NAMES:
        return tensor_of_bytes(element, tuple(value.shape()), _copied(value))
    tensor = _shared(value)
    return tensor.view(torch.bool) if element == TensorProto.BOOL else tensor


def tensor_of_bytes(element: int, shape: tuple[int, ...], raw: torch.Tensor) -> torch.Tensor:
    """Return the tensor of an ONNX element type whose bytes these are, ``raw`` being one-dimensional uint8.

    Raises
    ------
    RuntimeRefused
        If torch has no such format.
    """
    if element in _FOUR_BITS:
        return _four_bits(raw, shape, _FOUR_BITS[element])
    dtype = _BY_ADDRESS.get(element) or _BY_ELEMENT.get(element)
    if dtype is None:
        raise RuntimeRefused("onnxruntime", "run", f"an output has the element type {element}, unknown to torch")
    if not raw.numel():  # numpy gives an empty array strides that cannot be viewed as another format
        return torch.empty(shape, dtype=dtype)
    return raw.view(dtype).reshape(shape)


def _shared(value: Any) -> torch.Tensor:
    """Return the tensor in the OrtValue's own memory, or a copy where torch cannot read this runtime's capsules.

    onnxruntime before 1.26 has no ``__dlpack__`` that torch accepts: its capsules are not what the protocol asks for.
    """
    try:
        return from_dlpack(value)
    except (RuntimeError, AttributeError, TypeError):
        if value.device_name() != "cpu":
            raise
        return tensor_of_bytes(value.element_type(), tuple(value.shape()), _copied(value))


def _copied(value: Any) -> torch.Tensor:
    size = bytes_of(value.element_type(), value.shape())
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_uint8 * size).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=torch.uint8).clone()


def _four_bits(packed: torch.Tensor, shape: tuple[int, ...], signed: bool) -> torch.Tensor:
    """Unpack two values per byte, the low half first, into int8 or uint8."""
    halves = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten()
    numbers = halves[: math.prod(shape)].reshape(shape)
    return torch.where(numbers > 7, numbers.to(torch.int8) - 16, numbers.to(torch.int8)) if signed else numbers

"""Initializers: decoded when a node uses them; external data is mapped from the model's folder, not read.

What is decoded stays while a program's small budget lasts; above, it is dropped when nobody uses it any more.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, numpy_helper

from driftscope.errors import ProgramError
from driftscope.lift.constant_cache import HELD_BYTES
from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, STRING_ELEMENT, Format, array_to_tensor, storage
from driftscope.lift.onnx.registry import Value, strings
from driftscope.records.files import stamp

_PLAIN = frozenset({1, 2, 3, 5, 6, 7, 9, 10, 11, 14, 15, 16})  # elements whose storage has the file's own bits
_KEPT_BYTES = 1 << 16
# Below this a tensor is read: a mapping is made of pages.
_MAPPED_BYTES = 1 << 14
_ALIGNED = 16
# Mapped bytes read between two times that memory is given back.
_RESIDENT_BYTES = 1 << 28
# One mapping for each file, as long as a tensor refers to it: a mapping holds a file descriptor.
_MAPPINGS: weakref.WeakValueDictionary[tuple[object, ...], mmap.mmap] = weakref.WeakValueDictionary()


@dataclass(slots=True)
class Room:
    """What one program may keep: bytes of decoded constants, of mapped ones, and its mapped files by location."""

    left: int = HELD_BYTES
    touched: int = 0
    files: dict[str, mmap.mmap | bytes] = field(default_factory=dict)

    def touch(self, size: int) -> None:
        """Note that so many mapped bytes are read; now and then what was read before is given back.

        Pages that are needed again come from the system's cache. Nobody writes into them.
        """
        self.touched += size
        if self.touched > _RESIDENT_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            self.touched = size
            for mapping in list(_MAPPINGS.values()):
                mapping.madvise(mmap.MADV_DONTNEED)


@dataclass(slots=True)
class Stored:
    """A constant of the file, decoded on each use; small ones are kept.

    Parameters
    ----------
    name : str
    proto : onnx.TensorProto or onnx.SparseTensorProto
    directory : Path or None
        Where external data may lie.
    in_node : bool
        True for the tensor of a Constant node.
    room : Room or None
        What its program may still keep.
    used : weak reference to a tensor, or None
        What was decoded last, for as long as somebody else holds it.
    """

    name: str
    proto: TensorProto | onnx.SparseTensorProto
    directory: Path | None = None
    in_node: bool = False
    kept: Value | None = None
    room: Room | None = None
    used: weakref.ref[torch.Tensor] | None = None
    is_mapped: bool | None = None

    @property
    def format(self) -> Format:
        """Native format; None for strings."""
        dense = self.proto if isinstance(self.proto, TensorProto) else self.proto.values
        return format_of_element(dense.data_type, self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, without decoding it."""
        return tuple(self.proto.dims)

    def load(self) -> Value:
        """Decode the constant: a tensor in host memory, in the storage of its format."""
        if self.kept is not None:
            if self.is_mapped and self.room is not None:  # known by then
                self.room.touch(self.kept.data.nbytes)
            return self.kept
        held = None if self.used is None else self.used()
        if held is not None:
            return Value(held, self.format, True)
        if isinstance(self.proto, TensorProto):
            value = decode(self.proto, self.name, self.directory, None if self.room is None else self.room.files)
        else:
            value = _decode_sparse(self.proto, self.name, self.directory)
        if self._mapped and self.room is not None and isinstance(value.data, torch.Tensor):
            self.room.touch(value.data.nbytes)
        if isinstance(value.data, torch.Tensor) and self._may_stay(value.data.nbytes):
            self.kept = value
        elif isinstance(value.data, torch.Tensor):
            self.used = weakref.ref(value.data)
        return value

    def _may_stay(self, size: int) -> bool:
        if size <= _KEPT_BYTES or self._mapped:
            return True
        if self.room is None or size > self.room.left:
            return False
        self.room.left -= size
        return True

    @property
    def _mapped(self) -> bool:
        if self.is_mapped is None:
            proto = self.proto
            external = isinstance(proto, TensorProto) and proto.data_location == TensorProto.EXTERNAL
            self.is_mapped = external and proto.data_type in _PLAIN and _offset(proto) % _ALIGNED == 0
        return self.is_mapped


def format_of_element(element: int, name: str) -> Format:
    """Native format of an ONNX element type; None for strings."""
    if element == STRING_ELEMENT:
        return None
    if element not in FORMAT_OF_ELEMENT:
        raise ProgramError(f"Constant {name!r} has element type {element}, which ONNX does not define.")
    return FORMAT_OF_ELEMENT[element]


def decode(
    proto: TensorProto, name: str, directory: Path | None, files: dict[str, mmap.mmap | bytes] | None = None
) -> Value:
    """Decode one dense tensor; ``files`` keeps the mapped files of external data.

    Raises
    ------
    ProgramError
        If its bytes do not fit its shape, or its external data is missing or outside ``directory``.
    """
    native = format_of_element(proto.data_type, name)
    if native is None:
        return Value(strings(_to_array(proto, name)), None, True)
    shape = tuple(proto.dims)
    raw = None
    if proto.data_location == TensorProto.EXTERNAL:
        raw = read_external(proto, name, directory, {} if files is None else files)
    elif proto.HasField("raw_data"):
        raw = bytearray(proto.raw_data)
    if raw is None:
        return Value(_to_tensor(proto, name), native, True)
    if proto.data_type in _PLAIN:
        return Value(_view(raw, shape, storage(native), name), native, True)
    whole = TensorProto(data_type=proto.data_type, dims=shape, raw_data=bytes(raw))
    return Value(_to_tensor(whole, name), native, True)


def _to_array(proto: TensorProto, name: str) -> Any:
    try:
        return numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise ProgramError(f"Constant {name!r} cannot be read: {error}. Save the model again.") from error


def _to_tensor(proto: TensorProto, name: str) -> torch.Tensor:
    return array_to_tensor(_to_array(proto, name))


def _view(raw: bytearray | memoryview, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
    expected = math.prod(shape) * dtype.itemsize
    if len(raw) != expected:
        raise ProgramError(
            f"Constant {name!r} of shape {list(shape)} needs {expected} bytes and the file has {len(raw)}. "
            "Save the model again."
        )
    if expected == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


def read_external(
    proto: TensorProto, name: str, directory: Path | None, files: dict[str, mmap.mmap | bytes]
) -> bytearray | memoryview:
    """Map a tensor's bytes from a file in the model's folder, and from nowhere else; a small one is read.

    ``files`` keeps the mapped files by their locations.
    """
    entries = {entry.key: entry.value for entry in proto.external_data}
    location = entries.get("location", "")
    offset = _offset(proto)
    length = int(entries["length"]) if entries.get("length") else None
    try:
        whole = files.get(location)
        if whole is None:
            whole = files[location] = _mapped(_inside(location, name, directory))
        rest = max(len(whole) - offset, 0)
        part = memoryview(whole)[offset : offset + (rest if length is None else max(min(length, rest), 0))]
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ProgramError(
            f"External data of constant {name!r} cannot be read from {location!r}: {words}. "
            "Put the file next to the model."
        ) from error
    # Memory that is not aligned to its elements is slow at best.
    return part if len(part) >= _MAPPED_BYTES and offset % _ALIGNED == 0 else bytearray(part)


def _offset(proto: TensorProto) -> int:
    return next((int(entry.value) for entry in proto.external_data if entry.key == "offset"), 0)


def _mapped(path: Path) -> mmap.mmap | bytes:
    """Map a file; what is empty cannot be."""
    with path.open("rb") as file:
        key = path, stamp(file.fileno())
        mapping = _MAPPINGS.get(key)
        if mapping is None:
            if not os.fstat(file.fileno()).st_size:
                return b""
            # Nobody writes into it; torch takes memory that cannot be written with a warning only.
            mapping = _MAPPINGS[key] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return mapping


def _inside(location: str, name: str, directory: Path | None) -> Path:
    if directory is None:
        raise ProgramError(
            f"Constant {name!r} lies in external file {location!r} and the model's folder is not known. "
            "Load the model from its path."
        )
    root = directory.resolve()
    # resolve() follows symbolic links, so a link that points elsewhere is seen as elsewhere.
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or ".." in Path(location).parts or root not in path.parents:
        raise ProgramError(
            f"External data of constant {name!r} points to {location!r}, outside the model's folder {root}. "
            "Refused; put the file into that folder."
        )
    return path


def _decode_sparse(proto: onnx.SparseTensorProto, name: str, directory: Path | None) -> Value:
    values = decode(proto.values, name, directory)
    indices = decode(proto.indices, name, directory).data.to(torch.int64)
    shape = tuple(proto.dims)
    dense = torch.zeros(shape, dtype=values.data.dtype)
    if indices.dim() == 1:
        dense.view(-1)[indices] = values.data
    else:
        dense[tuple(indices.unbind(1))] = values.data
    return Value(dense, values.format, True)

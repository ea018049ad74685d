"""ONNX models read from disk or taken from memory; hostile and damaged files are refused in one sentence."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import onnx
from google.protobuf import json_format, text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

from driftscope.errors import ProgramError
from driftscope.programs.feeding.files import file_digest
from driftscope.programs.loading.external_data import confine, is_external, location_of, tensors_of
from driftscope.programs.loading.onnx_bounds import check_bounds
from driftscope.records.files import in_place, stamp


@dataclass(slots=True)
class OnnxModel:
    """An ONNX model and where it comes from.

    Parameters
    ----------
    proto : onnx.ModelProto
        External data not loaded.
    name : str
    path : pathlib.Path or None
        The file, absolute: it is found after a change of the working folder; None for a model handed over in memory.
    external : bool
        Whether some data lies in other files.
    given : str
        The path as it was given, which is what records keep.
    """

    proto: onnx.ModelProto
    name: str
    path: FilePath | None = None
    external: bool = False
    given: str = ""
    _digest: str | None = field(default=None, repr=False)
    _stamps: dict[FilePath, tuple[int, int, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.path is not None:
            files = self.path, *(self.path.resolve().parent / name for name in self._data_files())
            self._stamps = {file: stamp(file) for file in files}

    @property
    def directory(self) -> FilePath | None:
        """Where external data lies, if there is any.

        Raises
        ------
        ProgramError
            If the model's files are no longer those that were read.
        """
        if self.path is None or not self.external:
            return None
        if not self.in_place():
            raise ProgramError(
                f"{self.name} or its external data was deleted or written anew since it was read; read it again"
            )
        return self.path.resolve().parent

    def in_place(self) -> bool:
        """Whether the files are those that were read: something else may be at their paths by now."""
        return all(in_place(file, found) for file, found in self._stamps.items())

    @property
    def size(self) -> int:
        """Bytes of the model, external data not counted in memory models."""
        if self.path is None:
            return int(self.proto.ByteSize())
        return sum(size for _, size, _ in self._stamps.values())

    def _data_files(self) -> set[str]:
        return {location_of(t) for t in tensors_of(self.proto) if is_external(t)} if self.external else set()

    def for_session(self) -> str | bytes:
        """Return what an onnxruntime session is created from: the path, or the bytes of a model in memory.

        A file that was written anew is no longer the model that was read: that one is in memory.

        Raises
        ------
        ProgramError
            If a model in memory is too large to be passed on, or files with external data were written anew.
        """
        if self.path is not None and (self.directory or self.in_place()):
            # Through no symbolic link: external data is looked for beside the file, and that folder was checked.
            return str(self.path.resolve())
        return self._serialized()

    def _serialized(self) -> bytes:
        try:
            data: bytes = self.proto.SerializeToString(deterministic=True)
        except (EncodeError, ValueError) as error:
            raise ProgramError(
                f"{self.name} is larger than the 2 GiB a model in memory may have; save it and give its path"
            ) from error
        # Only the digest is kept: the bytes are another copy of every weight.
        self._digest = self._digest or hashlib.sha256(data).hexdigest()
        return data

    def identity(self) -> dict[str, Any]:
        """Return path and SHA-256, of the file that was read, as plain data."""
        if self._digest is None and self.path is not None and self.in_place():
            self._digest = file_digest(self.path)
        if self._digest is None:
            self._serialized()
        where = {} if self.path is None else {"path": self.given or str(self.path)}
        return where | {"sha256": self._digest}


def read_model(path: FilePath) -> OnnxModel:
    """Read an ``.onnx`` file, without its external data, after checking where that lies.

    Raises
    ------
    ProgramError
        If the file is missing, empty, truncated, not an ONNX model, or asks for data outside its folder.
    """
    if not path.is_file():
        raise ProgramError(f"{path} is a folder; give the .onnx file" if path.is_dir() else f"{path}: no such file")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except (*_UNREADABLE, ValueError, RuntimeError) as error:
        raise ProgramError(f"{path} is not an ONNX model, or is truncated or damaged") from error
    except OSError as error:
        raise ProgramError(f"{path} cannot be read: {error.strerror or error}") from error
    _check_whole(proto, str(path))
    external = confine(proto, path.resolve().parent, path.name)
    return OnnxModel(proto, path.name, path.absolute(), external, str(path))


def wrap_model(proto: onnx.ModelProto, name: str = "") -> OnnxModel:
    """Take a model that is in memory.

    Raises
    ------
    ProgramError
        If it is empty or keeps data in other files.
    """
    name = name or _name_of(proto)
    _check_whole(proto, name)
    confine(proto, None, name)
    return OnnxModel(proto, name)


#: What onnx's readers raise of a file that is none: of bytes, of JSON, of protobuf's text and of onnx's own.
_UNREADABLE = (DecodeError, json_format.ParseError, text_format.ParseError, onnx.parser.ParseError)
# What exporters call every graph.
_EVERYBODY = {"", "main_graph", "main", "graph", "torch_jit", "torch-jit-export", "tf2onnx", "unnamed"}


def _name_of(proto: onnx.ModelProto) -> str:
    """Return the graph's name where somebody gave it one, else who wrote the model."""
    if proto.graph.name not in _EVERYBODY:
        return str(proto.graph.name)
    return f"ONNX model of {proto.producer_name}" if proto.producer_name else "ONNX model"


def _check_whole(proto: onnx.ModelProto, name: str) -> None:
    if not proto.HasField("graph") or not proto.ir_version:
        raise ProgramError(f"{name} is not an ONNX model: it has no graph or no IR version")
    if not proto.graph.output:
        raise ProgramError(f"{name} has no outputs: there is nothing to compare")
    if not proto.opset_import:
        raise ProgramError(f"{name} names no operator set (opset_import is empty); it is incomplete")
    check_bounds(proto, name)


def model_of(obj: Any) -> OnnxModel:
    """Take an ONNX model in any of its forms: a path, a ModelProto, an onnx-ir model, torch's ONNXProgram.

    Raises
    ------
    ProgramError
        If it is none of these, or cannot be read.
    """
    if isinstance(obj, OnnxModel):
        return obj
    if isinstance(obj, (str, FilePath)):
        return read_model(FilePath(obj))
    if isinstance(obj, onnx.ModelProto):
        return wrap_model(obj)
    if isinstance(getattr(obj, "model_proto", None), onnx.ModelProto):
        return wrap_model(obj.model_proto, "ONNXProgram")
    import onnx_ir

    if isinstance(obj, onnx_ir.Model):
        try:
            return wrap_model(onnx_ir.to_proto(obj))
        except (ValueError, TypeError, onnx_ir.serde.SerdeError) as error:
            raise ProgramError(f"the onnx-ir model cannot be written as ONNX: {error}") from error
    raise ProgramError(
        f"an object of class {type(obj).__name__} is not an ONNX model;"
        " give a path, ModelProto, onnx_ir.Model or ONNXProgram"
    )

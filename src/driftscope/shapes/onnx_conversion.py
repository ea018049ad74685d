"""From an exported program to an ONNX file, with the exporter's operator table built once.

``torch.onnx.export`` builds the table of all ATen operators again at every call, which is more than a third of the
time of exporting a small model. The two private names below were read in torch 2.13; where they have moved the export
works all the same, only slower.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from driftscope.errors import DependencyMissing, RuntimeRefused
from driftscope.shapes.judging_runs import first_line, silence

#: Where the operator table is built, read in torch 2.13.
REGISTRY = ("torch.onnx._internal.exporter._registration", "ONNXRegistry", "from_torchlib")

_tables: dict[Any, Any] = {}


def onnx_model(exported: ExportedProgram) -> Any:
    """Convert an exported program with torch's own exporter.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    DependencyMissing
        If onnx or onnxscript are not installed.
    RuntimeRefused
        If the exporter refuses, with the first line of its reason.
    """
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise DependencyMissing("converting to ONNX", name, "onnx")
    try:
        with silence(), one_table(), torch.no_grad():
            # The exporter decomposes and renames in place; the caller's program stays as it is.
            program = torch.onnx.export(copy.copy(exported), dynamo=True, optimize=True, verbose=False)
        if program is None:
            raise RuntimeRefused("torch.onnx.export", "load", "it returned no program")
        return program.model_proto
    except Exception as error:  # an exporter may fail in any way at all; its words are the finding
        raise RuntimeRefused("torch.onnx.export", "load", _reason(error)) from error


def onnx_bytes(exported: ExportedProgram) -> bytes:
    """Return the ONNX file of an exported program as bytes; see :func:`onnx_model`."""
    data: bytes = onnx_model(exported).SerializeToString()
    return data


def save_model(model: Any, path: Path) -> None:
    """Write an ONNX model whole or not at all."""
    import onnx

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        draft = Path(folder) / path.name
        onnx.save(model, str(draft))
        draft.replace(path)


@contextlib.contextmanager
def one_table() -> Iterator[bool]:
    """Keep the exporter's operator table between exports; yields whether it could be kept.

    Each export receives a copy, because it may register operators of its own in it.
    """
    module, name, method = REGISTRY
    try:
        kind = getattr(importlib.import_module(module), name)
        original = kind.__dict__[method]
    except (ImportError, AttributeError, KeyError):
        yield False
        return

    def cached(cls: Any, *args: Any, **kwargs: Any) -> Any:
        key = (cls, args, tuple(sorted(kwargs.items())))
        if key not in _tables:
            _tables[key] = original.__func__(cls, *args, **kwargs)
        table = copy.copy(_tables[key])
        table.functions = {operator: list(ways) for operator, ways in table.functions.items()}
        return table

    setattr(kind, method, classmethod(cached))
    try:
        yield True
    finally:
        setattr(kind, method, original)


def _reason(error: BaseException) -> str:
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    return first_line(inner)

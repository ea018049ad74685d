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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from driftscope.errors import DependencyMissing, RuntimeRefused
from driftscope.shapes.capture.export import Capture, spared
from driftscope.shapes.capture.reading import relations_of
from driftscope.shapes.capture.source_lines import traced
from driftscope.shapes.conditions.minimising import with_more
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.private_torch import without_dispatch_cache
from driftscope.shapes.probe.judging_runs import first_line, silence

#: Where the operator table is built, read in torch 2.13.
REGISTRY = ("torch.onnx._internal.exporter._registration", "ONNXRegistry", "from_torchlib")

_tables: dict[Any, Any] = {}


@dataclass(frozen=True, slots=True)
class Converted:
    """An ONNX file and what it was made under.

    Parameters
    ----------
    model : onnx.ModelProto
    relations : Relations
        Conditions of the trace, and those that the exporter met when it decomposed operators: a pooling window or a
        loop that is written into the file for the sizes of the example. The file checks none of them.
    """

    model: Any
    relations: Relations


def converted(capture: Capture) -> Converted:
    """Convert an exported program with torch's own exporter, listening to what it assumes of sizes.

    Parameters
    ----------
    capture : Capture

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
        with silence(), spared(), without_dispatch_cache(), one_table(), traced() as log, torch.no_grad():
            # The exporter decomposes and renames in place; the caller's program stays as it is.
            program = torch.onnx.export(copy.copy(capture.exported), dynamo=True, optimize=True, verbose=False)
    except Exception as error:  # an exporter may fail in any way at all; its words are the finding
        raise RuntimeRefused("torch.onnx.export", "load", _reason(error)) from error
    if program is None:
        raise RuntimeRefused("torch.onnx.export", "load", "it returned no program")
    made = program.exported_program
    more = relations_of(made, capture.arguments, log) if made is not None else capture.relations
    return Converted(program.model_proto, with_more(capture.relations, more))


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

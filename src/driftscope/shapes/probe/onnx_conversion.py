"""From an exported program to an ONNX file."""

from __future__ import annotations

import copy
import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from driftscope.errors import DependencyMissing, RuntimeRefused
from driftscope.programs.operator_table import one_table
from driftscope.programs.state.garbage import spared
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.capture.reading import relations_of
from driftscope.shapes.capture.source_lines import traced
from driftscope.shapes.conditions.minimising import with_more
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.private_torch import without_dispatch_cache
from driftscope.shapes.probe.judging_runs import first_line, silence


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


def _reason(error: BaseException) -> str:
    inner = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    return first_line(inner)

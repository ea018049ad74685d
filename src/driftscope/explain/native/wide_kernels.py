"""What a provider computed in float32 although the graph declares a half format."""

from __future__ import annotations

import collections
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.programs.protocol import Bound
from driftscope.records.finding import Finding
from driftscope.records.words import counted

# What onnxruntime 1.31 calls the casts it puts around operators without a kernel for a format
# (core/optimizer/insert_cast_transformer.cc).
_INSERTED = ("InsertedPrecisionFreeCast_", "InsertedCast_")


@dataclass(frozen=True, slots=True)
class WideKernels:
    """Operators that a provider computed in float32 though they are declared in a half format.

    Parameters
    ----------
    wide, total : int
        Rounding operators computed in float32, of those that the session ran.
    casts : int
        Casts that the runtime inserted.
    operators : tuple of str
        Their types, the most frequent first.
    provider : str
    """

    wide: int
    total: int
    casts: int
    operators: tuple[str, ...]
    provider: str


# Operators that only move or select values: in which format they do so costs nothing.
_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Gather", "GatherElements", "GatherND", "Slice", "Concat", "Split"}
    | {"Identity", "Expand", "Flatten", "Tile", "Where", "Pad", "Max", "Min", "Relu", "Clip", "MaxPool", "Neg", "Abs"}
    | {"ReorderInput", "ReorderOutput", "DepthToSpace", "SpaceToDepth", "ScatterND", "ScatterElements"}
)
_FLOATS = {
    TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "half", TensorProto.BFLOAT16: "half",
    TensorProto.DOUBLE: "float64",
}  # fmt: skip


def _float_formats(graph: onnx.GraphProto) -> list[tuple[str, str]]:
    """The operators that round, each with the float format of its result, as far as the graph's own types tell it."""
    known = {t.name: _FLOATS.get(t.data_type, "") for t in graph.initializer}
    known |= {v.name: _FLOATS.get(v.type.tensor_type.elem_type, "") for v in (*graph.input, *graph.value_info)}
    found = []
    for node in graph.node:
        given = next((known[name] for name in node.input if known.get(name)), "")
        target = next((_FLOATS.get(a.i, "") for a in node.attribute if a.name == "to"), given)
        fmt = target if node.op_type == "Cast" else given
        known.update((name, known.get(name) or fmt) for name in node.output if name)
        if fmt and node.op_type not in _MOVES and node.op_type != "Cast":
            found.append((node.op_type, fmt))
    return found


def computed_wide(bound: Bound) -> WideKernels | None:
    """Count what a runtime computed in float32 instead of the declared format; None when nothing was.

    Only a session says so: of the graph that it runs, by the casts that it inserted.
    """
    program = bound.program
    if program.onnx_model is None:
        return None
    try:
        source = program.optimized_source(bound)
        if source is None:
            return None
        inserted = sum(node.op_type == "Cast" and node.name.startswith(_INSERTED) for node in source.model.graph.node)
    except (CannotLift, RuntimeRefused):
        return None
    if not inserted:
        return None
    formats = _float_formats(source.model.graph)
    wide = collections.Counter(operator for operator, fmt in formats if fmt == "float32")
    # What the file itself declares in float32, a norm of a mixed-precision model, was not widened.
    wide -= collections.Counter(
        operator for operator, fmt in _float_formats(program.onnx_model.proto.graph) if fmt == "float32"
    )
    if not wide:
        return None
    kinds = tuple(sorted(wide, key=lambda name: (-wide[name], name)))
    return WideKernels(wide.total(), len(formats), inserted, kinds, program.provider)


def wide_finding(found: WideKernels, name: str, fmt: str) -> Finding:
    """Say that a result is more exact than its format because it was not computed in it."""
    return Finding(
        "O008",
        f"{found.wide} of {counted(found.total, 'rounding operator')} that {name} ran were computed in float32 by "
        f"{found.provider}, not in {fmt}: it has no kernels for it, and {found.casts} casts were inserted",
        "A small error here promises nothing for a device that computes as declared.",
        evidence={"wide": found.wide, "total": found.total, "casts": found.casts, "operators": list(found.operators)},
        note=True,
    )

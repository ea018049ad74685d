"""What an ONNX model says of itself: inputs, outputs, opsets, unused inputs, tables that integers are looked up in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from driftscope.errors import ProgramError
from driftscope.programs.protocol import Slot

# TensorProto element type -> the name torch gives it
ELEMENT_NAMES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.DOUBLE: "float64",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT8E4M3FN: "float8_e4m3fn",
    TensorProto.FLOAT8E4M3FNUZ: "float8_e4m3fnuz",
    TensorProto.FLOAT8E5M2: "float8_e5m2",
    TensorProto.FLOAT8E5M2FNUZ: "float8_e5m2fnuz",
    TensorProto.INT64: "int64",
    TensorProto.INT32: "int32",
    TensorProto.INT16: "int16",
    TensorProto.INT8: "int8",
    TensorProto.UINT64: "uint64",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT16: "uint16",
    TensorProto.UINT8: "uint8",
    TensorProto.BOOL: "bool",
    TensorProto.COMPLEX64: "complex64",
    TensorProto.COMPLEX128: "complex128",
    TensorProto.STRING: "string",
}

# Operators that hand integers on unchanged, as far as an index range is concerned.
_CARRIERS = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand"}


def slots_of(model: ModelProto) -> list[Slot]:
    """Return the inputs of a model, in order; one with an initializer of its name may be left out."""
    given = {tensor.name for tensor in model.graph.initializer}
    return [value_slot(value, value.name in given) for value in model.graph.input]


def outputs_of(model: ModelProto) -> list[Slot]:
    """Return the outputs of a model, in order."""
    return [value_slot(value, False) for value in model.graph.output]


def value_slot(value: onnx.ValueInfoProto, has_default: bool = False) -> Slot:
    """Return what a graph says of one of its values."""
    kind = value.type.WhichOneof("value") or "tensor_type"
    if kind == "tensor_type":
        return Slot(value.name, _dtype(value.type.tensor_type), _shape(value.type.tensor_type), has_default)
    words = kind.removesuffix("_type").replace("sparse_tensor", "sparse")
    return Slot(value.name, None, None, has_default or kind == "optional_type", words)


def _dtype(tensor: TypeProto.Tensor) -> str | None:
    element = tensor.elem_type
    if element not in TensorProto.DataType.values():
        raise ProgramError(f"the model declares the element type {element}, which ONNX does not define")
    return ELEMENT_NAMES.get(element, TensorProto.DataType.Name(element).lower()) if element else None


def _shape(tensor: TypeProto.Tensor) -> tuple[int | str | None, ...] | None:
    if not tensor.HasField("shape"):
        return None
    return tuple(_size(dim) for dim in tensor.shape.dim)


def _size(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        # Some exporters write -1 for "free".
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return str(dim.dim_param) or None


def opsets_of(model: ModelProto) -> dict[str, int]:
    """Return the version of each operator set, ``"ai.onnx"`` for the default domain."""
    return {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}


def graph_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from graph_nodes(attribute.g)
            for inner in attribute.graphs:
                yield from graph_nodes(inner)


def unused_inputs(model: ModelProto) -> list[str]:
    """Names of graph inputs that no node reads and no output hands on."""
    read = {name for node in graph_nodes(model.graph) for name in node.input}
    read |= {value.name for value in model.graph.output}
    read |= {value.name for graph in _inner_graphs(model.graph) for value in graph.output}
    given = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in read and value.name not in given]


def _inner_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph_nodes(graph):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.g
            yield from attribute.graphs


def table_rows(model: ModelProto) -> dict[str, int]:
    """Return, for inputs that Gather looks up along axis 0 of a stored table, its number of rows (the smallest)."""
    rows = {t.name: t.dims[0] for t in model.graph.initializer if len(t.dims)}
    origin = {value.name: value.name for value in model.graph.input if value.name not in rows}
    found: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in _CARRIERS and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif (
            node.op_type == "Gather"
            and len(node.input) == 2
            and not any(a.name == "axis" and a.i for a in node.attribute)
        ):
            name = origin.get(node.input[1])
            if name is not None and node.input[0] in rows:
                found[name] = min(rows[node.input[0]], found.get(name, rows[node.input[0]]))
    return found

"""A readable listing of a graph: one line per node, subgraphs indented, weights with shape, format and a few values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from torch.export import ExportedProgram

from driftscope.errors import ProgramError
from driftscope.programs.arrays import array_of, dtype_name
from driftscope.programs.inspection.onnx_signature import ELEMENT_NAMES, opsets_of, value_slot
from driftscope.programs.loading.external_data import is_external, location_of
from driftscope.programs.loading.folders import is_torchscript
from driftscope.programs.loading.onnx_files import model_of
from driftscope.programs.loading.references import is_reference
from driftscope.programs.protocol import Program
from driftscope.programs.state.process import state_kept
from driftscope.records.words import counted

_INDENT = "  "
_LISTED = (
    "a listing is made of .onnx and .pt2 files, ModelProto, GraphProto, FunctionProto, onnx_ir.Model, ONNXProgram,"
    " ExportedProgram, GraphModule, and a Program of one of these"
)
_SHOWN_VALUES = 5
# Attributes whose integers are element types: shown by name, nobody knows that 10 is float16.
_FORMATS = ("to", "dtype", "output_dtype", "stash_type", "precision")


@state_kept()
def listing_of(model: Any, *, optimized: bool = False) -> str:
    """Return a readable listing of an ONNX model or of an exported program.

    Parameters
    ----------
    model : path, ModelProto, GraphProto, FunctionProto, onnx_ir.Model, ONNXProgram, ExportedProgram, GraphModule
        or a Program that holds one of them.
    optimized : bool
        List the graph that the runtime made of the model and runs, instead of the one in the file.

    Returns
    -------
    str
        Lines without a trailing newline.

    Raises
    ------
    ProgramError
        If there is no graph to list.
    """
    model = _optimized(model) if optimized else _inside(model)
    if optimized and isinstance(model, ModelProto):
        return "\n".join(_model_lines(model))  # its weights may lie in a file that only its program knows
    if isinstance(model, ExportedProgram):
        return "\n".join(_exported_lines(model))
    if isinstance(model, torch.fx.GraphModule):
        return "\n".join(_fx_lines(model.graph))
    if isinstance(model, GraphProto):
        return "\n".join(_graph_lines(model, 0))
    if isinstance(model, FunctionProto):
        return "\n".join(_function_lines(model))
    return "\n".join(_model_lines(_proto_of(model)))


def _proto_of(model: Any) -> ModelProto:
    try:
        return model_of(model).proto
    except ProgramError as error:
        if isinstance(model, (str, FilePath)) or "is not an ONNX model" not in str(error):
            raise
        raise ProgramError(
            f"an object of class {type(model).__name__} is not an ONNX model nor an exported one; {_LISTED}"
        ) from error


def _optimized(model: Any) -> Any:
    # Loading stands beside this room; a program is made only where the graph of a runtime is asked for.
    from driftscope.programs.loading.load import load_program

    program = load_program(model)
    graph = program.optimized_graph()
    if graph is None:
        raise ProgramError(f"{program.name} runs on {program.runtime}, which shows no optimised graph")
    return graph


def _inside(model: Any) -> Any:
    if isinstance(model, str) and is_reference(model):
        from driftscope.programs.loading.load import load_program

        model = load_program(model)
    if isinstance(model, Program):
        found = getattr(model, "exported", None) or getattr(model, "model", None)
        if found is None:
            raise ProgramError(
                f"{model.name} runs on {model.runtime}, which has no graph to list; export it first; {_LISTED}"
            )
        return found
    if isinstance(model, (str, FilePath)) and str(model).endswith(".pt2"):
        from driftscope.programs.loading.pt2 import read_exported

        return read_exported(FilePath(model))
    if isinstance(model, (str, FilePath)) and is_torchscript(FilePath(model)):
        raise ProgramError(
            f"{model} is a TorchScript program, which is run and not listed; export the module it was made of to .pt2"
            " or .onnx, or print(torch.jit.load(path).graph) if you trust the file"
        )
    return model


# --- ONNX -----------------------------------------------------------------------------------------------------


def _model_lines(model: ModelProto) -> Iterator[str]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in opsets_of(model).items())
    producer = f"{model.producer_name} {model.producer_version}".strip()
    yield f"model: IR {model.ir_version}, opsets {opsets}" + (f", written by {producer}" if producer else "")
    yield from _graph_lines(model.graph, 0)
    for function in model.functions:
        yield ""
        yield from _function_lines(function)


def _graph_lines(graph: GraphProto, depth: int) -> Iterator[str]:
    pad = _INDENT * depth
    yield f"{pad}graph {graph.name}".rstrip()
    for value in graph.input:
        yield f"{pad}{_INDENT}input  {_typed(value)}"
    for tensor in graph.initializer:
        yield f"{pad}{_INDENT}weight {tensor.name}: {_tensor(tensor)}"
    for sparse in graph.sparse_initializer:
        yield f"{pad}{_INDENT}weight {sparse.values.name}: sparse {list(sparse.dims)}"
    for node in graph.node:
        yield from _node_lines(node, depth + 1)
    for value in graph.output:
        yield f"{pad}{_INDENT}output {_typed(value)}"


def _function_lines(function: FunctionProto) -> Iterator[str]:
    attributes = [*function.attribute, *(a.name for a in function.attribute_proto)]
    words = f" attributes ({', '.join(attributes)})" if attributes else ""
    yield f"function {function.domain or 'ai.onnx'}.{function.name}({', '.join(function.input)}){words}"
    for node in function.node:
        yield from _node_lines(node, 1)
    yield f"{_INDENT}output {', '.join(function.output)}"


def _typed(value: onnx.ValueInfoProto) -> str:
    slot = value_slot(value)
    if slot.kind != "tensor":
        return f"{value.name}: {slot.kind}"
    shape = "[...]" if slot.shape is None else f"[{', '.join('?' if s is None else str(s) for s in slot.shape)}]"
    return f"{value.name}: {slot.dtype or 'any dtype'}{shape}"


def _node_lines(node: NodeProto, depth: int) -> Iterator[str]:
    graphs = [(a.name, g) for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]
    plain = [_attribute(a) for a in node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)]
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    arguments = ", ".join([*(name or "_" for name in node.input), *plain])
    comment = f"   # {node.name}" if node.name else ""
    yield f"{_INDENT * depth}{', '.join(n or '_' for n in node.output)} = {domain}{node.op_type}({arguments}){comment}"
    for name, graph in graphs:
        yield f"{_INDENT * (depth + 1)}{name}:"
        yield from _graph_lines(graph, depth + 2)


def _attribute(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"{attribute.name}=@{attribute.ref_attr_name}"
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return f"{attribute.name}=<{_tensor(value)}>"
    if isinstance(value, bytes):
        return f"{attribute.name}={value.decode('utf-8', 'replace')!r}"
    if attribute.name in _FORMATS and value in ELEMENT_NAMES:
        return f"{attribute.name}={ELEMENT_NAMES[value]}"
    if isinstance(value, float):
        return f"{attribute.name}={np.float32(value)!s}"
    if isinstance(value, (list, tuple)) or attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return f"{attribute.name}=[{', '.join(str(np.float32(v)) if isinstance(v, float) else str(v) for v in value)}]"
    return f"{attribute.name}={value}"


def _element(number: int) -> str:
    known = number in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(number)).lower() if known else f"element type {number}"


def _tensor(tensor: TensorProto) -> str:
    element = ELEMENT_NAMES.get(tensor.data_type) or _element(tensor.data_type)
    words = f"{element}{list(tensor.dims)}"
    if is_external(tensor):
        return f"{words} in {location_of(tensor) or '?'}"
    try:
        values = numpy_helper.to_array(tensor).ravel()
    except (ValueError, TypeError, KeyError, NotImplementedError):
        return f"{words} (damaged)"
    return f"{words} = {_few(values)}"


def _few(values: Sequence[Any] | Any) -> str:
    shown = [_number(v) for v in values[:_SHOWN_VALUES]]
    return ", ".join(shown) + (", ..." if len(values) > _SHOWN_VALUES else "") or "empty"


def _number(value: Any) -> str:
    if isinstance(value, (bytes, str)):
        return repr(value)
    item = value.item() if hasattr(value, "item") else value
    return f"{item:.6g}" if isinstance(item, float) else str(item)


# --- torch ----------------------------------------------------------------------------------------------------


def _exported_lines(exported: ExportedProgram) -> Iterator[str]:
    signature = exported.graph_signature
    stored = {**exported.state_dict, **exported.constants}
    targets = {spec.arg.name: spec.target for spec in signature.input_specs}
    yield f"exported program: {exported.dialect}, torch {torch.__version__}"
    for node in exported.graph.nodes:
        if node.op == "placeholder" and targets.get(node.name) is not None:
            value = stored.get(targets[node.name])
            words = _torch_tensor(value) if isinstance(value, torch.Tensor) else type(value).__name__
            yield f"{_INDENT}weight {node.name} ({targets[node.name]}): {words}"
        elif node.op != "output":
            yield from _fx_node(node, 1)
    yield from (line for node in exported.graph.nodes if node.op == "output" for line in _fx_node(node, 1))


def _fx_lines(graph: torch.fx.Graph) -> Iterator[str]:
    yield "graph"
    for node in graph.nodes:
        yield from _fx_node(node, 1)


def _fx_node(node: torch.fx.Node, depth: int) -> Iterator[str]:
    pad = _INDENT * depth
    if node.op == "placeholder":
        yield f"{pad}input  {node.name}: {_meta(node)}"
        return
    if node.op == "output":
        yield f"{pad}output {node.args[0]}"
        return
    arguments = [*map(str, node.args), *(f"{k}={v}" for k, v in node.kwargs.items())]
    meta = _meta(node)
    comment = "   # " + "  ".join(part for part in (meta, _source(node)) if part) if meta or _source(node) else ""
    yield f"{pad}{node.name} = {_target(node)}({', '.join(arguments)}){comment}"
    for argument in node.all_input_nodes:
        inner = argument.graph.owning_module
        if argument.op == "get_attr" and isinstance(inner, torch.nn.Module):
            graph = getattr(inner, str(argument.target), None)
            if isinstance(graph, torch.fx.GraphModule):
                yield f"{pad}{_INDENT}{argument.target}:"
                for child in graph.graph.nodes:
                    yield from _fx_node(child, depth + 2)


def _target(node: torch.fx.Node) -> str:
    return str(node.target) if not callable(node.target) or hasattr(node.target, "_schema") else node.target.__name__


def _meta(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        return counted(len(value), "value")
    return "" if value is None else str(value)


def _source(node: torch.fx.Node) -> str:
    """Return the user's line that a node came from, as ``model.py:12``."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    if not places:
        return ""
    users = [place for place in places if str(FilePath(torch.__file__).parent) not in place]
    file, _, rest = (users or places)[-1].removeprefix('File "').partition('", line ')
    return f"{FilePath(file).name}:{rest.split(',')[0]}"


def _torch_tensor(tensor: torch.Tensor) -> str:
    words = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return words
    values = array_of(tensor.detach().flatten()[: _SHOWN_VALUES + 1])
    return f"{words} = {_few(values)}"

"""The smallest piece of a program that shows a drift, with the reference's values at its edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch
from onnx import helper

from driftscope.errors import CannotLift
from driftscope.explain.locate.alignment import align
from driftscope.explain.locate.fingerprints import Trail
from driftscope.lift.onnx.element_types import storage
from driftscope.lift.steps import Lifted, Step
from driftscope.programs.loading.external_data import is_external, take_in
from driftscope.programs.loading.onnx_files import OnnxModel
from driftscope.records.finding import Finding


@dataclass(frozen=True, slots=True)
class OnnxPiece:
    """Some nodes of an ONNX graph as a model of their own.

    Parameters
    ----------
    model : onnx.ModelProto
    inputs : dict of str to Tensor
        What the nodes read, in native formats.
    expected : Tensor
        What the reference has where the piece ends, from float64, in the native format.
    nodes : tuple of str
        Names of the nodes.
    """

    model: onnx.ModelProto
    inputs: dict[str, torch.Tensor]
    expected: torch.Tensor
    nodes: tuple[str, ...]


@dataclass(slots=True)
class _Edges:
    """An observer that keeps some values of a run in their native formats."""

    names: frozenset[str]
    values: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        for name, value, fmt in zip(step.output_names, step.outputs, step.formats, strict=True):
            if name in self.names and value is not None:
                self.values[name] = value if fmt is None else value.to(storage(fmt))


def cut_onnx(model: OnnxModel, finding: Finding, a: Lifted, b: Lifted, feeds: Mapping[str, Any]) -> OnnxPiece:
    """Cut the nodes of a finding out of B's graph.

    Parameters
    ----------
    model : OnnxModel
        B's file.
    finding : Finding
        Names the nodes: ``evidence["piece"]``, or ``where.node`` alone.
    a, b : Lifted
    feeds : mapping
        B's inputs by name.

    Raises
    ------
    CannotLift
        If the piece cannot stand alone: its nodes are not in the file, hold graphs of their own, or the reference has
        no counterpart of its end.
    """
    named = set(finding.evidence.get("piece") or ()) | {finding.where.node}
    nodes = [node for node in model.proto.graph.node if node.name in named]
    if not nodes:
        raise CannotLift("the nodes of the finding are not in the file")
    if any(attribute.HasField("g") for node in nodes for attribute in node.attribute):
        raise CannotLift("the piece holds a graph of its own")
    end = nodes[-1].output[0]
    stored = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    made = {name for node in nodes for name in node.output}
    read = [name for name in dict.fromkeys(n for node in nodes for n in node.input) if name and name not in made]
    edges = _Edges(frozenset(read) | {end})
    b.run(observe=edges)
    outside = [name for name in read if name not in stored]
    seen = {name: edges.values.get(name, feeds.get(name)) for name in outside}
    values = {name: value for name, value in seen.items() if isinstance(value, torch.Tensor)}
    if len(values) < len(outside) or end not in edges.values:
        raise CannotLift("a value at the edge of the piece was not seen")
    expected = _counterpart_value(a, b, end).to(edges.values[end].dtype)
    kept = [_loaded(stored[name], model) for name in read if name in stored]
    whole = _model_of(model.proto, nodes, kept, values, (end, edges.values[end]))
    return OnnxPiece(whole, values, expected.reshape(edges.values[end].shape), tuple(node.name for node in nodes))


def _counterpart_value(a: Lifted, b: Lifted, end: str) -> torch.Tensor:
    """A's value for a value of B, in float64."""
    trails = [Trail(frozenset(c.name for c in graph.constants()), graph.kind == "torch") for graph in (a, b)]
    for graph, trail in zip((a, b), trails, strict=True):
        graph.run(observe=trail)
    aligned = align(trails[0], trails[1], {})
    step = next((s for s in trails[1].steps if not s.inside and end in s.outputs), None)
    partner = None if step is None else aligned.partner.get(step.index)
    if partner is None:
        raise CannotLift("the reference has no counterpart of the end of the piece")
    wanted = trails[0].steps[partner].outputs[0]
    exact: dict[str, torch.Tensor] = {}

    def watch(step: Step) -> None:
        exact.update(
            (n, v) for n, v in zip(step.output_names, step.outputs, strict=True) if n == wanted and v is not None
        )

    a.run(observe=watch)
    return exact[wanted]


def _loaded(tensor: onnx.TensorProto, model: OnnxModel) -> onnx.TensorProto:
    whole = onnx.TensorProto()
    whole.CopyFrom(tensor)
    if is_external(tensor) and model.directory is not None:
        take_in(whole, model.directory)
    return whole


def _model_of(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    stored: Iterable[onnx.TensorProto],
    inputs: Mapping[str, torch.Tensor],
    output: tuple[str, torch.Tensor],
) -> onnx.ModelProto:
    infos = [_info(name, value) for name, value in inputs.items()]
    graph = helper.make_graph(nodes, "piece", infos, [_info(*output)], list(stored))
    domains = {node.domain for node in nodes}
    functions = [f for f in proto.functions if f.domain in domains]
    whole = helper.make_model(
        graph,
        opset_imports=proto.opset_import,
        ir_version=proto.ir_version,
        functions=functions,
        producer_name="driftscope",
    )
    onnx.checker.check_model(whole)
    return whole


def _info(name: str, value: torch.Tensor) -> onnx.ValueInfoProto:
    if value.dtype is torch.bfloat16:
        raise CannotLift("numpy has no bfloat16 to store the inputs in")
    kind = helper.np_dtype_to_tensor_dtype(torch.empty((), dtype=value.dtype).numpy().dtype)
    return helper.make_tensor_value_info(name, kind, list(value.shape))

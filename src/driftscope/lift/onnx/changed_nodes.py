"""What another writing of a graph does otherwise: its own nodes, to be evaluated on values of the graph itself.

An optimiser leaves most nodes as they are, and values that it computes in another way keep their names. Where every
value that both writings name is the same, given the same values before it, both are one function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from driftscope.errors import CannotLift
from driftscope.lift.onnx.element_types import ELEMENT_OF_FORMAT, lifted_storage
from driftscope.lift.onnx.graph import LiftedOnnx
from driftscope.lift.onnx.plan import schema_defaults
from driftscope.lift.onnx.registry import Value

# What a value is called that the changed nodes compute anew.
_AGAIN = "/again"
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


@dataclass(frozen=True, slots=True)
class ChangedNodes:
    """The nodes of another writing that the graph itself lacks.

    Parameters
    ----------
    model : onnx.ModelProto
        These nodes alone, without inputs and what is stored.
    stored : tuple of onnx.TensorProto
        What they read of that.
    reads : tuple of str
        Values of the graph that they read, by its names.
    writes : tuple of str
        Values of the graph that they compute anew, in the order of the model's outputs.
    folded : tuple of onnx.TensorProto
        What the graph computes, by its names, and the other writing stores.
    """

    model: ModelProto
    stored: tuple[TensorProto, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    folded: tuple[TensorProto, ...]

    @property
    def values(self) -> frozenset[str]:
        """Names of all values of the graph that are asked for."""
        return frozenset((*self.reads, *self.writes, *(t.name for t in self.folded)))

    def on(self, values: Mapping[str, Value], directory: Path | None) -> LiftedOnnx:
        """Give the changed nodes on values of the graph.

        Raises
        ------
        CannotLift
            If one of them is no tensor.
        """
        feeds: dict[str, torch.Tensor] = {}
        model = ModelProto()
        model.CopyFrom(self.model)
        for name in self.reads:
            value = values.get(name, Value(None))
            if not isinstance(value.data, torch.Tensor) or value.format not in ELEMENT_OF_FORMAT:
                raise CannotLift(f"value {name!r} has no tensor")
            model.graph.input.append(helper.make_tensor_value_info(name, ELEMENT_OF_FORMAT[value.format], None))
            feeds[name] = value.data.to(lifted_storage(value.format))
        return LiftedOnnx(model, feeds, directory, self.stored)


def changed_nodes(graph: ModelProto, other: ModelProto) -> ChangedNodes | None:
    """Find what another writing of a graph does otherwise.

    Parameters
    ----------
    graph, other : onnx.ModelProto
        The graph, and what an optimiser made of it; values of one name are taken for one value, which is to be tried.

    Returns
    -------
    ChangedNodes or None
        None where it cannot be told node by node: functions, branches, names that mean two things.
    """
    computed = [name for node in graph.graph.node for name in node.output if name]
    stored, kept = ({t.name: t for t in m.graph.initializer} for m in (graph, other))
    outputs = [[o.name for o in m.graph.output] for m in (graph, other)]
    plain = _is_plain(graph) and _is_plain(other) and len({*computed, *stored}) == len(computed) + len(stored)
    if not plain or outputs[0] != outputs[1]:
        return None
    own = {tuple(node.output): node for node in graph.graph.node}
    version = _version(graph)
    alike = version == _version(other)
    same = [alike and _is_same(node, own.get(tuple(node.output)), version, stored, kept) for node in other.graph.node]
    changed = [node for node, left in zip(other.graph.node, same, strict=True) if not left]
    known, made = {*computed, *(i.name for i in graph.graph.input)}, {o for node in changed for o in node.output if o}
    read = dict.fromkeys(name for node in changed for name in node.input if name)
    outer = [name for name in read if name not in kept and (name in known or name not in made)]
    left_alone = (node for node, left in zip(other.graph.node, same, strict=True) if left)
    folded = {name for names in (*(n.input for n in left_alone), outputs[1]) for name in names if name in kept}
    folded -= stored.keys()
    if not known.issuperset((*outer, *folded)) or made & stored.keys() or stored.keys() & set(outputs[1]):
        return None
    writes = tuple(name for node in changed for name in node.output if name in known)
    ahead, tensors = (tuple(kept[name] for name in names if name in kept) for names in (folded, read))
    return ChangedNodes(_alone(other, changed, writes), tensors, tuple(outer), writes, ahead)


def _is_plain(model: ModelProto) -> bool:
    graph = model.graph
    if (
        model.functions
        or graph.sparse_initializer
        or {i.name for i in graph.input} & {t.name for t in graph.initializer}
    ):
        return False
    return not any(attribute.type in _GRAPHS for node in graph.node for attribute in node.attribute)


def _version(model: ModelProto) -> int:
    """The version of ONNX's own operators; a runtime names further domains whose nodes a graph has none of."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)


def _is_same(
    node: NodeProto, own: NodeProto | None, version: int, stored: Mapping[str, TensorProto],
    kept: Mapping[str, TensorProto],
) -> bool:  # fmt: skip
    """Whether a node is the graph's own: what it stores itself is the same, and what it reads has the same names."""
    if own is None or node.op_type != own.op_type or node.domain != own.domain or node.input != own.input:
        return False
    if _attributes(node, version) != _attributes(own, version):
        return False
    return all(stored[name] == kept[name] for name in node.input if name in stored and name in kept)


def _attributes(node: NodeProto, version: int) -> dict[str, Any]:
    """The attributes of a node, with the usual values of those that it leaves out; a runtime writes them all."""
    usual = schema_defaults(node.op_type, node.domain, version if node.domain in ("", "ai.onnx") else 1)
    return {**usual, **{a.name: helper.get_attribute_value(a) for a in node.attribute}}


def _alone(other: ModelProto, nodes: Sequence[NodeProto], writes: Sequence[str]) -> ModelProto:
    """A model of some nodes; the values that they compute anew have names of their own."""
    graph = GraphProto(name=other.graph.name, node=nodes)
    for node in graph.node:
        node.output[:] = [name + _AGAIN if name in writes else name for name in node.output]
    graph.output.extend(ValueInfoProto(name=name + _AGAIN) for name in writes)
    return ModelProto(ir_version=other.ir_version, opset_import=other.opset_import, graph=graph)

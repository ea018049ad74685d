"""A graph made ready to run: names unique, order checked, attributes read, last uses known.

Values of all graphs of a model (main graph, subgraphs, functions) share one flat name space at run time, so every
name defined in a function carries its caller's name, and one defined twice gets a prefix.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto

from driftscope.errors import ProgramError
from driftscope.lift.onnx.order import in_order
from driftscope.lift.onnx.registry import Operator, find_operator
from driftscope.lift.onnx.source_places import place_of
from driftscope.lift.onnx.stored import Room, Stored
from driftscope.records.finding import Where


@dataclass(slots=True)
class NodePlan:
    """One node, ready to run: unique names, attributes as Python values, its operator or function."""

    proto: NodeProto
    op_type: str
    domain: str
    version: int
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    defaults: Mapping[str, Any]
    opsets: Mapping[str, int]
    operator: Operator | None
    subgraphs: dict[str, GraphPlan] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    idle: bool = False
    bodies: dict[Any, GraphPlan] = field(default_factory=dict)
    _place: tuple[Where, tuple[str, str]] | None = None

    @property
    def traced(self) -> tuple[str, str]:
        """Name and target of the exporter's graph node it was made of, read when first asked for."""
        return self._read()[1]

    @property
    def where(self) -> Where:
        """The node's place in the user's source, read when first asked for."""
        return self._read()[0]

    def _read(self) -> tuple[Where, tuple[str, str]]:
        if self._place is None:
            self._place = place_of(self.proto, self.name)
        return self._place


@dataclass(slots=True)
class GraphPlan:
    """A graph ready to run."""

    inputs: list[str]
    outputs: list[str]
    nodes: list[NodePlan]
    stored: dict[str, Stored]
    reads: frozenset[str]  # outer names


@dataclass(slots=True)
class Names:
    """The names visible at one place of the model: what each is called in the flat name space."""

    taken: set[str]
    nodes: set[str]
    visible: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    always: bool = False

    def define(self, name: str) -> str:
        """Give a value that is defined here its unique name."""
        prefixed = f"{self.prefix}/{name}" if self.prefix else name
        unique = prefixed if self.always or name in self.taken else name
        number = 1
        while unique in self.taken:
            number += 1
            unique = f"{prefixed}#{number}"
        self.taken.add(unique)
        self.visible[name] = unique
        return unique

    def node(self, proto: NodeProto, index: int) -> str:
        """Give a node its unique name."""
        plain = proto.name or f"{proto.op_type}_{index}"
        wanted = f"{self.prefix}/{plain}" if self.prefix else plain
        unique, number = wanted, 1
        while unique in self.nodes:
            number += 1
            unique = f"{wanted}#{number}"
        self.nodes.add(unique)
        return unique

    def inside(self, prefix: str, *, function: bool = False) -> Names:
        """The names visible in a subgraph (all of the outer ones) or a function body (none of them)."""
        return Names(self.taken, self.nodes, {} if function else dict(self.visible), prefix, function)


@dataclass(slots=True)
class Planner:
    """Makes plans of the graphs and functions of one model.

    Parameters
    ----------
    directory : Path or None
        Where external data may lie.
    functions : mapping of (domain, name, overload) to FunctionProto
        The model's own functions.
    names : Names
    room : Room
        For decoded constants.
    """

    directory: Path | None
    functions: Mapping[tuple[str, str, str], FunctionProto]
    names: Names = field(default_factory=lambda: Names(set(), set()))
    room: Room = field(default_factory=Room)

    def graph(
        self, proto: GraphProto, opsets: Mapping[str, int], names: Names, more: Sequence[TensorProto] = ()
    ) -> GraphPlan:
        """Plan a main graph or a subgraph; ``more`` is stored beside it."""
        stored: dict[str, Stored] = {}
        for tensor in (*proto.initializer, *more):
            unique = names.define(tensor.name)
            stored[unique] = Stored(unique, tensor, self.directory, room=self.room)
        for sparse in proto.sparse_initializer:
            unique = names.define(sparse.values.name)
            stored[unique] = Stored(unique, sparse, self.directory, room=self.room)
        inputs = [
            names.visible[i.name] if names.visible.get(i.name) in stored else names.define(i.name) for i in proto.input
        ]
        nodes = self._nodes(proto.node, opsets, names, {}, stored)
        outputs = [_visible(names, o.name, f"graph {proto.name!r}") for o in proto.output]
        return _finish(inputs, outputs, nodes, stored)

    def function(self, proto: FunctionProto, caller: NodePlan, opsets: Mapping[str, int]) -> GraphPlan:
        """Plan a function body for one call: attribute references take the caller's values."""
        names = self.names.inside(caller.name, function=True)
        inputs = [names.define(name) for name in proto.input]
        given = {a.name: a for a in proto.attribute_proto}
        given.update({a.name: a for a in caller.proto.attribute})
        imports = {**opsets, **{o.domain: o.version for o in proto.opset_import}}
        stored: dict[str, Stored] = {}
        nodes = self._nodes(proto.node, imports, names, _with_defaults(given, caller), stored)
        # A schema's body leaves out the optional outputs that the caller does not name.
        wanted = list(proto.output)[: len(caller.outputs)]
        outputs = [
            _visible(names, name, f"function {proto.name!r}") if asked or name in names.visible else ""
            for name, asked in zip(wanted, caller.outputs, strict=True)
        ]
        return _finish(inputs, outputs, nodes, stored)

    def _nodes(
        self,
        protos: Sequence[NodeProto],
        opsets: Mapping[str, int],
        names: Names,
        given: Mapping[str, AttributeProto],
        stored: dict[str, Stored],
    ) -> list[NodePlan]:
        plans = []
        for index, proto in enumerate(in_order(protos)):
            inputs = [_input_name(names, name, proto) for name in proto.input]
            value = _constant_tensor(proto)
            if value is not None:
                unique = names.define(proto.output[0])
                stored[unique] = Stored(unique, value, self.directory, in_node=True, room=self.room)
                continue
            name = names.node(proto, index)
            attributes, subgraphs = self._attributes(proto, name, opsets, names, given)
            domain = "" if proto.domain == "ai.onnx" else proto.domain
            version = opsets.get(proto.domain, opsets.get(domain, 1))
            local = (proto.domain, proto.op_type, proto.overload) in self.functions
            plans.append(
                NodePlan(
                    proto=proto,
                    op_type=proto.op_type,
                    domain=domain,
                    version=version,
                    name=name,
                    inputs=inputs,
                    outputs=[names.define(output) if output else "" for output in proto.output],
                    attributes=attributes,
                    defaults=schema_defaults(proto.op_type, domain, version),
                    opsets=opsets,
                    operator=None if local else find_operator(domain, proto.op_type, version),
                    subgraphs=subgraphs,
                    captured=tuple(sorted(frozenset().union(*(g.reads for g in subgraphs.values())))),
                )
            )
        return plans

    def _attributes(
        self,
        proto: NodeProto,
        name: str,
        opsets: Mapping[str, int],
        names: Names,
        given: Mapping[str, AttributeProto],
    ) -> tuple[dict[str, Any], dict[str, GraphPlan]]:
        attributes: dict[str, Any] = {}
        subgraphs: dict[str, GraphPlan] = {}
        for attribute in proto.attribute:
            actual = attribute
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in given:
                    continue
                actual = given[attribute.ref_attr_name]
            attributes[attribute.name] = onnx.helper.get_attribute_value(actual)
            if actual.type == AttributeProto.GRAPH:
                inner = names.inside(f"{name}/{attribute.name}")
                subgraphs[attribute.name] = self.graph(actual.g, opsets, inner)
        return attributes, subgraphs


_ELEMENT_OF_ATTRIBUTE = {
    AttributeProto.FLOAT: onnx.TensorProto.FLOAT,
    AttributeProto.FLOATS: onnx.TensorProto.FLOAT,
    AttributeProto.INT: onnx.TensorProto.INT64,
    AttributeProto.INTS: onnx.TensorProto.INT64,
}


def _constant_tensor(proto: NodeProto) -> Any:
    """The tensor of a Constant node, which is stored like an initializer."""
    if proto.op_type != "Constant" or proto.domain not in ("", "ai.onnx") or len(proto.attribute) != 1:
        return None
    attribute = proto.attribute[0]
    if attribute.ref_attr_name:
        return None
    if attribute.type == AttributeProto.TENSOR:
        return attribute.t
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        return attribute.sparse_tensor
    element = _ELEMENT_OF_ATTRIBUTE.get(attribute.type)
    if element is None:
        return None
    value = onnx.helper.get_attribute_value(attribute)
    listed = isinstance(value, list | tuple)
    return onnx.helper.make_tensor("", element, [len(value)] if listed else [], value if listed else [value])


def _with_defaults(given: dict[str, AttributeProto], caller: NodePlan) -> dict[str, AttributeProto]:
    for name, value in caller.defaults.items():
        if name not in given:
            given[name] = onnx.helper.make_attribute(name, value)
    return given


def _visible(names: Names, name: str, where: str) -> str:
    if name not in names.visible:
        raise ProgramError(f"Output {name!r} of {where} is written by no node. Mend the file with its exporter.")
    return names.visible[name]


def _input_name(names: Names, name: str, proto: NodeProto) -> str:
    if not name:
        return ""
    if name in names.visible:
        return names.visible[name]
    label = f"Node {proto.name or proto.output[0]!r} ({proto.op_type})"
    raise ProgramError(f"{label} reads {name!r}, which no node, input or initializer provides. Mend the graph.")


def _mark_idle(nodes: Sequence[NodePlan], outputs: Sequence[str]) -> None:
    """Mark the nodes that no output is computed from, as a fusion leaves them behind: their numbers are nobody's."""
    wanted = set(outputs) - {""}
    for node in reversed(nodes):
        node.idle = not wanted.intersection(node.outputs)
        wanted.update(() if node.idle else (name for name in (*node.inputs, *node.captured) if name))


def _finish(inputs: list[str], outputs: list[str], nodes: list[NodePlan], stored: dict[str, Stored]) -> GraphPlan:
    _mark_idle(nodes, outputs)
    defined = {*inputs, *(name for node in nodes for name in node.outputs if name)}
    last: dict[str, int] = {}
    reads: set[str] = set()
    for index, node in enumerate(nodes):
        for name in (*node.inputs, *node.captured, *node.outputs):
            if name in defined:
                last[name] = index
            elif name and name not in stored:
                reads.add(name)
    reads.update(name for name in outputs if name not in defined and name not in stored)
    keep = set(outputs)
    released: dict[int, list[str]] = {}
    for name, index in last.items():
        if name not in keep:
            released.setdefault(index, []).append(name)
    for index, names in released.items():
        nodes[index].release = tuple(names)
    return GraphPlan(inputs, outputs, nodes, stored, frozenset(reads))


@functools.lru_cache(maxsize=4096)
def schema_of(op_type: str, domain: str, version: int) -> Any:
    """The ONNX schema in force at an opset version; None for operators ONNX does not define."""
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.lru_cache(maxsize=4096)
def schema_defaults(op_type: str, domain: str, version: int) -> Mapping[str, Any]:
    """Default values of a schema's attributes."""
    schema = schema_of(op_type, domain, version)
    if schema is None:
        return {}
    return {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }

"""Small surgery on an ONNX file: find a node, change an attribute, a stored value, a wire, or insert nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

Array = np.ndarray


def find(model: ModelProto, operator: str, index: int = 0) -> NodeProto:
    """Return the ``index``-th node of that operator, in graph order."""
    return [node for node in model.graph.node if node.op_type == operator][index]


def node_named(model: ModelProto, name: str) -> NodeProto:
    return next(node for node in model.graph.node if node.name == name)


def attribute(node: NodeProto, name: str, **value: object) -> str:
    """Set attribute ``name`` to ``value`` (keyword ``to``) or drop it when there is none; return the node's name."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if "to" in value:
        node.attribute.append(helper.make_attribute(name, value["to"]))
    return node.name


def read_attribute(node: NodeProto, name: str) -> float:
    return float(next(helper.get_attribute_value(a) for a in node.attribute if a.name == name))


def stored(model: ModelProto, name: str) -> Array:
    """Return a copy of an initializer's value."""
    return np.array(numpy_helper.to_array(next(i for i in model.graph.initializer if i.name == name)))


def store(model: ModelProto, name: str, value: Array) -> str:
    """Add or replace an initializer; return its name."""
    tensor = numpy_helper.from_array(np.array(value, order="C"), name)
    for initializer in model.graph.initializer:
        if initializer.name == name:
            initializer.CopyFrom(tensor)
            return name
    model.graph.initializer.append(tensor)
    return name


def change(node: NodeProto, model: ModelProto, slot: int, edit: Callable[[Array], Array]) -> str:
    """Give ``node`` its own edited copy of the initializer in ``slot``, in the same dtype; return the node's name."""
    before = stored(model, node.input[slot])
    after = np.asarray(edit(before.copy()), dtype=before.dtype)
    shared = sum(list(n.input).count(node.input[slot]) for n in model.graph.node) > 1
    name = f"{node.input[slot]}_of_{node.name}" if shared else node.input[slot]
    node.input[slot] = store(model, name, after)
    return node.name


def user_of(model: ModelProto, value: str) -> NodeProto:
    """Return the first node that reads ``value``."""
    return next(node for node in model.graph.node if value in node.input)


def constant_slot(model: ModelProto, node: NodeProto) -> int:
    """Return which input of a binary node is an initializer."""
    names = {i.name for i in model.graph.initializer}
    return next(slot for slot, name in enumerate(node.input) if name in names)


def insert_after(model: ModelProto, value: str, *made: Callable[[str, str], NodeProto]) -> str:
    """Send ``value`` through a chain of new unary nodes before anybody reads it.

    Returns
    -------
    str
        The name of the first cast among them, else of the last node.
    """
    position = next(i for i, node in enumerate(model.graph.node) if value in node.output) + 1
    source, chain = value, []
    for step, make in enumerate(made):
        node = make(source, f"{value}_planted_{step}")
        node.name = f"planted_{step}_{value}"
        chain.append(node)
        source = node.output[0]
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            if name == value:
                node.input[slot] = source
    for node in reversed(chain):
        model.graph.node.insert(position, node)
    return next((node.name for node in chain if node.op_type == "Cast"), chain[-1].name)


def cast(to: int) -> Callable[[str, str], NodeProto]:
    return lambda source, target: helper.make_node("Cast", [source], [target], to=to)


def times(model: ModelProto, factor: float) -> Callable[[str, str], NodeProto]:
    """A Mul by a stored scalar, in the model's own float type."""
    dtype = np.float16 if float_type(model) == onnx.TensorProto.FLOAT16 else np.float32
    name = store(model, f"factor_{factor}", np.array(factor, dtype))
    return lambda source, target: helper.make_node("Mul", [source, name], [target])


def float_type(model: ModelProto) -> int:
    """Return the tensor type of the model's first output."""
    return int(model.graph.output[0].type.tensor_type.elem_type)


def as_identity(node: NodeProto, slot: int) -> str:
    """Turn ``node`` into a copy of its input ``slot``; return its name."""
    source = node.input[slot]
    del node.input[:]
    node.input.append(source)
    del node.attribute[:]
    node.op_type = "Identity"
    return node.name


def swap_inputs(node: NodeProto, first: int = 0, second: int = 1) -> str:
    node.input[first], node.input[second] = node.input[second], node.input[first]
    return node.name

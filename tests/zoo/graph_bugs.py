"""Bugs planted in an exported file, from a grammar of real ones; each names the node that must be blamed.

A plant edits the ModelProto in place and returns the name of the node, or None where the graph has nothing of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

Plant = Callable[[ModelProto], str | None]


def _nodes(model: ModelProto, *operators: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type in operators]


def _shapes(model: ModelProto) -> dict[str, tuple[int, ...]]:
    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    return {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in infos}


def _stored(model: ModelProto, name: str) -> np.ndarray | None:
    return next((numpy_helper.to_array(i).copy() for i in model.graph.initializer if i.name == name), None)


def _give(model: ModelProto, node: NodeProto, slot: int, value: np.ndarray) -> str:
    name = f"{node.input[slot]}_of_{node.name}"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
    node.input[slot] = name
    return node.name


def _set(node: NodeProto, name: str, value: object) -> str:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return node.name


def _get(node: NodeProto, name: str) -> object:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _passes(node: NodeProto, slot: int) -> str:
    source = node.input[slot]
    del node.input[:]
    node.input.append(source)
    del node.attribute[:]
    node.op_type = "Identity"
    return node.name


def _last(nodes: list[NodeProto]) -> NodeProto | None:
    return nodes[-1] if nodes else None


def _softmax_axis(model: ModelProto) -> str | None:
    node = _last(_nodes(model, "Softmax"))
    shape = _shapes(model).get(node.input[0], ()) if node else ()
    return _set(node, "axis", len(shape) - 2) if node and len(shape) > 2 and shape[-2] > 1 else None


def _epsilon(model: ModelProto) -> str | None:
    """An epsilon of 1e-2: of a norm, or the one added before a root."""
    node = _last(_nodes(model, "LayerNormalization", "BatchNormalization", "RMSNormalization", "InstanceNormalization"))
    if node is not None:
        return _set(node, "epsilon", 1e-2)
    for root in _nodes(model, "Sqrt", "Rsqrt"):
        added = next((n for n in _nodes(model, "Add") if n.output[0] == root.input[0]), None)
        for slot, name in enumerate(added.input if added else ()):
            value = _stored(model, name)
            if added and value is not None and value.size == 1 and value.dtype == np.float32:
                return _give(model, added, slot, value + np.float32(1e-2))
    return None


def _gelu_kind(model: ModelProto) -> str | None:
    node = _last(_nodes(model, "Gelu"))
    return node and _set(node, "approximate", "none" if _get(node, "approximate") == b"tanh" else "tanh")


def _activation(model: ModelProto) -> str | None:
    node = _last(_nodes(model, "Relu", "Sigmoid"))
    if node is None:
        return None
    node.op_type = {"Relu": "LeakyRelu", "Sigmoid": "HardSigmoid"}[node.op_type]
    return node.name


def _padding(model: ModelProto) -> str | None:
    for node in _nodes(model, "Conv", "MaxPool", "AveragePool"):
        pads = list(_get(node, "pads") or [])  # type: ignore[call-overload]
        half = len(pads) // 2
        if half and pads[half]:
            pads[0], pads[half] = pads[0] + 1, pads[half] - 1
            return _set(node, "pads", pads)
    return None


def _transposed(model: ModelProto) -> str | None:
    for node in reversed(_nodes(model, "MatMul", "Gemm")):
        value = _stored(model, node.input[1])
        if value is not None and value.ndim == 2 and value.shape[0] == value.shape[1]:
            return _give(model, node, 1, value.T)
    return None


def _halves(model: ModelProto) -> str | None:
    """Two joined values of one shape exchanged: rotary halves, directions, towers."""
    shapes = _shapes(model)
    for node in _nodes(model, "Concat"):
        known = [shapes.get(name) for name in node.input[:2]]
        if len(node.input) > 1 and known[0] == known[1] and known[0]:
            node.input[0], node.input[1] = node.input[1], node.input[0]
            return node.name
    return None


def _sign(model: ModelProto) -> str | None:
    node = _last(_nodes(model, "Neg"))
    return node and _passes(node, 0)


def _scale(model: ModelProto) -> str | None:
    for node in reversed(_nodes(model, "Mul", "Div")):
        value = _stored(model, node.input[1])
        if value is not None and value.size == 1 and value.dtype == np.float32:
            return _give(model, node, 1, value * np.float32(1.01))
    return None


def _residual(model: ModelProto) -> str | None:
    """A sum that reads an earlier value of the same shape than it should."""
    shapes, sums = _shapes(model), _nodes(model, "Add")
    made = [n.output[0] for n in sums if len(shapes.get(n.output[0], ())) > 2]
    for node in reversed(sums):
        for slot, name in enumerate(node.input):
            if name in made and (earlier := [m for m in made[: made.index(name)] if shapes[m] == shapes[name]]):
                node.input[slot] = earlier[-1]
                return node.name
    return None


def _position(model: ModelProto) -> str | None:
    """Positions one too far: a stored row of them rolled by one, as a cache off by one gives."""
    for node in _nodes(model, "Gather"):
        value = _stored(model, node.input[1])
        if value is not None and value.dtype == np.int64 and value.size > 1:
            return _give(model, node, 1, np.roll(value, 1))
    for node in _nodes(model, "Cos", "Sin"):
        value = _stored(model, node.input[0])
        if value is not None and value.ndim > 1:
            return _give(model, node, 0, np.roll(value, 1, axis=-2))
    return None


def _mask(model: ModelProto) -> str | None:
    for node in _nodes(model, "Where"):
        if _stored(model, node.input[1]) is None and _stored(model, node.input[2]) is not None:
            return _passes(node, 1)
        if _stored(model, node.input[2]) is None and _stored(model, node.input[1]) is not None:
            return _passes(node, 2)
    return None


def _permutation(model: ModelProto) -> str | None:
    shapes = _shapes(model)
    for node in reversed(_nodes(model, "Transpose")):
        perm, shape = list(_get(node, "perm") or []), shapes.get(node.input[0], ())  # type: ignore[call-overload]
        for i in range(len(perm)):
            for j in range(i):
                if len(shape) == len(perm) and shape[perm[i]] == shape[perm[j]] > 1:
                    perm[i], perm[j] = perm[j], perm[i]
                    return _set(node, "perm", perm)
    return None


def _subtraction(model: ModelProto) -> str | None:
    shapes = _shapes(model)
    for node in _nodes(model, "Sub"):
        if shapes.get(node.input[0]) == shapes.get(node.input[1]) and shapes.get(node.input[0]):
            node.input[0], node.input[1] = node.input[1], node.input[0]
            return node.name
    return None


def _gates(model: ModelProto) -> str | None:
    for node in _nodes(model, "LSTM", "GRU"):
        value, gates = _stored(model, node.input[2]), 4 if node.op_type == "LSTM" else 3
        if value is not None:
            blocks = np.split(value, gates, axis=1)
            return _give(model, node, 2, np.concatenate([blocks[1], blocks[0], *blocks[2:]], axis=1))
    return None


def _bias(model: ModelProto) -> str | None:
    # A norm over each channel takes away whatever is added to all of it.
    idle = {name for norm in _nodes(model, "InstanceNormalization") for name in norm.input[:1]}
    for node in reversed(_nodes(model, "Gemm", "Conv", "LayerNormalization", "Add")):
        slot = 1 if node.op_type == "Add" else 2
        value = _stored(model, node.input[slot]) if len(node.input) > slot else None
        if value is not None and value.ndim == 1 and value.any() and node.output[0] not in idle:
            return _give(model, node, slot, np.zeros_like(value))
    return None


def _bit(model: ModelProto) -> str | None:
    """The eighth bit behind the point of one weight in the middle of the graph."""
    users = [n for n in _nodes(model, "MatMul", "Gemm", "Conv") if _stored(model, n.input[1]) is not None]
    if not users:
        return None
    node = users[len(users) // 2]
    value = _stored(model, node.input[1])
    assert value is not None
    value.reshape(-1).view(np.int32)[3] ^= 1 << 15
    return _give(model, node, 1, value)


def _mean_axis(model: ModelProto) -> str | None:
    """A reduction over the neighbouring axis of the same length is another function of the same shape."""
    shapes = _shapes(model)
    for node in _nodes(model, "ReduceMean", "ReduceSum", "ReduceMax"):
        axes = _stored(model, node.input[1]) if len(node.input) > 1 else None
        shape = shapes.get(node.input[0], ())
        if axes is not None and axes.size == 1 and len(shape) > 2:
            axis = int(axes[0]) % len(shape)
            for other in range(len(shape)):
                if other != axis and shape[other] == shape[axis] > 1:
                    return _give(model, node, 1, np.array([other], np.int64))
    return None


GRAPH_BUGS: dict[str, Plant] = {
    "softmax axis": _softmax_axis, "epsilon": _epsilon, "gelu kind": _gelu_kind, "activation": _activation,
    "padding": _padding, "transposed weight": _transposed, "exchanged halves": _halves, "lost sign": _sign,
    "scale": _scale, "earlier residual": _residual, "position off by one": _position, "lost mask": _mask,
    "permutation": _permutation, "exchanged difference": _subtraction, "gate order": _gates,
    "lost bias of a node": _bias,
    "one bit of a weight": _bit, "mean over another axis": _mean_axis,
}  # fmt: skip


def planted(model: ModelProto) -> Iterator[tuple[str, ModelProto, str]]:
    """Every bug the graph has a place for: its name, the broken copy and the node that must be blamed."""
    for name, plant in GRAPH_BUGS.items():
        broken = ModelProto()
        broken.CopyFrom(model)
        node = plant(broken)
        if node:
            yield name, broken, node

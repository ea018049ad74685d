"""Quantised operators written as what they are: dequantise, compute in floats, quantise.

onnxruntime's QOperator format and its optimiser's contrib operators keep scales and zero points as inputs of one
operator. Taken apart, they are read as the other format (QuantizeLinear and DequantizeLinear) is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from driftscope.errors import CannotLift
from driftscope.explain.quantised.undone import identity
from driftscope.explain.quantised.weights import Graph, unpacked

#: The float operator of each, and how many of its inputs are triples (value, scale, zero point).
_FLOATS = {
    "QLinearConv": ("Conv", 2), "QLinearMatMul": ("MatMul", 2), "QGemm": ("Gemm", 2), "QLinearAdd": ("Add", 2),
    "QLinearMul": ("Mul", 2), "QLinearAveragePool": ("AveragePool", 1), "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1), "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearSoftmax": ("Softmax", 1), "QLinearConcat": ("Concat", 0), "QLinearWhere": ("Where", 2),
}  # fmt: skip
_LSTM, _TABLE = "DynamicQuantizeLSTM", "GatherBlockQuantized"
OPERATORS = frozenset({*_FLOATS, _LSTM, _TABLE})
#: Attributes of the quantised operators alone.
_OWN = frozenset({"channels_last", "opset"})


def taken_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a model whose quantised operators are written with QuantizeLinear and DequantizeLinear.

    Parameters
    ----------
    model : onnx.ModelProto
        With its weights inside; returned as it is where it has no such operator, or one with channels last.

    Raises
    ------
    CannotLift
        If the scale of a bias is not stored.
    """
    products = _of_two_values(model)
    if not products and not any(n.op_type in OPERATORS for n in model.graph.node):
        return model
    if any(a.name == "channels_last" and a.i for n in model.graph.node for a in n.attribute):
        return model
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    stored = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}

    def store(name: str, value: np.ndarray) -> str:
        whole.graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def parts(node: NodeProto) -> Sequence[NodeProto]:
        return products.get(node.output[0]) or (_parts(node, stored, store) if node.op_type in OPERATORS else [node])

    nodes = [part for n in model.graph.node for part in parts(n)]
    del whole.graph.node[:]
    whole.graph.node.extend(nodes)
    del whole.graph.value_info[:]  # integers that are floats now
    return whole


def _of_two_values(model: onnx.ModelProto) -> dict[str, list[NodeProto]]:
    """Products of integers with two scales of their own, by the outputs of the nodes that they consist of.

    Both are quantised while running, as a weight that is computed in the graph is, or rows of stored integers, as of an
    embedding: ``Mul(Cast(ConvInteger(x, w)), x_scale * w_scale)``.
    """
    graph, found = Graph(model), dict[str, list[NodeProto]]()
    floats: dict[tuple[str, ...], str] = {}  # of integers that are read more than once

    def dequantised(triple: Sequence[str], reader: NodeProto, axis: int) -> tuple[str, list[NodeProto]]:
        key = tuple(n for n in triple if n)
        if key in floats:
            return floats[key], []
        name = floats[key] = f"{key[0]} for {reader.output[0]}"
        return name, [helper.make_node("DequantizeLinear", key, [name], reader.name, axis=axis)]

    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in graph.made:
            first = floats.setdefault(tuple(n for n in node.input if n), node.output[0])
            found |= {} if first == node.output[0] else {node.output[0]: [identity(first, node)]}
            continue
        both_scaled = node.op_type in ("ConvInteger", "MatMulInteger") and _both_scaled(node, graph)
        steps = next((s for s in graph.scaled(node) if s[2].op_type == "Mul"), None) if both_scaled else None
        if steps is None:
            continue
        cast, mul, both = steps
        given, axis = [*node.input, "", ""], 0 if node.op_type == "ConvInteger" else 1
        operands = [dequantised(triple, node, axis) for triple in zip(given[:2], both.input, given[2:4], strict=True)]
        kind = node.op_type.removesuffix("Integer")
        product = helper.make_node(kind, [name for name, _ in operands], node.output, node.name)
        product.attribute.extend(node.attribute)
        found[node.output[0]] = [*(part for _, parts in operands for part in parts), product]
        found |= {cast.output[0]: [identity(node.output[0], cast)], mul.output[0]: [identity(cast.output[0], mul)]}
    return found


def _both_scaled(node: NodeProto, graph: Graph) -> bool:
    """Whether none of the two integer tensors is a stored weight beside what was quantised while running."""
    sources = [graph.behind(name)[0] for name in node.input[:2]]
    dynamic = [s in graph.made and graph.made[s].op_type == "DynamicQuantizeLinear" for s in sources]
    return all(dynamic) or (sources[0] in graph.stored and (dynamic[1] or sources[1] in graph.stored))


def _parts(
    node: NodeProto, stored: dict[str, np.ndarray], store: Callable[[str, np.ndarray], str]
) -> Sequence[NodeProto]:
    if node.op_type == _LSTM:
        return _lstm(node)
    if node.op_type == _TABLE:
        return _table(node, stored, store)
    kind = _FLOATS[node.op_type][0]
    values, (scale, zero, bias), plain = _operands(node)
    parts, operands = [], [*plain]
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    # A scale per output channel: rows of a convolution's weight, columns of a matrix.
    axis = 0 if kind == "Conv" or transposed else 1
    for triple in values:
        value = f"{triple[0]} for {node.output[0]}"
        while value in operands:  # one value twice
            value += " again"
        parts.append(helper.make_node("DequantizeLinear", [n for n in triple if n], [value], node.name, axis=axis))
        operands.append(value)
    if bias:
        scales = [triple[1] for triple in values]
        if not stored.keys() >= set(scales):
            raise CannotLift(f"{node.op_type} ({node.output[0]}) has a bias, and a scale that the program computes")
        factor = stored[scales[0]].astype(np.float32) * stored[scales[1]].astype(np.float32)
        name = store(f"{node.output[0]}.bias_scale", np.asarray(factor, np.float32))
        inputs = [bias, name]
        parts.append(helper.make_node("DequantizeLinear", inputs, [f"{bias} for {node.output[0]}"], node.name, axis=0))
        operands.append(f"{bias} for {node.output[0]}")
    made = f"{node.output[0]}.floats" if scale else node.output[0]
    product = helper.make_node(kind, operands, [made], f"{node.name}.{kind}" if scale else node.name)
    product.attribute.extend(a for a in node.attribute if a.name not in _OWN)
    parts.append(product)
    if scale:
        inputs = [made, scale, *([zero] if zero else [])]
        parts.append(helper.make_node("QuantizeLinear", inputs, [node.output[0]], node.name))
    return parts


def _operands(node: NodeProto) -> tuple[list[list[str]], tuple[str, str, str], list[str]]:
    """The (value, scale, zero point) of each operand; scale and zero point of the result and a bias; plain inputs."""
    triples, given = _FLOATS[node.op_type][1], [*node.input, "", "", ""]
    if node.op_type == "QLinearConcat":
        rest = list(node.input[2:])
        return [rest[k : k + 3] for k in range(0, len(rest), 3)], (given[0], given[1], ""), []
    plain = [given.pop(0)] if node.op_type == "QLinearWhere" else []
    values, rest = [given[3 * k : 3 * k + 3] for k in range(triples)], given[3 * triples :]
    scale, zero, bias = (rest[1], rest[2], rest[0]) if node.op_type == "QGemm" else rest[:3]
    return values, (scale, zero, bias), plain


def _lstm(node: NodeProto) -> list[NodeProto]:
    """An LSTM behind its dequantised weights, which lie (directions, inputs, gates) in the quantised operator."""
    given = [*node.input, *[""] * 12]
    parts, weights = [], []
    for k, scale in ((1, 8), (2, 10)):
        floats, turned = (f"{given[k]} for {node.output[0]}{word}" for word in ("", " turned"))
        inputs = [n for n in (given[k], *given[scale : scale + 2]) if n]
        parts.append(helper.make_node("DequantizeLinear", inputs, [floats], node.name, axis=0))
        parts.append(helper.make_node("Transpose", [floats], [turned], f"{node.name}.turned{k}", perm=[0, 2, 1]))
        weights.append(turned)
    layer = helper.make_node("LSTM", [given[0], *weights, *given[3:8]], node.output, f"{node.name}.LSTM")
    layer.attribute.extend(node.attribute)
    return [*parts, layer]


def _table(
    node: NodeProto, stored: dict[str, np.ndarray], store: Callable[[str, np.ndarray], str]
) -> Sequence[NodeProto]:
    """Rows of a dequantised table; integers that share a byte are stored one by one."""
    number, (data, indices, scale, *zero) = {a.name: int(a.i) for a in node.attribute}, node.input
    zero, bits = [name for name in zero if name], number.get("bits", 4)
    if not stored.keys() >= {data, scale, *zero}:
        raise CannotLift(f"{node.op_type} ({node.output[0]}) reads a table that the program computes")
    axis, width = number.get("quantize_axis", 1), stored[scale].shape[-1]
    given = [data, scale, *zero]
    if stored[data].dtype == np.uint8:
        levels, middle = unpacked(stored[data], bits), np.full(stored[scale].shape, 1 << (bits - 1), np.uint8)
        shift = unpacked(stored[zero[0]], bits)[..., :width].astype(np.uint8) if zero else middle
        own = f"{node.output[0]}.{data}"
        given = [store(own, levels.astype(np.uint8)), scale, store(f"{own}.zero", shift)]
    block = number.get("block_size", 128) or stored[given[0]].shape[axis]
    floats, name = f"{data} for {node.output[0]}", f"{node.name}.DequantizeLinear"
    return [
        helper.make_node("DequantizeLinear", given, [floats], name, axis=axis, block_size=block),
        helper.make_node("Gather", [floats, indices], node.output, node.name, axis=number.get("gather_axis", 0)),
    ]

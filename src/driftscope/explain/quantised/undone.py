"""A graph without its quantisation, as it is written: float weights and steps that hand values on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from driftscope.explain.quantised.weights import PASSING, Graph, Quantised


@dataclass(slots=True)
class Undone:
    """One graph on its way back to floats."""

    model: onnx.ModelProto
    graph: Graph

    def put(self, name: str, value: torch.Tensor) -> None:
        """Store a weight under a name."""
        array = np.array(value.to(torch.float32).numpy(), order="C")  # a number stays one without axes
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))

    def node(self, weight: Quantised, name: str) -> list[onnx.NodeProto]:
        """The nodes that take the place of the one that reads a quantised weight."""
        node = weight.node
        if node.op_type == "DequantizeLinear":
            # As an exporter stores it: a constant that a step hands on is computed, and not compared as a weight is.
            return [] if weight.mover is None else [identity(node.input[0], node)]
        if node.op_type == "MatMulNBits":
            bias = node.input[5] if len(node.input) > 5 else ""
            middle = f"{node.output[0]}.product" if bias else node.output[0]
            product = helper.make_node("MatMul", [node.input[0], name], [middle], node.name)
            extra = [helper.make_node("Add", [middle, bias], [node.output[0]], f"{node.name}.bias")] if bias else []
            return [product, *extra]
        kind, made = node.op_type.removesuffix("Integer"), self.graph.made[node.input[0]]
        # Integers that were moved on the way are floats by now.
        source = node.input[0] if made.op_type in PASSING else made.input[0]
        product = helper.make_node(kind, [source, name], [node.output[0]], node.name)
        product.attribute.extend(node.attribute)
        return [product]

    def padded(self, node: onnx.NodeProto, quantiser: onnx.NodeProto) -> onnx.NodeProto:
        """A padding of integers with the number that its own integer stands for: 0 where none is written."""
        given = [*node.input, *[""] * 4][:4]
        filled = self.graph.array(given[2]) if given[2] else np.zeros(())
        scale, zero = (self.graph.array(n) if n else np.zeros(()) for n in [*quantiser.input, "", ""][1:3])
        if filled is None or scale is None or zero is None or scale.size > 1:
            return node
        number = (float(filled.reshape(-1)[0]) - float(zero.reshape(-1)[0])) * float(scale.reshape(-1)[0])
        given[2] = f"{node.output[0]}.filled"
        self.put(given[2], torch.tensor(number))
        found = helper.make_node("Pad", [*given[:3], *([given[3]] if given[3] else [])], node.output, node.name)
        found.attribute.extend(node.attribute)
        return found


def identity(name: str, node: onnx.NodeProto) -> onnx.NodeProto:
    """A step that hands a value on in the place of a node."""
    return helper.make_node("Identity", [name], [node.output[0]], node.name)


def stored_as(k: int, weight: Quantised) -> str:
    """The name under which the k-th weight is stored in floats."""
    read = weight.node.op_type == "DequantizeLinear" and weight.mover is None
    return weight.node.output[0] if read else f"undone.{k}"


def beside(node: onnx.NodeProto) -> onnx.NodeProto:
    """The same step with its integers under a name that nothing reads."""
    kept = onnx.NodeProto()
    kept.CopyFrom(node)
    kept.name, kept.output[0] = f"{node.name}.integers", f"{node.output[0]}.integers"
    return kept

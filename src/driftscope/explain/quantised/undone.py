"""A graph without its quantisation, as it is written: float weights and steps that hand values on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from driftscope.explain.quantised.weights import PASSING, Graph, Quantised
from driftscope.lift.steps import Lifted, Step

#: How far the end of a range is from the number it stands for, relative: a scale in float32, times 255.
STORED_END = 2.0**-22


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

    def floating(self, node: onnx.NodeProto, numbers: Sequence[float], idle: Collection[str]) -> onnx.NodeProto:
        """What a quantisation does beside rounding: one without negative numbers did what a Relu before it did.

        Ranges whose lower end is ``idle`` did nothing. One that ends where the other side clips (a relu6) did that as
        well; its scale holds the end rounded.
        """
        name = node.name
        scale, zero = (self.graph.array(node.input[k]) if k < len(node.input) else None for k in (1, 2))
        if zero is None or scale is None or not np.issubdtype(zero.dtype, np.integer):
            return identity(node.input[0], node)
        if not np.isfinite(scale).all():  # a range to infinity has no ends
            return identity(node.input[0], node)
        levels = np.iinfo(zero.dtype)
        if not bool((zero == levels.min).all()):
            return identity(node.input[0], node)
        top = (levels.max - levels.min) * float(scale.reshape(-1)[0])
        end = next((number for number in numbers if abs(top - number) <= STORED_END * number), None)
        if end is None and node.output[0] in idle:
            return identity(node.input[0], node)
        if end is None or scale.size > 1:
            return helper.make_node("Relu", [node.input[0]], [node.output[0]], name)
        bounds = {f"{node.output[0]}.low": 0.0, f"{node.output[0]}.high": end}
        for bound, value in bounds.items():
            self.put(bound, torch.tensor(value))
        return helper.make_node("Clip", [node.input[0], *bounds], [node.output[0]], name)


def idle_ends(floats: Lifted, model: onnx.ModelProto, graph: Graph) -> frozenset[str]:
    """Quantised values whose range ends at zero and whose negative numbers are all rounded to zero.

    What a Relu did before them is not seen there: half a step is all that the negative side of a GELU has where its
    largest value is some hundred times as large.
    """
    scales = {n.output[0]: graph.array(n.input[1]) for n in model.graph.node if n.op_type == "QuantizeLinear"}
    idle = set[str]()

    def watch(step: Step) -> None:
        name = step.output_names[0] if step.output_names else ""
        scale, value = scales.get(name), step.inputs[0] if step.inputs else None
        if step.operator == "Relu" and scale is not None and value is not None and value.numel():
            least = float(value.min())
            if -0.5 * float(scale.max()) <= least < 0:
                idle.add(name)

    floats.run(observe=watch)
    return frozenset(idle)


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

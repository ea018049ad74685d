"""Sums inside one node of an ONNX model: same operator, attributes, operand shapes and runtime, alone in a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.operand_layouts import (
    AxesLayout,
    Layout,
    PlacedKernel,
    ProductLayout,
    Sizes,
    WindowLayout,
)
from driftscope.errors import InputError
from driftscope.programs.bare_sessions import bare_session, session_words

Array = npt.NDArray[Any]

#: Formats that onnxruntime computes sums in on a CPU.
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}
REDUCTIONS = ("ReduceSum", "ReduceMean")
PRODUCTS = ("MatMul", "Gemm")
OPERATORS = (*REDUCTIONS, *PRODUCTS, "Conv", "LayerNormalization")


@dataclass(frozen=True)
class NodeCall:
    """One node and the shapes of its operands.

    Parameters
    ----------
    node : onnx.NodeProto
    opsets : sequence of onnx.OperatorSetIdProto
    shapes : list of tuple of int
        Of its operands, in the node's order.
    axes : tuple of int, or None
        What a reduction reduces, where that is an input of the node.
    constant : bool
        Whether the second operand is a constant of the model: onnxruntime packs those beforehand.
    threads : int or None
    """

    node: onnx.NodeProto
    opsets: Sequence[Any]
    shapes: list[Sizes]
    axes: Sizes | None = None
    constant: bool = True
    threads: int | None = None


def node_kernel(name: str, call: NodeCall, dtype: str, meter: Meter) -> Kernel:
    """Make a kernel of one call of a node.

    Raises
    ------
    InputError
        If the node has no sum that can be asked for.
    """
    if dtype not in TYPES:
        raise InputError(f"{name}: onnxruntime takes terms in {', '.join(TYPES)} here, not {dtype}")
    layout = _layout(name, call)
    kind = TYPES[dtype]

    def make(weights: Array | None) -> Callable[[Array], Array]:
        return _runner(call, _alone(call, weights, kind), weights)

    return PlacedKernel(name, layout, make, dtype, session_words(), meter)


def _runner(call: NodeCall, model: onnx.ModelProto, weights: Array | None) -> Callable[[Array], Array]:
    session = bare_session(model.SerializeToString(), call.threads)
    more = {} if weights is None or call.constant else {"b": weights}
    output = [session.get_outputs()[-1].name]
    return lambda x: np.asarray(session.run(output, {"x": x, **more})[0])


def _alone(call: NodeCall, weights: Array | None, kind: int) -> onnx.ModelProto:
    """Return a model that holds this node only; x is its first operand, b its second."""
    node, shapes = call.node, call.shapes
    inputs, constants = [helper.make_tensor_value_info("x", kind, shapes[0])], []
    names = ["x"]
    array = helper.tensor_dtype_to_np_dtype(kind)
    if weights is not None:
        names.append("b")
        if call.constant:
            constants.append(numpy_helper.from_array(weights, "b"))
        else:
            inputs.append(helper.make_tensor_value_info("b", kind, weights.shape))
    elif node.op_type == "LayerNormalization":
        constants += [numpy_helper.from_array(np.ones(shapes[1], array), "b")]
        names.append("b")
    elif call.axes is not None:
        constants.append(numpy_helper.from_array(np.asarray(call.axes, np.int64), "axes"))
        names.append("axes")
    if len(shapes) > 2 and len(node.input) > 2 and node.input[2]:
        constants.append(numpy_helper.from_array(np.zeros(shapes[2], array), "c"))
        names.append("c")
    results = ["y", "mean"] if node.op_type == "LayerNormalization" else ["y"]
    alone = helper.make_node(node.op_type, names, results)
    alone.attribute.extend(node.attribute)
    outputs = [helper.make_tensor_value_info(result, kind, None) for result in results[-1:]]
    model = helper.make_model(helper.make_graph([alone], "sum", inputs, outputs, constants), opset_imports=call.opsets)
    # The newest file format that every supported onnxruntime reads; the operators have their own versions.
    model.ir_version = min(model.ir_version, 10)
    return model


def _layout(name: str, call: NodeCall) -> Layout:
    node, shapes = call.node, call.shapes
    if node.op_type in REDUCTIONS:
        axes = attribute(node, "axes", call.axes)
        given = range(len(shapes[0])) if axes is None else axes
        return AxesLayout(shapes[0], tuple(sorted(axis % len(shapes[0]) for axis in given)))
    if node.op_type in PRODUCTS:
        if attribute(node, "transA", 0) or attribute(node, "alpha", 1.0) != 1:
            raise InputError(f"{name} transposes or scales its first operand (transA, alpha); that is not supported")
        if min(len(shapes[0]), len(shapes[1])) < 2:
            raise InputError(f"{name}: the order of products with a vector cannot be revealed")
        return ProductLayout(shapes[0], shapes[1], transposed=bool(attribute(node, "transB", 0)))
    if node.op_type == "LayerNormalization":
        first = int(attribute(node, "axis", -1)) % len(shapes[0])
        return AxesLayout(shapes[0], tuple(range(first, len(shapes[0]))))
    if node.op_type == "Conv":
        return _window(name, node, shapes)
    raise InputError(f"{name} is computed by {node.op_type}; an order can be revealed for {', '.join(OPERATORS)}")


def _window(name: str, node: onnx.NodeProto, shapes: list[Sizes]) -> Layout:
    many = len(shapes[0]) - 2
    if attribute(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise InputError(f"{name}: the order of a convolution with auto_pad cannot be revealed; spell its pads out")
    return WindowLayout(
        shapes[0], shapes[1],
        tuple(attribute(node, "strides", [1] * many)), tuple(attribute(node, "dilations", [1] * many)),
        tuple(attribute(node, "pads", [0] * 2 * many)), int(attribute(node, "group", 1)),
    )  # fmt: skip


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return the value of an attribute, or what it is when it is left out."""
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)

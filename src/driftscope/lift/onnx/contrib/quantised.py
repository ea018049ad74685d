"""Quantised elementwise operators, pooling and softmax: dequantise, compute, quantise again.

onnxruntime writes them where it finds the three as separate nodes. What is quantised is decided as those nodes
decide it: the real result is rounded to float32, divided by the scale in float32, and rounded to even.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.lift.formulas.quantisation import dequantised, levels
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.element_types import Format, range_of, storage
from driftscope.lift.onnx.ops.pooling import average_pool, global_average_pool, max_pool
from driftscope.lift.onnx.ops.quantise import dequantize_linear, quantize_linear, quantized_convolution
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator

# Without an axis attribute their parameters are scalars, so the standard default axis never matters.
operator("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
operator("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


def real_of(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> torch.Tensor:
    """``(x - zero) * scale`` in float64; scale and zero are whole, or broadcast to x."""
    middle = None if zero is None else _whole(zero).to(torch.float64)
    return dequantised(x.to(torch.float64), _whole(scale).to(torch.float64), middle)


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.reshape(()) if parameter.numel() == 1 else parameter


def quantised(real: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, format: Format) -> Result:
    """``saturate(round(real / scale) + zero)``.

    Parameters
    ----------
    real : torch.Tensor of float64
    scale : torch.Tensor, one element
    zero : torch.Tensor of int, one element, or None
    format : torch.dtype or None
        The integer format; None means uint8.
    """
    integers = format or torch.uint8
    quotient = real.to(torch.float32) / scale.reshape(()).to(torch.float32)
    middle = None if zero is None else zero.reshape(()).to(torch.float64)
    chosen = levels(quotient.to(torch.float64), middle, range_of(integers))
    return Result(chosen.to(storage(integers)), formats=[integers])


def _binary(node: Node, inputs: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    a, a_scale, a_zero, b, b_scale, b_zero = inputs[:6]
    if a is None or a_scale is None or b is None or b_scale is None:
        raise node.refuse("an operand or its scale is left out")
    return real_of(a, a_scale, a_zero), real_of(b, b_scale, b_zero)


def _last(node: Node, inputs: Sequence[torch.Tensor | None], scale: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output's scale, at that place, and its zero point, which may be left out."""
    y_scale = inputs[scale]
    if y_scale is None:
        raise node.refuse("the scale of its output is left out")
    return y_scale, inputs[scale + 1] if len(inputs) > scale + 1 else None


@operator("QLinearAdd", domain=MICROSOFT)
def quantised_add(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Sum of A and B; inputs are A, its scale and zero point, B, its scale and zero point, C's."""
    a, b = _binary(node, inputs)
    return quantised(a + b, *_last(node, inputs, 6), node.format(0))


@operator("QLinearMul", domain=MICROSOFT)
def quantised_multiply(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Product of A and B; inputs as for QLinearAdd."""
    a, b = _binary(node, inputs)
    return quantised(a * b, *_last(node, inputs, 6), node.format(0))


@operator("QLinearSigmoid", domain=MICROSOFT)
def quantised_sigmoid(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Sigmoid; inputs are X, its scale and zero point, Y's."""
    return quantised(torch.sigmoid(_operand(node, inputs)), *_last(node, inputs, 3), node.format(0))


@operator("QLinearLeakyRelu", domain=MICROSOFT)
def quantised_leaky_relu(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Leaky ReLU; inputs are X, its scale and zero point, Y's."""
    x = _operand(node, inputs)
    sloped = torch.where(x < 0, node.number("alpha", 0.01) * x, x)
    return quantised(sloped, *_last(node, inputs, 3), node.format(0))


@operator("QLinearSoftmax", domain=MICROSOFT)
def quantised_softmax(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Softmax along an axis, or, for opsets below 13, over all dimensions from it on."""
    x = _operand(node, inputs)
    axis = axis_of(node.integer("axis", -1), x.dim())
    flat = x.flatten(axis) if node.integer("opset", 13) < 13 else x.movedim(axis, -1)
    weights = torch.softmax(flat, -1)
    weights = weights.reshape(x.shape) if node.integer("opset", 13) < 13 else weights.movedim(-1, axis)
    return quantised(weights, *_last(node, inputs, 3), node.format(0))


def _operand(node: Node, inputs: Sequence[torch.Tensor | None]) -> torch.Tensor:
    x, scale, zero = inputs[:3]
    if x is None or scale is None:
        raise node.refuse("its operand or the operand's scale is left out")
    return real_of(x, scale, zero)


@operator("QLinearConcat", domain=MICROSOFT)
def quantised_concat(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Concatenation; inputs are Y's scale and zero point, then operand, scale and zero point of each part."""
    parts = [_operand(node, inputs[i : i + 3]) for i in range(2, len(inputs), 3)]
    return quantised(torch.cat(parts, node.integer("axis")), *_last(node, inputs, 0), node.format(1))


@operator("QLinearWhere", domain=MICROSOFT)
def quantised_where(node: Node, condition: torch.Tensor, *inputs: torch.Tensor | None) -> Result:
    """Choice between X and Y; inputs as for QLinearAdd, after the condition."""
    x, y = _binary(node, inputs)
    return quantised(torch.where(condition, x, y), *_last(node, inputs, 6), node.format(1))


def _pooled(node: Node, inputs: Sequence[torch.Tensor | None], pool: str) -> Result:
    x = _operand(node, inputs)
    last = node.integer("channels_last", 0)
    x = x.movedim(-1, 1) if last else x
    pooled: Result = average_pool(node, x) if pool == "window" else global_average_pool(node, x)
    real = pooled.outputs
    return quantised(real.movedim(1, -1) if last else real, *_last(node, inputs, 3), node.format(0))


@operator("QLinearAveragePool", domain=MICROSOFT)
def quantised_average_pool(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Mean over windows; inputs are X, its scale and zero point, Y's."""
    return _pooled(node, inputs, "window")


@operator("QLinearGlobalAveragePool", domain=MICROSOFT)
def quantised_global_average_pool(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Mean over all spatial dimensions; inputs are X, its scale and zero point, Y's."""
    return _pooled(node, inputs, "global")


@operator("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: Node, x: torch.Tensor) -> Result:
    """Maximum over windows of x (N, ..., C)."""
    result: Result = max_pool(node, x.movedim(-1, 1))
    result.outputs = result.outputs.movedim(1, -1)
    return result


@operator("QLinearConv", domain=MICROSOFT)
def quantised_convolution(node: Node, x: torch.Tensor, *rest: torch.Tensor | None) -> Result:
    """QLinearConv of the standard, or with x and y channels last."""
    if not node.integer("channels_last", 0):
        plain: Result = quantized_convolution(node, x, *rest)
        return plain
    result: Result = quantized_convolution(node, x.movedim(-1, 1), *rest)
    result.outputs = result.outputs.movedim(1, -1)
    return result

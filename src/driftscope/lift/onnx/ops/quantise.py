"""Quantisation: integers on a grid are real integers, so their rounding and saturation stay as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from driftscope.lift.formulas.quantisation import along as along_axis
from driftscope.lift.formulas.quantisation import blockwise, dequantised, integer_product, levels
from driftscope.lift.formulas.terms import ROUND
from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, SMALL_FLOATS, Format, range_of, round_to, storage
from driftscope.lift.onnx.ops.convolution import convolve
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator


def along(node: Node, parameter: Tensor, x: Tensor) -> Tensor:
    """Bring a scale or zero point into a shape that broadcasts with ``x``: whole, per axis, or in blocks."""
    block = node.integer("block_size", 0)
    axis = axis_of(node.integer("axis", 1), x.dim()) if x.dim() else 0
    if parameter.numel() > 1 and block:
        return blockwise(parameter, axis, x.shape, block)
    return along_axis(parameter, axis, x.dim()) if parameter.dim() <= 1 or parameter.numel() == 1 else parameter


@operator("QuantizeLinear", since=10)
def quantize_linear(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Result:
    """``saturate(round(x / scale) + zero)``; the native quotient decides."""
    element = node.integer("output_dtype", 0)
    native = node.format(2) if zero is not None else FORMAT_OF_ELEMENT.get(element, torch.uint8)
    native = native or torch.uint8
    quotient = _native_quotient(node, x, along(node, scale, x))
    if native in SMALL_FLOATS:
        shifted = quotient if zero is None else quotient + along(node, zero, x).to(quotient.dtype)
        return Result(round_to(shifted, native, saturate=node.integer("saturate", 1) == 1), formats=[native])
    middle = None if zero is None else along(node, zero, x)
    return Result(levels(quotient, middle, range_of(native)).to(storage(native)), formats=[native])


def _native_quotient(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    precision = node.integer("precision", 0)
    native: Format = FORMAT_OF_ELEMENT.get(precision) or node.format(1)
    if native is None or not node.lifted:
        return x / scale
    # x and scale rounded to their formats, the quotient rounded once: what the native program decides on.
    dtype = native if native not in SMALL_FLOATS else torch.float32
    quotient = node.rounded(x).to(dtype) / node.rounded(scale, 1).to(dtype)
    return quotient.to(torch.float64)


@operator("DequantizeLinear", since=10)
def dequantize_linear(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Result:
    """``(x - zero) scale``."""
    element = node.integer("output_dtype", 0)
    native = FORMAT_OF_ELEMENT.get(element) or node.format(1)
    middle = None if zero is None else along(node, zero, x).to(scale.dtype)
    return Result(dequantised(x.to(scale.dtype), along(node, scale, x), middle), ROUND, [native])


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node, x: Tensor) -> Result:
    """Quantise to uint8 with a zero point from the native extremes; the scale is a number like any other."""
    wide = node.rounded(x).to(torch.float32)
    low, scale = wide.amin().clamp(max=0), _extent(wide) / 255
    scale = torch.where(scale == 0, torch.ones_like(scale), scale) if x.numel() == 0 else scale
    zero = torch.round((-low / scale).clamp(0, 255)).nan_to_num(0.0)
    y = (torch.round(wide / scale).nan_to_num(0.0) + zero).clamp(0, 255).to(torch.uint8)
    formats = [torch.uint8, torch.float32, torch.uint8]
    return Result((y, _extent(x) / 255 if node.lifted else scale, zero.to(torch.uint8)), ROUND, formats)


def _extent(x: Tensor) -> Tensor:
    """From the smallest to the largest element, and zero."""
    return x.amax().clamp(min=0) - x.amin().clamp(max=0)


def _per_row(zero: Tensor | None) -> Tensor | None:
    """A zero point for each row of a matrix, as a column."""
    return zero.unsqueeze(-1) if zero is not None and zero.dim() == 1 and zero.numel() > 1 else zero


@operator("MatMulInteger", since=10)
def matmul_integer(
    node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Result:
    """Matrix product of integers less their zero points, exact in int32."""
    product = integer_product(a, b, _per_row(a_zero), b_zero)
    return Result(product.to(torch.int64).to(torch.int32), formats=[torch.int32])


@operator("QLinearMatMul", since=10)
def quantized_matmul(node: Node, *inputs: Tensor) -> Result:
    """Matrix product of quantised tensors, quantised again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    product = integer_product(a, b, _per_row(a_zero), b_zero)
    factor = _row(a_scale).double() * b_scale.double() / _row(y_scale).double()
    return _requantized(product * factor, y_zero, node.format(7))


def _row(scale: Tensor) -> Tensor:
    return scale.unsqueeze(-1) if scale.dim() == 1 and scale.numel() > 1 else scale


def _requantized(real: Tensor, zero: Tensor | None, native: Format) -> Result:
    native = native or torch.uint8
    middle = None if zero is None else _row(zero)
    return Result(levels(real, middle, range_of(native)).to(storage(native)), formats=[native])


@operator("QLinearConv", since=10)
def quantized_convolution(node: Node, *inputs: Tensor) -> Result:
    """Convolution of quantised tensors, quantised again."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = inputs[:8]
    b = inputs[8] if len(inputs) > 8 else None
    per_filter = [-1] + [1] * (w.dim() - 1)
    filters = w.double() - (w_zero.double().reshape(per_filter) if w_zero.numel() > 1 else w_zero.double())
    total = convolve(node, x.double() - x_zero.double(), filters, None)
    per_channel = [1, -1] + [1] * (x.dim() - 2)
    if b is not None:
        total = total + b.double().reshape(per_channel)
    factor = (x_scale.double() * w_scale.double() / y_scale.double()).reshape(-1)
    real = total * (factor.reshape(per_channel) if factor.numel() > 1 else factor)
    return _requantized(real, y_zero, node.format(7))

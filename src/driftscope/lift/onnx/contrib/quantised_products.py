"""Matrix products with quantised operands: 8-bit integers, and weights packed into 2, 4 or 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driftscope.lift.formulas.quantisation import integer_product
from driftscope.lift.formulas.terms import dot, matmul_squares, matrix_product
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.contrib.attention import attend_projected
from driftscope.lift.onnx.contrib.quantised import quantised
from driftscope.lift.onnx.element_types import round_to
from driftscope.lift.onnx.ops.quantise import dynamic_quantize_linear
from driftscope.lift.onnx.ops.recurrent import recurrent
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator
from driftscope.lift.steps import Kind, Rounding


@dataclass(frozen=True, slots=True)
class Operands:
    """Two matrices of integers, each with its scale and zero point; b's may be one per column."""

    a: torch.Tensor
    a_scale: torch.Tensor
    a_zero: torch.Tensor | None
    b: torch.Tensor
    b_scale: torch.Tensor
    b_zero: torch.Tensor | None

    def product(self) -> torch.Tensor:
        """``(a - a_zero) @ (b - b_zero)``, whole numbers in float64."""
        return integer_product(self.a, self.b, self.a_zero, self.b_zero)


def _scaled_product(node: Node, operands: Operands, bias: torch.Tensor | None) -> torch.Tensor:
    """The product times its scales, plus bias; its last rounding is left to the node.

    The integer product is exact. What rounds is the product of the scales, the scaling, and the sum.
    """
    scale = operands.a_scale.reshape(()).to(torch.float64) * operands.b_scale.to(torch.float64)
    scale = node.inner("Scale", scale, Rounding(Kind.ROUND))
    scaled = operands.product() * (scale.reshape(()) if scale.numel() == 1 else scale)
    if bias is None:
        return scaled
    return node.inner("Mul", scaled, Rounding(Kind.ROUND)) + bias


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Product of 8-bit integers times their scales, plus bias; b's parameters may be per column.

    Inputs are a, b, the scales of both, the zero points of both, and the bias.
    """
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*inputs, *[None] * 7)[:7]
    if a is None or a_scale is None or b is None or b_scale is None:
        raise node.refuse("an operand or its scale is left out")
    operands = Operands(a, a_scale, a_zero, b, b_scale, b_zero)
    return Result(_scaled_product(node, operands, bias), Rounding(Kind.ROUND), [node.format(2)])


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    node: Node,
    a: torch.Tensor,
    b: torch.Tensor,
    b_scale: torch.Tensor,
    b_zero: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> Result:
    """Product of a, quantised to uint8 by its own extremes, with 8-bit integers."""
    level, scale, zero = dynamic_quantize_linear(node, a).outputs
    operands = Operands(level, scale, zero, b, b_scale, b_zero)
    return Result(_scaled_product(node, operands, bias), Rounding(Kind.ROUND), [node.format(0)])


@operator("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(node: Node, x: torch.Tensor, *inputs: torch.Tensor | None) -> Result:
    """An LSTM with 8-bit weights, one scale per direction or column, and operands quantised by their own extremes.

    Inputs are X, W (directions, I, 4 H) and R, B, the lengths, both states, the peepholes, and scales and zero
    points of W and R. onnxruntime takes one scale for all of X, and one for the state at every time step.
    """
    w, r, b, lengths, h0, c0, peepholes, w_scale, w_zero, r_scale, r_zero = (*inputs, *[None] * 11)[:11]
    if w is None or r is None or w_scale is None or r_scale is None:
        raise node.refuse("a weight or its scale is left out")
    weights = (_by_direction(q, s, z).transpose(1, 2) for q, s, z in ((w, w_scale, w_zero), (r, r_scale, r_zero)))
    unrolled: Result = recurrent(node, x, *weights, b, lengths, h0, c0, peepholes)
    return unrolled


def _by_direction(levels: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> torch.Tensor:
    """``(levels - zero) * scale`` with a scale per direction, or per direction and column."""
    shape = (levels.shape[0], 1, -1)
    offset = 0.0 if zero is None else zero.to(torch.float64).reshape(shape)
    return (levels.to(torch.float64) - offset) * scale.to(torch.float64).reshape(shape)


@operator("MatMulInteger16", domain=MICROSOFT)
def matmul_integer16(node: Node, a: torch.Tensor, b: torch.Tensor) -> Result:
    """Product of 16-bit integers, exact in 32 bits."""
    wide = torch.uint32 if node.format(0) == torch.uint16 else torch.int32
    return Result(torch.matmul(a.to(torch.int64), b.to(torch.int64)), formats=[wide])


@operator("QGemm", domain=MICROSOFT)
def quantised_gemm(node: Node, *inputs: torch.Tensor | None) -> Result:
    """``alpha A' B' + C``, quantised where Y's scale is given.

    Inputs are A, its scale and zero point, B, its scale and zero point (whole or per column), C (int32, in
    units of ``alpha * a_scale * b_scale``), Y's scale and zero point.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*inputs, *[None] * 9)[:9]
    if a is None or a_scale is None or b is None or b_scale is None:
        raise node.refuse("an operand or its scale is left out")
    left = a.transpose(0, 1) if node.integer("transA", 0) else a
    right = b.transpose(0, 1) if node.integer("transB", 0) else b
    total = Operands(left, a_scale, a_zero, right, b_scale, b_zero).product()
    if c is not None:
        total = total + c.to(torch.float64)
    scale = (node.number("alpha", 1.0) * a_scale.reshape(()) * b_scale.reshape(-1)).to(torch.float64)
    real = total * node.inner("Scale", scale, Rounding(Kind.ROUND))
    if y_scale is None:
        return Result(real, Rounding(Kind.ROUND), [node.format(1)])
    return quantised(real, y_scale, y_zero, node.format(8) or node.format(0))


@operator("QAttention", domain=MICROSOFT)
def quantised_attention(node: Node, *inputs: torch.Tensor | None) -> Result:
    """Attention whose projection has 8-bit operands.

    Inputs are x (B, S, D), weights (D, 3 N H), bias, scale of x, scale of the weights (whole or per column),
    mask, zero points of x and of the weights, past (2, B, N, P, H).
    """
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (*inputs, *[None] * 9)[:9]
    if x is None or weight is None or x_scale is None or w_scale is None:
        raise node.refuse("an operand or its scale is left out")
    projected = _scaled_product(node, Operands(x, x_scale, x_zero, weight, w_scale, w_zero), bias)
    if not node.lifted:
        projected = projected.to(torch.float32)
    projected = node.inner("QKV", projected, Rounding(Kind.ROUND))
    return attend_projected(node, projected, mask, past, None)


def unpacked(packed: torch.Tensor, bits: int, length: int) -> torch.Tensor:
    """Integers packed along the last dimension, first in the low bits: (..., bytes) to (..., length)."""
    steps = torch.arange(0, 8, bits, device=packed.device)
    wide = packed.to(torch.int32).unsqueeze(-1)
    levels = (wide >> steps) & ((1 << bits) - 1)
    return levels.flatten(-2)[..., :length]


def stored_product(node: Node, levels: torch.Tensor, scales: torch.Tensor, index: int) -> torch.Tensor:
    """``levels * scales`` as a constant of the graph is: rounded to the native format of the scales, input ``index``.

    The DequantizeLinear node that this replaces reads constants only, so it is evaluated natively.
    """
    product = levels * scales
    return round_to(product, node.format(index)) if node.lifted else product


@operator("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(
    node: Node, a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor, *rest: torch.Tensor | None
) -> Result:
    """``a @ W' + bias``, W (N, K) quantised in blocks along K.

    Parameters
    ----------
    node : Node
    a : torch.Tensor, (..., K)
    b : torch.Tensor of uint8, (N, blocks, bytes)
    scales : torch.Tensor, (N, blocks)
    *rest : torch.Tensor or None
        Zero points, packed like b (N, bytes), or one float per block (N, blocks), or left out for the middle
        level; the deprecated group index, which is refused; the bias (N,).
    """
    zeros, order, bias = (*rest, *[None] * 3)[:3]
    bits, block = node.integer("bits", 4), node.integer("block_size")
    rows, width = node.integer("N"), node.integer("K")
    if order is not None or bits not in (2, 4, 8):
        raise node.refuse(f"it has a group index, or packs {bits} bits, which do not divide a byte")
    blocks = -(-width // block)
    levels = unpacked(b.reshape(rows, blocks, -1), bits, block).to(a.dtype)
    middle = _zero_levels(node, zeros, rows, blocks, bits)
    shifted = levels - (1 << (bits - 1) if middle is None else middle.to(a.dtype))
    weight = stored_product(node, shifted, scales.reshape(rows, blocks, 1), 2)
    weight = weight.reshape(rows, -1)[:, :width].transpose(0, 1)
    product = matrix_product(a, weight)
    rounding = dot(width + (bias is not None), lambda: matmul_squares(a, weight))
    return Result(product if bias is None else product + bias, rounding)


def _zero_levels(node: Node, zeros: torch.Tensor | None, rows: int, blocks: int, bits: int) -> torch.Tensor | None:
    """Zero points as (N, blocks, 1)."""
    if zeros is None:
        return None
    if zeros.is_floating_point():
        return zeros.reshape(rows, blocks, 1)
    return unpacked(zeros.reshape(rows, -1), bits, blocks).unsqueeze(-1)


# Levels of 4-bit normal floats (Dettmers et al., QLoRA, 2023, appendix E) and of bitsandbytes' 4-bit floats.
_NORMAL_FLOAT = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FOUR_BIT_FLOAT = (0.0, 0.005208333333333333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)


@operator("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(node: Node, a: torch.Tensor, b: torch.Tensor, largest: torch.Tensor) -> Result:
    """``a @ W'`` (or ``a @ W`` where transB is 0), W (N, K) of 4-bit floats times the largest value of a block.

    b holds two levels per byte, the first in the high bits, running over the flattened W; ``largest`` has one
    number per ``block_size`` of them.
    """
    rows, width = node.integer("N"), node.integer("K")
    table = _NORMAL_FLOAT if node.integer("quant_type") else (*_FOUR_BIT_FLOAT, *(-v for v in _FOUR_BIT_FLOAT))
    wide = b.to(torch.int64)
    index = torch.stack([wide >> 4, wide & 15], -1).flatten()[: rows * width]
    levels = torch.tensor(table, dtype=torch.float32, device=a.device).to(a.dtype)[index]
    scales = largest.repeat_interleave(node.integer("block_size"))[: rows * width]
    weight = stored_product(node, levels, scales, 2).reshape(rows, width)
    weight = weight.transpose(0, 1) if node.integer("transB", 1) else weight
    return Result(matrix_product(a, weight), dot(a.shape[-1], lambda: matmul_squares(a, weight)))


@operator("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(
    node: Node,
    data: torch.Tensor,
    indices: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
) -> Result:
    """Rows of a table quantised in blocks; an index out of range gives zeros."""
    bits = node.integer("bits", 4)
    packed = node.format(0) == torch.uint8 and bits < 8
    data = unpacked(data, bits, data.shape[-1] * 8 // bits) if packed else data
    axis = axis_of(node.integer("quantize_axis", 1), data.dim())
    block = node.integer("block_size", 128) or data.shape[axis]

    def spread(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.repeat_interleave(block, axis).narrow(axis, 0, data.shape[axis])

    levels = data.to(scales.dtype)
    if zeros is not None:
        zeros = unpacked(zeros, bits, scales.shape[-1]) if packed else zeros
        levels = levels - spread(zeros).to(scales.dtype)
    elif node.format(0) == torch.uint8:
        levels = levels - (1 << (bits - 1))
    table = stored_product(node, levels, spread(scales), 2)
    gather = axis_of(node.integer("gather_axis", 0), data.dim())
    length = table.shape[gather]
    found = (indices >= -length) & (indices < length)
    rows = table.index_select(gather, torch.where(found, indices % length, 0).reshape(-1))
    shape = [*table.shape[:gather], *indices.shape, *table.shape[gather + 1 :]]
    keep = found.reshape(*[1] * gather, *indices.shape, *[1] * (table.dim() - gather - 1))
    return Result(rows.reshape(shape) * keep, formats=[node.format(2)])

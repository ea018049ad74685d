"""Convolutions that onnxruntime's optimiser writes in NCHW and NHWC order.

Semantics: the ONNX Conv and ConvTranspose schemas; onnxruntime, ``docs/ContribOperators.md`` (FusedConv,
NhwcFusedConv, ConvTransposeWithDynamicPads).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from driftscope.lift.onnx_ops.contrib_activations import MICROSOFT, finish
from driftscope.lift.onnx_ops.registry import Node, Result, dot, integers_of, operator

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True, slots=True)
class Window:
    """Where a sliding window goes: per spatial dimension its size, stride, dilation and padding on each side."""

    size: Sequence[int]
    stride: Sequence[int]
    dilation: Sequence[int]
    begin: Sequence[int]
    end: Sequence[int]

    def padded(self, x: torch.Tensor, value: float = 0.0) -> torch.Tensor:
        """``x`` with its spatial dimensions (all but the first two) padded by ``value``."""
        if not any(self.begin) and not any(self.end):
            return x
        pads: list[int] = []
        for begin, end in zip(reversed(self.begin), reversed(self.end), strict=True):
            pads += [begin, end]
        return F.pad(x, pads, value=value)


def window(node: Node, spatial: Sequence[int], size: Sequence[int]) -> Window:
    """Read a window from ``strides``, ``dilations``, ``pads`` and ``auto_pad``.

    Parameters
    ----------
    node : Node
    spatial : sequence of int
        Spatial shape of the input.
    size : sequence of int
        Size of the window, per spatial dimension.
    """
    rank = len(size)
    stride = node.integers("strides", [1] * rank)
    dilation = node.integers("dilations", [1] * rank)
    mode = node.text("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        begin, end = [], []
        for length, k, s, d in zip(spatial, size, stride, dilation, strict=True):
            total = max((math.ceil(length / s) - 1) * s + d * (k - 1) + 1 - length, 0)
            small, large = total // 2, total - total // 2
            begin.append(small if mode == "SAME_UPPER" else large)
            end.append(large if mode == "SAME_UPPER" else small)
        return Window(size, stride, dilation, begin, end)
    pads = [0] * (2 * rank) if mode == "VALID" else node.integers("pads", [0] * (2 * rank))
    return Window(size, stride, dilation, pads[:rank], pads[rank:])


@dataclass(frozen=True, slots=True)
class Factors:
    """What a convolution sums: x (N, C, ...), w (O, C / group, ...), and two optional addends.

    ``bias`` has shape (O,), ``addend`` the output's.
    """

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None = None
    addend: torch.Tensor | None = None


def convolved(node: Node, operator_name: str, factors: Factors, group: int) -> Result:
    """``activation(conv(x, w) + bias + addend)``, with the rounding of its sums of products."""
    x, w = factors.x, factors.w
    rank = w.dim() - 2
    if rank not in _CONVOLUTIONS:
        raise node.refuse(f"its window has {rank} dimensions")
    place = window(node, x.shape[2:], w.shape[2:])

    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _CONVOLUTIONS[rank](place.padded(x), w, None, place.stride, 0, place.dilation, group)
        return result

    def with_addends(total: torch.Tensor, bias: torch.Tensor | None, addend: torch.Tensor | None) -> torch.Tensor:
        if bias is not None:
            total = total + bias.reshape(-1, *[1] * rank)
        return total if addend is None else total + addend

    def squares() -> torch.Tensor:
        squared = [None if t is None else t.square() for t in (factors.bias, factors.addend)]
        return with_addends(convolve(x.square(), w.square()), *squared)

    terms = math.prod(w.shape[1:]) + (factors.bias is not None) + (factors.addend is not None)
    total = with_addends(convolve(x, w), factors.bias, factors.addend)
    return finish(node, operator_name, total, dot(terms, squares))


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
) -> Result:
    """``activation(conv(x, w) + b + z)``; z has the output's shape."""
    return convolved(node, "Conv", Factors(x, w, b, z), node.integer("group", 1))


@operator("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
) -> Result:
    """FusedConv with channels last: x (N, ..., C); w stays (O, C / group, ...)."""
    addend = None if z is None else z.movedim(-1, 1)
    factors = Factors(x.movedim(-1, 1), w, b, addend)
    result = convolved(node, "Conv", factors, node.integer("group", 1))
    result.outputs = result.outputs.movedim(1, -1)
    squares = result.rounding.squares
    if squares is not None:
        result.rounding.squares = lambda: squares().movedim(1, -1)
    return result


@operator("ConvTransposeWithDynamicPads", domain=MICROSOFT, host=(2,))
def conv_transpose_dynamic(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    pads: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
) -> Result:
    """ConvTranspose whose pads are an input: x (N, C, ...), w (C, O / group, ...), pads (2 * spatial rank,)."""
    rank = w.dim() - 2
    if rank not in _TRANSPOSED or node.text("auto_pad", "NOTSET") != "NOTSET":
        raise node.refuse("it has auto_pad or a window of more than 3 dimensions")
    stride = node.integers("strides", [1] * rank)
    dilation = node.integers("dilations", [1] * rank)
    extra = node.integers("output_padding", [0] * rank)
    trim = integers_of(pads) or [0] * (2 * rank)
    group = node.integer("group", 1)

    def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        # Pads may differ on the two sides, so the full result is computed and then trimmed.
        full: torch.Tensor = _TRANSPOSED[rank](x, w, None, stride, 0, 0, group, dilation)
        sides: list[int] = []
        for axis in reversed(range(rank)):
            sides += [-trim[axis], extra[axis] - trim[rank + axis]]
        return F.pad(full, sides)

    shape = (-1, *[1] * rank)
    total = transposed(x, w) if b is None else transposed(x, w) + b.reshape(shape)

    def squares() -> torch.Tensor:
        products = transposed(x.square(), w.square())
        return products if b is None else products + b.square().reshape(shape)

    return Result(total, dot(x.shape[1] // group * math.prod(w.shape[2:]) + (b is not None), squares))

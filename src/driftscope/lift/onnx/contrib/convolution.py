"""Convolutions that onnxruntime's optimiser writes: activation and residual sum folded in, channels last, blocked.

Semantics: the ONNX Conv schema; onnxruntime, ``docs/ContribOperators.md`` (FusedConv, NhwcFusedConv,
ConvTransposeWithDynamicPads).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.contrib.activations import MICROSOFT, finish
from driftscope.lift.onnx.ops.convolution import convolution_squares, convolve
from driftscope.lift.onnx.registry import Node, Result, integers_of, operator

_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True, slots=True)
class Terms:
    """What a fused convolution sums.

    Attributes
    ----------
    x : torch.Tensor, (N, C, *spatial)
    w : torch.Tensor, (O, C / group, *kernel)
    bias : torch.Tensor or None, (O,)
    addend : torch.Tensor or None, of the output's shape
    """

    x: torch.Tensor
    w: torch.Tensor
    bias: torch.Tensor | None = None
    addend: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Number of terms of one output element."""
        return math.prod(self.w.shape[1:]) + (self.bias is not None) + (self.addend is not None)

    def total(self, node: Node) -> torch.Tensor:
        """``conv(x, w) + bias + addend``."""
        y = convolve(node, self.x, self.w, self.bias)
        return y if self.addend is None else y + self.addend

    def squares(self, node: Node) -> torch.Tensor:
        """Sum of the squared terms, that of the products in its rank-1 form."""
        y = convolution_squares(node, self.x, self.w)
        if self.bias is not None:
            y = y + self.bias.square().reshape(-1, *[1] * (self.x.dim() - 2))
        return y if self.addend is None else y + self.addend.square()


@operator("FusedConv", domain=MICROSOFT)
def fused_conv(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
) -> Result:
    """``activation(conv(x, w) + b + z)``; z has the output's shape."""
    terms = Terms(x, w, b, z)
    return finish(node, "Conv", terms.total(node), dot(terms.length, lambda: terms.squares(node)))


@operator("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
) -> Result:
    """FusedConv with channels last: x (N, ..., C) and z; w stays (O, C / group, ...)."""
    terms = Terms(x.movedim(-1, 1), w, b, None if z is None else z.movedim(-1, 1))
    rounding = dot(terms.length, lambda: terms.squares(node).movedim(1, -1))
    return finish(node, "Conv", terms.total(node).movedim(1, -1), rounding)


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

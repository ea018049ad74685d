"""Activation functions, written in formulas so that their attributes carry gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftscope.lift.onnx_ops.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding

_FUNCTION = Rounding(Kind.FUNCTION)


@operator("Relu")
def relu(node: Node, x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return torch.relu(x) if x.is_floating_point() else x.clamp(min=0)


@operator("LeakyRelu", kind=Kind.ROUND)
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    """``x`` where positive, else ``alpha x``."""
    return torch.where(x < 0, node.number("alpha", 0.01) * x, x)


@operator("PRelu", kind=Kind.ROUND)
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """``x`` where positive, else ``slope x``."""
    return torch.where(x < 0, slope * x, x)


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    """``x`` where it exceeds ``alpha``, else zero; the threshold decides on the native value."""
    return torch.where(node.rounded(x) > node.number("alpha", 1.0), x, torch.zeros_like(x))


@operator("Elu", kind=Kind.FUNCTION)
def elu(node: Node, x: Tensor) -> Tensor:
    """``x`` where positive, else ``alpha (exp(x) - 1)``."""
    return torch.where(x < 0, node.number("alpha", 1.0) * torch.expm1(x.clamp(max=0)), x)


@operator("Celu", kind=Kind.FUNCTION)
def celu(node: Node, x: Tensor) -> Tensor:
    """``max(0, x) + min(0, alpha (exp(x / alpha) - 1))``."""
    alpha = node.number("alpha", 1.0)
    return x.clamp(min=0) + (alpha * torch.expm1(x / alpha)).clamp(max=0)


@operator("Selu", kind=Kind.FUNCTION)
def selu(node: Node, x: Tensor) -> Tensor:
    """``gamma x`` where positive, else ``gamma alpha (exp(x) - 1)``."""
    alpha, gamma = node.number("alpha", 1.6732632423543772), node.number("gamma", 1.0507009873554805)
    return gamma * torch.where(x <= 0, alpha * torch.expm1(x.clamp(max=0)), x)


@operator("Sigmoid", kind=Kind.FUNCTION)
def sigmoid(node: Node, x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return torch.sigmoid(x)


@operator("HardSigmoid", kind=Kind.ROUND)
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    """``max(0, min(1, alpha x + beta))``."""
    return (node.number("alpha", 0.2) * x + node.number("beta", 0.5)).clamp(0, 1)


@operator("HardSwish", kind=Kind.ROUND)
def hard_swish(node: Node, x: Tensor) -> Tensor:
    """``x max(0, min(1, x/6 + 1/2))``."""
    return x * (x / 6 + 0.5).clamp(0, 1)


@operator("Softplus", kind=Kind.FUNCTION)
def softplus(node: Node, x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, without overflow."""
    return torch.logaddexp(x, torch.zeros_like(x))


@operator("Softsign", kind=Kind.ROUND)
def softsign(node: Node, x: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return x / (1 + x.abs())


@operator("Mish", kind=Kind.FUNCTION)
def mish(node: Node, x: Tensor) -> Tensor:
    """``x tanh(softplus(x))``."""
    return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))


@operator("Swish", kind=Kind.FUNCTION)
def swish(node: Node, x: Tensor) -> Tensor:
    """``x sigmoid(alpha x)``."""
    return x * torch.sigmoid(node.number("alpha", 1.0) * x)


@operator("Gelu", kind=Kind.FUNCTION)
def gelu(node: Node, x: Tensor) -> Tensor:
    """``x Phi(x)``, with the error function or its tanh approximation."""
    return gelu_of(x, node.text("approximate", "none"))


def gelu_of(x: Tensor, approximate: str) -> Tensor:
    """GELU of a tensor (Hendrycks and Gimpel, 2016).

    Parameters
    ----------
    x : torch.Tensor, float
    approximate : str
        ``"none"`` or ``"tanh"``.
    """
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1 + torch.tanh(inner))
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


@operator("Shrink", kind=Kind.ROUND)
def shrink(node: Node, x: Tensor) -> Tensor:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, zero between."""
    bias, limit = node.number("bias", 0.0), node.number("lambd", 0.5)
    decided = node.rounded(x)
    shrunk = torch.where(decided < -limit, x + bias, torch.zeros_like(x))
    return torch.where(decided > limit, x - bias, shrunk).to(x.dtype)


@operator("Hardmax", since=1)
def hardmax_flat(node: Node, x: Tensor) -> Tensor:
    """One at the first largest element of the flattened rest (up to opset 12)."""
    flat = node.rounded(x).reshape(_flattened(x, node.integer("axis", 1)))
    return _one_hot_max(flat, -1).reshape(x.shape).to(x.dtype)


@operator("Hardmax", since=13)
def hardmax(node: Node, x: Tensor) -> Tensor:
    """One at the first largest element along an axis."""
    return _one_hot_max(node.rounded(x), node.integer("axis", -1)).to(x.dtype)


def _one_hot_max(x: Tensor, axis: int) -> Tensor:
    index = x.argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter_(axis, index, 1.0)


def _flattened(x: Tensor, axis: int) -> tuple[int, ...]:
    axis = axis % x.dim() if x.dim() else 0
    return (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Softmax", since=1)
def softmax_flat(node: Node, x: Tensor) -> Result:
    """Softmax over all axes from ``axis`` on (up to opset 12)."""
    flat = x.reshape(_flattened(x, node.integer("axis", 1)))
    return Result(torch.softmax(flat, -1).reshape(x.shape), Rounding(Kind.SOFTMAX, flat.shape[-1]))


@operator("Softmax", since=13)
def softmax(node: Node, x: Tensor) -> Result:
    """Softmax along an axis."""
    axis = node.integer("axis", -1)
    return Result(torch.softmax(x, axis), Rounding(Kind.SOFTMAX, x.shape[axis] if x.dim() else 1))


@operator("LogSoftmax", since=1)
def log_softmax_flat(node: Node, x: Tensor) -> Result:
    """Logarithm of softmax over all axes from ``axis`` on (up to opset 12)."""
    flat = x.reshape(_flattened(x, node.integer("axis", 1)))
    return Result(torch.log_softmax(flat, -1).reshape(x.shape), Rounding(Kind.SOFTMAX, flat.shape[-1]))


@operator("LogSoftmax", since=13)
def log_softmax(node: Node, x: Tensor) -> Result:
    """Logarithm of softmax along an axis."""
    axis = node.integer("axis", -1)
    return Result(torch.log_softmax(x, axis), Rounding(Kind.SOFTMAX, x.shape[axis] if x.dim() else 1))

"""Activation functions, softmax and hardmax."""

from __future__ import annotations

import torch
from torch import Tensor

from driftscope.lift.formulas import activations as formulas
from driftscope.lift.formulas.softmaxes import flattened
from driftscope.lift.formulas.terms import softened
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind


@operator("Relu")
def relu(node: Node, x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return torch.relu(x) if x.is_floating_point() else x.clamp(min=0)


@operator("LeakyRelu", kind=Kind.ROUND)
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    """``x`` where positive, else ``alpha x``."""
    return formulas.leaky_relu(x, node.number("alpha", 0.01))


@operator("PRelu", kind=Kind.ROUND)
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """``x`` where positive, else ``slope x``."""
    return formulas.leaky_relu(x, slope)


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    """``x`` where it exceeds ``alpha``, else zero; the threshold decides on the native value."""
    return formulas.thresholded(x, node.rounded(x), node.number("alpha", 1.0))


@operator("Elu", kind=Kind.FUNCTION)
def elu(node: Node, x: Tensor) -> Tensor:
    """``x`` where positive, else ``alpha (exp(x) - 1)``."""
    return formulas.elu(x, node.number("alpha", 1.0))


@operator("Celu", kind=Kind.FUNCTION)
def celu(node: Node, x: Tensor) -> Tensor:
    """``max(0, x) + min(0, alpha (exp(x / alpha) - 1))``."""
    return formulas.celu(x, node.number("alpha", 1.0))


@operator("Selu", kind=Kind.FUNCTION)
def selu(node: Node, x: Tensor) -> Tensor:
    """``gamma x`` where positive, else ``gamma alpha (exp(x) - 1)``."""
    alpha, gamma = node.number("alpha", formulas.SELU_ALPHA), node.number("gamma", formulas.SELU_GAMMA)
    return formulas.selu(x, alpha, gamma)


@operator("Sigmoid", kind=Kind.FUNCTION)
def sigmoid(node: Node, x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return torch.sigmoid(x)


@operator("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Result:
    """``max(0, min(1, alpha x + beta))``."""
    slope = node.number("alpha", 0.2)
    y = formulas.hard_sigmoid(x, slope, node.number("beta", 0.5))
    return Result(y, formulas.hard_sigmoid_rounding(x, y, slope))


@operator("HardSwish")
def hard_swish(node: Node, x: Tensor) -> Result:
    """``x max(0, min(1, x/6 + 1/2))``: kernels divide, and who writes it out rounds the sixth."""
    slope = node.hidden("alpha", 1 / 6)
    y = formulas.hard_swish(x, slope)
    return Result(y, formulas.hard_sigmoid_rounding(x, y, slope, swish=True))


@operator("Softplus", kind=Kind.FUNCTION)
def softplus(node: Node, x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, without overflow."""
    return formulas.softplus(x)


@operator("Softsign", kind=Kind.ROUND)
def softsign(node: Node, x: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return formulas.softsign(x)


@operator("Mish", kind=Kind.FUNCTION)
def mish(node: Node, x: Tensor) -> Tensor:
    """``x tanh(softplus(x))``."""
    return formulas.mish(x)


@operator("Swish", kind=Kind.FUNCTION)
def swish(node: Node, x: Tensor) -> Tensor:
    """``x sigmoid(alpha x)``."""
    return formulas.swish(x, node.number("alpha", 1.0))


@operator("Gelu")
def gelu(node: Node, x: Tensor) -> Result:
    """``x Phi(x)``, with the error function or its tanh approximation."""
    y = formulas.gelu_tanh(x) if node.text("approximate", "none") == "tanh" else formulas.gelu(x)
    return Result(y, formulas.gelu_rounding(x, y))


@operator("Shrink", kind=Kind.ROUND)
def shrink(node: Node, x: Tensor) -> Tensor:
    """``x + bias`` below ``-lambd``, ``x - bias`` above ``lambd``, zero between."""
    bias, limit = node.number("bias", 0.0), node.number("lambd", 0.5)
    return formulas.shrink(x, node.rounded(x), bias, limit).to(x.dtype)


@operator("Hardmax", since=1)
def hardmax_flat(node: Node, x: Tensor) -> Tensor:
    """One at the first largest element of the flattened rest (up to opset 12)."""
    flat = node.rounded(x).reshape(flattened(x.shape, node.integer("axis", 1)))
    return _one_hot_max(flat, -1).reshape(x.shape).to(x.dtype)


@operator("Hardmax", since=13)
def hardmax(node: Node, x: Tensor) -> Tensor:
    """One at the first largest element along an axis."""
    return _one_hot_max(node.rounded(x), node.integer("axis", -1)).to(x.dtype)


def _one_hot_max(x: Tensor, axis: int) -> Tensor:
    index = x.argmax(axis, keepdim=True)
    return torch.zeros_like(x).scatter_(axis, index, 1.0)


@operator("Softmax", since=1)
def softmax_flat(node: Node, x: Tensor) -> Result:
    """Softmax over all axes from ``axis`` on (up to opset 12)."""
    flat = x.reshape(flattened(x.shape, node.integer("axis", 1)))
    return Result(torch.softmax(flat, -1).reshape(x.shape), softened(flat.shape[-1]))


@operator("Softmax", since=13)
def softmax(node: Node, x: Tensor) -> Result:
    """Softmax along an axis."""
    axis = node.integer("axis", -1)
    return Result(torch.softmax(x, axis), softened(x.shape[axis] if x.dim() else 1))


@operator("LogSoftmax", since=1)
def log_softmax_flat(node: Node, x: Tensor) -> Result:
    """Logarithm of softmax over all axes from ``axis`` on (up to opset 12)."""
    flat = x.reshape(flattened(x.shape, node.integer("axis", 1)))
    return Result(torch.log_softmax(flat, -1).reshape(x.shape), softened(flat.shape[-1]))


@operator("LogSoftmax", since=13)
def log_softmax(node: Node, x: Tensor) -> Result:
    """Logarithm of softmax along an axis."""
    axis = node.integer("axis", -1)
    return Result(torch.log_softmax(x, axis), softened(x.shape[axis] if x.dim() else 1))

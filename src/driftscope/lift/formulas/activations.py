"""Activation functions, each in the form that keeps its relative accuracy on the whole line.

All are functions of ``x`` (any float dtype and shape) and numbers that may be 0-dim tensors with a gradient; the
result has the shape and dtype of ``x``. ``*_parts`` give the size of what kernels cancel on the way, carried to the
result: the absolute error of a kernel is that many roundings, whatever the result's own size.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import Number, as_like
from driftscope.lift.steps import Kind, Rounding

SQRT_2 = math.sqrt(2.0)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715
SELU_ALPHA, SELU_GAMMA = 1.6732632423543772, 1.0507009873554805


def gelu(x: Tensor, root: Number = SQRT_2) -> Tensor:
    """GELU, ``x Phi(x)`` (Hendrycks and Gimpel, 2016); ``root`` stands for the root of 2.

    The complementary error function keeps the digits of the left tail, which ``1 + erf`` cancels.
    """
    return 0.5 * x * torch.erfc(x / -root)


def gelu_tanh(x: Tensor, slope: Number = SQRT_2_OVER_PI, cubic: Number = GELU_CUBIC) -> Tensor:
    """GELU by tanh, ``x/2 (1 + tanh(s (x + c x^3)))``, which is ``x sigmoid(2 s (x + c x^3))`` without cancelling."""
    return x * torch.sigmoid(2.0 * slope * (x + cubic * (x * x * x)))


def gelu_rounding(x: Tensor, y: Tensor) -> Rounding:
    """Rounding of GELU in either form: kernels add 1 to ``erf`` or ``tanh``, which cancels on the left."""
    return Rounding(Kind.FUNCTION, parts=lambda: gelu_parts(x, y))


def gelu_parts(x: Tensor, y: Tensor) -> Tensor:
    """Size of ``x/2 erf(x / sqrt(2))``, or of its form by tanh, where it cancels ``x/2``; it is positive there."""
    return torch.sub(y, x, alpha=0.5).masked_fill_(x >= 0, 0.0)


def swish(x: Tensor, alpha: Number = 1.0) -> Tensor:
    """``x sigmoid(alpha x)`` (Ramachandran, Zoph and Le, 2017); SiLU at ``alpha`` 1, quick GELU at 1.702."""
    return x * torch.sigmoid(alpha * x)


def softplus(x: Tensor, beta: Number = 1.0) -> Tensor:
    """``log(1 + exp(beta x)) / beta`` as ``max(z, 0) + log1p(exp(-|z|))``: no overflow, no cancellation."""
    if not isinstance(beta, Tensor) and beta == 1.0:
        return torch.logaddexp(x, torch.zeros_like(x))
    scaled = x * beta
    return torch.logaddexp(scaled, torch.zeros_like(scaled)) / beta


def log_sigmoid(x: Tensor) -> Tensor:
    """``log(sigmoid(x))``, as ``min(x, 0) - log1p(exp(-|x|))``."""
    return -softplus(-x)


def mish(x: Tensor) -> Tensor:
    """``x tanh(softplus(x))`` (Misra, 2019)."""
    return x * torch.tanh(softplus(x))


def softsign(x: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return x / (1 + x.abs())


def leaky_relu(x: Tensor, slope: Number | Tensor) -> Tensor:
    """``x`` where positive, else ``slope x`` (PReLU where the slope is a weight)."""
    return torch.where(x > 0, x, slope * x)


def elu(x: Tensor, alpha: Number = 1.0, scale: Number = 1.0, input_scale: Number = 1.0) -> Tensor:
    """``scale x`` where positive, else ``scale alpha (exp(input_scale x) - 1)`` (Clevert et al., 2015)."""
    # One branch at a time: the exponential of a large x would overflow, and take its gradient with it.
    negative = alpha * torch.expm1(torch.clamp(x, max=0.0) * input_scale)
    return _times(torch.where(x > 0, x, negative), scale)


def celu(x: Tensor, alpha: Number = 1.0) -> Tensor:
    """``x`` where positive, else ``alpha (exp(x / alpha) - 1)`` (Barron, 2017)."""
    return torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0.0) / alpha))


def selu(x: Tensor, alpha: Number = SELU_ALPHA, gamma: Number = SELU_GAMMA) -> Tensor:
    """ELU times ``gamma`` with the constants that keep variances (Klambauer et al., 2017)."""
    return elu(x, alpha, gamma)


def hard_sigmoid(x: Tensor, slope: Number = 1 / 6, offset: Number = 0.5) -> Tensor:
    """``max(0, min(1, slope x + offset))``."""
    return (slope * x + offset).clamp(0, 1)


def hard_swish(x: Tensor, slope: Number = 1 / 6, offset: Number = 0.5) -> Tensor:
    """``x max(0, min(1, slope x + offset))`` (Howard et al., 2019)."""
    return x * hard_sigmoid(x, slope, offset)


def hard_sigmoid_rounding(x: Tensor, y: Tensor, slope: Number, *, swish: bool = False) -> Rounding:
    """Rounding of a hard sigmoid, or swish: where the line meets zero, ``slope x`` cancels the offset."""

    def parts() -> Tensor:
        size = (slope * x).abs() * ((y != 0) & (x < 0))
        return size * x.abs() if swish else size

    return Rounding(Kind.ROUND, parts=parts)


def thresholded(x: Tensor, decided: Tensor, threshold: Number, other: Number = 0.0) -> Tensor:
    """``x`` where the native value ``decided`` exceeds a threshold, else ``other``."""
    return torch.where(decided > threshold, x, as_like(other, x))


def hard_shrink(x: Tensor, decided: Tensor, bound: Number) -> Tensor:
    """``x`` where the native value is larger than a bound in size, else zero."""
    return torch.where(decided.abs() > bound, x, torch.zeros_like(x))


def shrink(x: Tensor, decided: Tensor, bias: Number, bound: Number) -> Tensor:
    """``x`` moved by ``bias`` towards zero where the native value lies outside the bound, zero inside."""
    shrunk = torch.where(decided < -bound, x + bias, torch.zeros_like(x))
    return torch.where(decided > bound, x - bias, shrunk)


def scaled_tanh(x: Tensor, alpha: Number = 1.0, beta: Number = 1.0) -> Tensor:
    """``alpha tanh(beta x)``."""
    return alpha * torch.tanh(beta * x)


def clip(x: Tensor, low: Number | None = None, high: Number | None = None) -> Tensor:
    """Clip to limits that may carry gradients; where they cross, the upper one wins."""
    if low is not None:
        x = torch.maximum(x, as_like(low, x))
    return x if high is None else torch.minimum(x, as_like(high, x))


def _times(x: Tensor, factor: Number) -> Tensor:
    return x if not isinstance(factor, Tensor) and factor == 1.0 else factor * x


#: Functions of x alone, by their names in both worlds.
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softsign": softsign,
    "softplus": softplus,
}

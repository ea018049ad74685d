"""Activations of onnxruntime: the GELU family, and the ones its optimiser fuses into a convolution or a product.

Formulas: onnxruntime, ``docs/ContribOperators.md``; ONNX operator schemas for the fused activations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.onnx_ops.activations import gelu_of
from driftscope.lift.onnx_ops.registry import Node, Number, Result, operator
from driftscope.lift.steps import Kind, Rounding

MICROSOFT = "com.microsoft"

Activate = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation that can be fused: its function of ``(x, *parameters)``, their defaults, its rounding."""

    function: Activate
    defaults: tuple[float, ...] = ()
    kind: Kind = Kind.EXACT


def gelu(node: Node, x: torch.Tensor) -> torch.Tensor:
    """``x/2 (1 + erf(x / sqrt(2)))``; same shape and dtype.

    The kernel holds the root in float32, as the Div node did that it was fused from; so it is a constant of the
    graph, ``<node>.sqrt_2``.
    """
    return 0.5 * x * (1 + torch.erf(x / node.number("sqrt_2", math.sqrt(2))))


def fast_gelu(node: Node, x: torch.Tensor) -> torch.Tensor:
    """GELU by tanh: ``x/2 (1 + tanh(s (x + c x^3)))``; same shape and dtype.

    The kernel holds ``s = sqrt(2 / pi)`` and ``c`` in float32, as the nodes it was fused from did; so they are
    constants of the graph, ``<node>.sqrt_2_over_pi`` and ``<node>.cubic``.
    """
    slope, cubic = node.number("sqrt_2_over_pi", math.sqrt(2 / math.pi)), node.number("cubic", 0.044715)
    return 0.5 * x * (1 + torch.tanh(slope * (x + cubic * x * x * x)))


def quick_gelu(x: torch.Tensor, alpha: Number = 1.702) -> torch.Tensor:
    """``x * sigmoid(alpha x)``; same shape and dtype."""
    return x * torch.sigmoid(alpha * x)


def _clip(x: torch.Tensor, low: Number, high: Number) -> torch.Tensor:
    return torch.minimum(torch.maximum(x, _like(x, low)), _like(x, high))


def _like(x: torch.Tensor, value: Number) -> torch.Tensor:
    return torch.as_tensor(value, dtype=x.dtype, device=x.device)


def _leaky_relu(x: torch.Tensor, alpha: Number) -> torch.Tensor:
    return torch.where(x >= 0, x, alpha * x)


def _hard_sigmoid(x: torch.Tensor, alpha: Number, beta: Number) -> torch.Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


def _hard_swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.clamp(x / 6 + 0.5, 0, 1)


def _elu(x: torch.Tensor, alpha: Number) -> torch.Tensor:
    return torch.where(x >= 0, x, alpha * torch.expm1(x.clamp(max=0)))


def _thresholded(x: torch.Tensor, alpha: Number) -> torch.Tensor:
    return torch.where(x > alpha, x, torch.zeros_like(x))


def _scaled_tanh(x: torch.Tensor, alpha: Number, beta: Number) -> torch.Tensor:
    return alpha * torch.tanh(beta * x)


def _parametric_softplus(x: torch.Tensor, alpha: Number, beta: Number) -> torch.Tensor:
    return alpha * _softplus(beta * x)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))


def _silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _selu(x: torch.Tensor, alpha: Number, gamma: Number) -> torch.Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))


_LOWEST, _HIGHEST = -3.4028234663852886e38, 3.4028234663852886e38

FUSED_ACTIVATIONS: dict[str, Activation] = {
    "Relu": Activation(torch.relu),
    "Clip": Activation(_clip, (_LOWEST, _HIGHEST)),
    "LeakyRelu": Activation(_leaky_relu, (0.01,), Kind.ROUND),
    "ThresholdedRelu": Activation(_thresholded, (1.0,)),
    "HardSigmoid": Activation(_hard_sigmoid, (0.2, 0.5), Kind.ROUND),
    "HardSwish": Activation(_hard_swish, (), Kind.ROUND),
    "Sigmoid": Activation(torch.sigmoid, (), Kind.FUNCTION),
    "Tanh": Activation(torch.tanh, (), Kind.FUNCTION),
    "Elu": Activation(_elu, (1.0,), Kind.FUNCTION),
    "Selu": Activation(_selu, _SELU, Kind.FUNCTION),
    "ScaledTanh": Activation(_scaled_tanh, (1.0, 1.0), Kind.FUNCTION),
    "Softplus": Activation(_softplus, (), Kind.FUNCTION),
    "ParametricSoftplus": Activation(_parametric_softplus, (1.0, 1.0), Kind.FUNCTION),
    "Softsign": Activation(torch.nn.functional.softsign, (), Kind.ROUND),
    "Gelu": Activation(functools.partial(gelu_of, approximate="none"), (), Kind.FUNCTION),
    "QuickGelu": Activation(quick_gelu, (1.702,), Kind.FUNCTION),
    "Silu": Activation(_silu, (), Kind.FUNCTION),
}


def finish(
    node: Node,
    operator_name: str,
    result: torch.Tensor,
    rounding: Rounding,
    parameters: Sequence[Number] | None = None,
) -> Result:
    """End a fused operator: its sum of products, then the activation its attribute names, if any.

    Parameters
    ----------
    node : Node
        Its ``activation`` attribute names an entry of :data:`FUSED_ACTIVATIONS`; absent or empty means none.
    operator_name : str
        What the observer is told about the part before the activation.
    result, rounding : torch.Tensor, Rounding
        That part and how it rounds.
    parameters : sequence of numbers, or None
        The activation's parameters; None reads ``activation_params``.

    Raises
    ------
    CannotLift
        If the activation is not in the table.
    """
    name = node.text("activation", "")
    if not name:
        return Result(result, rounding)
    activation = FUSED_ACTIVATIONS.get(name)
    if activation is None:
        raise node.refuse(f"it fuses the activation {name!r}, which is not covered")
    result = node.inner(operator_name, result, rounding)
    if parameters is None:
        parameters = _fused_parameters(node)
    # A node may give fewer parameters than the activation has: the rest are the schema's defaults.
    given = list(parameters[: len(activation.defaults)])
    given += activation.defaults[len(given) :]
    return Result(activation.function(result, *given), Rounding(activation.kind))


def _fused_parameters(node: Node) -> list[Number]:
    stored = node.numbers("activation_params", ())
    if not node.lifted:
        return list(stored)
    # Elements of a list attribute are constants of the graph as a float attribute is, one by one.
    return [node.evaluation.attribute(node, f"activation_params[{i}]", v) for i, v in enumerate(stored)]


def _biased(node: Node, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else node.inner("Add", x + bias, Rounding(Kind.ROUND))


@operator("Gelu", domain=MICROSOFT, kind=Kind.FUNCTION)
def gelu_with_erf(node: Node, x: torch.Tensor) -> torch.Tensor:
    """GELU with the error function."""
    return gelu(node, x)


@operator("BiasGelu", domain=MICROSOFT, kind=Kind.FUNCTION)
def bias_gelu(node: Node, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``gelu(a + b)``, b of shape (last dimension of a,)."""
    return gelu(node, _biased(node, a, b))


@operator("FastGelu", domain=MICROSOFT, kind=Kind.FUNCTION)
def gelu_by_tanh(node: Node, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """GELU by tanh of ``x + bias``."""
    return fast_gelu(node, _biased(node, x, bias))


@operator("QuickGelu", domain=MICROSOFT, kind=Kind.FUNCTION)
def gelu_by_sigmoid(node: Node, x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(alpha x)``."""
    return quick_gelu(x, node.number("alpha", 1.702))


@operator("BiasSplitGelu", domain=MICROSOFT, kind=Kind.ROUND)
def bias_split_gelu(node: Node, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``left * gelu(node, right)`` where ``left, right`` are the halves of ``x + bias`` along the last dimension."""
    left, right = _biased(node, x, bias).chunk(2, dim=-1)
    return left * node.inner("Gelu", gelu(node, right), Rounding(Kind.FUNCTION))


@operator("ScaledSiLU", domain=MICROSOFT, kind=Kind.ROUND)
def scaled_silu(node: Node, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """``z * sigmoid(z)`` with ``z = scale * x``; the input ``scale`` replaces the attribute ``alpha``."""
    factor = node.number("alpha", 1.0) if scale is None else scale.reshape(())
    z = node.inner("Mul", factor * x, Rounding(Kind.ROUND))
    return z * node.inner("Sigmoid", torch.sigmoid(z), Rounding(Kind.FUNCTION))


@operator("GatedAdd", domain=MICROSOFT, kind=Kind.ROUND)
def gated_add(node: Node, x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x + y * gate``, gate of shape (..., 1)."""
    return x + node.inner("Mul", y * gate, Rounding(Kind.ROUND))

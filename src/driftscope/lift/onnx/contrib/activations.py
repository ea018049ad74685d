"""Activations of onnxruntime: the GELU family, and the ones its optimiser fuses into a convolution or a product.

Formulas: onnxruntime, ``docs/ContribOperators.md``; ONNX operator schemas for the fused activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.formulas import activations as formulas
from driftscope.lift.formulas.terms import FUNCTION, ROUND, Number
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding

MICROSOFT = "com.microsoft"

Activate = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation that can be fused: its function of ``(x, *parameters)``, their defaults, its rounding."""

    function: Activate
    defaults: tuple[float, ...] = ()
    kind: Kind = Kind.EXACT


def gelu(node: Node, x: torch.Tensor, approximate: str = "none") -> tuple[torch.Tensor, Rounding]:
    """GELU with the error function, or by tanh; same shape and dtype.

    These operators have no attribute that says which: a node is one or the other, and the other kind can be tried.
    The kernel holds the root of 2, or ``sqrt(2 / pi)`` and the cubic's factor, in float32, as the nodes did that it
    was fused from; so they are constants of the graph, ``<node>.sqrt_2`` and so on. A kind that is tried has none.
    """
    kind = node.text("approximate", approximate)
    if kind != approximate:
        y = formulas.gelu_tanh(x) if kind == "tanh" else formulas.gelu(x)
    elif kind == "tanh":
        slope = node.number("sqrt_2_over_pi", formulas.SQRT_2_OVER_PI)
        y = formulas.gelu_tanh(x, slope, node.number("cubic", formulas.GELU_CUBIC))
    else:
        y = formulas.gelu(x, node.number("sqrt_2", formulas.SQRT_2))
    return y, formulas.gelu_rounding(x, y)


def _parametric_softplus(x: torch.Tensor, alpha: Number, beta: Number) -> torch.Tensor:
    return alpha * formulas.softplus(beta * x)


def _thresholded(x: torch.Tensor, alpha: Number) -> torch.Tensor:
    return formulas.thresholded(x, x, alpha)


# The kernels' own defaults, in float32.
_SELU = (1.67326319217681884765625, 1.05070102214813232421875)
_LOWEST, _HIGHEST = -3.4028234663852886e38, 3.4028234663852886e38

FUSED_ACTIVATIONS: dict[str, Activation] = {
    "Relu": Activation(torch.relu),
    "Clip": Activation(formulas.clip, (_LOWEST, _HIGHEST)),
    "LeakyRelu": Activation(formulas.leaky_relu, (0.01,), Kind.ROUND),
    "ThresholdedRelu": Activation(_thresholded, (1.0,)),
    "HardSigmoid": Activation(formulas.hard_sigmoid, (0.2, 0.5), Kind.ROUND),
    "HardSwish": Activation(formulas.hard_swish, (1 / 6,), Kind.ROUND),
    "Sigmoid": Activation(torch.sigmoid, (), Kind.FUNCTION),
    "Tanh": Activation(torch.tanh, (), Kind.FUNCTION),
    "Elu": Activation(formulas.elu, (1.0,), Kind.FUNCTION),
    "Selu": Activation(formulas.selu, _SELU, Kind.FUNCTION),
    "ScaledTanh": Activation(formulas.scaled_tanh, (1.0, 1.0), Kind.FUNCTION),
    "Softplus": Activation(formulas.softplus, (), Kind.FUNCTION),
    "ParametricSoftplus": Activation(_parametric_softplus, (1.0, 1.0), Kind.FUNCTION),
    "Softsign": Activation(formulas.softsign, (), Kind.ROUND),
    "Gelu": Activation(formulas.gelu, (), Kind.FUNCTION),
    "QuickGelu": Activation(formulas.swish, (1.702,), Kind.FUNCTION),
    "Silu": Activation(formulas.swish, (), Kind.FUNCTION),
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
    given += [_held(node, i, activation.defaults[i]) for i in range(len(given), len(activation.defaults))]
    return Result(activation.function(result, *given), Rounding(activation.kind))


def _fused_parameters(node: Node) -> list[Number]:
    stored = node.numbers("activation_params", ())
    if not node.lifted:
        return list(stored)
    # Elements of a list attribute are constants of the graph as a float attribute is, one by one.
    return [node.evaluation.attribute(node, f"activation_params[{i}]", v) for i, v in enumerate(stored)]


def _held(node: Node, place: int, default: float) -> Number:
    """A parameter that the kernel holds, in float32 as if the node gave it; idle limits stay as they are."""
    if not node.lifted or default in (_LOWEST, _HIGHEST):
        return default
    return node.evaluation.attribute(node, f"activation_params[{place}]", default)


def _biased(node: Node, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x if bias is None else node.inner("Add", x + bias, ROUND)


@operator("Gelu", domain=MICROSOFT)
def gelu_with_erf(node: Node, x: torch.Tensor) -> Result:
    """GELU with the error function."""
    return Result(*gelu(node, x))


@operator("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: Node, a: torch.Tensor, b: torch.Tensor) -> Result:
    """``gelu(a + b)``, b of shape (last dimension of a,)."""
    return Result(*gelu(node, _biased(node, a, b)))


@operator("FastGelu", domain=MICROSOFT)
def gelu_by_tanh(node: Node, x: torch.Tensor, bias: torch.Tensor | None = None) -> Result:
    """GELU by tanh of ``x + bias``."""
    return Result(*gelu(node, _biased(node, x, bias), "tanh"))


@operator("QuickGelu", domain=MICROSOFT, kind=Kind.FUNCTION)
def gelu_by_sigmoid(node: Node, x: torch.Tensor) -> torch.Tensor:
    """``x * sigmoid(alpha x)``."""
    return formulas.swish(x, node.number("alpha", 1.702))


@operator("BiasSplitGelu", domain=MICROSOFT, kind=Kind.ROUND)
def bias_split_gelu(node: Node, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``left * gelu(node, right)`` where ``left, right`` are the halves of ``x + bias`` along the last dimension."""
    left, right = _biased(node, x, bias).chunk(2, dim=-1)
    return left * node.inner("Gelu", *gelu(node, right))


@operator("ScaledSiLU", domain=MICROSOFT, kind=Kind.ROUND)
def scaled_silu(node: Node, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
    """``z * sigmoid(z)`` with ``z = scale * x``; the input ``scale`` replaces the attribute ``alpha``."""
    factor = node.number("alpha", 1.0) if scale is None else scale.reshape(())
    z = node.inner("Mul", factor * x, ROUND)
    return z * node.inner("Sigmoid", torch.sigmoid(z), FUNCTION)


@operator("GatedAdd", domain=MICROSOFT, kind=Kind.ROUND)
def gated_add(node: Node, x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``x + y * gate``, gate of shape (..., 1)."""
    return x + node.inner("Mul", y * gate, ROUND)

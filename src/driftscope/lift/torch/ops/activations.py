"""Activation functions: the formulas that ONNX operators have too, on this library's arguments."""

from __future__ import annotations

import torch

from driftscope.lift.formulas import activations as formulas
from driftscope.lift.formulas.terms import EXACT, FUNCTION, ROUND
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.ops.registry import Outputs, rule


@rule("gelu")
def _gelu(call: Call) -> tuple[Outputs, Rounding]:
    """By the definition of each variant, whose constants an exporter may write out and round."""
    x = call.value("self")
    if call.raw("approximate") == "tanh":
        slope = call.hidden("sqrt_2_over_pi", formulas.SQRT_2_OVER_PI)
        y = formulas.gelu_tanh(x, slope, call.hidden("cubic", formulas.GELU_CUBIC))
    else:
        y = formulas.gelu(x, call.hidden("sqrt_2", formulas.SQRT_2))
    return [y], formulas.gelu_rounding(x, y)


@rule("silu", "mish", "log_sigmoid")
def _smooth(call: Call) -> tuple[Outputs, Rounding]:
    function = {"silu": formulas.swish, "mish": formulas.mish, "log_sigmoid": formulas.log_sigmoid}
    return [function[call.facts.name.removesuffix("_")](call.value("self"))], FUNCTION


@rule("log_sigmoid_forward")
def _log_sigmoid(call: Call) -> tuple[Outputs, Rounding]:
    """The second result is saved for a backward pass only, and empty on the CPU of some versions."""
    x, number = call.value("self"), call.entry.outputs[1]
    shape = x.shape if number is None else call.replay.tape.values[number].shape
    saved = torch.exp(-x.abs()) if tuple(shape) == tuple(x.shape) else x.new_zeros(shape)
    return [formulas.log_sigmoid(x), saved], FUNCTION


@rule("softplus")
def _softplus(call: Call) -> tuple[Outputs, Rounding]:
    """Beyond its threshold, which exporters write out too, it is the identity; the native value decides."""
    x, beta = call.value("self"), call.value("beta")
    linear = call.native("self").to(torch.float64) * beta > call.value("threshold")
    return [torch.where(linear, x, formulas.softplus(x, beta))], FUNCTION


@rule("elu")
def _elu(call: Call) -> tuple[Outputs, Rounding]:
    """ELU, and SELU and CELU, which are made of it."""
    x, numbers = call.value("self"), (call.value(n) for n in ("alpha", "scale", "input_scale"))
    return [formulas.elu(x, *numbers)], FUNCTION


@rule("leaky_relu", "prelu", "_prelu_kernel")
def _leaky_relu(call: Call) -> tuple[Outputs, Rounding]:
    if "negative_slope" in call.facts.types:
        return [formulas.leaky_relu(call.value("self"), call.value("negative_slope"))], ROUND
    x, weight = call.value("self"), call.value("weight")
    if call.facts.name == "prelu" and weight.numel() > 1:
        weight = weight.reshape(1, -1, *[1] * (x.dim() - 2))
    return [formulas.leaky_relu(x, weight)], ROUND


@rule("hardsigmoid", "hardswish")
def _hard(call: Call) -> tuple[Outputs, Rounding]:
    """Kernels compute ``min(max(x + 3, 0), 6) / 6``; the sixth is a constant that an exporter writes out and rounds."""
    x, slope = call.value("self"), call.hidden("slope", 1 / 6)
    if call.facts.name.startswith("hardsigmoid"):
        return [formulas.hard_sigmoid(x, slope)], ROUND
    y = formulas.hard_swish(x, slope)
    # The product is rounded before it is divided, even where the gate is one.
    return [y], Rounding(Kind.ROUND, parts=y.abs)


@rule("clamp", "clip", "hardtanh", "clamp_min", "clamp_max", "relu6")
def _clamp(call: Call) -> tuple[Outputs, Rounding]:
    """Limits stay in the type of the value; a tensor of limits is a limit for each element."""
    names = ("min_val", "max_val") if call.facts.name.startswith("hardtanh") else ("min", "max")
    low, high = (call.value(n) if n in call.facts.types else None for n in names)
    if call.facts.name.startswith("relu6"):
        low, high = 0.0, 6.0
    x = call.value("self")
    if not x.is_floating_point():
        return call.natively(), EXACT
    return [formulas.clip(x, low, high)], EXACT


@rule("threshold", "hardshrink", "softshrink")
def _gated(call: Call) -> tuple[Outputs, Rounding]:
    """Where the function jumps, the native value chooses the side."""
    x, native = call.value("self"), call.native("self")
    name = call.facts.name.removesuffix("_")
    if name == "threshold":
        return [formulas.thresholded(x, native, call.value("threshold"), call.value("value"))], EXACT
    bound = call.value("lambd")
    if name == "softshrink":
        return [formulas.shrink(x, native, bound, bound)], ROUND
    return [formulas.hard_shrink(x, native, bound)], EXACT

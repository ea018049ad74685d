"""Quantised values really are integers: quantisation is a native decision, what follows is exact in float64."""

from __future__ import annotations

from typing import Any

import torch

from driftscope.lift.formulas.quantisation import along, dequantised, undoing
from driftscope.lift.formulas.terms import EXACT, ROUND
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.entries import references
from driftscope.lift.torch.ops.decisions import natively
from driftscope.lift.torch.ops.registry import Outputs, rule
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.ulp import ulp_at

# What stands between the rounding to an integer and its storage: a zero point, and the limits that it saturates at.
_SHIFTS, _LIMITS = frozenset({"add", "sub", "view", "reshape", "clone"}), frozenset({"clamp", "minimum", "maximum"})
_SMALL = (torch.int8, torch.uint8)


def left_out(call: Call) -> tuple[Outputs, Rounding] | None:
    """What a step gives where quantisation is undone, if it is a part of one written out, as torchao does: its input.

    Rounding, limits and storage of an integer; a product of such integers is one of floats. None for other steps.
    """
    undone, name, made = undoing(), call.facts.name, call.entry.outputs
    if undone is None or not made or made[0] is None:
        return None
    if name == "round":
        undone.integers.update(_stored_as_integers(call))
    elif name not in (*_LIMITS, "_to_copy", "_int_mm"):
        return None
    if name == "_int_mm" and call.value("self").is_floating_point():
        return [call.value("self") @ call.value("mat2").to(torch.float64)], ROUND
    return ([call.value("self")], EXACT) if made[0] in undone.integers else None


def _stored_as_integers(call: Call) -> set[int]:
    """The values from a rounding to the small integer that it is stored as; none where it is another rounding."""
    tape, reached = call.replay.tape, {o for o in call.entry.outputs if o is not None}
    for entry in tape.entries[call.entry.index + 1 :]:
        if reached.isdisjoint(references(entry.args, entry.kwargs)):
            continue
        made = {o for o in entry.outputs if o is not None}
        if any(tape.values[o].format in _SMALL for o in made):
            return reached | made
        if entry.facts.name not in _SHIFTS | _LIMITS:
            break
        reached |= made
    return set()


@rule("dequantize", "dequantize_self")
def _dequantize(call: Call) -> tuple[Outputs, Rounding]:
    """Multiply the integers by the scale, both exact."""
    q = call.native("self")
    if not q.is_quantized:
        return [q.to(torch.float64)], EXACT
    return [dequantised_exactly(q)], ROUND


def dequantised_exactly(q: torch.Tensor) -> torch.Tensor:
    """What a quantised tensor stands for, in float64."""
    integers = q.int_repr().to(torch.float64)
    if q.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return dequantised(integers, q.q_scale(), q.q_zero_point())
    axis, parameters = q.q_per_channel_axis(), (q.q_per_channel_scales(), q.q_per_channel_zero_points())
    return dequantised(integers, *(along(p.to(torch.float64), axis, q.dim()) for p in parameters))


@rule("dequantize_per_tensor", "dequantize_per_channel")
def _decomposed(call: Call) -> tuple[Outputs, Rounding]:
    """The operators of PyTorch 2 export quantisation."""
    # Where quantisation is undone, what is stored as integers are numbers that were not rounded.
    q = (call.native("input") if undoing() is None else call.value("input")).to(torch.float64)
    return [dequantised(q, *_parameters(call, q.dim()))], ROUND


@rule("quantize_per_tensor", "quantize_per_channel")
def _quantised(call: Call) -> tuple[Outputs, Rounding]:
    """Choose the integers natively; where quantisation is undone, keep the numbers that would be rounded to them."""
    if undoing() is None or call.function.namespace != "quantized_decomposed":
        return natively(call)
    x = call.value("input")
    scale, zero = _parameters(call, x.dim())
    return [x / scale if zero is None else x / scale + zero], ROUND


def _parameters(call: Call, rank: int) -> tuple[Any, Any]:
    """Scale and zero point, in shapes that broadcast."""
    scale, zero, axis = _scale(call), _zero(call), call.raw("axis")
    if axis is None:
        return scale, zero
    scale, zero = (None if p is None else along(p, int(axis), rank) for p in (scale, zero))
    return scale, zero


def _scale(call: Call) -> Any:
    return call.value("scales") if "scales" in call.facts.types else call.value("scale")


def _zero(call: Call) -> Any:
    name = next((n for n in ("zero_points", "zero_point") if n in call.facts.types), None)
    return None if name is None else call.value(name)


@rule("fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
      "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")  # fmt: skip
def _fake(call: Call) -> tuple[Outputs, Rounding]:
    """Find the integers that the kernel chose and multiply them by the scale in float64."""
    native, mask = call.natively()
    scale = call.value("scale")
    if isinstance(scale, torch.Tensor) and scale.dim():
        scale = along(scale, int(call.raw("axis")), native.dim())
    return [torch.round(native.to(torch.float64) / scale) * scale, mask], ROUND


@rule("linear_dynamic", "linear_relu_dynamic")
def _linear_dynamic(call: Call) -> tuple[Outputs, Rounding]:
    """Quantise the activations natively, multiply the integers exactly."""
    reduced = bool(call.raw("reduce_range"))
    chosen = call.native("X") if undoing() is None else call.value("X")
    out = dynamic_product(chosen, call.raw("W_prepack"), call.entry.name, reduced)
    out = torch.relu(out) if "relu" in call.facts.name else out
    return [out], Rounding(Kind.DOT, chosen.shape[-1])


@rule("linear_dynamic_fp16", "linear_relu_dynamic_fp16")
def _linear_in_half(call: Call) -> tuple[Outputs, Rounding]:
    x = call.value("X")
    out = half_product(x, call.raw("W_prepack"), call.entry.name)
    return [torch.relu(out) if "relu" in call.facts.name else out], Rounding(Kind.DOT, x.shape[-1])


def half_product(x: torch.Tensor, packed: Any, name: str) -> torch.Tensor:
    """``x @ weight.T + bias`` of a weight that was packed in float16; everything else is float32."""
    weight, bias = torch.ops.quantized.linear_unpack_fp16(packed)
    exact, left_out, half = weight.detach().to(torch.float64), undoing(), FORMATS["float16"]
    if left_out is not None:
        exact = left_out.weight(name, exact, ulp_at(exact, half), exact.abs() >= half.largest)
    product: torch.Tensor = x @ exact.mT
    return product if bias is None else product + bias.detach().to(torch.float64)


def dynamic_product(x: torch.Tensor, packed: Any, name: str, reduced: bool) -> torch.Tensor:
    """``x @ weight.T + bias`` of a packed int8 weight, x rounded to integers by its own range, exactly from there on.

    Where quantisation is undone, nothing is rounded, and the weight is that of the undoing (``name``).

    Parameters
    ----------
    x : torch.Tensor, (..., K)
        Of the kernel's format, or of float64: its range and integers are chosen in float32.
    packed : torch.ScriptObject
        What ``linear_prepack`` made of weight and bias.
    name : str
    reduced : bool
        Whether activations have 7 bits, so that sums of two products fit 16.
    """
    weight, bias = torch.ops.quantized.linear_unpack(packed)
    exact, left_out = dequantised_exactly(weight), undoing()
    if left_out is None:
        given = x.to(torch.float32)
        scale, zero = torch._choose_qparams_per_tensor(given, reduced)
        x = dequantised_exactly(torch.quantize_per_tensor(given, float(scale), int(zero), torch.quint8))
    else:
        exact = left_out.weight(name, exact, _steps(weight), _edges(weight))
    product = x.to(torch.float64) @ exact.mT
    return product if bias is None else product + bias.detach().to(torch.float64)


def _steps(q: torch.Tensor) -> torch.Tensor:
    """The scale of every element of a quantised tensor."""
    if q.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return torch.full(q.shape, q.q_scale(), dtype=torch.float64)
    return along(q.q_per_channel_scales().to(torch.float64), q.q_per_channel_axis(), q.dim()).expand(q.shape)


def _edges(q: torch.Tensor) -> torch.Tensor:
    integers = q.int_repr()
    limits = torch.iinfo(integers.dtype)
    return (integers == limits.min) | (integers == limits.max)

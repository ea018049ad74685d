"""Quantised values really are integers: quantisation is a native decision, what follows is exact in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.tape_ops.registry import EXACT, ROUND, Outputs, rule

if TYPE_CHECKING:
    from driftscope.lift.tape_call import Call


@rule("dequantize", "dequantize_self")
def _dequantize(call: Call) -> tuple[Outputs, Rounding]:
    """Multiply the integers by the scale, both exact."""
    q = call.native("self")
    if not q.is_quantized:
        return [q.to(torch.float64)], EXACT
    return [_exact(q)], ROUND


def _exact(q: torch.Tensor) -> torch.Tensor:
    if q.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return (q.int_repr().to(torch.float64) - q.q_zero_point()) * q.q_scale()
    shape = [1] * q.dim()
    shape[q.q_per_channel_axis()] = -1
    zeros = q.q_per_channel_zero_points().to(torch.float64).reshape(shape)
    return (q.int_repr().to(torch.float64) - zeros) * q.q_per_channel_scales().to(torch.float64).reshape(shape)


@rule("dequantize_per_tensor", "dequantize_per_channel")
def _decomposed(call: Call) -> tuple[Outputs, Rounding]:
    """The operators of PyTorch 2 export quantisation."""
    q = call.native("input").to(torch.float64)
    scale, zero = _scale(call), _zero(call)
    axis = call.raw("axis")
    if axis is not None:
        shape = [1] * q.dim()
        shape[int(axis)] = -1
        scale, zero = scale.reshape(shape), zero if zero is None else zero.reshape(shape)
    return [(q if zero is None else q - zero) * scale], ROUND


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
        shape = [1] * native.dim()
        shape[int(call.raw("axis"))] = -1
        scale = scale.reshape(shape)
    return [torch.round(native.to(torch.float64) / scale) * scale, mask], ROUND


@rule("linear_dynamic")
def _linear_dynamic(call: Call) -> tuple[Outputs, Rounding]:
    """Quantise the activations natively, multiply the integers exactly."""
    x = call.native("X")
    weight, bias = torch.ops.quantized.linear_unpack(call.raw("W_prepack"))
    scale, zero = torch._choose_qparams_per_tensor(x, bool(call.raw("reduce_range")))
    activations = _exact(torch.quantize_per_tensor(x, float(scale), int(zero), torch.quint8))
    product = activations @ _exact(weight).mT
    out = product if bias is None else product + bias.to(torch.float64)
    return [out], Rounding(Kind.DOT, x.shape[-1])

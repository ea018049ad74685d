"""Fused attention, evaluated as the mathematics it is: scores, softmax, values, each a step of its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.steps import Rounding
from driftscope.lift.tape_ops.products import dot, rank_one
from driftscope.lift.tape_ops.registry import Outputs, rule

if TYPE_CHECKING:
    from driftscope.lift.tape_call import Call

_NAMES = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
          "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
          "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
          "_scaled_dot_product_attention_math_for_mps", "scaled_dot_product_attention")  # fmt: skip
_aten = torch.ops.aten


def attention_scale(call: Call, width: int) -> Any:
    """Give the scale of the scores: the call's own, else ``1/sqrt(E)``, or what replaces it or its square root."""
    given = call.value("scale")
    if given is not None:
        return given
    root = call.hidden("scale_root", None)  # type: ignore[arg-type]
    if root is not None:
        return root * root
    return call.hidden("scale", 1.0 / math.sqrt(width))


@rule(*_NAMES)
def _attention(call: Call) -> tuple[Outputs, Rounding]:
    if call.raw("dropout_p"):
        raise CannotLift(f"{call.entry.where} drops out inside a fused kernel; call eval() on the module.")
    q, k, v = (call.value(n) for n in ("query", "key", "value"))
    mask = call.raw("attn_mask") if "attn_mask" in call.facts.types else call.raw("attn_bias")
    scale = attention_scale(call, q.shape[-1])
    weights, k_v = attention_weights(call, q, k, v, mask, bool(call.raw("is_causal")), scale)
    out = torch.matmul(weights, k_v)
    logsumexp = None
    outputs: Outputs = [out]
    values = call.replay.tape.values
    for number in call.entry.outputs[1:]:
        # Saved for a backward pass only, in the kernel's own shapes.
        logsumexp = None if number is None else torch.zeros(values[number].shape, dtype=_lifted(values[number].format))
        outputs.append(None if logsumexp is None else logsumexp.to(q.device))
    return outputs, dot(k_v.shape[-2], rank_one(weights, k_v))


def _lifted(format: torch.dtype) -> torch.dtype:
    return torch.float64 if format.is_floating_point else format


def attention_weights(
    call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, causal: bool, scale: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Evaluate scores and softmax as inner steps.

    Parameters
    ----------
    q, k, v : torch.Tensor, shapes (..., H, L, E), (..., Hk, S, E), (..., Hk, S, Ev)
        Grouped heads are repeated.
    mask : Operand or None
        Boolean (True takes part) or added to the scores.
    causal : bool
    scale : float or torch.Tensor

    Returns
    -------
    weights, v : torch.Tensor, shapes (..., H, L, S), (..., H, S, Ev)
    """
    accumulated = accumulator(call.formats[0])
    if q.dim() > 2 and k.shape[-3] != q.shape[-3]:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = call.step("scores", _aten.matmul.default, q * scale, k.transpose(-1, -2), format=accumulated)
    bias = None
    if causal:
        keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, float("-inf"))
    if mask is not None:
        bias = mask.lifted()
        if bias.dtype == torch.bool:
            scores = scores.masked_fill(~bias, float("-inf"))
        else:
            scores = call.step("mask", _aten.add.Tensor, scores, bias, format=accumulated)
    # The weights are rounded to the storage format to multiply the values (aten/native/cpu/FlashAttentionKernel.cpp).
    return call.step("softmax", _aten._safe_softmax.default, scores, -1, format=call.formats[0]), v


def accumulator(format: torch.dtype | None) -> torch.dtype:
    """Give the format in which a fused kernel keeps what it does not return: float32, or wider if its result is."""
    return torch.float64 if format == torch.float64 else torch.float32

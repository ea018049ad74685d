"""Fused attention, evaluated as the mathematics it is: scores, softmax, values, each a step of its own."""

from __future__ import annotations

import math
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.formulas.attention import Extras, attention_weights, repeated
from driftscope.lift.formulas.terms import product
from driftscope.lift.steps import Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.ops.registry import Outputs, rule

_NAMES = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
          "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
          "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math",
          "_scaled_dot_product_attention_math_for_mps", "scaled_dot_product_attention")  # fmt: skip


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
    mask = call.value("attn_mask") if "attn_mask" in call.facts.types else call.value("attn_bias")
    scale = attention_scale(call, q.shape[-1])
    weights = weights_of(call, q, repeated(k, q.shape[-3]) if q.dim() > 2 else k, mask, scale)
    v = repeated(v, q.shape[-3]) if q.dim() > 2 else v
    out = torch.matmul(weights, v)
    logsumexp = None
    outputs: Outputs = [out]
    values = call.replay.tape.values
    for number in call.entry.outputs[1:]:
        # Saved for a backward pass only, in the kernel's own shapes.
        logsumexp = None if number is None else torch.zeros(values[number].shape, dtype=_lifted(values[number].format))
        outputs.append(None if logsumexp is None else logsumexp.to(q.device))
    return outputs, product(weights, v)


def _lifted(format: torch.dtype) -> torch.dtype:
    return torch.float64 if format.is_floating_point else format


def weights_of(call: Call, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, scale: Any) -> torch.Tensor:
    """Evaluate scores and softmax as inner steps.

    Parameters
    ----------
    q, k : torch.Tensor, shapes (..., H, L, E), (..., H, S, E)
    mask : torch.Tensor or None
        Boolean (True takes part) or added to the scores.
    scale : float or torch.Tensor

    Returns
    -------
    torch.Tensor, shape (..., H, L, S)
        Rounded to the storage format to multiply the values (aten/native/cpu/FlashAttentionKernel.cpp).
    """
    unseen = None
    if "is_causal" in call.facts.types and call.raw("is_causal"):
        unseen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    if mask is not None and mask.dtype == torch.bool:
        unseen = ~mask if unseen is None else unseen | ~mask
    additions = [mask] if mask is not None and mask.dtype != torch.bool else []
    return attention_weights(call.show, q, k, scale, Extras(additions, unseen=unseen)).weights

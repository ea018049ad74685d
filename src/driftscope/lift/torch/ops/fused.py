"""Whole layers in one kernel, taken apart into the steps that the layer is written in."""

from __future__ import annotations

import math
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.formulas.attention import join_heads, split_heads, weighted_values
from driftscope.lift.formulas.terms import ROUND
from driftscope.lift.steps import Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.ops.attention import weights_of
from driftscope.lift.torch.ops.registry import Outputs, rule

_aten = torch.ops.aten


def _affine(call: Call, name: str, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    return call.step(name, _aten.linear.default, x, weight, bias)


def _normed(call: Call, name: str, x: torch.Tensor, index: int) -> torch.Tensor:
    weight, bias = call.raw(f"norm_weight_{index}"), call.raw(f"norm_bias_{index}")
    shape = [x.shape[-1]]
    return call.step(name, _aten.layer_norm.default, x, shape, weight, bias, call.value("eps"))


def _mask(call: Call) -> torch.Tensor | None:
    """Turn the kernel's mask (True is left out) into one that is True where a key takes part in (B, H, L, S).

    Mask types: 0 is (L, S), 1 is padding of keys (B, S), 2 is (B, H, L, S) of both.
    """
    mask = call.value("mask")
    if mask is None:
        return None
    seen: torch.Tensor = mask == 0
    return seen[:, None, None, :] if call.raw("mask_type") == 1 else seen


def _self_attention(call: Call, x: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-head attention of `x` (B, L, E) to itself; gives the projected output and the weights."""
    qkv = _affine(call, "qkv", x, call.raw("qkv_weight"), call.raw("qkv_bias"))
    q, k, v = (split_heads(t, heads) for t in qkv.chunk(3, -1))
    scale = call.hidden("scale", 1.0 / math.sqrt(q.shape[-1]))
    mask = _mask(call)
    weights = weights_of(call, q, k, mask, scale)
    joined = join_heads(weighted_values(call.show, weights, v))
    return _affine(call, "projection", joined, call.raw("proj_weight"), call.raw("proj_bias")), weights


@rule("_transformer_encoder_layer_fwd")
def _encoder_layer(call: Call) -> tuple[Outputs, Rounding]:
    """The inference kernel of `nn.TransformerEncoderLayer`, batch first."""
    x, first = call.value("src"), bool(call.raw("norm_first"))
    heads = int(call.raw("num_heads"))
    inner = _normed(call, "norm1", x, 1) if first else x
    attended, _ = _self_attention(call, inner, heads)
    x = call.step("residual1", _aten.add.Tensor, x, attended)
    x = x if first else _normed(call, "norm1", x, 1)
    inner = _normed(call, "norm2", x, 2) if first else x
    hidden = _affine(call, "linear1", inner, call.raw("ffn_weight_1"), call.raw("ffn_bias_1"))
    activation = _aten.gelu.default if call.raw("use_gelu") else _aten.relu.default
    hidden = call.step("activation", activation, hidden)
    hidden = _affine(call, "linear2", hidden, call.raw("ffn_weight_2"), call.raw("ffn_bias_2"))
    if first:
        return [x + hidden], ROUND
    return [_normed(call, "norm2", call.step("residual2", _aten.add.Tensor, x, hidden), 2)], Rounding()


@rule("_native_multi_head_attention")
def _multi_head(call: Call) -> tuple[Outputs, Rounding]:
    """The inference kernel of `nn.MultiheadAttention`; only self-attention reaches it on the CPU."""
    query, key, value = (call.raw(n) for n in ("query", "key", "value"))
    if not _same_tensor(query, key) or not _same_tensor(query, value):
        raise CannotLift(f"{call.entry.where} attends to other tensors than its query inside a fused kernel.")
    out, weights = _self_attention(call, query.lifted(), int(call.raw("num_head")))
    shown: torch.Tensor | None = None
    second = call.entry.outputs[1] if len(call.entry.outputs) > 1 else None
    if second is not None:
        shape = call.replay.tape.values[second].shape
        shown = weights.mean(1) if call.raw("average_attn_weights") else weights
        shown = shown if tuple(shown.shape) == shape else torch.zeros(shape, dtype=torch.float64)
    return [out, shown], Rounding()


def _same_tensor(a: Any, b: Any) -> bool:
    left, right = a.lifted(), b.lifted()
    return left is right or (left.data_ptr() == right.data_ptr() and left.shape == right.shape)

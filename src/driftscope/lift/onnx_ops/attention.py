"""Attention and rotary embedding of the standard domain (opset 23 on).

Shapes are written B batch, N query heads, M key heads, S query length, T key length, H head size. Scores, softmax
and the weighted sum are shown to the observer as steps of their own: noise enters at each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from driftscope.lift.onnx_ops.registry import Node, Number, Result, dot, matmul_squares, operator
from driftscope.lift.onnx_types import FORMAT_OF_ELEMENT
from driftscope.lift.steps import Kind, Rounding


def _heads(x: Tensor, count: int) -> Tensor:
    """(B, S, count * H) to (B, count, S, H)."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def _visible(node: Node, queries: int, keys: int, offset: Tensor | int, device: torch.device) -> Tensor | None:
    """Keys a query may see by causality and window, (S, T) or (B, 1, S, T); None for all."""
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    causal = node.integer("is_causal", 0) == 1
    if not causal and left < 0 and right < 0:
        return None
    place = torch.arange(queries, device=device)[:, None] + offset
    behind = place - torch.arange(keys, device=device)
    seen = torch.ones_like(behind, dtype=torch.bool)
    if causal:
        seen &= behind >= 0
    if left >= 0:
        seen &= behind <= left
    if right >= 0:
        seen &= -behind <= right
    return seen


def _blocked(seen: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(~seen, -torch.inf)


def _bias(node: Node, q: Tensor, keys: int, mask: Tensor | None, past: int | None, lengths: Tensor | None) -> Tensor:
    """Everything added to the scores: mask, causality, window, padding; broadcasts to (B, N, S, T).

    A 0-dim zero where nothing is added.
    """
    queries = q.shape[2]
    bias = q.new_zeros(())
    if mask is not None:
        missing = keys - mask.shape[-1]
        if mask.dtype == torch.bool:
            mask = _blocked(F.pad(mask, (0, missing), value=False), q)
        else:
            mask = F.pad(mask.to(q.dtype), (0, missing), value=-math.inf)
        bias = bias + mask
    offset: Tensor | int = past or 0
    if past is None and lengths is not None:
        offset = (lengths.to(q.device) - queries).reshape(-1, 1, 1, 1)
    seen = _visible(node, queries, keys, offset, q.device)
    if seen is not None:
        bias = bias + _blocked(seen, q)
    if lengths is not None:
        valid = torch.arange(keys, device=q.device) < lengths.to(q.device).reshape(-1, 1, 1, 1)
        bias = bias + _blocked(valid, q)
    return bias


def _scores(node: Node, q: Tensor, k: Tensor) -> Tensor:
    scale: Number = node.number("scale") if node.has("scale") else 1 / math.sqrt(q.shape[-1])
    columns = k.transpose(-1, -2)
    rounding = dot(q.shape[-1], lambda: scale * scale * matmul_squares(q, columns))
    return node.inner("QK", scale * torch.matmul(q, columns), rounding, inputs=(q, k))


def _capped(node: Node, scores: Tensor) -> Tensor:
    cap = node.number("softcap", 0.0)
    if not isinstance(cap, Tensor) and cap <= 0:
        return scores
    return node.inner("Softcap", cap * torch.tanh(scores / cap), Rounding(Kind.FUNCTION), inputs=(scores,))


def _weights(node: Node, total: Tensor, bias: Tensor) -> Tensor:
    wide = total
    if not node.lifted and node.has("softmax_precision"):
        wide = total.to(FORMAT_OF_ELEMENT[node.integer("softmax_precision")])
    weights = torch.softmax(wide, -1).to(total.dtype)
    if bias.dim() and bias.shape[-1]:
        # A query that may see no key has a row of zeros, whatever its scores are.
        blind = torch.isneginf(bias.amax(-1, keepdim=True))
        weights = torch.where(blind, torch.zeros((), dtype=weights.dtype, device=weights.device), weights)
    return node.inner("Softmax", weights, Rounding(Kind.SOFTMAX, total.shape[-1]), inputs=(total,))


@operator("Attention", since=23)
def attention(node: Node, q: Tensor, k: Tensor, v: Tensor, *optional: Tensor | None) -> Result:
    """``softmax(scale Q K' + bias) V`` with grouped heads, caches, causality and windows (Vaswani et al., 2017)."""
    mask, past_key, past_value, lengths = (*optional, None, None, None, None)[:4]
    flat = q.dim() == 3
    if flat:
        q = _heads(q, node.integer("q_num_heads"))
        k, v = (_heads(x, node.integer("kv_num_heads")) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    present = (k, v)
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    past = None if past_key is None else past_key.shape[2]
    bias = _bias(node, q, k.shape[2], mask, past, lengths)
    raw = _scores(node, q, k)
    capped = _capped(node, raw)
    total = capped
    if bias.dim():
        total = node.inner("Add", capped + bias, Rounding(Kind.ROUND), inputs=(capped, bias))
    weights = _weights(node, total, bias)
    y = node.inner("PV", torch.matmul(weights, v), dot(v.shape[2], lambda: matmul_squares(weights, v)))
    if flat:
        y = y.transpose(1, 2).flatten(2)
    shown = (raw, capped, total, weights)[node.integer("qk_matmul_output_mode", 0)]
    return Result((y, *present, shown), Rounding(Kind.EXACT), [node.format(0), *[node.format(1)] * 2, node.format(0)])


@operator("RotaryEmbedding", since=23)
def rotary_embedding(node: Node, x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None = None) -> Result:
    """Rotate pairs of elements by the angle of their position (Su et al., 2021)."""
    flat = x.dim() == 3
    rows = x.reshape(*x.shape[:2], node.integer("num_heads"), -1) if flat else x.transpose(1, 2)
    width = node.integer("rotary_embedding_dim", 0) or rows.shape[-1]
    turned, rest = rows[..., :width], rows[..., width:]
    if positions is not None:
        cosines, sines = (t[positions.to(t.device)] for t in (cosines, sines))
    cosine, sine = cosines.unsqueeze(2), sines.unsqueeze(2)
    if node.integer("interleaved", 0):
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    real, imaginary = cosine * first - sine * second, sine * first + cosine * second
    if node.integer("interleaved", 0):
        turned = torch.stack([real, imaginary], -1).reshape(turned.shape)
    else:
        turned = torch.cat([real, imaginary], -1)
    y = torch.cat([turned, rest], -1)
    return Result(y.reshape(x.shape) if flat else y.transpose(1, 2), dot(2), [node.format(0)])

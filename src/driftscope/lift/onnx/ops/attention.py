"""Attention and rotary embedding of the standard domain (opset 23 on).

Shapes are written B batch, N query heads, M key heads, S query length, T key length, H head size. Scores, softmax
and the weighted sum are shown to the observer as steps of their own: noise enters at each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from driftscope.lift.formulas.attention import (
    Extras,
    attention_weights,
    hidden,
    join_heads,
    repeated,
    split_heads,
    weighted_values,
)
from driftscope.lift.formulas.rotary import rotated
from driftscope.lift.formulas.terms import EXACT, Number, dot
from driftscope.lift.onnx.registry import Node, Result, operator


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


def _bias(node: Node, q: Tensor, keys: int, mask: Tensor | None, past: int | None, lengths: Tensor | None) -> Tensor:
    """Everything added to the scores: mask, causality, window, padding; broadcasts to (B, N, S, T).

    A 0-dim zero where nothing is added.
    """
    queries = q.shape[2]
    bias = q.new_zeros(())
    if mask is not None:
        missing = keys - mask.shape[-1]
        if mask.dtype == torch.bool:
            mask = hidden(F.pad(mask, (0, missing), value=False), q)
        else:
            mask = F.pad(mask.to(q.dtype), (0, missing), value=-math.inf)
        bias = bias + mask
    offset: Tensor | int = past or 0
    if past is None and lengths is not None:
        offset = (lengths.to(q.device) - queries).reshape(-1, 1, 1, 1)
    seen = _visible(node, queries, keys, offset, q.device)
    if seen is not None:
        bias = bias + hidden(seen, q)
    if lengths is not None:
        valid = torch.arange(keys, device=q.device) < lengths.to(q.device).reshape(-1, 1, 1, 1)
        bias = bias + hidden(valid, q)
    return bias


@operator("Attention", since=23)
def attention(node: Node, q: Tensor, k: Tensor, v: Tensor, *optional: Tensor | None) -> Result:
    """``softmax(scale Q K' + bias) V`` with grouped heads, caches, causality and windows."""
    mask, past_key, past_value, lengths = (*optional, None, None, None, None)[:4]
    flat = q.dim() == 3
    if flat:
        q = split_heads(q, node.integer("q_num_heads"))
        k, v = (split_heads(x, node.integer("kv_num_heads")) for x in (k, v))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    present = (k, v)
    k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    past = None if past_key is None else past_key.shape[2]
    bias = _bias(node, q, k.shape[2], mask, past, lengths)
    scale: Number = node.number("scale") if node.has("scale") else 1 / math.sqrt(q.shape[-1])
    extras = Extras([bias] if bias.dim() else (), node.number("softcap", 0.0))
    scores = attention_weights(node.inner, q, k, scale, extras)
    y = weighted_values(node.inner, scores.weights, v)
    shown = (scores.raw, scores.capped, scores.total, scores.weights)[node.integer("qk_matmul_output_mode", 0)]
    formats = [node.format(0), *[node.format(1)] * 2, node.format(0)]
    return Result((join_heads(y) if flat else y, *present, shown), EXACT, formats)


@operator("RotaryEmbedding", since=23)
def rotary_embedding(node: Node, x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None = None) -> Result:
    """Rotate pairs of elements by the angle of their position."""
    heads = x if x.dim() == 4 else split_heads(x, node.integer("num_heads"))
    if positions is not None:
        cosines, sines = (t[positions.to(t.device)] for t in (cosines, sines))
    width = node.integer("rotary_embedding_dim", 0) or heads.shape[-1]
    cosines, sines = (t[..., : width // 2].unsqueeze(1) for t in (cosines, sines))
    turned, rounding = rotated(heads, cosines, sines, interleaved=node.integer("interleaved", 0) == 1)
    if x.dim() == 4:
        return Result(turned, rounding, [node.format(0)])
    squares = rounding.squares
    joined = None if squares is None else lambda: join_heads(squares())
    return Result(join_heads(turned), dot(2, joined), [node.format(0)])

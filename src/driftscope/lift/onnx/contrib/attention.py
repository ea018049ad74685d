"""Attention as onnxruntime fuses it: Attention, MultiHeadAttention and its decoder form.

Every inner product, sum and softmax is shown to the observer as a step of its own, so that noise enters where
the kernels round. Semantics: onnxruntime, ``docs/ContribOperators.md`` and ``contrib_ops/cpu/bert``.

Shapes are written B batch, N heads, S query length, P past length, T total key length, H head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from driftscope.lift.formulas.attention import Extras, attention_weights, join_heads, split_heads, weighted_values
from driftscope.lift.formulas.terms import ROUND, Number, dot, matmul_squares, matrix_product
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.registry import Node, Result, operator

_MASK_FILTER = -10000.0
_LOWEST = -3.4028234663852886e38  # what the kernels put above the causal diagonal


@dataclass(frozen=True, slots=True)
class Heads:
    """Query (B, N, S, H), key (B, N, T, H) and value (B, N, T, H_v), split into heads."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Attended:
    """The result (B, N, S, H_v), and the scores (B, N, S, T) before the softmax."""

    value: torch.Tensor
    scores: torch.Tensor


def scale_of(node: Node, width: int) -> Number:
    """What scores are multiplied by: the attribute, else ``1 / sqrt(H)``."""
    given = node.has("scale") and node.setting("scale") != 0
    return node.number("scale") if given else 1 / math.sqrt(width)


def attend(node: Node, heads: Heads, additions: list[torch.Tensor]) -> Attended:
    """``softmax(scale Q K' + additions) V``; each addition broadcasts to (B, N, S, T)."""
    scale = scale_of(node, heads.query.shape[-1])
    scores = attention_weights(node.inner, heads.query, heads.key, scale, Extras(additions))
    return Attended(weighted_values(node.inner, scores.weights, heads.value), scores.total)


def causal_mask(like: torch.Tensor, queries: int, keys: int) -> torch.Tensor:
    """(S, T) in the dtype of ``like``: zero up to the diagonal that ends in the corner, the lowest float above it."""
    ahead = torch.ones(queries, keys, dtype=torch.bool, device=like.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=like.dtype, device=like.device).masked_fill(ahead, _LOWEST)


def padding_mask(node: Node, mask: torch.Tensor, batch: int, queries: int, total: int) -> torch.Tensor:
    """What a mask input adds to the scores: ``mask_filter_value`` where it hides a key, else 0.

    Parameters
    ----------
    node : Node
    mask : torch.Tensor of int32
        (B, T), (B, S, T) or (B, 1, M, M): 1 where a key is seen. (B,) or (2B,): ends, then starts, of the
        keys seen. (3B + 2,): lengths, then running sums of lengths.
    batch, queries, total : int
        B, S and T.

    Returns
    -------
    torch.Tensor, broadcastable to (B, N, S, T)
    """
    if mask.dim() == 1:
        seen = _seen_between(node, mask, batch, total)[:, None, None, :]
    elif mask.dim() == 2:
        seen = (mask > 0)[:, None, None, :]
    elif mask.dim() == 3:
        seen = (mask > 0)[:, None]
    else:
        seen = (mask > 0)[:, :, total - queries : total, :total]
    dtype = torch.float64 if node.lifted else torch.float32
    hidden = torch.as_tensor(node.number("mask_filter_value", _MASK_FILTER), dtype=dtype, device=mask.device)
    return torch.where(seen, torch.zeros_like(hidden), hidden)


def _seen_between(node: Node, mask: torch.Tensor, batch: int, total: int) -> torch.Tensor:
    count = mask.shape[0]
    if count not in (batch, 2 * batch, 3 * batch + 2):
        raise node.refuse(f"its mask has {count} elements for a batch of {batch}")
    place = torch.arange(total, device=mask.device)
    seen: torch.Tensor = place < mask[:batch, None]
    if count == 2 * batch:
        seen = seen & (place >= mask[batch:, None])
    return seen


def _additions(node: Node, heads: Heads, mask: torch.Tensor | None, bias: torch.Tensor | None) -> list[torch.Tensor]:
    batch, _, queries, _ = heads.query.shape
    total = heads.key.shape[2]
    additions = [] if bias is None else [bias]
    if mask is not None:
        additions.append(padding_mask(node, mask, batch, queries, total))
    if node.integer("unidirectional", 0) and queries > 1:
        additions.append(causal_mask(heads.query, queries, total))
    return additions


def _refuse_shared_buffer(node: Node, *inputs: torch.Tensor | None) -> None:
    if node.integer("past_present_share_buffer", 0) or any(x is not None for x in inputs):
        raise node.refuse("past and present share a buffer, so its outputs depend on memory outside the graph")


@operator("Attention", domain=MICROSOFT)
def attention(node: Node, x: torch.Tensor, weights: torch.Tensor, *rest: torch.Tensor | None) -> Result:
    """Projection to Q, K, V and attention.

    Parameters
    ----------
    node : Node
    x : torch.Tensor, (B, S, D)
    weights : torch.Tensor, (D, sum of qkv_hidden_sizes), in the order Q, K, V
    *rest : torch.Tensor or None
        bias (sum of qkv_hidden_sizes,); mask, see :func:`padding_mask`; past (2, B, N, P, H); what is added to
        the scores, broadcastable to (B, N, S, T); a past length, only with a shared buffer, which is refused.

    Returns
    -------
    Result
        (B, S, N * H_v) and the present state (2, B, N, T, H).
    """
    bias, mask, past, attention_bias, past_length = (*rest, *[None] * 5)[:5]
    _refuse_shared_buffer(node, past_length)
    if node.integer("do_rotary", 0):
        raise node.refuse("it rotates queries and keys inside (do_rotary)")
    projected = matrix_product(x, weights)
    projected = projected if bias is None else projected + bias
    rounding = dot(x.shape[-1] + (bias is not None), lambda: matmul_squares(x, weights))
    return attend_projected(node, node.inner("QKV", projected, rounding), mask, past, attention_bias)


def attend_projected(
    node: Node,
    projected: torch.Tensor,
    mask: torch.Tensor | None,
    past: torch.Tensor | None,
    attention_bias: torch.Tensor | None,
) -> Result:
    """Attention after its projection; ``projected`` is (B, S, sum of qkv_hidden_sizes)."""
    sizes = node.integers("qkv_hidden_sizes", [projected.shape[-1] // 3] * 3)
    query, key, value = (split_heads(t, node.integer("num_heads")) for t in torch.split(projected, sizes, -1))
    if past is not None:
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
    heads = Heads(query, key, value)
    done = attend(node, heads, _additions(node, heads, mask, attention_bias))
    present = torch.stack([key, value]) if node.wants(1) else None
    return Result((join_heads(done.value), present))


def _unpacked(
    query: torch.Tensor, key: torch.Tensor | None, value: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Q, K, V as (B, S, N * H), or (B, N, S, H) where the node gives them so."""
    if query.dim() == 5:
        packed = query.unbind(3)
    elif key is not None and key.dim() == 5:
        packed = (query, *key.unbind(3))
    elif key is None:
        packed = query.chunk(3, -1)
        return packed[0], packed[1], packed[2]
    else:
        return query, key, key if value is None else value
    q, k, v = packed
    return (q.flatten(2) if q.dim() == 4 else q), k.flatten(2), v.flatten(2)


@operator("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    node: Node,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    *rest: torch.Tensor | None,
) -> Result:
    """Attention of projected queries, keys and values.

    Parameters
    ----------
    node : Node
    query, key, value : torch.Tensor
        (B, S, N * H), (B, L, N * H), (B, L, N * H_v); or query (B, S, N, 3, H); or key (B, L, N, 2, H); or key
        and value (B, N, L, H), used as they are.
    *rest : torch.Tensor or None
        bias (2 N H + N H_v,); mask, see :func:`padding_mask`; what is added to the scores, broadcastable to
        (B, N, S, T); past_key, past_value (B, N, P, H); then inputs of a shared buffer, which are refused.

    Returns
    -------
    Result
        (B, S, N * H_v), present key and value (B, N, T, H), and the scores before the softmax (B, N, S, T).
    """
    bias, mask, attention_bias, past_key, past_value = (*rest, *[None] * 5)[:5]
    _refuse_shared_buffer(node, *rest[5:])
    heads = _biased_heads(node, _unpacked(query, key, value), bias)
    if past_key is not None and past_value is not None:
        heads = Heads(heads.query, torch.cat([past_key, heads.key], 2), torch.cat([past_value, heads.value], 2))
    done = attend(node, heads, _additions(node, heads, mask, attention_bias))
    return Result((join_heads(done.value), heads.key, heads.value, done.scores))


def _biased_heads(
    node: Node, given: tuple[torch.Tensor, torch.Tensor, torch.Tensor], bias: torch.Tensor | None
) -> Heads:
    """Add the projections' bias and split into heads."""
    count = node.integer("num_heads")
    if bias is not None:
        sizes = [given[0].shape[-1], given[0].shape[-1], bias.shape[0] - 2 * given[0].shape[-1]]
        parts = zip("QKV", given, torch.split(bias, sizes), strict=True)
        # Keys and values that come split into heads already are those of an encoder, projected before.
        given_biased = [t if t.dim() == 4 else node.inner(f"Add {name}", t + b, ROUND) for name, t, b in parts]
        given = (given_biased[0], given_biased[1], given_biased[2])
    return Heads(*(split_heads(t, count) for t in given))


@operator("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_multi_head_attention(
    node: Node,
    query: torch.Tensor,
    key: torch.Tensor | None = None,
    value: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    attention_bias: torch.Tensor | None = None,
    *rest: torch.Tensor | None,
) -> Result:
    """MultiHeadAttention for one new token; ``rest`` is past_key, past_value, then buffer inputs, then bias."""
    past_key, past_value, length, beam, indirection, bias = (*rest, *[None] * 6)[:6]
    _refuse_shared_buffer(node, length, beam, indirection)
    result: Result = multi_head_attention(node, query, key, value, bias, mask, attention_bias, past_key, past_value)
    return result

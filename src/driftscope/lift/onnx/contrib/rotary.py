"""Rotary position embedding, and the grouped attention that has it built in.

Semantics: onnxruntime, ``docs/ContribOperators.md`` (RotaryEmbedding, GroupQueryAttention) and
``contrib_ops/cpu/bert/gqa_attention_base.h``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driftscope.lift.formulas.attention import (
    Extras,
    attention_weights,
    join_heads,
    repeated,
    split_heads,
    weighted_values,
)
from driftscope.lift.formulas.normalisations import normalised
from driftscope.lift.formulas.rotary import rotated
from driftscope.lift.formulas.terms import dot, normed
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.contrib.attention import scale_of
from driftscope.lift.onnx.registry import Node, Result, integers_of, operator


@operator("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    node: Node, x: torch.Tensor, positions: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> Result:
    """Rotate x by the angles of its positions.

    Parameters
    ----------
    node : Node
    x : torch.Tensor, (B, S, N * H) or (B, N, S, H)
    positions : torch.Tensor of int64
        (B, S), or (1,): the position of the first token of every row.
    cosine, sine : torch.Tensor, (M, R / 2)
    """
    if positions.numel() == 1:
        length = x.shape[2] if x.dim() == 4 else x.shape[1]
        positions = positions.reshape(1, 1) + torch.arange(length, device=positions.device)
    return _rotated_input(node, x, cosine[positions], sine[positions])


def _rotated_input(node: Node, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> Result:
    """Rotate x (B, S, N * H) or (B, N, S, H) by angles (B or 1, S, R / 2)."""
    heads = node.integer("num_heads", 0)
    if x.dim() == 3 and not (heads and node.integer("rotary_embedding_dim", 0)):
        heads = x.shape[-1] // (2 * cosine.shape[-1])
    interleaved = bool(node.integer("interleaved", 0))
    value, rounding = rotated(split_heads(x, heads), cosine[:, None], sine[:, None], interleaved=interleaved)
    if x.dim() == 4:
        return Result(value, rounding)
    squares = rounding.squares
    return Result(join_heads(value), dot(2, None if squares is None else lambda: join_heads(squares())))


@operator("MRotaryEmbedding", domain=MICROSOFT)
def multimodal_rotary_embedding(
    node: Node, x: torch.Tensor, positions: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
) -> Result:
    """RotaryEmbedding with positions in time, height and width (3, B, S), each for its share of the angles.

    ``mrope_section`` says how many angles each has: one after the other, or every third where ``mrope_layout``
    is 1.
    """
    sections = node.integers("mrope_section")
    stream = torch.zeros(cosine.shape[-1], dtype=torch.int64, device=x.device)
    if node.integer("mrope_layout", 0):
        for index in (1, 2):
            stream[index : sections[index] * 3 : 3] = index
    else:
        stream[sections[0] :] = 1
        stream[sections[0] + sections[1] :] = 2
    # (B, S, R / 2): the position that each angle is looked up at.
    place = positions[stream].permute(1, 2, 0)
    angle = torch.arange(cosine.shape[-1], device=x.device)
    return _rotated_input(node, x, cosine[place, angle], sine[place, angle])


@dataclass(frozen=True, slots=True)
class Grouped:
    """What GroupQueryAttention computes with.

    Attributes
    ----------
    query : torch.Tensor, (B, N, S, H)
    key, value : torch.Tensor, (B, N_kv, S, H)
        Of the new tokens.
    past_key, past_value : torch.Tensor or None, (B, N_kv, P, H)
    lengths : list of int
        Keys seen by the last token of each row, new ones included.
    total : int
        The greatest of them.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    past_key: torch.Tensor | None
    past_value: torch.Tensor | None
    lengths: list[int]
    total: int

    @property
    def starts(self) -> list[int]:
        """Position of the first new token of each row; a first prompt starts at 0 whatever its length."""
        new = self.query.shape[2]
        return [0 if self.total == new else length - new for length in self.lengths]


def _grouped(node: Node, tensors: tuple[torch.Tensor | None, ...]) -> Grouped:
    query, key, value, past_key, past_value, seqlens, total = tensors[:7]
    if query is None or seqlens is None or total is None:
        raise node.refuse("it has no query, seqlens_k or total_sequence_length")
    heads, kv_heads = node.integer("num_heads"), node.integer("kv_num_heads")
    if key is None or value is None:
        width = query.shape[-1] // (heads + 2 * kv_heads)
        query, key, value = torch.split(query, [heads * width, kv_heads * width, kv_heads * width], -1)
    lengths = [n + 1 for n in integers_of(seqlens) or []]
    return Grouped(
        split_heads(query, heads),
        split_heads(key, kv_heads),
        split_heads(value, kv_heads),
        past_key,
        past_value,
        lengths * query.shape[0] if len(lengths) == 1 else lengths,
        (integers_of(total) or [0])[0],
    )


def _refuse_quantised(node: Node) -> None:
    quantised = any(node.text(name, "NONE") != "NONE" for name in ("k_quant_type", "v_quant_type"))
    if quantised or node.integer("sliding_window_cache", 0):
        raise node.refuse("its key and value cache is quantised or a sliding window")


def _turned(node: Node, given: Grouped, tensors: tuple[torch.Tensor | None, ...]) -> Grouped:
    """Queries and keys normalised per head and rotated, where the node asks for it."""
    query, key = given.query, given.key
    for name, weight in zip(("query", "key"), tensors[14:16], strict=True):
        if weight is not None:
            x = query if name == "query" else key
            scaled = normalised(x, [-1], node.number("qk_norm_epsilon", 1e-6), centred=False).value * weight
            scaled = node.inner(f"RMSNorm {name}", scaled.to(x.dtype), normed(x.shape[-1]))
            query, key = (scaled, key) if name == "query" else (query, scaled)
    cosine, sine, positions = tensors[7:10]
    if node.integer("do_rotary", 0):
        if cosine is None or sine is None:
            raise node.refuse("do_rotary is set and cos_cache or sin_cache is left out")
        steps = torch.arange(query.shape[2], device=query.device)
        if positions is None:
            positions = torch.stack([steps + start for start in given.starts])
        elif given.total == query.shape[2]:
            # A first prompt goes on from the first position given, in every row.
            positions = positions.reshape(-1)[:1, None] + steps
        angles = (cosine[positions][:, None], sine[positions][:, None])
        interleaved = bool(node.integer("rotary_interleaved", 0))
        query = node.inner("Rotary query", *rotated(query, *angles, interleaved=interleaved))
        key = node.inner("Rotary key", *rotated(key, *angles, interleaved=interleaved))
    return Grouped(query, key, given.value, given.past_key, given.past_value, given.lengths, given.total)


def _joined(past: torch.Tensor | None, new: torch.Tensor, given: Grouped) -> torch.Tensor:
    """The cache after the step (B, N_kv, max(P, T), H): past, new tokens at their positions, zeros."""
    length = max(given.total, 0 if past is None else past.shape[2])
    joined = new.new_zeros(*new.shape[:2], length, new.shape[3])
    for row, start in enumerate(given.starts):
        if past is not None:
            joined[row, :, :start] = past[row, :, :start]
        joined[row, :, start : start + new.shape[2]] = new[row]
    return joined


def _unseen(node: Node, given: Grouped, keys: int) -> torch.Tensor:
    """Which keys a query may not see, (B, 1, S, keys)."""
    new = given.query.shape[2]
    device = given.query.device
    key = torch.arange(keys, device=device)
    rows = []
    for start, length in zip(given.starts, given.lengths, strict=True):
        last = start + torch.arange(new, device=device)[:, None]
        hidden = (key >= length).expand(new, keys)
        if node.integer("causal", 1):
            hidden = hidden | (key > last)
        window = node.integer("local_window_size", -1)
        if window > 0:
            hidden = hidden | (key <= last - window)
        rows.append(hidden)
    return torch.stack(rows)[:, None]


@operator("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: Node, *tensors: torch.Tensor | None) -> Result:
    """Causal attention whose N query heads share N_kv key heads, with a cache.

    Parameters
    ----------
    node : Node
    *tensors : torch.Tensor or None
        query (B, S, N * H) or packed (B, S, (N + 2 N_kv) * H), key, value, past_key, past_value
        (B, N_kv, P, H), seqlens_k (B,), total_sequence_length, cos_cache, sin_cache (M, R / 2), position_ids
        (B, S), attention_bias, head_sink (N,), k_scale, v_scale, q_norm_weight, k_norm_weight (H,).

    Returns
    -------
    Result
        (B, S, N * H); present key and value (B, N_kv, max(P, T), H); scores before (``qk_output`` 1) or
        after (2) the softmax.
    """
    tensors = (*tensors, *[None] * (16 - len(tensors)))
    _refuse_quantised(node)
    given = _turned(node, _grouped(node, tensors), tensors)
    present_key = _joined(given.past_key, given.key, given)
    present_value = _joined(given.past_value, given.value, given)
    heads = given.query.shape[1]
    keys, values = (repeated(t[:, :, : given.total], heads) for t in (present_key, present_value))
    unseen = _unseen(node, given, given.total)
    additions = [] if tensors[10] is None else [tensors[10]]
    cap = node.number("softcap") if node.has("softcap") and node.setting("softcap") > 0 else 0.0
    sink = tensors[11]
    if sink is None and node.integer("smooth_softmax", -1) == 1:
        sink = given.query.new_zeros(heads)
    scale = scale_of(node, given.query.shape[-1])
    scores = attention_weights(node.inner, given.query, keys, scale, Extras(additions, cap, sink, unseen))
    value = weighted_values(node.inner, scores.weights, values)
    shown = {1: scores.total.masked_fill(unseen, 0), 2: scores.weights}.get(node.integer("qk_output", 0))
    return Result((join_heads(value), present_key, present_value, shown))

"""Attention without a softmax: a recurrent state per head, and the short causal convolution that comes before it.

Semantics: onnxruntime, ``docs/ContribOperators.md`` (LinearAttention, LinearAttentionGate, CausalConvWithState).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from driftscope.lift.formulas.activations import softplus, swish
from driftscope.lift.formulas.attention import join_heads, split_heads
from driftscope.lift.formulas.terms import Number, dot, matmul_squares
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding


@dataclass(slots=True)
class Recurrence:
    """What the recurrence reads at every token; L tokens, N key heads.

    Attributes
    ----------
    key, value : torch.Tensor, (B, N, L, d_k), (B, N, L, d_v)
    keep : torch.Tensor or None, (B, N, L, d_k or 1)
        How much of the state survives a token.
    rate : torch.Tensor or None, (B, N or 1, L, 1)
        How far the state moves towards the token's value; None adds the value.
    """

    key: torch.Tensor
    value: torch.Tensor
    keep: torch.Tensor | None
    rate: torch.Tensor | None

    def step(self, node: Node, state: torch.Tensor, token: int) -> torch.Tensor:
        """The state (B, N, d_k, d_v) after a token."""
        key, value = self.key[:, :, token, :, None], self.value[:, :, token, None]
        if self.keep is not None:
            state = node.inner(f"Decay {token}", state * self.keep[:, :, token, :, None], Rounding(Kind.ROUND))
        if self.rate is not None:
            across = key.transpose(-1, -2)
            rounding = dot(across.shape[-1], lambda: matmul_squares(across, state))
            known = node.inner(f"Recall {token}", across @ state, rounding)
            value = self.rate[:, :, token, :, None] * (value - known)
        return node.inner(f"State {token}", state + key * value, Rounding(Kind.ROUND))


def _recurrence(node: Node, tensors: tuple[torch.Tensor | None, ...]) -> Recurrence:
    key, value, _, decay, beta = tensors[1:6]
    rule, heads = node.text("update_rule", "gated_delta"), node.integer("kv_num_heads")
    if rule not in ("linear", "gated", "delta", "gated_delta") or key is None or value is None:
        raise node.refuse(f"its update rule is {rule!r}, or keys or values are left out")
    if ("gated" in rule and decay is None) or ("delta" in rule and beta is None):
        raise node.refuse(f"its update rule {rule!r} needs an input that is left out")
    keep = rate = None
    if decay is not None and "gated" in rule:
        keep = node.inner("Exp", torch.exp(split_heads(decay, heads)), Rounding(Kind.FUNCTION))
    if beta is not None and "delta" in rule:
        rate = beta.transpose(1, 2).unsqueeze(-1)
    return Recurrence(split_heads(key, heads), split_heads(value, heads), keep, rate)


def _windowed(states: list[torch.Tensor], window: int) -> torch.Tensor:
    """The last state, or the last ``window`` of them behind zeros."""
    if window == 0:
        return states[-1]
    kept = states[max(len(states) - window, 0) :]
    return torch.stack([*[torch.zeros_like(states[-1])] * (window - len(kept)), *kept])


@operator("LinearAttention", domain=MICROSOFT)
def linear_attention(node: Node, *tensors: torch.Tensor | None) -> Result:
    """A state of outer products of keys and values, read by queries.

    Parameters
    ----------
    node : Node
    *tensors : torch.Tensor or None
        query (B, L, N_q d_k), key (B, L, N d_k), value (B, L, N d_v), past state (B, N, d_k, d_v) or a window of
        states before it, decay (B, L, N) or (B, L, N d_k), rate (B, L, N or 1).

    Returns
    -------
    Result
        (B, L, max(N_q, N) d_v) and the state after the last token, or the last window of states.
    """
    given = (*tensors, *[None] * (6 - len(tensors)))
    if given[0] is None:
        raise node.refuse("its query is left out")
    query = split_heads(given[0], node.integer("q_num_heads"))
    recurrence, window = _recurrence(node, given), node.integer("state_window", 0)
    past = given[3]
    shape = (*recurrence.key.shape[:2], recurrence.key.shape[-1], recurrence.value.shape[-1])
    state = query.new_zeros(shape) if past is None else (past[-1] if window else past)
    scale: Number = node.number("scale") if node.has("scale") and node.setting("scale") != 0 else 0.0
    scale = 1 / math.sqrt(query.shape[-1]) if isinstance(scale, float) and scale == 0.0 else scale
    heads = max(query.shape[1], shape[1])
    query = query.repeat_interleave(heads // query.shape[1], 1)
    outputs, states = [], []
    for token in range(query.shape[2]):
        state = recurrence.step(node, state, token)
        states.append(state)
        asked, seen = query[:, :, token, None], state.repeat_interleave(heads // shape[1], 1)
        outputs.append(_read(node, scale, asked, seen, token))
    present = _windowed(states, window) if states else state
    return Result((join_heads(torch.cat(outputs, 2)), present))


def _read(node: Node, scale: Number, asked: torch.Tensor, seen: torch.Tensor, token: int) -> torch.Tensor:
    rounding = dot(asked.shape[-1], lambda: scale * scale * matmul_squares(asked, seen))
    return node.inner(f"Read {token}", scale * (asked @ seen), rounding)


@operator("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(
    node: Node, a: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, b: torch.Tensor | None = None
) -> Result:
    """``scale * softplus(a + bias)`` and ``sigmoid(b)``, computed in float32 from a and b (B, L, N)."""
    total = node.inner("Add", a.to(bias.dtype) + bias, Rounding(Kind.ROUND), format=torch.float32)
    soft = node.inner("Softplus", softplus(total), Rounding(Kind.FUNCTION), format=torch.float32)
    formats = (node.format(0), node.format(3) or node.format(0))
    gates = (scale * soft).to(a.dtype), None if b is None else torch.sigmoid(b)
    return Result(gates, Rounding(Kind.FUNCTION), formats)


@operator("CausalConvWithState", domain=MICROSOFT)
def causal_convolution(
    node: Node,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    past: torch.Tensor | None = None,
) -> Result:
    """A depthwise convolution that sees the past only, and the inputs it still needs next time.

    Parameters
    ----------
    node : Node
    x : torch.Tensor, (B, C, L), or (B, L, ...) with ``channels_last``
    weight : torch.Tensor, (C, 1, K)
    bias : torch.Tensor or None, (C,)
    past : torch.Tensor or None, (B, C, (K - 1) * dilation), laid out as x is; or a window of them
    """
    if node.integer("ndim", 1) != 1:
        raise node.refuse("it convolves over more than one dimension")
    last, window = bool(node.integer("channels_last", 0)), node.integer("state_window", 0)
    dilation = node.integer("dilation", 1)
    length = (weight.shape[-1] - 1) * dilation
    tail = x.shape[2:] if last else ()

    def first(t: torch.Tensor) -> torch.Tensor:
        return t.flatten(2).transpose(1, 2) if last else t

    def back(t: torch.Tensor) -> torch.Tensor:
        return t.transpose(1, 2).reshape(t.shape[0], t.shape[2], *tail) if last else t

    new = first(x)
    before = new.new_zeros(*new.shape[:2], length) if past is None else first(past[-1] if window else past)
    whole = torch.cat([before, new], -1)
    convolve = functools.partial(F.conv1d, dilation=dilation, groups=weight.shape[0])
    y = convolve(whole, weight, bias)

    ends = range(whole.shape[-1] - new.shape[-1] + 1, whole.shape[-1] + 1)
    states = [back(whole[..., end - length : end]) for end in ends]
    y, rounding = (
        back(y),
        dot(weight.shape[-1] + (bias is not None), lambda: back(convolve(whole.square(), weight.square(), None))),
    )
    if node.text("activation", "none") in ("silu", "swish"):
        y = node.inner("Conv", y, rounding)
        y, rounding = swish(y), Rounding(Kind.FUNCTION)
    return Result((y, _windowed(states, window)), rounding)

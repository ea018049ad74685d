"""Attention (Vaswani et al., 2017): scores, cap, mask, softmax and values, each a step of its own.

Shapes are written B batch, N heads, S query length, T key length, H head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.lift.formulas.softmaxes import softmax_or_zero, softmax_with_sink
from driftscope.lift.formulas.terms import FUNCTION, ROUND, Number, ProductSquares, Show, dot, product, softened


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores (B, N, S, T): scaled products, capped, with everything added, and the weights made of them."""

    raw: Tensor
    capped: Tensor
    total: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Extras:
    """What a kind of attention adds to the plain one.

    Parameters
    ----------
    additions : sequence of torch.Tensor
        Added to the scores, each broadcastable to (B, N, S, T); ``-inf`` hides a key.
    cap : float or torch.Tensor
        Scores are ``cap tanh(scores / cap)``; 0.0 for none.
    sink : torch.Tensor or None, (N,)
        One more term per head that takes weight but has no value.
    unseen : torch.Tensor of bool, or None
        Keys that a query does not see, broadcastable to (B, N, S, T); hiding rounds nothing.
    """

    additions: Sequence[Tensor] = ()
    cap: Number = 0.0
    sink: Tensor | None = None
    unseen: Tensor | None = None


def attention_weights(show: Show, q: Tensor, k: Tensor, scale: Number, extras: Extras = Extras()) -> Scores:
    """``softmax(scale Q K' + additions)`` with q (..., N, S, H) and k (..., N, T, H)."""
    columns = k.transpose(-1, -2)
    rounding = dot(q.shape[-1], ProductSquares(q, columns, scale))
    raw = show("scores", scale * torch.matmul(q, columns), rounding, (q, k), stored=False)
    capped = _capped(show, raw, extras.cap)
    total = capped
    if extras.additions:
        for addition in extras.additions:
            total = total + addition
        total = show("mask", total, ROUND, (capped, *extras.additions), stored=False)
    if extras.unseen is not None:
        total = total.masked_fill(extras.unseen, -torch.inf)
    if extras.sink is not None:
        weights = softmax_with_sink(total, extras.sink)
    elif extras.additions or extras.unseen is not None:
        weights = softmax_or_zero(total, -1)
    else:
        weights = torch.softmax(total, -1)
    length = total.shape[-1] + (extras.sink is not None)
    return Scores(raw, capped, total, show("softmax", weights, softened(length), (total,)))


def _capped(show: Show, scores: Tensor, cap: Number) -> Tensor:
    if not isinstance(cap, Tensor) and cap <= 0:
        return scores
    return show("softcap", cap * torch.tanh(scores / cap), FUNCTION, (scores,), stored=False)


def weighted_values(show: Show, weights: Tensor, v: Tensor) -> Tensor:
    """``weights @ v``, with v (..., N, T, H_v)."""
    return show("values", torch.matmul(weights, v), product(weights, v), (weights, v))


def hidden(seen: Tensor, like: Tensor) -> Tensor:
    """What is added to the scores where keys are hidden: 0 where ``seen``, ``-inf`` elsewhere."""
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(~seen, -torch.inf)


def repeated(x: Tensor, heads: int) -> Tensor:
    """Keys or values (..., N_kv, T, H) for ``heads`` query heads: each serves its group of neighbours."""
    return x if x.dim() < 3 or x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], -3)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, S, N * H) to (B, N, S, H); (B, N, S, H) stays as it is."""
    return x if x.dim() == 4 else x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, N, S, H) to (B, S, N * H)."""
    return x.transpose(1, 2).flatten(2)

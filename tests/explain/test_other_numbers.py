"""Where two programs are written otherwise, what is other is told, and not that they are written otherwise."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import driftscope as ds

DRAWN = torch.Generator().manual_seed(0)
X = torch.randn(2, 7, 16, generator=DRAWN)
W, V, BIAS = (torch.randn(n, generator=DRAWN) / 4 for n in ((16, 16), (16, 16), (16,)))


def scaled(x: Tensor, factor: float = 0.5) -> Tensor:
    return ((x @ W) * factor).softmax(-1) @ V


def divided(x: Tensor, by: float = 2.0) -> Tensor:
    scores = torch.einsum("btd,de->bte", x, W) / by
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ V


def filled(x: Tensor, after: int = 1) -> Tensor:
    scores = (x @ W @ x.mT).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(after), -math.inf)
    return scores.softmax(-1) @ x


def added(x: Tensor) -> Tensor:
    i = torch.arange(7)
    scores = torch.einsum("btd,de,bse->bts", x, W, x) + torch.where(i[None, :] > i[:, None], -math.inf, 0.0)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ x


def residual(x: Tensor, share: float = 1.0, bias: float = 1.0) -> Tensor:
    return x * share + F.gelu(x @ W) @ V + (BIAS if bias else 0.0)


def fused(x: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, W.T)), V.T, BIAS) + x


def difference(x: Tensor) -> Tensor:
    return (x @ W - x @ V).tanh()


def total(x: Tensor) -> Tensor:
    return (x @ W + x @ V).tanh()


def told(a, b) -> list[str]:
    found = [f for f in ds.compare(a, b, [X]).findings if not f.note]
    return [f"{f.why} {f.fix}" for f in found]


@pytest.mark.parametrize("pair", [(scaled, divided), (filled, added), (residual, fused)])
def test_the_twins_are_the_same_function(pair) -> None:
    for a, b in (pair, pair[::-1]):
        assert ds.compare(a, b, [X]).verdict in ("IDENTICAL", "ROUNDING")


def test_a_divisor_is_told_where_the_other_multiplies() -> None:
    (words,) = told(scaled, lambda x: divided(x, 4.0))
    assert "with 2 it gives A's values" in words
    (words,) = told(lambda x: divided(x, 4.0), scaled)
    assert "with 0.25 it gives A's values" in words


def test_how_a_mask_is_written_is_no_cause() -> None:
    for pair in ((lambda x: filled(x, 2), added), (added, lambda x: filled(x, 2))):
        (words,) = told(*pair)
        assert "makes something else of the same value" in words
        assert " where A has " not in words


def test_another_operator_of_the_same_values_is_the_cause() -> None:
    (words,) = told(difference, total)
    assert "add is aten.add where A has aten.sub" in words


def test_a_bias_that_both_add_is_lacking_nowhere() -> None:
    for pair in ((lambda x: residual(x, 0.5), fused), (fused, lambda x: residual(x, 0.5))):
        (words,) = told(*pair)
        assert "nothing in A does" not in words
        assert "nothing here does" not in words
        assert "mul" in words


def test_a_bias_that_one_leaves_out_is_lacking() -> None:
    (words,) = told(fused, lambda x: residual(x, bias=0.0))
    assert "A adds captured_2, and nothing here does" in words
    (words,) = told(lambda x: residual(x, bias=0.0), fused)
    assert "it adds captured_2, and nothing in A does" in words


def by_hand(x: Tensor) -> Tensor:
    h = x @ W
    return F.linear(0.5 * h * (1 + torch.erf(h / math.sqrt(2))), V.T, BIAS) + x


@pytest.mark.parametrize("other", ["none", "tanh", F.silu])
def test_another_function_of_one_step_is_told_where_the_other_writes_it_out(other) -> None:
    """It was placed one step behind, which "reads view_1 as it is, where A computes mul_1 of it first"."""

    def fused(x: Tensor) -> Tensor:
        h = F.linear(x, W.T)
        return x + (F.gelu(h, approximate=other) if isinstance(other, str) else other(h)) @ V + BIAS

    if other == "none":
        assert {ds.compare(*p, [X]).verdict for p in ((fused, by_hand), (by_hand, fused))} <= {"IDENTICAL", "ROUNDING"}
        return
    for a, b, whose in ((by_hand, fused, "A"), (fused, by_hand, "B")):
        (found,) = [f for f in ds.compare(a, b, [X]).findings if not f.note]
        assert f"with gelu by erf in its place it gives {whose}'s values" in found.why
        assert found.verified
        assert (found.where.node in ("gelu", "silu")) is (whose == "A")


def turned(x: Tensor, sign: float = 1.0, first: int = 0) -> Tensor:
    t = (torch.arange(7) + first)[:, None] * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    (c, s), (p, q) = (t.cos(), sign * t.sin()), x.chunk(2, -1)
    return torch.cat((p * c - q * s, q * c + p * s), -1)


def half_turned(x: Tensor) -> Tensor:
    t = torch.outer(torch.arange(7).float(), 1 / 10000.0 ** (torch.arange(0, 16, 2) / 16)).repeat(1, 2)
    half = torch.cat((-x[..., 8:], x[..., :8]), -1)
    return x * t.cos() + half * t.sin()


def test_a_rotary_embedding_that_turns_the_other_way_is_told() -> None:
    assert ds.compare(turned, half_turned, [X]).verdict == "ROUNDING"
    (words,) = told(lambda x: turned(x, -1.0), half_turned)
    assert "has the wrong sign: negated it gives A's values" in words
    (words,) = told(half_turned, lambda x: turned(x, -1.0))
    assert "has the wrong sign: negated it gives B's values" in words


def test_a_counterpart_that_nobody_has_seen_to_be_one_is_called_the_likeliest() -> None:
    (words,) = told(lambda x: turned(x, first=1), half_turned)
    assert words.startswith("Its likeliest counterpart in A is ")

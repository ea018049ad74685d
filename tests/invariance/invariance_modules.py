"""Modules whose dependence on the batch is known, each leaking one beside a twin that does not leak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

HONEST = frozenset({"same", "rounding"})
EXACT = frozenset({"same"})
LEAKS = frozenset({"different"})


class Calling(nn.Module):
    """A function as a module, with the modules it calls."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.parts)


@dataclass(frozen=True)
class Known:
    """A module, its input, and what is right along the batch.

    ``place``: a part of the operator's name in which rows meet, for those that leak; several, one of which it has.
    """

    id: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (4, 16)
    batch: frozenset[str] = HONEST
    place: str = ""


def _of(id: str, function: Callable[..., Any], *parts: Callable[[], nn.Module], **more: Any) -> Known:
    return Known(id, lambda: Calling(function, *(make() for make in parts)).eval(), **more)


def _quantised(x: torch.Tensor, linear: nn.Module, *, rows: bool) -> torch.Tensor:
    size = x.abs().amax(-1, keepdim=True) if rows else x.abs().amax()
    scale = size / 127.0
    return linear((x / scale).round() * scale)


def _capacity(x: torch.Tensor, gate: nn.Module, *, shared: bool) -> torch.Tensor:
    """Two experts, each of which takes one row of the batch, or any; rows that find no place are passed on."""
    chosen = F.one_hot(gate(x).argmax(-1), 2)
    if shared:
        chosen = chosen * (chosen.cumsum(0) <= 1)
    return x + chosen[:, :1] * x * 2.0 + chosen[:, 1:] * x * 3.0


def _attention(x: torch.Tensor, *, across: bool) -> torch.Tensor:
    weights = x @ x.transpose(-1, -2)
    if across:
        flat = x.reshape(-1, x.shape[-1])
        return (F.softmax(flat @ flat.T, -1) @ flat).reshape(x.shape)
    return F.softmax(weights, -1) @ x


def _one_ulp_up(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.where(chosen, torch.nextafter(x, torch.full_like(x, torch.inf)), x)


def _there_and_back(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return (x[order] * 2)[order.argsort()]


def _linear() -> nn.Module:
    return nn.Linear(16, 8)


EXACT_ONES = [
    _of("relu", torch.relu, batch=EXACT),
    _of("negation", torch.neg, batch=EXACT),
    _of("double", lambda x: x * 2.0 + 1.0, batch=EXACT),
    _of("slice", lambda x: x[:, :3], batch=EXACT),
    _of("transpose", lambda x: x.transpose(1, 2), shape=(4, 3, 5), batch=EXACT),
    _of("sign", torch.sign, batch=EXACT),
    _of("round", torch.round, batch=EXACT),
    _of("clamp", lambda x: x.clamp(-1, 1), batch=EXACT),
    _of("integer-sum", lambda x: (x * 64).round().long().sum(-1), batch=EXACT),
    _of("row-max", lambda x: x.amax(-1), batch=EXACT),
    _of("row-sort", lambda x: x.sort(-1).values, batch=EXACT),
    _of("max-pool", lambda x: F.max_pool2d(x, 2), shape=(3, 2, 6, 6), batch=EXACT),
    _of("pad", lambda x: F.pad(x, (1, 2)), batch=EXACT),
    _of("concatenate", lambda x: torch.cat([x, -x], -1), batch=EXACT),
    _of("flip", lambda x: x.flip(-1), batch=EXACT),
    _of("identity", lambda x, part: part(x), nn.Identity, batch=EXACT),
]

ROUNDING_ONES = [
    _of("linear", lambda x, part: part(x), _linear),
    _of("mlp", lambda x, a, b: b(F.gelu(a(x))), lambda: nn.Linear(16, 32), lambda: nn.Linear(32, 8)),
    _of("layer-norm", lambda x, part: part(x), lambda: nn.LayerNorm(16)),
    _of("rms-norm", lambda x, part: part(x), lambda: nn.RMSNorm(16)),
    _of("group-norm", lambda x, part: part(x), lambda: nn.GroupNorm(2, 4), shape=(3, 4, 5)),
    _of("instance-norm", lambda x, part: part(x), lambda: nn.InstanceNorm1d(4), shape=(3, 4, 6)),
    _of("softmax", lambda x: x.softmax(-1)),
    _of("log-softmax", lambda x: x.log_softmax(-1)),
    _of("row-sum", lambda x: x.sum(-1)),
    _of("row-mean", lambda x: x.mean(-1)),
    _of("row-variance", lambda x: x.var(-1)),
    _of("row-norm", lambda x: x / x.norm(dim=-1, keepdim=True)),
    _of("cumulative-sum", lambda x: x.cumsum(-1)),
    _of("logsumexp", lambda x: x.logsumexp(-1)),
    _of("convolution-1d", lambda x, part: part(x), lambda: nn.Conv1d(3, 4, 3), shape=(3, 3, 9)),
    _of("convolution-2d", lambda x, part: part(x), lambda: nn.Conv2d(2, 4, 3), shape=(3, 2, 8, 8)),
    _of("depthwise", lambda x, part: part(x), lambda: nn.Conv2d(4, 4, 3, groups=4), shape=(3, 4, 6, 6)),
    _of("transposed-convolution", lambda x, part: part(x), lambda: nn.ConvTranspose1d(3, 4, 3), shape=(3, 3, 9)),
    _of("average-pool", lambda x: F.avg_pool2d(x, 2), shape=(3, 2, 6, 6)),
    _of("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), shape=(3, 2, 4, 4)),
    _of("matmul", lambda x: x @ x.transpose(-1, -2), shape=(4, 3, 8)),
    _of("einsum", lambda x: torch.einsum("bij,bkj->bik", x, x), shape=(4, 3, 8)),
    _of("gelu", F.gelu),
    _of("tanh", torch.tanh),
    _of("sigmoid", torch.sigmoid),
    _of("silu", F.silu),
    _of("sdpa", lambda x: F.scaled_dot_product_attention(x, x, x), shape=(3, 2, 5, 8)),
    _of("lstm", lambda x, part: part(x)[0], lambda: nn.LSTM(8, 6, batch_first=True), shape=(3, 5, 8)),
    _of("gru", lambda x, part: part(x)[0], lambda: nn.GRU(8, 6, batch_first=True), shape=(3, 5, 8)),
    _of("cosine", lambda x: F.cosine_similarity(x, x.flip(-1), dim=-1)),
]

#: Each leaking module, followed by its twin.
TWINS = [
    (
        Known("batch-norm-train", lambda: nn.BatchNorm1d(16), batch=LEAKS, place="batch_norm"),
        Known("batch-norm-eval", lambda: nn.BatchNorm1d(16).eval()),
    ),
    (
        _of("batch-softmax", lambda x: x.softmax(0), batch=LEAKS, place="softmax"),
        _of("row-softmax", lambda x: x.softmax(1)),
    ),
    (
        _of("batch-max", lambda x: x / x.abs().amax(), batch=LEAKS, place="amax"),
        _of("own-max", lambda x: x / x.abs().amax(-1, keepdim=True)),
    ),
    (
        _of("batch-mean", lambda x: x - x.mean(0), batch=LEAKS, place="mean"),
        _of("own-mean", lambda x: x - x.mean(-1, keepdim=True)),
    ),
    (
        _of("tensor-quantised", lambda x, p: _quantised(x, p, rows=False), _linear, batch=LEAKS, place="amax"),
        _of("row-quantised", lambda x, p: _quantised(x, p, rows=True), _linear),
    ),
    (
        _of("shared-capacity", lambda x, p: _capacity(x, p, shared=True), lambda: nn.Linear(16, 2), batch=LEAKS,
            place="cumsum"),
        _of("no-capacity", lambda x, p: _capacity(x, p, shared=False), lambda: nn.Linear(16, 2)),
    ),
    (
        _of("attention-across", lambda x: _attention(x, across=True), shape=(3, 4, 8), batch=LEAKS, place="mm"),
        _of("attention-within", lambda x: _attention(x, across=False), shape=(3, 4, 8)),
    ),
    (
        _of("batch-standardised", lambda x: (x - x.mean()) / x.std(), batch=LEAKS, place="mean|std|sub"),
        _of("row-standardised", lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
    ),
    (
        _of("divided-by-rows", lambda x: x / x.shape[0], batch=LEAKS, place="div"),
        _of("divided-by-columns", lambda x: x / x.shape[1]),
    ),
    (
        _of("tiny-leak", lambda x: x + 1e-6 * x.mean(0), batch=LEAKS, place="mean"),
        _of("tiny-term", lambda x: x + 1e-6 * x.mean(-1, keepdim=True)),
    ),
    (
        _of("nan-leak", lambda x: x + 0.0 * x.sum(0), batch=LEAKS, place="sum"),
        _of("no-nan-leak", lambda x: x + 0.0 * x.sum(-1, keepdim=True)),
    ),
    (
        _of("previous-row", lambda x: x + x.roll(1, 0), batch=LEAKS, place="roll"),
        _of("previous-column", lambda x: x + x.roll(1, 1), batch=EXACT),
    ),
    (
        _of("rank-in-batch", lambda x: x[:, 0].argsort().argsort(), batch=LEAKS, place="sort"),
        _of("rank-in-row", lambda x: x.argsort(-1), batch=EXACT),
    ),
    (
        _of("first-row-added", lambda x: x + x[:1], batch=LEAKS, place="add"),
        _of("first-column-added", lambda x: x + x[:, :1], batch=EXACT),
    ),
    (
        _of("positive-rows-counted", lambda x: x / (x[:, 0] > 0).sum().clamp(min=1), batch=LEAKS, place="sum"),
        _of("positives-counted", lambda x: x / (x > 0).sum(-1, keepdim=True).clamp(min=1)),
    ),
    (
        _of("last-bit-of-all", lambda x: _one_ulp_up(x, x.sum() > 0), batch=LEAKS, place="sum"),
        _of("last-bit-of-a-row", lambda x: _one_ulp_up(x, x.sum(-1, keepdim=True) > 0)),
    ),
    (
        _of("gram-of-the-batch", lambda x: x @ (x.t() @ x), batch=LEAKS, place="mm"),
        _of("gram-of-a-row", lambda x: (x[:, :, None] * x[:, None, :]).sum(-1)),
    ),
    (
        _of("norm-of-all-clipped", lambda x: x * (9.0 / x.norm()).clamp(max=1.0), batch=LEAKS, place="norm"),
        _of("norm-of-a-row-clipped", lambda x: x * (3.0 / x.norm(dim=-1, keepdim=True)).clamp(max=1.0)),
    ),
    (
        _of("largest-of-all-kept", lambda x: x * (x >= x.flatten().topk(20).values[-1]), batch=LEAKS, place="topk"),
        _of("largest-of-a-row-kept", lambda x: x * (x >= x.topk(5).values[:, -1:])),
    ),
    (
        _of("convolved-across-rows", lambda x, c: c(x.t()[None])[0].t(), lambda: nn.Conv1d(16, 8, 3, padding=1),
            batch=LEAKS, place="convolution"),
        _of("convolved-along-rows", lambda x, c: c(x[:, None]), lambda: nn.Conv1d(1, 8, 3, padding=1)),
    ),
    (
        _of("integers-of-all-added", lambda x: x + (x * 8).round().long().sum(0) % 7, batch=LEAKS, place="sum"),
        _of("integers-of-a-row-added", lambda x: x + (x * 8).round().long().sum(-1, keepdim=True) % 7),
    ),
    (
        _of("branch-of-all", lambda x, p: p(x) if bool((x.abs() < 3).all()) else x[:, :8], _linear, batch=LEAKS,
            place="all|item|scalar"),
        _of("choice-of-a-row", lambda x, p: torch.where(x.abs().amax(-1, keepdim=True) < 3, p(x), x[:, :1]), _linear),
    ),
    (
        _of("spectrum-across-rows", lambda x: torch.fft.fft(x, dim=0).abs(), batch=LEAKS, place="fft"),
        _of("spectrum-of-a-row", lambda x: torch.fft.fft(x, dim=-1).abs()),
    ),
    (
        _of("rows-sorted", lambda x: x[x[:, 0].argsort()], batch=LEAKS, place="sort"),
        _of("rows-sorted-and-back", lambda x: _there_and_back(x, x[:, 0].argsort()), batch=EXACT),
    ),
]  # fmt: skip

ALL = [*EXACT_ONES, *ROUNDING_ONES, *(one for pair in TWINS for one in pair)]

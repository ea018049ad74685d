"""The same functions written otherwise, in torch and in numpy; every pair of one family is honest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.verdicts.sweep import seeded

Written = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One function in several writings.

    Parameters
    ----------
    shapes : tuple of shapes
        Of the inputs; weights are inputs too, so that numpy programs need nothing but arguments.
    writings : mapping of str to callable
        The first is the reference. Names that begin with ``np`` take and return numpy arrays.
    weights : int
        How many of the last inputs are weights, which no input law enlarges.
    """

    shapes: tuple[tuple[int, ...], ...]
    writings: dict[str, Written]
    weights: int = 0


_WIDE = 48


def _ln_one_pass(x: torch.Tensor) -> torch.Tensor:
    mean, square = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(square - mean * mean + 1e-5)


def _ln_two_pass(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


def _ln_var(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


def _ln_norm(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    return centred / torch.sqrt(centred.norm(dim=-1, keepdim=True) ** 2 / x.shape[-1] + 1e-5)


def _np_layer_norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.asarray(1e-5, x.dtype))


def _np_layer_norm_var(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + np.asarray(1e-5, x.dtype))


def _np_layer_norm_one_pass(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.asarray(1e-5, x.dtype))


def _softmax(x: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def _np_softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _softmax_of_logs(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x - torch.logsumexp(x, -1, keepdim=True))


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def _attention_scaled_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), -1) @ v


def _attention_late(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (powers @ v) / powers.sum(-1, keepdim=True)


def _attention_in_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Online softmax over two blocks of keys."""
    scale, half = q.shape[-1] ** -0.5, k.shape[-2] // 2
    one, two = (q @ part.transpose(-1, -2) * scale for part in (k[..., :half, :], k[..., half:, :]))
    top = torch.maximum(one.amax(-1, keepdim=True), two.amax(-1, keepdim=True))
    first, second = torch.exp(one - top), torch.exp(two - top)
    total = first.sum(-1, keepdim=True) + second.sum(-1, keepdim=True)
    return (first @ v[..., :half, :] + second @ v[..., half:, :]) / total


def _np_attention(q: Any, k: Any, v: Any) -> Any:
    return _np_softmax(q @ np.swapaxes(k, -1, -2) * np.asarray(q.shape[-1] ** -0.5, q.dtype)) @ v


def _gelu_erf(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _gelu_erfc(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.erfc(-x * math.sqrt(0.5))


def _gelu_ndtr(x: torch.Tensor) -> torch.Tensor:
    return x * torch.special.ndtr(x)


def _tanh_gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def _tanh_gelu_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))


def _np_tanh_gelu(x: Any) -> Any:
    inner = np.asarray(math.sqrt(2.0 / math.pi), x.dtype) * (x + np.asarray(0.044715, x.dtype) * x**3)
    return np.asarray(0.5, x.dtype) * x * (1 + np.tanh(inner))


def _in_halves(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x[..., :half].sum(-1) + x[..., half:].sum(-1)


def _one_by_one(x: torch.Tensor) -> torch.Tensor:
    total = x[..., 0]
    for k in range(1, x.shape[-1]):
        total = total + x[..., k]
    return total


def _np_one_by_one(x: Any) -> Any:
    total = x[..., 0]
    for k in range(1, x.shape[-1]):
        total = total + x[..., k]
    return total


def _var_one_pass(x: torch.Tensor) -> torch.Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


def _var_pairs(x: torch.Tensor) -> torch.Tensor:
    """Half the mean squared distance of all pairs."""
    return 0.5 * (x.unsqueeze(-1) - x.unsqueeze(-2)).square().mean((-1, -2))


def _var_shifted(x: torch.Tensor) -> torch.Tensor:
    moved = x - x[..., :1]
    return (moved * moved).mean(-1) - moved.mean(-1) ** 2


def _conv_unfolded(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    columns = functional.unfold(x, 3, padding=1)
    found = w.flatten(1) @ columns + b.unsqueeze(-1)
    return found.reshape(x.shape[0], w.shape[0], *x.shape[2:])


def _conv_shifted(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    wide, (height, width) = functional.pad(x, (1, 1, 1, 1)), x.shape[2:]
    total = b.reshape(1, -1, 1, 1)
    for i in range(3):
        for j in range(3):
            total = total + torch.einsum("bchw,oc->bohw", wide[:, :, i : i + height, j : j + width], w[:, :, i, j])
    return total


def _conv_by_fft(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    size = (x.shape[2] + 2, x.shape[3] + 2)
    seen = torch.fft.rfft2(x, s=size).unsqueeze(1) * torch.fft.rfft2(w.flip(-1, -2), s=size).unsqueeze(0)
    found = torch.fft.irfft2(seen.sum(2), s=size)
    return found[:, :, 1:-1, 1:-1] + b.reshape(1, -1, 1, 1)


def _np_conv(x: Any, w: Any, b: Any) -> Any:
    wide, (height, width) = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), x.shape[2:]
    total = np.zeros((x.shape[0], w.shape[0], height, width), x.dtype) + b.reshape(1, -1, 1, 1)
    for i in range(3):
        for j in range(3):
            total = total + np.einsum("bchw,oc->bohw", wide[:, :, i : i + height, j : j + width], w[:, :, i, j])
    return total


def _lstm(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    zero = x.new_zeros(1, x.shape[1], u.shape[1])
    found: torch.Tensor = torch.lstm(
        x, (zero, zero), [w, u, b, torch.zeros_like(b)], True, 1, 0.0, False, False, False
    )[0]
    return found


def _lstm_by_hand(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h = c = x.new_zeros(x.shape[1], u.shape[1])
    seen = []
    for step in x:
        i, f, g, o = (step @ w.T + h @ u.T + b).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        seen.append(h)
    return torch.stack(seen)


def _lstm_joined(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    both = torch.cat([w, u], 1)
    h = c = x.new_zeros(x.shape[1], u.shape[1])
    seen = []
    for step in x:
        i, f, g, o = functional.linear(torch.cat([step, h], 1), both, b).chunk(4, -1)
        c = c / (1.0 + torch.exp(-f)) + torch.tanh(g) / (1.0 + torch.exp(-i))
        h = torch.tanh(c) / (1.0 + torch.exp(-o))
        seen.append(h)
    return torch.stack(seen)


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def _rms_divided(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)


def _np_rms(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.asarray(1e-6, x.dtype))


def _mlp_twice(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bk,ok->bo", torch.einsum("bi,ki->bk", x, w), v)


FAMILIES: dict[str, Family] = {
    "layer-norm": Family(((6, _WIDE),), {
        "torch": lambda x: functional.layer_norm(x, (_WIDE,)), "two-pass": _ln_two_pass, "one-pass": _ln_one_pass,
        "variance": _ln_var, "norm": _ln_norm, "np-two-pass": _np_layer_norm, "np-variance": _np_layer_norm_var,
        "np-one-pass": _np_layer_norm_one_pass}),
    "rms-norm": Family(((6, _WIDE),), {
        "torch": lambda x: functional.rms_norm(x, (_WIDE,), eps=1e-6), "rsqrt": _rms, "divided": _rms_divided,
        "np": _np_rms}),
    "softmax": Family(((6, _WIDE),), {
        "torch": lambda x: torch.softmax(x, -1), "by-hand": _softmax, "of-logs": _softmax_of_logs,
        "log-exp": lambda x: functional.log_softmax(x, -1).exp(), "np": _np_softmax}),
    "logsumexp": Family(((6, _WIDE),), {
        "torch": lambda x: torch.logsumexp(x, -1),
        "by-hand": lambda x: x.amax(-1) + torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)),
        "np": lambda x: x.max(-1) + np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1))}),
    "attention": Family(((2, 2, 9, 16),) * 3, {
        "torch": functional.scaled_dot_product_attention, "by-hand": _attention,
        "scaled-first": _attention_scaled_first, "late": _attention_late, "blocks": _attention_in_blocks,
        "np": _np_attention}),
    "gelu": Family(((6, _WIDE),), {
        "torch": functional.gelu, "erf": _gelu_erf, "erfc": _gelu_erfc, "ndtr": _gelu_ndtr}),
    "gelu-tanh": Family(((6, _WIDE),), {
        "torch": lambda x: functional.gelu(x, approximate="tanh"), "by-hand": _tanh_gelu, "sigmoid": _tanh_gelu_sigmoid,
        "np": _np_tanh_gelu}),
    "sum": Family(((6, 192),), {
        "torch": lambda x: x.sum(-1), "halves": _in_halves, "one-by-one": _one_by_one,
        "product": lambda x: x @ torch.ones(192, dtype=x.dtype), "mean": lambda x: x.mean(-1) * 192,
        "last": lambda x: x.cumsum(-1)[..., -1], "flipped": lambda x: x.flip(-1).sum(-1),
        "np": lambda x: x.sum(-1), "np-one-by-one": _np_one_by_one}),
    "variance": Family(((6, _WIDE),), {
        "torch": lambda x: x.var(-1, unbiased=False), "one-pass": _var_one_pass, "pairs": _var_pairs,
        "shifted": _var_shifted, "np": lambda x: x.var(-1),
        "np-one-pass": lambda x: (x * x).mean(-1) - x.mean(-1) ** 2}),
    "conv": Family(((2, 4, 8, 9), (5, 4, 3, 3), (5,)), {
        "torch": lambda x, w, b: functional.conv2d(x, w, b, padding=1), "unfolded": _conv_unfolded,
        "shifted": _conv_shifted, "fft": _conv_by_fft,
        "channels-last": lambda x, w, b: functional.conv2d(
            x.contiguous(memory_format=torch.channels_last), w, b, padding=1),
        "np": _np_conv}, weights=2),
    "lstm": Family(((6, 3, 8), (40, 8), (40, 10), (40,)), {
        "torch": _lstm, "by-hand": _lstm_by_hand, "joined": _lstm_joined}, weights=3),
    "linear": Family(((6, _WIDE), (20, _WIDE), (20,)), {
        "torch": functional.linear, "matmul": lambda x, w, b: x @ w.T + b,
        "addmm": lambda x, w, b: torch.addmm(b, x, w.T), "einsum": lambda x, w, b: torch.einsum("bi,oi->bo", x, w) + b,
        "split": lambda x, w, b: x[:, :20] @ w[:, :20].T + x[:, 20:] @ w[:, 20:].T + b,
        "np": lambda x, w, b: x @ w.T + b, "np-einsum": lambda x, w, b: np.einsum("bi,oi->bo", x, w) + b}, weights=2),
    "two-layers": Family(((6, _WIDE), (32, _WIDE), (20, 32)), {
        "torch": lambda x, w, v: (x @ w.T) @ v.T, "folded": lambda x, w, v: x @ (v @ w).T, "einsum": _mlp_twice,
        "np": lambda x, w, v: (x @ w.T) @ v.T}, weights=2),
    "cosine": Family(((6, _WIDE), (6, _WIDE)), {
        "torch": lambda x, y: functional.cosine_similarity(x, y, dim=-1),
        "by-hand": lambda x, y: (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)),
        "normalised": lambda x, y: (functional.normalize(x, dim=-1) * functional.normalize(y, dim=-1)).sum(-1),
        "np": lambda x, y: (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))}),
    "distance": Family(((6, 12), (7, 12)), {
        "torch": torch.cdist, "differences": lambda x, y: (x.unsqueeze(1) - y).square().sum(-1).sqrt(),
        "np": lambda x, y: np.sqrt(((x[:, None] - y) ** 2).sum(-1))}),
}  # fmt: skip


LAWS: dict[str, Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]] = {
    "normal": lambda g, s: torch.randn(s, generator=g, dtype=torch.float64),
    "positive": lambda g, s: torch.rand(s, generator=g, dtype=torch.float64),
    "far": lambda g, s: 300.0 + torch.randn(s, generator=g, dtype=torch.float64),
    "large": lambda g, s: 20.0 * torch.randn(s, generator=g, dtype=torch.float64),
    "small": lambda g, s: 1e-4 * torch.randn(s, generator=g, dtype=torch.float64),
    "heavy": lambda g, s: (
        torch.randn(s, generator=g, dtype=torch.float64)
        / torch.rand(s, generator=g, dtype=torch.float64).clamp(min=1e-2)
    ),
}


def inputs_of(family: Family, law: str) -> tuple[torch.Tensor, ...]:
    """The inputs of a family under a law, in float32; weights are normal and small under every law."""
    generator = seeded(7)
    data = len(family.shapes) - family.weights
    return tuple(
        (LAWS[law](generator, shape) if k < data else 0.2 * LAWS["normal"](generator, shape)).float()
        for k, shape in enumerate(family.shapes)
    )

"""Layers and losses written otherwise: attentions, norms, activations, convolutions, pools, distances, selections.

More families for :mod:`benchmarks.verdicts.rewritten`; the first writing of each is the reference.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.verdicts.rewritten import Family

_HEADS = ((2, 3, 7, 8),) * 3
_ROWS = ((5, 24),)
_IMAGE = ((2, 6, 8, 8),)
_FILTER = ((2, 6, 7, 8), (4, 6, 3, 3))


def _running_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keys in blocks of three, with a running maximum, sum and value."""
    top, total, value = torch.full_like(q[..., :1], -math.inf), torch.zeros_like(q[..., :1]), torch.zeros_like(q)
    for keys, values in zip(k.split(3, -2), v.split(3, -2), strict=True):
        scores = q @ keys.mT * q.shape[-1] ** -0.5
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        powers, kept = torch.exp(scores - new), torch.exp(top - new)
        total, value, top = total * kept + powers.sum(-1, keepdim=True), value * kept + powers @ values, new
    return value / total


def _linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def _linear_attention_by_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    return scores @ v / scores.sum(-1, keepdim=True)


def _centring_matrix(x: Tensor) -> Tensor:
    size = x.shape[-1]
    y = x @ (torch.eye(size, dtype=torch.float64) - 1 / size).to(x.dtype)
    return y / (y.square().sum(-1, keepdim=True) / size + 1e-5).sqrt()


def _rows_of_images(x: Tensor) -> Tensor:
    y = x.reshape(x.shape[0], 3, -1)
    centred = y - y.mean(-1, keepdim=True)
    return (centred / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()).view_as(x)


def _stuffed(x: Tensor, w: Tensor) -> Tensor:
    """A transposed convolution as a convolution between whose elements are zeros."""
    rows, columns = x.shape[2:]
    y = x.new_zeros(*x.shape[:2], 2 * rows - 1, 2 * columns - 1)
    y[:, :, ::2, ::2] = x
    return F.conv2d(F.pad(y, (2, 2, 2, 2)), w.flip(2, 3).transpose(0, 1))


def _shifted_products(x: Tensor, w: Tensor) -> Tensor:
    rows, columns = x.shape[2] - 2, x.shape[3] - 2
    taps = [(i, j) for i in range(3) for j in range(3)]
    parts = [torch.einsum("bchw,oc->bohw", x[:, :, i : i + rows, j : j + columns], w[:, :, i, j]) for i, j in taps]
    return torch.stack(parts).sum(0)


def _doubling(n: int) -> Tensor:
    """The matrix that interpolates n samples to 2n, corners not aligned."""
    places = ((torch.arange(2 * n, dtype=torch.float64) + 0.5) / 2 - 0.5).clamp_min(0)
    left = places.long()
    part = places - left
    matrix = torch.zeros(2 * n, n, dtype=torch.float64)
    matrix[torch.arange(2 * n), left] += 1 - part
    matrix[torch.arange(2 * n), (left + 1).clamp_max(n - 1)] += part
    return matrix.float()


def _smoothed(x: Tensor) -> Tensor:
    states = [x[:, 0]]
    for k in range(1, x.shape[1]):
        states.append(0.75 * states[-1] + 0.25 * x[:, k])
    return torch.stack(states, -1)


def _smoothing_matrix(x: Tensor) -> Tensor:
    i, j = torch.meshgrid(torch.arange(x.shape[1]), torch.arange(x.shape[1]), indexing="ij")
    first = torch.where(i == 0, 1.0, 0.25).double()
    matrix = torch.where(j >= i, 0.75 ** (j - i).clamp_min(0).double() * first, 0.0)
    return x @ matrix.to(x.dtype)


_CLASSES = torch.tensor([1, 0, 5, 23, 7])

LAYERS: dict[str, Family] = {
    "attention-heads": Family(_HEADS, {
        "torch": F.scaled_dot_product_attention, "running": _running_attention,
        "roots": lambda q, k, v: torch.softmax((q * 8**-0.25) @ (k * 8**-0.25).mT, -1) @ v,
        "folded": lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT) * 8**-0.5, -1),
                                            v.flatten(0, 1)).view_as(q)}),
    "linear-attention": Family(_HEADS, {"keys-first": _linear_attention, "scores": _linear_attention_by_scores}),
    "cosine-attention": Family(_HEADS, {
        "torch": lambda q, k, v: torch.softmax(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 10, -1) @ v,
        "late": lambda q, k, v: torch.softmax(10 * (q @ k.mT) / q.norm(dim=-1, keepdim=True)
                                              / k.norm(dim=-1, keepdim=True).mT, -1) @ v}),
    "centred-by-matrix": Family(_ROWS, {"torch": lambda x: F.layer_norm(x, (24,)), "matrix": _centring_matrix,
                                        "batch": lambda x: F.batch_norm(x.T, None, None, training=True).T}),
    "group-norm": Family(_IMAGE, {"torch": lambda x: F.group_norm(x, 3), "rows": _rows_of_images}),
    "instance-norm": Family(_IMAGE, {"torch": F.instance_norm, "groups": lambda x: F.group_norm(x, 6)}),
    "rms-of-sums": Family(_ROWS, {
        "torch": lambda x: F.rms_norm(x, (24,), eps=1e-6),
        "sums": lambda x: x * 24**0.5 / (x.norm(dim=-1, keepdim=True) ** 2 + 24e-6).sqrt()}),
    "softplus": Family(_ROWS, {
        "torch": F.softplus, "log-add": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        "parts": lambda x: x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))}),
    "silu": Family(_ROWS, {"torch": F.silu, "tanh": lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x))}),
    "gelu-complement": Family(_ROWS, {"torch": F.gelu, "erfc": lambda x: 0.5 * x * torch.erfc(-x * 0.5**0.5)}),
    "base-two": Family(_ROWS, {
        "torch": lambda x: torch.softmax(x, -1),
        "powers": lambda x: (p := torch.exp2((x - x.amax(-1, keepdim=True)) / math.log(2))) / p.sum(-1, keepdim=True)}),
    "smoothed-labels": Family(_ROWS, {
        "torch": lambda x: F.cross_entropy(x, _CLASSES, label_smoothing=0.1),
        "by-hand": lambda x: -(0.9 * (logs := F.log_softmax(x, -1))[torch.arange(5), _CLASSES]
                               + 0.1 * logs.mean(-1)).mean()}),
    "divergence": Family(_ROWS * 2, {
        "torch": lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"),
        "by-hand": lambda x, y: (F.softmax(y, -1) * (F.log_softmax(y, -1) - F.log_softmax(x, -1))).sum(-1).mean()}),
    "convolution-parts": Family(_FILTER, {
        "torch": F.conv2d, "shifted": _shifted_products,
        "unfolded": lambda x, w: (w.flatten(1) @ F.unfold(x, 3)).view(2, 4, 5, 6)}, weights=1),
    "transposed-convolution": Family(((2, 4, 5, 6), (4, 3, 3, 3)), {
        "torch": lambda x, w: F.conv_transpose2d(x, w, stride=2), "stuffed": _stuffed,
        "folded": lambda x, w: F.fold(w.flatten(1).T @ x.flatten(2), (11, 13), 3, stride=2)}, weights=1),
    "doubled-image": Family(_IMAGE, {
        "torch": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "matrices": lambda x: _doubling(8) @ x @ _doubling(8).T}),
    "pool-without-padding": Family(_IMAGE, {
        "torch": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        "counted": lambda x: F.avg_pool2d(x, 3, 1, 1) / F.avg_pool2d(torch.ones_like(x), 3, 1, 1)}),
    "smoothed-steps": Family(((4, 12),), {"steps": _smoothed, "matrix": _smoothing_matrix}),
    "quantile": Family(_ROWS, {
        "torch": lambda x: torch.quantile(x, 0.3, dim=-1),
        "sorted": lambda x: torch.lerp((s := x.sort(-1).values)[:, 6], s[:, 7], 0.9)}),
    "squared-distance": Family(((5, 8), (6, 8)), {
        "torch": lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"),
        "norms": lambda x, y: (x[:, None] - y).norm(dim=-1)}),
}  # fmt: skip

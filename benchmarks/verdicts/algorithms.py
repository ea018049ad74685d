"""Other algorithms for one function: transforms, recurrences in blocks, statistics in one pass, linear algebra.

More families for :mod:`benchmarks.verdicts.rewritten`; the first writing of each is the reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.verdicts.rewritten import Family

_B = torch.tensor([[1.0, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
_G = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_A = torch.tensor([[1.0, 1, 1, 0], [0, 1, -1, -1]])


def _winograd(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """F(2x2, 3x3) of Lavin and Gray, *Fast Algorithms for Convolutional Neural Networks*, 2015."""
    tiles = _B @ x.unfold(2, 4, 2).unfold(3, 4, 2) @ _B.T
    found = _A @ torch.einsum("bcijxy,ocxy->boijxy", tiles, _G @ w @ _G.T) @ _A.T
    rows, columns = 2 * found.shape[2], 2 * found.shape[3]
    return found.permute(0, 1, 2, 4, 3, 5).reshape(x.shape[0], w.shape[0], rows, columns)


def _welford(x: torch.Tensor) -> torch.Tensor:
    """Layer norm whose statistics are joined block by block (Chan, Golub and LeVeque)."""
    count, mean, total = 0, torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for block in x.split(7, -1):
        size, own = block.shape[-1], block.mean(-1, keepdim=True)
        gap = own - mean
        total = total + (block - own).square().sum(-1, keepdim=True) + gap * gap * (count * size / (count + size))
        mean = mean + gap * (size / (count + size))
        count += size
    return (x - mean) / torch.sqrt(total / count + 1e-6)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _causal_in_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Blocks of queries over blocks of keys, with a running maximum and a running sum."""
    length, done = q.shape[-2], []
    for i in range(0, length, 4):
        rows = torch.arange(i, min(i + 4, length))
        part = q[..., rows, :]
        top = torch.full_like(part[..., :1], -math.inf)
        total, value = torch.zeros_like(top), torch.zeros_like(part)
        for j in range(0, min(i + 4, length), 3):
            columns = torch.arange(j, min(j + 3, length))
            scores = part @ k[..., columns, :].mT * q.shape[-1] ** -0.5
            scores = scores.masked_fill(columns > rows[:, None], -math.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            powers, kept = torch.exp(scores - new), torch.exp(top - new)
            total, value, top = (
                total * kept + powers.sum(-1, keepdim=True),
                value * kept + powers @ v[..., columns, :],
                new,
            )
        done.append(value / total)
    return torch.cat(done, -2)


def _log_sum_running(x: torch.Tensor) -> torch.Tensor:
    top, total = x[..., 0], torch.ones_like(x[..., 0])
    for k in range(1, x.shape[-1]):
        new = torch.maximum(top, x[..., k])
        total, top = total * torch.exp(top - new) + torch.exp(x[..., k] - new), new
    return top + torch.log(total)


def _turned(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(x.shape[-2])[:, None] / 10000 ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    angles = torch.cat([steps, steps], -1)
    return x * angles.cos() + other * angles.sin()


def _rotary(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return _turned(x, torch.cat([-x[..., half:], x[..., :half]], -1))


def _rotary_by_matrix(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    numbers, swap = torch.arange(half), torch.zeros(2 * half, 2 * half)
    swap[numbers + half, numbers], swap[numbers, numbers + half] = -1.0, 1.0
    return _turned(x, x @ swap)


def _bag(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.embedding_bag(_rows(x, w), w, mode="sum")


def _rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.abs() * 3).long() % w.shape[0]


def _bag_sorted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    places, order = _rows(x, w).flatten().sort()
    bags = torch.arange(x.shape[0]).repeat_interleave(x.shape[1])[order]
    return torch.zeros(x.shape[0], w.shape[1]).index_add(0, bags, w[places])


def _product_of_complex(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.complex(x, y) @ torch.complex(w, v))


def _three_products(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    one, two, both = x @ w, y @ v, (x + y) @ (w + v)
    return torch.stack([one - two, both - one - two], -1)


def _strassen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (a, b), (c, d) = (row.chunk(2, 1) for row in x.chunk(2, 0))
    (e, f), (g, h) = (row.chunk(2, 1) for row in y.chunk(2, 0))
    m1, m2, m3, m4 = (a + d) @ (e + h), (c + d) @ e, a @ (f - h), d @ (g - e)
    m5, m6, m7 = (a + b) @ h, (c - a) @ (e + f), (b - d) @ (g + h)
    upper, lower = torch.cat([m1 + m4 - m5 + m7, m3 + m5], 1), torch.cat([m2 + m4, m1 - m2 + m3 + m6], 1)
    return torch.cat([upper, lower], 0)


def _moving(x: torch.Tensor) -> torch.Tensor:
    sums = functional.pad(x.cumsum(-1), (1, 0))
    return (sums[..., 5:] - sums[..., :-5]) / 5


def _covariance(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(0, keepdim=True)
    return centred.T @ centred / (x.shape[0] - 1)


def _np_covariance(x: Any) -> Any:
    centred = x - x.mean(0, keepdims=True)
    return centred.T @ centred / np.asarray(x.shape[0] - 1, x.dtype)


def _merged_norm(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return (x @ (w * g).T) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


ALGORITHMS: dict[str, Family] = {
    "winograd": Family(((1, 2, 6, 6), (3, 2, 3, 3)), {"torch": functional.conv2d, "winograd": _winograd}, weights=1),
    "joined-statistics": Family(((5, 24),), {
        "torch": lambda x: functional.layer_norm(x, (24,), eps=1e-6), "joined": _welford}),
    "causal-attention": Family(((1, 2, 9, 4),) * 3, {"torch": _causal, "in-blocks": _causal_in_blocks}),
    "log-sum-exp": Family(((4, 15),), {
        "torch": lambda x: torch.logsumexp(x, -1), "running": _log_sum_running}),
    "rotary": Family(((2, 5, 8),), {"halves": _rotary, "matrix": _rotary_by_matrix}),
    "embedding-bag": Family(((5, 8), (9, 6)), {"torch": _bag, "sorted": _bag_sorted}, weights=1),
    "complex-product": Family(((4, 5), (4, 5), (5, 3), (5, 3)), {
        "torch": _product_of_complex, "three-products": _three_products}, weights=2),
    "strassen": Family(((8, 8), (8, 8)), {"torch": torch.matmul, "strassen": _strassen}),
    "moving-average": Family(((3, 40),), {
        "torch": lambda x: x.unfold(-1, 5, 1).mean(-1), "cumulative": _moving}),
    "covariance": Family(((12, 4),), {
        "torch": lambda x: torch.cov(x.T), "by-hand": _covariance, "np": _np_covariance}),
    "determinant": Family(((3, 3, 3),), {
        "torch": torch.linalg.det,
        "triple-product": lambda x: (x[:, 0] * torch.linalg.cross(x[:, 1], x[:, 2])).sum(-1)}),
    "solution": Family(((5, 5), (5, 3)), {
        "torch": torch.linalg.solve, "inverse": lambda m, x: torch.linalg.inv(m) @ x}, weights=1),
    "norm-into-linear": Family(((3, 8), (6, 8), (8,)), {
        "torch": lambda x, w, g: functional.linear(functional.rms_norm(x, (8,), g, eps=1e-6), w),
        "merged": _merged_norm}, weights=2),
    "polynomial": Family(((40,),), {
        "horner": lambda x: 1 + x * (0.5 + x * (0.25 + x * (-0.1 + x * 0.02))),
        "expanded": lambda x: 0.02 * x**4 - 0.1 * x**3 + 0.25 * x**2 + 0.5 * x + 1}),
}  # fmt: skip

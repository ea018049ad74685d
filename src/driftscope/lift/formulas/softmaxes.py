"""Softmax where a row may be hidden whole, or has a term without a value; torch's own everywhere else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def softmax_or_zero(x: Tensor, axis: int) -> Tensor:
    """Softmax in which a row of nothing but ``-inf`` is zero, not NaN."""
    blind = torch.isneginf(x.amax(axis, keepdim=True)) if x.shape[axis] else x.new_zeros(()).bool()
    return torch.where(blind, torch.zeros((), dtype=x.dtype, device=x.device), torch.softmax(x, axis))


def softmax_with_sink(x: Tensor, sink: Tensor) -> Tensor:
    """Softmax over the last axis of (B, N, S, T) and one more term per head that takes weight but has no value."""
    column = sink.to(x.dtype).reshape(1, -1, 1, 1).expand(*x.shape[:3], 1)
    return torch.softmax(torch.cat([x, column], -1), -1)[..., :-1]


def flattened(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """The 2-d shape in which all axes from ``axis`` on are one (softmax of early ONNX opsets)."""
    axis = axis % len(shape) if shape else 0
    rows = columns = 1
    for i, size in enumerate(shape):
        rows, columns = (rows * size, columns) if i < axis else (rows, columns * size)
    return rows, columns

"""Primitives that move elements or make them, and compute none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from driftscope.lift.arrays.tracing import torch_dtype
from driftscope.lift.jax.rules.elementwise import Rule

Tensor = torch.Tensor


def _broadcast_in_dim(x: Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any) -> Tensor:
    sizes = [1] * len(shape)
    for dim, size in zip(broadcast_dimensions, x.shape, strict=True):
        sizes[dim] = size
    placed = x if list(x.shape) == sizes else x.reshape(sizes)
    return placed if sizes == list(shape) else placed.expand(*shape)


def _reshape(x: Tensor, new_sizes: Sequence[int], dimensions: Any = None, **_: Any) -> Tensor:
    return (x if dimensions is None else x.permute(*dimensions)).reshape(tuple(new_sizes))


def _squeeze(x: Tensor, dimensions: Sequence[int], **_: Any) -> Tensor:
    return x.reshape([size for dim, size in enumerate(x.shape) if dim not in dimensions])


def _expand_dims(x: Tensor, dimensions: Sequence[int], **_: Any) -> Tensor:
    for dim in sorted(dimensions):
        x = x.unsqueeze(dim)
    return x


def _transpose(x: Tensor, permutation: Sequence[int], **_: Any) -> Tensor:
    return x.permute(*permutation)


def _rev(x: Tensor, dimensions: Sequence[int], **_: Any) -> Tensor:
    return torch.flip(x, tuple(dimensions))


def _slice(x: Tensor, start_indices: Any, limit_indices: Any, strides: Any = None, **_: Any) -> Tensor:
    steps = strides or [1] * x.dim()
    for dim, (start, stop, step) in enumerate(zip(start_indices, limit_indices, steps, strict=True)):
        if (start, stop, step) != (0, x.shape[dim], 1):
            x = torch.ops.aten.slice.Tensor(x, dim, int(start), int(stop), int(step))
    return x


def pad(x: Tensor, value: Tensor, padding_config: Sequence[tuple[int, int, int]], **_: Any) -> Tensor:
    """Put a value around and between the elements: ``(low, high, interior)`` of each dimension, in elements."""
    if any(interior and size > 1 for (_, _, interior), size in zip(padding_config, x.shape, strict=True)):
        spread = [size + max(size - 1, 0) * k for (_, _, k), size in zip(padding_config, x.shape, strict=True)]
        wide = value.expand(spread).clone()
        wide[tuple(slice(None, None, k + 1) for _, _, k in padding_config)] = x
        x = wide
    widths = [int(w) for low, high, _ in reversed(padding_config) for w in (low, high)]
    if not any(widths):
        return x
    if any(w < 0 for w in widths):
        x = functional.pad(x, [min(w, 0) for w in widths])
    widths = [max(w, 0) for w in widths]
    if not any(widths):
        return x
    # The value is a tensor: it may depend on the inputs.
    around = functional.pad(torch.ones(x.shape, dtype=torch.bool, device=x.device), widths)
    return torch.where(around, functional.pad(x, widths), value)


def _concatenate(*tensors: Tensor, dimension: int, **_: Any) -> Tensor:
    return torch.cat(tensors, dimension)


def _stack(*tensors: Tensor, axis: int, **_: Any) -> Tensor:
    return torch.stack(tensors, axis)


def _iota(*, dtype: Any, shape: Sequence[int], dimension: int, **_: Any) -> Tensor:
    line = torch.arange(shape[dimension], dtype=torch_dtype(np.dtype(dtype)))
    return _broadcast_in_dim(line, shape, (dimension,))


def _split(x: Tensor, sizes: Sequence[int], axis: int, **_: Any) -> list[Tensor]:
    return list(torch.split(x, [int(size) for size in sizes], axis))


SHAPES: dict[str, Rule] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "transpose": _transpose,
    "rev": _rev,
    "slice": _slice,
    "pad": pad,
    "concatenate": _concatenate,
    "stack": _stack,
    "iota": _iota,
    "split": _split,
}

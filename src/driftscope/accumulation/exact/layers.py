"""Layers whose sums have a fixed order, written with the products, sums and exponentials of this folder.

Each takes what torch's own operator takes and returns what it returns; inside a row nothing depends on the batch, the
threads or the strides, because :func:`~driftscope.accumulation.exact.fixed.kernels.product` adds in one order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from driftscope.accumulation.exact import reductions
from driftscope.accumulation.exact.fixed import kernels
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.accumulation.exact.softmax import exponential
from driftscope.errors import InputError

Sizes = Sequence[int]


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    """``x - m - log(sum(exp(x - m)))`` with the largest element m and an exact sum, rounded once."""
    x = x.float() if half_to_float else x
    if not x.numel():
        return x.clone()
    shifted = x.double() - x.double().amax(dim, keepdim=True)
    total = reductions.sum(exponential(shifted), dim, True)
    return rounded_once(shifted - total.log(), x.dtype)


def cumulative_sum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Add one element after the other in float64, each partial sum rounded once."""
    x = x if dtype is None else x.to(dtype)
    if not x.dim() or not x.numel():
        return x.clone()
    total, found = torch.zeros_like(x.select(dim, 0), dtype=torch.float64), []
    for part in x.double().unbind(dim):
        total = total + part
        found.append(total)
    return rounded_once(torch.stack(found, dim), x.dtype)


def convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int,
) -> torch.Tensor:  # fmt: skip
    """A convolution as a product of its weight and the patches of its input, one product for each group.

    A transposed one is a convolution of the input with zeros between its elements, by the weight turned round.
    """
    axes = x.dim() - 2
    stride, padding, dilation = (tuple(s) * (axes // len(s)) for s in (stride, padding, dilation))
    if transposed:
        output_padding = tuple(output_padding) * (axes // len(output_padding))
        x, weight = _spread(x, stride), _turned(weight, groups)
        edges = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
        sides = [(e, e + o) for e, o in zip(edges, output_padding, strict=True)]
        stride = (1,) * axes
    else:
        sides = [(p, p) for p in padding]
    x = torch.nn.functional.pad(x, [n for side in reversed(sides) for n in side])
    result = _of_patches(x, weight, stride, dilation, groups)
    return result if bias is None else result + bias.reshape(-1, *[1] * axes)


def patches(x: torch.Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> torch.Tensor:
    """Return the patches of an input that is padded already.

    Returns
    -------
    Tensor, shape ``(rows, groups, channels of a group x kernel, *places)``
    """
    axes = x.dim() - 2
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), start=2):
        x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
    order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    terms = x.shape[1] // groups * math.prod(kernel)
    return x.permute(order).reshape(x.shape[0], groups, terms, *x.shape[2 : 2 + axes])


def _of_patches(x: torch.Tensor, weight: torch.Tensor, stride: Sizes, dilation: Sizes, groups: int) -> torch.Tensor:
    found = patches(x, weight.shape[2:], stride, dilation, groups)
    rows, _, terms, *places = found.shape
    outputs = weight.shape[0] // groups
    parts = [
        kernels.product(weight[g * outputs : (g + 1) * outputs].reshape(outputs, terms).expand(rows, outputs, terms),
                        found[:, g].flatten(2))
        for g in range(groups)
    ]  # fmt: skip
    return torch.cat(parts, 1).reshape(rows, weight.shape[0], *places)


def _spread(x: torch.Tensor, stride: Sizes) -> torch.Tensor:
    sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *sizes)
    index: tuple[Any, ...] = (..., *(slice(None, None, s) for s in stride))
    wide[index] = x
    return wide


def _turned(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Exchange the channels of a transposed convolution's weight inside each group, and turn its kernel round."""
    parts = [part.transpose(0, 1) for part in weight.chunk(groups, 0)]
    return torch.cat(parts, 0).flip(tuple(range(2, weight.dim())))


def batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise by statistics that are given, as in evaluation mode, or by those of a single row.

    InstanceNorm arrives here as one row whose channels are those of all rows.

    Raises
    ------
    InputError
        In train mode, in which rows are normalised together.
    """
    if training and x.shape[0] == 1 and mean is None and x.dim() > 2:
        from driftscope.accumulation.exact.pools import group_norm

        channels = x.shape[1]
        result, middle, spread = group_norm(x, weight, bias, 1, channels, x[0, 0].numel(), channels, eps)
        return result, middle.reshape(-1), spread.reshape(-1)
    if training or mean is None:
        raise InputError(
            "ds.reproducible() cannot make BatchNorm in train mode independent of its batch: call .eval()."
        )
    shape = (1, -1, *[1] * (x.dim() - 2))
    result = (x - mean.reshape(shape)) * (1.0 / (var + eps).sqrt()).reshape(shape)
    result = result if weight is None else result * weight.reshape(shape)
    return (result if bias is None else result + bias.reshape(shape)), x.new_empty(0), x.new_empty(0)

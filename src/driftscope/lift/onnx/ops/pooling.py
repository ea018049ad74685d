"""Pooling over windows: largest, mean, Lp norm, and the inverse of the first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from driftscope.lift.formulas.normalisations import lp_norm
from driftscope.lift.formulas.terms import normed, summed
from driftscope.lift.formulas.windows import (
    Windows,
    counts,
    places_of_largest,
    window_count,
    window_maxima,
    window_sums,
)
from driftscope.lift.onnx.ops.convolution import padded, window_pads
from driftscope.lift.onnx.registry import Node, Result, integers_of, operator


def windows_of(node: Node, lengths: Sequence[int]) -> Windows:
    """The windows of a pooling node over spatial axes of given lengths."""
    kernel = node.integers("kernel_shape")
    rank = len(kernel)
    strides = node.integers("strides", [1] * rank)
    dilations = node.integers("dilations", [1] * rank)
    begins, ends = window_pads(node, lengths, kernel, strides, dilations)
    ceiling = node.integer("ceil_mode", 0) == 1
    outputs = [
        window_count(n, (kernel[i], strides[i], dilations[i]), (begins[i], ends[i]), ceiling=ceiling)
        for i, n in enumerate(lengths)
    ]
    return Windows(kernel, strides, dilations, begins, ends, outputs)


@operator("MaxPool")
def max_pool(node: Node, x: Tensor) -> Result:
    """Largest value of every window, and where it was."""
    windows = windows_of(node, x.shape[2:])
    y = window_maxima(x, windows)
    formats = [node.format(0), torch.int64]
    if not node.wants(1):
        return Result(y, formats=formats)
    columns_first = node.integer("storage_order", 0) == 1
    return Result((y, places_of_largest(node.rounded(x), windows, columns_first=columns_first)), formats=formats)


@operator("AveragePool", since=7)
def average_pool(node: Node, x: Tensor) -> Result:
    """Mean of every window, over its elements inside the input or inside the padded input."""
    windows = windows_of(node, x.shape[2:])
    count = counts(windows, x.shape[2:], node.integer("count_include_pad", 0) == 1, x)
    squares = lambda: window_sums(x.square(), windows) / count.square()  # noqa: E731
    return Result(window_sums(x, windows) / count, summed(math.prod(windows.kernel), squares))


@operator("LpPool", since=2)
def lp_pool(node: Node, x: Tensor) -> Result:
    """Lp norm of every window."""
    windows = windows_of(node, x.shape[2:])
    p = node.integer("p", 2)
    powers = window_sums(x.abs() ** p, windows)
    return Result(powers ** (1.0 / p), normed(math.prod(windows.kernel)))


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Result:
    """Mean over all spatial axes."""
    axes = list(range(2, x.dim()))
    length = math.prod(x.shape[2:])
    squares = lambda: x.square().sum(axes, keepdim=True) / length**2  # noqa: E731
    return Result(x.mean(axes, keepdim=True), summed(length, squares))


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    """Largest value over all spatial axes."""
    return x.amax(list(range(2, x.dim())), keepdim=True)


@operator("GlobalLpPool")
def global_lp_pool(node: Node, x: Tensor) -> Result:
    """Lp norm over all spatial axes."""
    return Result(lp_norm(x, range(2, x.dim()), node.integer("p", 2)), normed(math.prod(x.shape[2:])))


@operator("MaxUnpool", host=(2,))
def max_unpool(node: Node, x: Tensor, indices: Tensor, shape: Tensor | None = None) -> Result:
    """Values back at the places they were the largest of; zero elsewhere."""
    kernel = node.integers("kernel_shape")
    rank = len(kernel)
    strides, pads = node.integers("strides", [1] * rank), node.integers("pads", [0] * (2 * rank))
    inferred = [(n - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i, n in enumerate(x.shape[2:])]
    whole = [*x.shape[:2], *inferred]
    flat = torch.zeros(math.prod(whole), dtype=x.dtype, device=x.device)
    flat = flat.scatter(0, indices.reshape(-1).to(x.device), x.reshape(-1)).reshape(whole)
    wanted = integers_of(shape)
    if wanted is not None:
        flat = padded(flat, [0] * rank, [w - n for w, n in zip(wanted[2:], inferred, strict=True)])
    return Result(flat, formats=[node.format(0)])

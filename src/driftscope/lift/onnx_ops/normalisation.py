"""Normalisations, in formulas of their own: epsilon must carry a gradient, and stash_type changes rounding only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftscope.lift.onnx_ops.registry import Node, Number, Result, axis_of, operator, summed
from driftscope.lift.onnx_types import FORMAT_OF_ELEMENT
from driftscope.lift.steps import Kind, Rounding


def _norm(length: int) -> Rounding:
    return Rounding(Kind.NORM, max(int(length), 1))


def standardised(x: Tensor, axes: list[int], epsilon: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the mean and divide by the deviation over some axes.

    Returns
    -------
    (y, mean, inverse deviation), the last two with the axes kept at length 1
    """
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + epsilon)
    return centred * inverse, mean, inverse


def _stash(node: Node, x: Tensor) -> Tensor:
    """Natively, the statistics are computed in the format that stash_type names."""
    return x if node.lifted else x.to(FORMAT_OF_ELEMENT[node.integer("stash_type", 1)])


@operator("LayerNormalization", since=17)
def layer_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Result:
    """Layer normalisation over the axes from ``axis`` on (Ba, Kiros and Hinton, 2016)."""
    axis = axis_of(node.integer("axis", -1), x.dim())
    axes = list(range(axis, x.dim()))
    y, mean, inverse = standardised(_stash(node, x), axes, node.number("epsilon", 1e-5))
    y = y.to(x.dtype) * scale
    if bias is not None:
        y = y + bias
    stash = FORMAT_OF_ELEMENT[node.integer("stash_type", 1)]
    return Result((y, mean, inverse), _norm(math.prod(x.shape[axis:])), [node.format(0), stash, stash])


@operator("RMSNormalization", since=23)
def rms_normalization(node: Node, x: Tensor, scale: Tensor) -> Result:
    """Division by the root mean square over the axes from ``axis`` on (Zhang and Sennrich, 2019)."""
    axis = axis_of(node.integer("axis", -1), x.dim())
    axes = list(range(axis, x.dim()))
    wide = _stash(node, x)
    y = wide * torch.rsqrt((wide * wide).mean(axes, keepdim=True) + node.number("epsilon", 1e-5))
    return Result(y.to(x.dtype) * scale, _norm(math.prod(x.shape[axis:])), [node.format(0)])


@operator("InstanceNormalization", since=6)
def instance_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Result:
    """Normalisation of every channel of every sample."""
    axes = list(range(2, x.dim()))
    y, _, _ = standardised(x, axes, node.number("epsilon", 1e-5))
    return Result(y * _channels(scale, x) + _channels(bias, x), _norm(math.prod(x.shape[2:])))


@operator("BatchNormalization", since=7)
def batch_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Result:
    """Normalisation with stored statistics, or with the batch's in training mode."""
    epsilon = node.number("epsilon", 1e-5)
    formats = [node.format(0), node.format(3), node.format(4)]
    if node.integer("training_mode", 0) == 0:
        factor = scale * torch.rsqrt(variance + epsilon)
        y = (x - _channels(mean, x)) * _channels(factor, x) + _channels(bias, x)
        # Each element is scaled and shifted: nothing is reduced.
        return Result((y,), Rounding(Kind.NORM, 1), formats)
    axes = [0, *range(2, x.dim())]
    y, batch_mean, _ = standardised(x, axes, epsilon)
    batch_variance = (x - batch_mean).square().mean(axes)
    momentum = node.number("momentum", 0.9)
    running_mean = mean * momentum + batch_mean.reshape(-1) * (1 - momentum)
    running_variance = variance * momentum + batch_variance * (1 - momentum)
    y = y * _channels(scale, x) + _channels(bias, x)
    length = math.prod(x.shape[a] for a in axes)
    return Result((y, running_mean, running_variance), _norm(length), formats)


def _channels(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.reshape(1, -1, *[1] * (x.dim() - 2)) if x.dim() > 1 else parameter


def _group(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Result:
    groups = node.integer("num_groups")
    grouped = (x if node.lifted else _stash(node, x)).reshape(x.shape[0], groups, -1)
    y, _, _ = standardised(grouped, [2], node.number("epsilon", 1e-5))
    y = y.reshape(x.shape).to(x.dtype)
    if scale.numel() != x.shape[1]:  # opset 18 gives one scale per group
        repeat = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(repeat), bias.repeat_interleave(repeat)
    return Result(y * _channels(scale, x) + _channels(bias, x), _norm(grouped.shape[2]))


operator("GroupNormalization", since=18)(_group)


@operator("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Result:
    """Division by the L1 or L2 norm along an axis; a zero norm leaves zeros."""
    axis = node.integer("axis", -1)
    norm = x.abs().sum(axis, keepdim=True) if node.integer("p", 2) == 1 else (x * x).sum(axis, keepdim=True).sqrt()
    return Result(torch.where(norm == 0, torch.zeros_like(x), x / norm), _norm(x.shape[axis]))


@operator("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Tensor) -> Result:
    """Zero mean and unit variance over some axes."""
    axes = node.integers("axes", [0, 2, 3])
    mean = x.mean(axes, keepdim=True)
    deviation = ((x * x).mean(axes, keepdim=True) - mean * mean).sqrt()
    return Result((x - mean) / (deviation + 1e-9), _norm(math.prod(x.shape[a] for a in axes)))


@operator("LRN")
def local_response_normalization(node: Node, x: Tensor) -> Result:
    """Local response normalisation across channels (Krizhevsky et al., 2012)."""
    size = node.integer("size")
    squares = torch.zeros_like(x)
    before, after = (size - 1) // 2, math.ceil((size - 1) / 2)
    for channel in range(x.shape[1]):
        low, high = max(0, channel - before), min(x.shape[1], channel + after + 1)
        squares[:, channel] = x[:, low:high].square().sum(1)
    alpha, beta, bias = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("bias", 1.0)
    return Result(x / (bias + alpha / size * squares) ** beta, Rounding(Kind.FUNCTION, size))


@operator("Dropout", since=7, host=(1, 2))
def dropout(node: Node, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Result:
    """The identity in inference; with ``training_mode`` a mask of the node's own seed."""
    mask = torch.ones_like(x, dtype=torch.bool)
    rate = 0.5 if ratio is None else float(ratio)
    if training is None or not bool(training) or rate == 0:
        return Result((x, mask))
    generator = torch.Generator().manual_seed(node.integer("seed", 0))
    mask = (torch.rand(x.shape, generator=generator, dtype=torch.float64) >= rate).to(x.device)
    return Result((x * mask / (1 - rate), mask), Rounding(Kind.ROUND))


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
    p = node.integer("p", 2)
    axes = list(range(2, x.dim()))
    return Result((x.abs() ** p).sum(axes, keepdim=True) ** (1 / p), _norm(math.prod(x.shape[2:])))

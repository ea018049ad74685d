"""Normalisations: stash_type changes rounding only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftscope.lift.formulas.normalisations import (
    affine,
    by_statistics,
    inverse_deviation,
    local_response,
    lp_norm,
    moments,
    normalised,
    per_channel,
)
from driftscope.lift.formulas.terms import ROUND, length_of, normed
from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator
from driftscope.lift.steps import Kind, Rounding


def _stash(node: Node, x: Tensor) -> Tensor:
    """Natively, the statistics are computed in the format that stash_type names."""
    return x if node.lifted else x.to(FORMAT_OF_ELEMENT[node.integer("stash_type", 1)])


@operator("LayerNormalization", since=17)
def layer_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Result:
    """Layer normalisation over the axes from ``axis`` on."""
    axes = list(range(axis_of(node.integer("axis", -1), x.dim()), x.dim()))
    done = normalised(_stash(node, x), axes, node.number("epsilon", 1e-5))
    y = affine(done.value.to(x.dtype), scale, bias)
    stash = FORMAT_OF_ELEMENT[node.integer("stash_type", 1)]
    rounding = normed(length_of(x.shape, axes))
    return Result((y, done.mean, done.inverse_deviation), rounding, [node.format(0), stash, stash])


@operator("RMSNormalization", since=23)
def rms_normalization(node: Node, x: Tensor, scale: Tensor) -> Result:
    """Division by the root mean square over the axes from ``axis`` on."""
    axes = list(range(axis_of(node.integer("axis", -1), x.dim()), x.dim()))
    done = normalised(_stash(node, x), axes, node.number("epsilon", 1e-5), centred=False)
    return Result(done.value.to(x.dtype) * scale, normed(length_of(x.shape, axes)), [node.format(0)])


@operator("InstanceNormalization", since=6)
def instance_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Result:
    """Normalisation of every channel of every sample."""
    y = normalised(x, range(2, x.dim()), node.number("epsilon", 1e-5)).value
    return Result(affine(y, per_channel(scale, x), per_channel(bias, x)), normed(math.prod(x.shape[2:])))


@operator("BatchNormalization", since=7)
def batch_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Result:
    """Normalisation with stored statistics, or with the batch's in training mode."""
    epsilon = node.number("epsilon", 1e-5)
    formats = [node.format(0), node.format(3), node.format(4)]
    if node.integer("training_mode", 0) == 0:
        y = by_statistics(x, (mean, inverse_deviation(variance, epsilon)), scale, bias)
        # Each element is scaled and shifted: nothing is reduced.
        return Result((y,), Rounding(Kind.NORM, 1), formats)
    axes = [0, *range(2, x.dim())]
    batch_mean, batch_variance = moments(x, axes, keep=False)
    momentum = node.number("momentum", 0.9)
    running = [old * momentum + new * (1 - momentum) for old, new in ((mean, batch_mean), (variance, batch_variance))]
    y = by_statistics(x, (batch_mean, inverse_deviation(batch_variance, epsilon)), scale, bias)
    return Result((y, *running), normed(length_of(x.shape, axes)), formats)


def _group(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Result:
    groups = node.integer("num_groups")
    grouped = (x if node.lifted else _stash(node, x)).reshape(x.shape[0], groups, -1)
    y = normalised(grouped, [2], node.number("epsilon", 1e-5)).value.reshape(x.shape).to(x.dtype)
    if scale.numel() != x.shape[1]:  # opset 18 gives one scale per group
        repeat = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(repeat), bias.repeat_interleave(repeat)
    return Result(affine(y, per_channel(scale, x), per_channel(bias, x)), normed(grouped.shape[2]))


operator("GroupNormalization", since=18)(_group)


@operator("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Result:
    """Division by the L1 or L2 norm along an axis; a zero norm leaves zeros."""
    axis = node.integer("axis", -1)
    norm = lp_norm(x, [axis], node.integer("p", 2))
    return Result(torch.where(norm == 0, torch.zeros_like(x), x / norm), normed(x.shape[axis]))


@operator("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Tensor) -> Result:
    """Zero mean and unit variance over some axes."""
    axes = node.integers("axes", [0, 2, 3])
    mean, variance = moments(x, axes)
    return Result((x - mean) / (variance.sqrt() + 1e-9), normed(length_of(x.shape, axes)))


@operator("LRN")
def local_response_normalization(node: Node, x: Tensor) -> Result:
    """Local response normalisation across channels."""
    size = node.integer("size")
    alpha, beta, bias = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("bias", 1.0)
    return Result(local_response(x, size, alpha, beta, bias), Rounding(Kind.FUNCTION, size))


@operator("Dropout", since=7, host=(1, 2))
def dropout(node: Node, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Result:
    """The identity in inference; with ``training_mode`` a mask of the node's own seed."""
    mask = torch.ones_like(x, dtype=torch.bool)
    rate = 0.5 if ratio is None else float(ratio)
    if training is None or not bool(training) or rate == 0:
        return Result((x, mask))
    generator = torch.Generator().manual_seed(node.integer("seed", 0))
    mask = (torch.rand(x.shape, generator=generator, dtype=torch.float64) >= rate).to(x.device)
    return Result((x * mask / (1 - rate), mask), ROUND)

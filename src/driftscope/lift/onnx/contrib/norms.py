"""Normalisations that onnxruntime's optimiser writes, with the sums it fuses into them.

Semantics: onnxruntime, ``docs/ContribOperators.md``. Statistics are of the sum before it is stored in the
native format, as the kernels keep it in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from driftscope.lift.formulas.activations import swish
from driftscope.lift.formulas.normalisations import affine, normalised
from driftscope.lift.formulas.terms import FUNCTION, ROUND, normed
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator
from driftscope.lift.steps import Rounding

_EPSILON = 1e-5
SKIP_EPSILON = 1e-12


def _layer(node: Node, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None, centred: bool) -> Result:
    axis = axis_of(node.integer("axis", -1), x.dim())
    axes = list(range(axis, x.dim()))
    done = normalised(x, axes, node.number("epsilon", _EPSILON), centred=centred)
    value = affine(done.value, scale, shift).to(x.dtype)
    statistics = (done.mean, done.inverse_deviation) if centred else (done.inverse_deviation,)
    rounding = normed(math.prod(x.shape[axis:]))
    stash = torch.float32 if node.integer("stash_type", 1) == 1 else node.format(0)
    formats = (node.format(1) or node.format(0), *[stash] * len(statistics))
    return Result((value, *statistics), rounding, formats)


@operator("LayerNormalization", since=1)
def layer_normalization(node: Node, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None = None) -> Result:
    """The operator as onnxruntime has it below opset 17 (outputs Y, mean, 1/deviation)."""
    return _layer(node, x, scale, shift, True)


@operator("SimplifiedLayerNormalization", since=1)
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(node: Node, x: torch.Tensor, scale: torch.Tensor) -> Result:
    """Root-mean-square normalisation: no mean, no shift (outputs Y, 1/deviation)."""
    return _layer(node, x, scale, None, False)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Inputs of a skip normalisation; ``skip`` broadcasts to ``x`` (batch, sequence, hidden)."""

    x: torch.Tensor
    skip: torch.Tensor
    gamma: torch.Tensor
    beta: torch.Tensor | None
    bias: torch.Tensor | None


def _skip_norm(node: Node, given: Skipped, centred: bool) -> Result:
    x, skip = given.x, given.skip
    # A skip of another rank is repeated over the leading dimensions: (1, S, H) or (S, H) against (B, S, H).
    total = x + skip.reshape(*[1] * (x.dim() - skip.dim()), *skip.shape) if skip.dim() < x.dim() else x + skip
    if given.bias is not None:
        total = total + given.bias
    total = node.inner("Add", total, ROUND)
    done = normalised(total, [-1], node.number("epsilon", SKIP_EPSILON), centred=centred)
    value = affine(done.value, given.gamma, given.beta).to(x.dtype)
    formats = (node.format(0), torch.float32, torch.float32, node.format(0))
    outputs = (value, done.mean if node.wants(1) else None, done.inverse_deviation if node.wants(2) else None)
    return Result((*outputs, total), normed(x.shape[-1]), formats)


@operator("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    node: Node,
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> Result:
    """Layer normalisation of ``x + skip + bias`` (outputs Y, mean, 1/deviation, the sum)."""
    return _skip_norm(node, Skipped(x, skip, gamma, beta, bias), True)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    node: Node,
    x: torch.Tensor,
    skip: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Result:
    """Root-mean-square normalisation of ``x + skip + bias`` (outputs Y, mean, 1/deviation, the sum)."""
    return _skip_norm(node, Skipped(x, skip, gamma, None, bias), False)


def _group_norm(node: Node, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, Rounding]:
    """Group normalisation of x (N, C, ...); and a SiLU where ``activation`` is 1."""
    groups = node.integer("groups")
    split = x.reshape(x.shape[0], groups, -1)
    value = normalised(split, [-1], node.number("epsilon", _EPSILON)).value.reshape(x.shape)
    shape = (-1, *[1] * (x.dim() - 2))
    value = affine(value, gamma.reshape(shape), beta.reshape(shape)).to(x.dtype)
    rounding = normed(split.shape[-1])
    if not node.integer("activation", 0):
        return value, rounding
    value = node.inner("GroupNorm", value, rounding)
    return swish(value), FUNCTION


@operator("GroupNorm", domain=MICROSOFT)
def group_norm(node: Node, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> Result:
    """Group normalisation of x (N, H, W, C), or (N, C, H, W) where ``channels_last`` is 0."""
    last = node.integer("channels_last", 1)
    value, rounding = _group_norm(node, x.movedim(-1, 1) if last else x, gamma, beta)
    return Result(value.movedim(1, -1) if last else value, rounding)


@operator("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(
    node: Node,
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    skip: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Result:
    """Group normalisation of ``x + skip + bias`` (outputs Y, the sum); skip may be (N, C) or (N, 1, 1, C)."""
    last = node.integer("channels_last", 1)
    x = x.movedim(-1, 1) if last else x
    if skip.dim() == 2:
        skip = skip[:, :, None, None]
    elif last:
        skip = skip.movedim(-1, 1)
    total = x + skip if bias is None else x + skip + bias.reshape(-1, 1, 1)
    total = node.inner("Add", total, ROUND)
    value, rounding = _group_norm(node, total, gamma, beta)
    if last:
        value, total = value.movedim(1, -1), total.movedim(1, -1)
    return Result((value, total), rounding)


@operator("BranchwiseRMSNorm", domain=MICROSOFT)
def branchwise_rms_norm(node: Node, x: torch.Tensor, scale: torch.Tensor | None = None) -> Result:
    """Root-mean-square normalisation of each branch: x (..., C, H), or (..., C * H) with ``num_branches``."""
    branches = node.integer("num_branches", 0)
    split = x.reshape(*x.shape[:-1], branches, -1) if branches else x
    value = normalised(split, [-1], node.number("epsilon", _EPSILON), centred=False).value
    if scale is not None:
        value = value * (scale if scale.numel() == split.shape[-1] else scale.reshape(split.shape[-2:]))
    return Result(value.reshape(x.shape).to(x.dtype), normed(split.shape[-1]))


@operator("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(node: Node, x: torch.Tensor, scale: torch.Tensor, gate: torch.Tensor) -> Result:
    """``rms_norm(x) * scale * activation(gate)`` over groups of as many elements as ``scale`` has."""
    split = x.reshape(*x.shape[:-1], -1, scale.shape[0])
    value = normalised(split, [-1], node.number("epsilon", _EPSILON), centred=False).value * scale
    opened = swish(gate) if node.text("activation", "silu") in ("silu", "swish") else torch.sigmoid(gate)
    value = node.inner("RMSNorm", value.reshape(x.shape), normed(scale.shape[0]))
    return Result((value * opened).to(x.dtype), FUNCTION)

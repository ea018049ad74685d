"""Losses and one step of an optimiser."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import Number, summed
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding

_TRAINING = "ai.onnx.preview.training"


def _picked_loss(node: Node, logarithms: Tensor, target: Tensor, weight: Tensor | None) -> Result:
    """Minus the log probability of every target, reduced; ignored targets weigh nothing."""
    ignored = node.integer("ignore_index") if node.has("ignore_index") else None
    target = target.to(torch.int64)
    skip = torch.zeros_like(target, dtype=torch.bool) if ignored is None else target == ignored
    safe = torch.where(skip, torch.zeros_like(target), target)
    loss = -logarithms.gather(1, safe.unsqueeze(1)).squeeze(1)
    weights = torch.ones_like(loss) if weight is None else weight[safe]
    weights = torch.where(skip, torch.zeros_like(weights), weights)
    loss = torch.where(skip, torch.zeros_like(loss), loss * weights)
    reduction = node.text("reduction", "mean")
    if reduction == "none":
        return Result(loss, Rounding(Kind.ROUND))
    total = loss.sum()
    if reduction == "mean":
        total = total / (weights.sum() if weight is not None or ignored is not None else loss.numel())
    return Result(total, summed(loss.numel()))


@operator("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Result:
    """Loss of log probabilities."""
    return _picked_loss(node, x, target, weight)


@operator("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy(node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Result:
    """Loss of scores, and their log probabilities."""
    logarithms = torch.log_softmax(x, 1)
    logarithms = node.inner("LogSoftmax", logarithms, Rounding(Kind.SOFTMAX, x.shape[1]), inputs=(x,))
    result = _picked_loss(node, logarithms, target, weight)
    return Result((result.outputs, logarithms), result.rounding)


def _each(count: int, tensors: Sequence[Tensor], groups: int) -> list[Sequence[Tensor]]:
    """Optimisers take all weights, then all gradients, then every kind of state."""
    return [[tensors[g * count + i] for g in range(groups)] for i in range(count)]


@operator("Adagrad", domain=_TRAINING, kind=Kind.FUNCTION)
def adagrad(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """One step of Adagrad (Duchi et al., 2011)."""
    decay, norm = node.number("decay_factor", 0.0), node.number("norm_coefficient", 0.0)
    epsilon = node.number("epsilon", 0.0)
    rate = rate / (1 + step * decay)
    done = []
    for x, gradient, squares in _each(len(tensors) // 3, tensors, 3):
        slope = norm * x + gradient
        squares = squares + slope * slope
        done.append((x - rate * slope / (squares.sqrt() + epsilon), squares))
    return tuple(column for columns in zip(*done, strict=True) for column in columns)


@operator("Adam", domain=_TRAINING, kind=Kind.FUNCTION)
def adam(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """One step of Adam (Kingma and Ba, 2015)."""
    alpha, beta = node.number("alpha", 0.9), node.number("beta", 0.999)
    before, after = node.number("norm_coefficient", 0.0), node.number("norm_coefficient_post", 0.0)
    epsilon = node.number("epsilon", 0.0)
    if int(step) > 0:
        rate = rate * (1 - beta ** int(step)) ** 0.5 / (1 - alpha ** int(step))
    done = []
    for x, gradient, mean, squares in _each(len(tensors) // 4, tensors, 4):
        slope = before * x + gradient
        mean = alpha * mean + (1 - alpha) * slope
        squares = beta * squares + (1 - beta) * slope * slope
        moved = x - rate * mean / (squares.sqrt() + epsilon)
        done.append(((1 - after) * moved, mean, squares))
    return tuple(column for columns in zip(*done, strict=True) for column in columns)


@operator("Momentum", domain=_TRAINING, kind=Kind.ROUND)
def momentum(node: Node, rate: Tensor, step: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """One step of gradient descent with momentum, plain or Nesterov's."""
    alpha, norm = node.number("alpha"), node.number("norm_coefficient")
    beta: Number = node.number("beta") if int(step) > 0 else 1.0
    nesterov = node.text("mode") == "nesterov"
    done = []
    for x, gradient, velocity in _each(len(tensors) // 3, tensors, 3):
        slope = norm * x + gradient
        velocity = alpha * velocity + beta * slope
        done.append((x - rate * (slope + alpha * velocity if nesterov else velocity), velocity))
    return tuple(column for columns in zip(*done, strict=True) for column in columns)

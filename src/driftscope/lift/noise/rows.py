"""The rows that a softmax or a normalisation treats as one: a 2-d view of its result, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import rms
from driftscope.lift.noise import perturbing
from driftscope.lift.steps import Kind, Step

#: Used where a normalisation step does not say its epsilon; only the order of magnitude matters here.
USUAL_EPSILON = 1e-5
#: Variance of a row, in units of its mean square, that is float64's own rounding.
_EQUAL = 1e-28


@dataclass(frozen=True, slots=True)
class NormalisedRows:
    """A value seen as rows of elements that one reduction normalises together.

    Parameters
    ----------
    view : torch.Tensor, shape (count, length)
    restore : callable
        Takes a tensor like ``view`` back to the value's shape.
    before : torch.Tensor of the same shape, or None
        The rows before normalisation.
    epsilon : float
        Added to the variance of a row.
    gain : float
        What a normalised row is multiplied by, about.
    """

    view: torch.Tensor
    restore: Callable[[torch.Tensor], torch.Tensor]
    before: torch.Tensor | None = None
    epsilon: float = USUAL_EPSILON
    gain: float = 1.0

    def lie_in(self, value: torch.Tensor) -> bool:
        """Whether the rows follow one another in the memory of a contiguous value: its copies can be viewed alike."""
        return self.view.is_contiguous() and self.view.data_ptr() == value.data_ptr()

    def size(self) -> torch.Tensor:
        """Size of each row before it is centred, in units of the result; shape (count, 1).

        A kernel computes ``x / s - m / s``: each part is as large as the row was before its mean ``m`` went away.
        """
        found = perturbing.row_sizes(self.view, self.before, self.epsilon, self.gain, _EQUAL)
        if found is not None:
            return found
        length = self.view.shape[1]
        after: torch.Tensor = torch.linalg.vector_norm(self.view, dim=1, keepdim=True) / math.sqrt(length)
        if self.before is None:
            return after
        mean = self.before.mean(1, keepdim=True)
        variance = (self.before - mean).square_().mean(1, keepdim=True)
        square = mean.square_()
        spread: torch.Tensor = 1 + square / (variance + self.epsilon)
        # Of a row of equal elements nothing is left, but for what its mean is off by.
        whole = square + variance
        level = torch.where(variance <= _EQUAL * whole, self.gain * (whole / (variance + self.epsilon)).sqrt(), after)
        return torch.maximum(after * spread.sqrt(), level)


def rows_of(step: Step, value: torch.Tensor) -> NormalisedRows:
    """Find the rows of ``value``, the first result of a SOFTMAX or NORM step."""
    if step.rounding.kind is Kind.SOFTMAX:
        axis = softmax_axis(step, value)
        return _along(value, axis) if axis is not None else _whole(value)
    before = step.inputs[0] if step.inputs else None
    if before is not None and (before.shape != value.shape or not before.is_floating_point()):
        before = None
    epsilon = step.attributes.get("eps", step.attributes.get("epsilon", USUAL_EPSILON))
    epsilon = float(epsilon) if isinstance(epsilon, int | float) else USUAL_EPSILON
    weight = step.inputs[1] if len(step.inputs) > 1 else None
    gain = rms(weight) if weight is not None and weight.is_floating_point() else 1.0
    if "batch" in step.operator.lower() and value.dim() > 1:
        rows = _along(value, 1, keep=True)
        return NormalisedRows(
            rows.view, rows.restore, None if before is None else _along(before, 1, keep=True).view, epsilon, gain
        )
    length = step.rounding.length
    if length < 2 or value.numel() % length:
        return _whole(value)
    return NormalisedRows(
        value.reshape(-1, length),
        lambda rows: rows.reshape(value.shape),
        None if before is None else before.reshape(-1, length),
        epsilon,
        gain,
    )


def softmax_axis(step: Step, value: torch.Tensor) -> int | None:
    """The axis a softmax runs along: as its attributes say, else the last one of the right length."""
    named = step.attributes.get("dim", step.attributes.get("axis"))
    if isinstance(named, int) and -value.dim() <= named < value.dim() and value.shape[named] == step.rounding.length:
        return named % value.dim()
    fitting = [axis for axis, size in enumerate(value.shape) if size == step.rounding.length]
    return fitting[-1] if fitting else None


def _along(value: torch.Tensor, axis: int, *, keep: bool = False) -> NormalisedRows:
    """Rows that run along ``axis``, or, to ``keep`` it, one row for each index of ``axis``."""
    target = 0 if keep else -1
    moved = value.movedim(axis, target)
    shape = moved.shape
    view = moved.reshape(shape[0], -1) if keep else moved.reshape(-1, shape[-1])
    return NormalisedRows(view, lambda rows: rows.reshape(shape).movedim(target, axis))


def _whole(value: torch.Tensor) -> NormalisedRows:
    """Each element its own row, for results in which no row can be recognised."""
    return NormalisedRows(value.reshape(-1, 1), lambda rows: rows.reshape(value.shape))

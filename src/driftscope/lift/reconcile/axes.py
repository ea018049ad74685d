"""Which axis of a tensor is which: read off the numbers of a step, not off names."""

from __future__ import annotations

import itertools
import math

import torch

from driftscope.lift.steps import Step

# Rows of a layer's input that tell a square weight from its transpose.
_ROWS = 16


def result_axis(step: Step, weight: torch.Tensor, source: torch.Tensor) -> int:
    """Which axis of a square weight is the result's: the one with which the step's own numbers come out.

    Whatever is added is the same in every row, so differences of rows are compared; where they say nothing (one row,
    equal rows), the operator does.
    """
    rows, result = source.reshape(-1, source.shape[-1])[:_ROWS].to(torch.float64), step.outputs[0]
    stored = step.operator.lower().endswith("linear") or bool(step.attributes.get("transB"))
    if result is None or rows.shape[-1] != weight.shape[0]:
        return 0 if stored else 1
    wanted = result.reshape(-1, result.shape[-1])[:_ROWS].to(torch.float64)
    if wanted.shape != rows.shape:
        return 0 if stored else 1
    straight, turned = (float(((rows @ w) - wanted).diff(dim=0).square().sum()) for w in (weight, weight.T))
    return int(straight < turned) if straight != turned else 0 if stored else 1


def moved_axes(one: torch.Tensor, two: torch.Tensor, permutes: bool) -> dict[int, int | None] | None:
    """Where each axis of a value lies in the value it was moved to; None where that holds other numbers."""
    if permutes:
        for order in itertools.permutations(range(one.ndim)):
            if [one.shape[k] for k in order] == list(two.shape) and torch.equal(one.permute(order), two):
                return {axis: order.index(axis) for axis in order}
        return None
    if not torch.equal(one.reshape(-1), two.reshape(-1)):
        return None
    at = {(size, math.prod(two.shape[k + 1 :])): k for k, size in enumerate(two.shape)}
    return {k: at.get((size, math.prod(one.shape[k + 1 :]))) for k, size in enumerate(one.shape)}

"""Where a kernel leaves its formula because the result's format cannot tell: softplus beyond its threshold.

A kernel that returns the argument from 20 on and one that computes ``log(1 + exp(x))`` to the end are one function in
float32 and narrower, and two in float64, where 2e-9 of 20 can be seen.
"""

from __future__ import annotations

import math

import torch

from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.steps import Constant

# Half an ulp of float32.
_UNSEEN = 2.0**-25


def without_thresholds(side: ReconciledSide) -> list[Repair]:
    """Move the thresholds of softplus to infinity, where no format of the outputs shows what they leave out."""
    return [
        Repair(
            constant.name, torch.full(constant.value.shape, math.inf, dtype=torch.float64), "shortcut",
            f"{float(constant.value):g}, from where on float32 cannot tell softplus from its argument", constant,
        )
        for constant in side.constants
        if side.single and constant.name.endswith(".threshold") and "softplus" in (constant.where.operator or "")
        and _unseen(constant)
    ]  # fmt: skip


def _unseen(constant: Constant) -> bool:
    """Whether softplus is its argument from here on, to half an ulp."""
    threshold = float(constant.value)
    return threshold > 0 and math.log1p(math.exp(-threshold)) < _UNSEEN * threshold

"""How the numbers of a tensor enter the weight or the bias that is folded from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driftscope.lift.steps import Constant


@dataclass(frozen=True, slots=True)
class Spread:
    """How the numbers of a source enter a weight whose first axis is the result's: one for each index of ``axis``.

    ``axis`` is None where each enters one element of its own, in rows or (``turned``) columns, and -1 for one number.
    """

    axis: int | None
    turned: bool = False

    def gathered(self, terms: torch.Tensor) -> torch.Tensor:
        """Terms of a weight or a bias added up over what one number of the source enters."""
        if self.axis is None:
            return terms
        if self.axis == -1:
            return terms.sum().reshape(1)
        return terms.movedim(self.axis, 0).reshape(terms.shape[self.axis], -1).sum(1)

    def placed(self, step: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """One number each, in the source's own shape."""
        return (step.T if self.turned else step).reshape(shape)


def spreads(constant: Constant, rows: torch.Tensor) -> list[Spread]:
    """The ways in which a source of this size can enter the weight, or the bias."""
    count = constant.value.numel()
    if count == 1:
        return [Spread(-1)]
    if count == rows.numel() and rows.ndim > 1:
        return [Spread(None), Spread(None, turned=True)] if rows.ndim == 2 else [Spread(None)]
    return [Spread(axis) for axis in range(min(rows.ndim, 2)) if rows.shape[axis] == count]

"""Quantisation: integers on a grid are real integers, chosen by the native quotient; what follows is exact."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def levels(quotient: Tensor, zero: Tensor | None, limits: tuple[float, float]) -> Tensor:
    """``saturate(round(quotient) + zero)``, halves to even; in the dtype of the quotient."""
    whole = torch.round(quotient)
    return (whole if zero is None else whole + zero).clamp(*limits)


def dequantised(x: Tensor, scale: Tensor | float, zero: Tensor | float | None) -> Tensor:
    """``(x - zero) scale``; the shapes broadcast, the dtypes are those of a computation."""
    return (x if zero is None else x - zero) * scale


def along(parameter: Tensor, axis: int, rank: int) -> Tensor:
    """Scales or zero points (C,) in a shape that broadcasts along one axis of a tensor; a single one as 0-dim."""
    if parameter.numel() == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def blockwise(parameter: Tensor, axis: int, shape: Sequence[int], block: int) -> Tensor:
    """Parameters of blocks of elements along an axis, repeated to one for each element."""
    return parameter.repeat_interleave(block, axis).narrow(axis, 0, shape[axis])

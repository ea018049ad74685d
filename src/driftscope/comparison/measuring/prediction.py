"""Whether an error that was predicted is the one that was measured: how alike they are, element by element."""

from __future__ import annotations

import math

import torch

from driftscope.comparison.measuring.spread import rms

#: Elements that must carry an error before its pattern proves anything; fewer do where they fit to so many digits in
#: all. (Eight that correlate by 0.9 fit to 2.9 digits in all.)
_ELEMENTS, _DIGITS = 8.0, 3.5
#: Distinct errors of a program without a graph that prove anything: one number is the rounding of many others, and a
#: constant somebody wrote has few digits itself.
_DISTINCT = 3.0
#: Factor between the sizes of two errors beyond which they need not be correlated.
_FAR = 2.0
#: Elements looked at for repetitions.
_MOST = 2**14


def correlation(
    predicted: torch.Tensor | None, drift: torch.Tensor, steps: bool = False, unseen: bool = False
) -> float:
    """Cosine between a predicted error and a measured one; -1 where it proves nothing.

    Errors of another size, and those that a few elements carry, prove nothing: unless these fit to many digits and
    are no ``steps``, whose height is the same whatever turned them over. An error that is repeated counts once where
    the arithmetic is ``unseen``.
    """
    if predicted is None or predicted.shape != drift.shape:
        return -1.0
    size, given = rms(predicted), rms(drift)
    if not size or not given or not 1.0 / _FAR <= size / given <= _FAR:
        return -1.0
    relative = predicted / size
    if unseen and _carrying(_distinct(relative)) < _DISTINCT:
        return -1.0
    carrying = _carrying(relative)
    left = rms(drift - predicted) / given
    if carrying < _ELEMENTS and (steps or (left > 0.0 and carrying * -math.log10(left) < _DIGITS)):
        return -1.0
    return float((relative * (drift / given)).mean())


def _carrying(errors: torch.Tensor) -> float:
    """How many elements carry an error, as if all had the same share."""
    square = errors.square()
    fourth = float(square.square().sum())
    return float(square.sum()) ** 2 / fourth if fourth else 0.0


def _distinct(errors: torch.Tensor) -> torch.Tensor:
    flat = errors.reshape(-1)
    found: torch.Tensor = torch.unique(flat[:: -(-flat.numel() // _MOST)])
    return found


def without_zeros(predicted: torch.Tensor | None, value: torch.Tensor | None) -> torch.Tensor | None:
    """Give a predicted error without those elements that it makes zero.

    Whatever gives zero makes all of an error, in any format: no format is known by it.
    """
    if predicted is None or value is None or predicted.shape != value.shape:
        return predicted
    return torch.where(value.cpu() == 0, torch.zeros_like(predicted), predicted)

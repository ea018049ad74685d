"""Rotary position embedding (Su et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import dot
from driftscope.lift.steps import Rounding


def rotated(x: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool) -> tuple[Tensor, Rounding]:
    """Rotate pairs among the first R of the H coordinates of x; the rest pass through.

    Parameters
    ----------
    x : torch.Tensor, (..., H)
    cosine, sine : torch.Tensor, broadcastable to (..., R / 2)
        Of each pair's angle.
    interleaved : bool
        Whether pairs are neighbours; else halves of the first R.
    """
    cosine, sine = (_spread(t, interleaved) for t in (cosine, sine))
    width = cosine.shape[-1]
    head, tail = x[..., :width], x[..., width:]
    other = _partner(head, interleaved)

    def squares() -> Tensor:
        turned = (head * cosine).square() + (other * sine).square()
        return torch.cat([turned, torch.zeros_like(tail)], -1)

    return torch.cat([head * cosine + other * sine, tail], -1), dot(2, squares)


def _partner(x: Tensor, interleaved: bool) -> Tensor:
    """The other coordinate of each rotated pair, negated for the first of the pair."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _spread(angles: Tensor, interleaved: bool) -> Tensor:
    """(..., R / 2) to (..., R): each angle at both coordinates of its pair."""
    return angles.repeat_interleave(2, -1) if interleaved else torch.cat([angles, angles], -1)

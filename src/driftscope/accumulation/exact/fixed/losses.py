"""Losses and distances whose sums have a fixed order, in the signatures of torch's own operators.

Each term is evaluated in float64; sums and means of them are exact, and what is returned is rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from driftscope.accumulation.exact import reductions
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.accumulation.exact.pools import AVERAGE, EACH
from driftscope.accumulation.exact.softmax import exponential
from driftscope.errors import InputError

#: Elements of the differences of all pairs that are held at once.
_HELD = 1 << 22


def _reduced(terms: torch.Tensor, reduction: int, dtype: torch.dtype) -> torch.Tensor:
    if reduction == EACH:
        return rounded_once(terms, dtype)
    of = reductions.mean if reduction == AVERAGE else reductions.sum
    return rounded_once(of(terms, dtype=torch.float64), dtype)


def smooth_absolute(x: torch.Tensor, y: torch.Tensor, reduction: int = AVERAGE, beta: float = 1.0) -> torch.Tensor:
    """``smooth_l1_loss``: quadratic up to ``beta``, then linear."""
    gap = (x.double() - y.double()).abs()
    terms = torch.where(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta) if beta else gap
    return _reduced(terms, reduction, x.dtype)


def huber(x: torch.Tensor, y: torch.Tensor, reduction: int = AVERAGE, delta: float = 1.0) -> torch.Tensor:
    """``huber_loss``: quadratic up to ``delta``, then linear."""
    gap = (x.double() - y.double()).abs()
    terms = torch.where(gap <= delta, 0.5 * gap * gap, delta * (gap - 0.5 * delta))
    return _reduced(terms, reduction, x.dtype)


def cross_entropy_of_probabilities(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = AVERAGE
) -> torch.Tensor:
    """``binary_cross_entropy``, whose logarithms end at -100."""
    p, target = x.double(), y.double()
    terms = -(target * p.log().clamp(min=-100.0) + (1.0 - target) * (1.0 - p).log().clamp(min=-100.0))
    return _reduced(terms if weight is None else terms * weight.double(), reduction, x.dtype)


def cross_entropy_of_scores(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None, pos_weight: torch.Tensor | None = None,
    reduction: int = AVERAGE,
) -> torch.Tensor:  # fmt: skip
    """``binary_cross_entropy_with_logits``: ``(1 - y) x + (1 + (w - 1) y) log(1 + exp(-x))``."""
    score, target = x.double(), y.double()
    soft = _softplus(-score)
    share = 1.0 if pos_weight is None else 1.0 + (pos_weight.double() - 1.0) * target
    terms = (1.0 - target) * score + share * soft
    return _reduced(terms if weight is None else terms * weight.double(), reduction, x.dtype)


def soft_margin(x: torch.Tensor, y: torch.Tensor, reduction: int = AVERAGE) -> torch.Tensor:
    """``soft_margin_loss``: ``log(1 + exp(-x y))``."""
    return _reduced(_softplus(-x.double() * y.double()), reduction, x.dtype)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=0.0) + (1.0 + exponential(-x.abs())).log()


# --- distances ------------------------------------------------------------------------------------------------------


def distances(x: torch.Tensor, y: torch.Tensor, order: float, _mode: Any = None) -> torch.Tensor:
    """``cdist``: of all pairs of rows, from their differences and not from products.

    Raises
    ------
    InputError
        For orders other than 0, 1, 2 and infinity.
    """
    _check(order)
    many = max(1, _HELD // max(1, y.shape[-2] * y.shape[-1]))
    parts = [_distance(part, y, order) for part in x.split(many, -2)]
    return rounded_once(torch.cat(parts, -2), x.dtype)


def _check(order: float) -> None:
    if order not in (0.0, 1.0, 2.0, math.inf):
        raise InputError(f"ds.reproducible() has no fixed order for distances of order {order:g}: use 1, 2 or inf.")


def _differences(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.double().unsqueeze(-2) - y.double().unsqueeze(-3)


def _distance(x: torch.Tensor, y: torch.Tensor, order: float) -> torch.Tensor:
    gap = _differences(x, y).abs()
    if not gap.shape[-1]:
        return gap.new_zeros(gap.shape[:-1])
    if order == math.inf:
        return gap.amax(-1)
    found: torch.Tensor = reductions.sum(gap * gap if order == 2 else (gap != 0).double() if order == 0 else gap, -1)
    return found.sqrt() if order == 2 else found


def distances_backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, order: float, found: torch.Tensor
) -> torch.Tensor:
    """The gradient of the first of both operands, of order 0, 1 or 2."""
    gap = _differences(x, y)
    if order == 2:
        far = found.double().unsqueeze(-1)
        way = torch.where(far == 0, 0.0, gap / far)
    elif order in (0.0, 1.0):
        way = gap.sign() * order
    else:
        raise InputError(f"ds.reproducible() has no fixed order for the gradient of distances of order {order:g}.")
    return rounded_once(reductions.sum(way * grad.double().unsqueeze(-1), -2), x.dtype)

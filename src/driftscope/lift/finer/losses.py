"""Losses and running sums of exponentials on arrays of balls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flint
import numpy as np

from driftscope.lift.finer.given import Balls, Given, NoRule, each


def log1pexp(v: Any) -> Any:
    """The logarithm of one and an exponential, which never leaves the range of numbers."""
    return v.exp().log1p() if float(v) < 0 else v + (-v).exp().log1p()


def _reduced(g: Given, terms: Any) -> Balls:
    """Reduce a loss as torch's numbers say: 0 not at all, 1 to the mean, 2 to the sum."""
    kind = g.attribute("reduction")
    if kind == 0:
        return np.asarray(terms, dtype=object)
    total = np.add.reduce(terms.reshape(-1))
    return np.asarray(total if kind == 2 else total / terms.size, dtype=object)


def _loss(term: Callable[[Any, Any], Any]) -> Callable[[Given], Balls]:
    """A loss of two operands; one with weights has no rule."""

    def rule(g: Given) -> Balls:
        if any(given is not None for given in g.inputs[2:]):
            raise NoRule
        return _reduced(g, np.frompyfunc(term, 2, 1)(g.real(0), g.real(1)))

    return rule


def _cross_entropy(p: Any, y: Any) -> Any:
    def held(v: Any) -> Any:
        found = v.log() if v != 0 else flint.arb(-100)
        return found if float(found) > -100.0 else flint.arb(-100)

    return (y - 1) * held(1 - p) - y * held(p)


def _of_classes(g: Given) -> Balls:
    """The negative log-likelihood of a class for each row, all of them counted and of one weight."""
    x, classes = g.real(0), g.step.inputs[1]
    if classes is None or x.ndim != 2 or any(v is not None for v in g.inputs[2:]) or bool((classes < 0).any()):
        raise NoRule
    return _reduced(g, -np.take_along_axis(x, classes.cpu().numpy()[:, None], 1)[:, 0])


def running(g: Given) -> Balls:
    """A running sum."""
    return np.asarray(np.add.accumulate(g.real(0), axis=_axis(g)), dtype=object)


def _axis(g: Given) -> int:
    axis = g.attribute("dim", "axis")
    held = g.step.inputs[1] if len(g.step.inputs) > 1 else None
    if axis is None and held is not None and held.numel() == 1:
        axis = int(held)
    if axis is None or any(g.attribute(name) for name in ("exclusive", "reverse")):
        raise NoRule
    return int(axis)


def _running_exponentials(g: Given) -> Balls:
    x, axis = g.real(0), _axis(g)
    top = np.vectorize(float)(x).max(axis=axis, keepdims=True).astype(object)
    total = np.add.accumulate(each(lambda v: v.exp())(x - top), axis=axis)
    return np.asarray(top + each(lambda v: v.log())(total), dtype=object)


LOSSES: dict[str, Callable[[Given], Balls]] = {
    "soft_margin_loss": _loss(lambda x, y: log1pexp(-x * y)),
    "binary_cross_entropy_with_logits": _loss(lambda x, y: (1 - y) * x + log1pexp(-x)),
    "binary_cross_entropy": _loss(_cross_entropy),
    "mse_loss": _loss(lambda x, y: (x - y) * (x - y)), "l1_loss": _loss(lambda x, y: abs(x - y)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss"), _of_classes),
    "cumsum": running, "logcumsumexp": _running_exponentials,
}  # fmt: skip

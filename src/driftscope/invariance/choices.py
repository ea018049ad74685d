"""Whether a dependence matters: how often the largest score changes, and how far it stands above the second."""

from __future__ import annotations

import math
from typing import Any

import torch

from driftscope.invariance.examination import InvarianceCheck

#: Scores along the last axis: fewer are no choice.
_FEWEST = 2


def choices_of(examination: InvarianceCheck) -> dict[str, Any]:
    """Count, by axis, how often the largest of the scores along the last axis is another one.

    Returns
    -------
    dict
        By axis: ``choices`` compared, ``flips`` among them, ``smallest_margin`` between the two largest scores in
        units of the largest change of any score there, and ``expected_steps`` until one of a sequence of such choices
        flips, were the margins typical and each change normally distributed. Axes along which nothing changed are
        left out.
    """
    found = {}
    for axis, tried in examination.answers.items():
        pairs = [p for t, a in tried if a.outcome == "rounding" for p in examination.compared(t)]
        told = [_choices(x, y) for x, y in pairs if _scores(x) and x.shape == y.shape]
        if told:
            count, flips = sum(t[0] for t in told), sum(t[1] for t in told)
            rate = sum(t[3] for t in told) / count
            found[axis] = {
                "choices": count,
                "flips": flips,
                "smallest_margin": min(t[2] for t in told),
                "expected_steps": 1.0 / rate if rate > 0 else math.inf,
            }
    return found


def _scores(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.dim() >= 1 and x.shape[-1] >= _FEWEST and x.numel() > 0


def _choices(x: torch.Tensor, y: torch.Tensor) -> tuple[int, int, float, float]:
    """Return choices, flips, the smallest margin in changes, and the summed probabilities of a flip."""
    x, y = (t.detach().double().reshape(-1, t.shape[-1]) for t in (x, y))
    top = x.topk(2, dim=-1)
    margin = top.values[:, 0] - top.values[:, 1]
    change = y - x
    # What decides is the change of the difference of two scores, whose variance is twice that of one.
    spread = change.square().mean(-1).sqrt() * math.sqrt(2.0)
    flips = int((x.argmax(-1) != y.argmax(-1)).sum())
    moved = spread > 0
    if not bool(moved.any()):
        return len(x), flips, math.inf, 0.0
    largest = change.abs().amax(-1)
    units = (margin[moved] / largest[moved]).min()
    rate = 0.5 * torch.erfc(margin[moved] / spread[moved] / math.sqrt(2.0))
    return len(x), flips, float(units), float(rate.sum())

"""Whether a dependence matters: how often the largest score changes, and after how many choices in a row one does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from driftscope.comparison.measuring.spread import rms
from driftscope.invariance.examination import InvarianceCheck
from driftscope.invariance.judging import HowAlike
from driftscope.invariance.pieces.streams import handed_on
from driftscope.invariance.trials.trial import AxisTrial

#: Scores along the last axis: fewer are no choice.
_FEWEST = 2
#: The largest scores that are compared as a set.
_LARGEST = 5
#: Share of the margins, the smallest ones, over which they are taken as spread evenly.
_SMALLEST_MARGINS = 0.1


@dataclass(frozen=True, slots=True)
class ChangedChoices:
    """What one trial did to the largest of the scores along the last axis.

    Parameters
    ----------
    choices : int
    flips : int
        Choices of which the largest score is another one.
    top : int or None
        Choices of which the set of the 5 largest scores is another one; None with 5 scores or fewer.
    smallest_margin : float
        Between the two largest scores, over the largest change of any score there.
    margin_floors : float or None
        The smallest margin over sqrt(2) times the noise floor, where that was measured.
    expected_steps : float
        Choices in a row, all computed in the other way, until one is expected to be another, were these typical.
    """

    choices: int
    flips: int
    top: int | None
    smallest_margin: float
    margin_floors: float | None
    expected_steps: float


def choices_of(examination: InvarianceCheck) -> dict[str, Any]:
    """Count, by axis, how often the largest of the scores along the last axis is another one.

    Returns
    -------
    dict
        By axis the numbers of :class:`ChangedChoices`, of the trial that is expected to change a choice first. Axes
        along which nothing changed are left out.
    """
    found = {}
    for axis, tried in examination.answers.items():
        told = [_of_trial(examination, t) for t, a in tried if _typical(t, a)]
        worst = min((t for t in told if t is not None), key=lambda t: t.expected_steps, default=None)
        if worst is not None:
            found[axis] = asdict(worst)
    return found


def _typical(trial: AxisTrial, answer: HowAlike) -> bool:
    """Whether a trial changes scores as use would: by rounding, or by a cache that keeps less than it is given."""
    return not trial.aside and (answer.outcome == "rounding" or (answer.outcome == "different" and bool(trial.pieces)))


def _of_trial(examination: InvarianceCheck, trial: AxisTrial) -> ChangedChoices | None:
    """Return the numbers of the output whose choices change first; a program mostly has one of scores."""
    compared = zip(trial.positions, examination.compared(trial), strict=False)
    usable = [
        (k, x, y)
        for k, (path, x, y) in compared
        if k not in examination.handed and not handed_on(path) and _scores(x) and x.shape == y.shape
    ]
    floors = {k: [rms(n) for n in examination.judge.noises(k, trial.based, x)[:1]] for k, x, _ in usable}
    if trial.pieces:  # the first piece is computed as it is in the whole
        usable = [(k, _after(x, trial.along[k], trial.pieces[0]), _after(y, trial.along[k], trial.pieces[0]))
                  for k, x, y in usable if k in trial.along and x.shape[trial.along[k]] > trial.pieces[0]]  # fmt: skip
    told = [changed_choices(x, y, floors[k]) for k, x, y in usable]
    return min(told, key=lambda t: t.expected_steps, default=None)


def _after(x: torch.Tensor, dim: int, start: int) -> torch.Tensor:
    return x.narrow(dim, start, x.shape[dim] - start)


def _scores(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.dim() >= 1 and x.shape[-1] >= _FEWEST and x.numel() > 0


def changed_choices(x: torch.Tensor, y: torch.Tensor, floors: Sequence[float] = ()) -> ChangedChoices:
    """Compare the choices of two results.

    Parameters
    ----------
    x, y : Tensor of shape (..., scores)
    floors : sequence of float
        The noise floor of a score, where it was measured.

    Notes
    -----
    A choice is another one where the difference of the two largest scores changes by more than the margin between
    them, in the one direction of two; a tie made anew is another one half of the time, and what does not change is
    not. Margins and changes are taken as independent. Of margins as small as the changes
    there are often none among those that were seen, so the tenth of them that are smallest are taken as spread evenly
    between 0 and the largest of that tenth.
    """
    x, y = (t.detach().double().reshape(-1, t.shape[-1]) for t in (x, y))
    top = x.topk(2, dim=-1)
    margin, change = top.values[:, 0] - top.values[:, 1], y - x
    moved = change.gather(-1, top.indices)
    largest = change.abs().amax(-1)
    units = (margin / largest)[largest > 0]
    smallest = float(margin.min())
    rate = _rate(margin, (moved[:, 0] - moved[:, 1]).abs())
    return ChangedChoices(
        choices=len(x),
        flips=int((x.argmax(-1) != y.argmax(-1)).sum()),
        top=_other_sets(x, y),
        smallest_margin=float(units.min()) if len(units) else math.inf,
        margin_floors=smallest / (math.sqrt(2.0) * floors[0]) if floors and floors[0] > 0 else None,
        expected_steps=1.0 / rate if rate > 0 else math.inf,
    )


def _rate(margin: torch.Tensor, change: torch.Tensor) -> float:
    """Return the share of choices that are expected to be other ones."""
    ranked = margin.sort().values
    few = max(1, round(_SMALLEST_MARGINS * len(ranked)))
    edge = float(ranked[few - 1])
    # Scores of a narrow format tie often.
    sides = [torch.searchsorted(ranked, change, right=right) for right in (False, True)]
    below = torch.where(change > 0, (sides[0] + sides[1]) / (2 * len(ranked)), 0.0)
    evenly = few / len(ranked) * change / edge if edge > 0 else below
    return float(0.5 * torch.where(change < edge, evenly, below).mean())


def _other_sets(x: torch.Tensor, y: torch.Tensor) -> int | None:
    if x.shape[-1] <= _LARGEST:
        return None
    one, other = (t.topk(_LARGEST, dim=-1).indices.sort(-1).values for t in (x, y))
    return int((one != other).any(-1).sum())

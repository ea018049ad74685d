"""Ties: choices between floats, and floats rounded to whole numbers, that ordinary rounding turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from driftscope.lift.evidence import Evidence
from driftscope.lift.noise.floor import ORDINARY, noisy_run
from driftscope.lift.side_lift import SideLift
from driftscope.lift.steps import Lifted


def reached_by_noise(
    found: Evidence, pair: int, values: Sequence[torch.Tensor], where: torch.Tensor, *, scale: float, seed: int
) -> bool:
    """Whether ordinary rounding, ``scale`` times over, turns a choice into each of the values both sides chose.

    Parameters
    ----------
    found : Evidence
    pair : int
        An output that is not a float: argmax, top-k indices, a comparison, a quantised integer.
    values : sequence of Tensor, shape S
        What the two sides natively chose.
    where : bool Tensor, shape S
        The elements that differ.
    scale : float
        How many floors of margin still count as a tie.
    seed : int

    Returns
    -------
    bool
        False also when no side can be lifted: then nothing is known about the margins. Each side rounds in its own
        formats, and a choice that either's rounding turns is a tie.
    """
    sides = ((found.a, found.pairs[pair][0]), (found.b, found.pairs[pair][1]))
    return any(_reached(side, k, values, where, scale=scale, seed=seed) for side, k in sides)


def noisy_values(graph: Lifted, k: int, *, scale: float, seed: int) -> Iterator[torch.Tensor | None]:
    """Give output ``k`` of as many noisy runs as a choice with a margin that still counts as a tie may need."""
    for run in range(_TIE_RUNS):
        yield noisy_run(graph, arithmetic=ORDINARY, seed=seed + run, scale=scale)[k].value


def _reached(
    side: SideLift, k: int, values: Sequence[torch.Tensor], where: torch.Tensor, *, scale: float, seed: int
) -> bool:
    if side.graph is None:
        return False
    lifted = side.clean[k].value
    if lifted is None or lifted.shape != values[0].shape:
        return False
    reached = [(lifted == v.to(lifted.device)) | ~where.to(lifted.device) for v in values]
    samples = noisy_values(side.graph, k, scale=scale, seed=seed)
    while not all(bool(r.all()) for r in reached):
        sample = next(samples, None)
        if sample is None or sample.shape != lifted.shape:
            return False
        reached = [r | (sample == v.to(sample.device)) for r, v in zip(reached, values, strict=True)]
    return True


# A choice with a margin of three floors turns in about one run in six at three times the noise.
_TIE_RUNS = 24

"""A sequence in pieces, each with the state that the last one left, against the whole of it in one call."""

from __future__ import annotations

import itertools
from functools import partial

import torch

from driftscope.errors import CannotLift
from driftscope.invariance.pieces.states import HandedStates
from driftscope.invariance.pieces.streams import Stream, handed_on
from driftscope.invariance.running import Leaves
from driftscope.invariance.trials.trial import AxisPlan, AxisTrial, RunVariant
from driftscope.records.words import counted

#: Sequences up to this long are run step by step from their first position; of longer ones only the last steps.
_ALL_STEPS = 8
_LAST_STEPS = 4
#: A difference beside the largest one.
_SMALL = 0.02


def chunking(stream: Stream | HandedStates | str, base: RunVariant) -> AxisPlan:
    """Run the sequence step by step, in two pieces and in three."""
    if isinstance(stream, str):
        return AxisPlan("chunking", reason=stream)
    if isinstance(stream, HandedStates):
        return AxisPlan("chunking", [_of_states(stream, base, *way) for way in _ways(stream.length).items()])
    if stream.step is None:
        alone = RunVariant(calling=stream.calling((stream.length,))).run(stream.runner)
        if not alone.ran:
            return AxisPlan("chunking", reason=alone.refusal)
    # Layers call other things hidden too: of such a parameter a refusal says nothing.
    guessed = stream.step is None and stream.parameter == "hidden"
    trials = []
    for name, pieces in _ways(stream.length).items():
        other = RunVariant(calling=stream.calling(pieces))
        trials.append(
            AxisTrial(
                "chunking",
                name,
                base,
                other,
                _compared(stream),
                resized=True,
                optional=guessed,
                pieces=pieces,
                along=stream.outputs,
                last=partial(_last_call, stream, pieces),
            )
        )
    reason = f"it has a parameter {stream.parameter}, and does not run on what it returned for the piece before"
    return AxisPlan("chunking", trials, reason=reason if guessed else "")


def _last_call(stream: Stream, pieces: tuple[int, ...]) -> RunVariant:
    """How the last piece is run, after the others were."""
    before, call = stream.parted(pieces)
    if not RunVariant(calling=before).run(stream.runner).ran:
        raise CannotLift("the pieces before the last do not run alone")
    return RunVariant(calling=call)


def _of_states(stream: HandedStates, base: RunVariant, name: str, pieces: tuple[int, ...]) -> AxisTrial:
    """Compare what is no state: a state is judged by what is computed from it."""
    compared = tuple(k for k in _compared(stream) if k not in stream.handed) or tuple(sorted(stream.handed))
    other = RunVariant(fresh=partial(stream.run, pieces), lifted=partial(stream.lifted, pieces))
    return AxisTrial("chunking", name, base, other, compared, resized=True, pieces=pieces, along=stream.outputs,
                     last=lambda: RunVariant(stream.last(pieces)))  # fmt: skip


def parting(trial: AxisTrial, whole: Leaves, pieces: Leaves) -> str:
    """Say from which position on the pieces give something else than rounding makes of the whole."""
    first = min((_first(whole[k][1], pieces[k][1], d) for k, d in trial.along.items()), default=None)
    if first is None or first == sum(trial.pieces):
        return "what follows the sequence agrees; an output that stands for all of it differs"
    if first < trial.pieces[0]:
        return f"position {first}, in the first piece, already differs: it depends on what comes after the piece"
    begins = list(itertools.accumulate(trial.pieces))
    there = f": piece {begins.index(first) + 2} begins there" if first in begins else ""
    return f"positions up to {first - 1} agree; from position {first} on they differ{there}"


def _first(x: torch.Tensor, y: torch.Tensor, dim: int) -> int:
    if x.shape != y.shape or not x.shape[dim]:
        return 0
    gap = torch.where(x == y, 0.0, (y.double() - x.double()).abs()).nan_to_num(torch.inf, torch.inf)
    gap = gap.movedim(dim, 0).flatten(1).amax(1)
    # Halfway to the format's last bit, rounding is over and other values have begun; smaller ones are seen beside the
    # largest of them.
    size = float(torch.where(x.isfinite(), x, 0.0).abs().max()) if x.is_floating_point() else 0.0
    limit = min(torch.finfo(x.dtype).eps ** 0.5 * size, _SMALL * float(gap.max())) if size else 0.0
    return int((gap > limit).int().argmax()) if bool((gap > limit).any()) else x.shape[dim]


def _ways(length: int) -> dict[str, tuple[int, ...]]:
    half, third = length // 2, -(-length // 3)
    if length <= _ALL_STEPS:
        ways = {"step by step": (1,) * length}
    else:
        steps = min(_LAST_STEPS, length - 1)
        ways = {f"{counted(length - steps, 'position')}, then step by step": (length - steps, *(1,) * steps)}
    ways[f"in pieces of {half} and {length - half}"] = (half, length - half)
    if length > 4:
        rest = length - 2 * third
        ways[f"in pieces of {third}, {third} and {rest}"] = (third, third, rest)
    return {name: pieces for name, pieces in ways.items() if min(pieces) > 0}


def _compared(stream: Stream | HandedStates) -> tuple[int, ...]:
    """Outputs that follow the sequence, and those of the last piece that stand for all of it."""
    leaves = stream.runner.base.leaves
    return tuple(
        k for k, (path, x) in enumerate(leaves)
        if isinstance(x, torch.Tensor) and not handed_on(path)
    )  # fmt: skip

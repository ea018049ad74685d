"""Equal values that two runtimes sort or pick otherwise: which of them comes first nobody promises.

The proof is a replay: where B takes other elements than A, and they are equal to those that A takes, A takes B's. Then
all that follows from the choice follows in A as well, and what is left of a difference is another one. Where that is
no proof, B takes A's in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.judge import in_float64
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift
from driftscope.lift.evidence import Evidence
from driftscope.lift.kept import look
from driftscope.lift.outline import has_operator
from driftscope.lift.reconcile.drifts import OutputPairing, measure
from driftscope.lift.steps import Lifted, LiftedOutput, Step, plain_name
from driftscope.records.finding import Where

# Operators that promise nothing of equal values, and which of their outputs holds the elements they took.
_CHOOSERS = {"sort": 1, "topk": 1, "argsort": 0, "kthvalue": 1, "median": 1, "nanmedian": 1, "mode": 1}


@dataclass(slots=True)
class Tied:
    """Both sides' outputs where equal values are taken in one order, and the first step at which that matters."""

    outputs_a: Sequence[LiftedOutput]
    outputs_b: Sequence[LiftedOutput]
    step: str
    where: Where


def taken_in_order(evidence: Evidence) -> Tied | None:
    """Evaluate a side with the other's choices among equal values; None where it makes no other ones.

    Parameters
    ----------
    evidence : Evidence
    """
    a, b, known = evidence.a.graph, evidence.b.graph, evidence.reconciled
    if a is None or b is None or known is None or not has_operator(b, _CHOOSERS):
        return None
    one, two = ({r.name: r.value for r in repairs} for repairs in (known.repairs_a, known.repairs_b))
    # Values that are equal on one side alone, where they are rounded, are taken there as the other takes them.
    found = _as_chosen((a, one), (b, two))
    if found is not None:
        return Tied(found[0], known.outputs_b, *found[1])
    found = _as_chosen((b, two), (a, one))
    return None if found is None else Tied(known.outputs_a, found[0], *found[1])


Repaired = tuple[Lifted, Mapping[str, torch.Tensor]]


def _as_chosen(side: Repaired, other: Repaired) -> tuple[list[LiftedOutput], tuple[str, Where]] | None:
    """A side's outputs with the other's choices, and where they first matter."""
    noted = _NotedTies()
    forced = _TakenAlike(noted.choices)
    try:
        look(other[0], noted, other[1])
        if not noted.choices:
            return None
        outputs = side[0].run(observe=forced, replace=side[1])
    except (CannotLift, RuntimeError):
        return None
    return None if forced.first is None else (outputs, forced.first)


def tied_words(evidence: Evidence, tied: Tied, pair: int) -> str:
    """Say of one output that it is one function once equal values are taken in one order; empty where it is not."""
    known = evidence.reconciled
    if known is None:
        return ""
    pairing = OutputPairing(evidence.pairs, [None] * len(evidence.pairs))
    drift = measure(tied.outputs_a, tied.outputs_b, pairing, THRESHOLDS)[pair]
    limit = known.drifts[pair].limit
    if not drift.value <= limit <= THRESHOLDS.chaotic:
        return ""
    evidence.places["N011"] = tied.where
    words = f"same function once both take equal values in one order ({in_float64(drift)})"
    return f"{words}: A and B order them otherwise at {tied.step}"


@dataclass(frozen=True, slots=True)
class _TakenElements:
    """What one step took of what it was given."""

    given: torch.Tensor
    indices: torch.Tensor
    axis: int
    slot: int


@dataclass(slots=True)
class _NotedTies:
    """Notes what the steps of a run choose."""

    choices: list[_TakenElements] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        chosen = _choice(step)
        if chosen is not None:
            self.choices.append(chosen)


@dataclass(slots=True)
class _TakenAlike:
    """Takes of equal values those that another run took."""

    others: list[_TakenElements]
    first: tuple[str, Where] | None = None

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        mine = _choice(step)
        if mine is None:
            return None
        other = next((c for c in self.others if _same_sizes(c, mine)), None)
        if other is None:
            return None
        self.others.remove(other)
        if torch.equal(mine.indices, other.indices) or not _equally_good(mine, other.indices):
            return None
        self.first = self.first or (f"{step.name} ({step.operator})", step.where)
        outputs = list(step.outputs)
        outputs[mine.slot] = other.indices.reshape(mine.indices.shape).to(mine.indices)
        return outputs


def _choice(step: Step) -> _TakenElements | None:
    name = plain_name(step.operator)
    slot = _CHOOSERS.get(name)
    if slot is None or step.constant or len(step.outputs) <= slot or step.attributes.get("stable"):
        return None
    given, indices = step.inputs[0], step.outputs[slot]
    if given is None or indices is None or indices.is_floating_point() or not given.dim():
        return None
    form = step.formats[0] if slot else None
    if form is not None and form.is_floating_point and form.itemsize > 1:
        given = given.to(form)  # in the format in which it chose
    axis = step.attributes.get("dim", step.attributes.get("axis"))
    return _TakenElements(given, indices, axis if isinstance(axis, int) else -1, slot)


def _same_sizes(one: _TakenElements, other: _TakenElements) -> bool:
    return one.given.shape == other.given.shape and one.indices.numel() == other.indices.numel()


def _equally_good(mine: _TakenElements, others: torch.Tensor) -> bool:
    """Whether other elements, each taken once, have the values of those that were taken."""
    given, axis, own = mine.given, mine.axis, mine.indices
    theirs = others.reshape(own.shape).to(own)
    if own.dim() < given.dim():
        own, theirs = own.unsqueeze(axis), theirs.unsqueeze(axis)
    if own.dim() != given.dim():
        return False
    ordered = theirs.sort(axis).values
    once = bool((ordered.diff(dim=axis) != 0).all())
    return once and torch.equal(given.gather(axis, own), given.gather(axis, theirs))

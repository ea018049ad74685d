"""Pieces beside a piece: those of other layers that stand as it stands, and the longer one that it is the head of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from driftscope.explain.locate.divergence import Parting, View
from driftscope.explain.locate.fingerprints import Visited, steps_to


def alike_steps(view: View, parting: Parting) -> list[tuple[Visited, Visited]]:
    """The steps of B after a piece that end a piece of the same operators, each with its counterpart in A.

    Parameters
    ----------
    view : View
    parting : Parting
        With a counterpart.

    Returns
    -------
    list of (Visited, Visited)
        In the order in which they run, those that give other values than A. That they part from A there is a guess.
    """
    steps, end = view.b.steps, parting.step.index
    length = end - min((s.index for s in parting.piece), default=end) + 1
    if parting.counterpart is None:
        return []
    kinds, operator = [s.operator for s in steps[end - length + 1 : end + 1]], parting.counterpart.operator
    found = []
    for step in steps[end + 1 :]:
        partner = view.alignment.partner.get(step.index)
        if partner is None or step.operator != parting.step.operator or not step.outputs:
            continue
        other = view.a.steps[partner]
        mine, theirs = step.sketches[0], other.sketches[0]
        if mine is None or theirs is None or mine.same(theirs):
            continue  # nothing parts there
        before = steps[step.index - length + 1 : step.index + 1]
        if other.operator == operator and [s.operator for s in before] == kinds:
            found.append((step, other))
    return found


def reaching(view: View, parting: Parting, step: Visited, other: Visited) -> Parting | None:
    """The piece of a parting, up to a later pair of steps that is computed from it; None where it is not.

    Parameters
    ----------
    view : View
    parting : Parting
    step, other : Visited
        Of B and of A.
    """
    makers = view.makers_b()
    members = {} if parting.step.index > step.index else steps_to(step, makers, view.in_a.holds, len(makers))
    if parting.step.index not in members:
        return None
    return replace(parting, step=step, counterpart=other, piece=in_order(members), paired=True)


def in_order(members: Mapping[int, Visited]) -> tuple[Visited, ...]:
    """Steps by their index, in the order in which they run."""
    return tuple(members[k] for k in sorted(members))

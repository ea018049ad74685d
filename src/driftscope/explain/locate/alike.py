"""Which other steps of a program stand as one step stands: a change in one layer is often made in every layer."""

from __future__ import annotations

from driftscope.explain.locate.divergence import Parting, View
from driftscope.explain.locate.fingerprints import Visited


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

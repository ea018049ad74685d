"""What is said of a fold that was made of other numbers than the other program holds, whichever of the two folds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from driftscope.explain.causes.folded_sources import OtherFold
from driftscope.explain.locate.divergence import Parting, View
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.operators import family
from driftscope.records.finding import Finding, Where

# Solved numbers that a record keeps.
_SHOWN = 8
# Pairs of steps at which a fold is looked for.
_MOST_ENDS = 4


def fold_ends(view: View, parting: Parting) -> Iterator[tuple[Visited, Visited]]:
    """The last steps of two pieces, at which a fold may end, B's and A's, and what steps that both have read."""
    if parting.counterpart is None:
        return
    makers = [{n: s for s in trail.steps if not s.inside for n in s.outputs} for trail in (view.b, view.a)]
    ends = [(parting.step, parting.counterpart)]
    for step, other in ends:  # grows on the way
        yield step, other
        before = [[made[n] for n in end.inputs if n in made] for made, end in zip(makers, (step, other), strict=True)]
        if family(step.operator) == family(other.operator) and len(before[0]) == len(before[1]):
            ends += list(zip(*before, strict=True))[: _MOST_ENDS - len(ends)]


def fold_finding(found: OtherFold, fold: Visited, where: Where, reference_apart: bool, at_the_end: str) -> Finding:
    """Name the tensors that a fold was not made of.

    Parameters
    ----------
    found : OtherFold
    fold : Visited
        The step that reads the folded tensors.
    where : Where
        The place in B, as far as the graphs tell it.
    reference_apart : bool
        Whether the reference holds the tensors apart and B folds; else it is the other way round.
    at_the_end : str
        What it does to the program's output.
    """
    named = " and ".join(s.words for s in found.sources)
    first, stored = found.sources[0].constant, found.stored[0]
    change = found.alteration(backwards=reference_apart)
    subject = "the first is" if len(found.sources) > 1 else "it is"
    one = first.value.numel() == 1
    subject += "" if one else " that tensor,"
    if reference_apart:
        code, told = "W011", (stored.name, first.name)
        what = f"{stored.name} is folded from another {named} than the reference's: {subject}"
        fix = f"Fold {named} of A into {stored.name} again."
    else:
        code, told, own = change.code, (first.name, stored.name), first.where
        verb = "are" if len(found.sources) > 1 else "is"
        what = f"{named} {verb} not what the reference's {fold.name} ({fold.operator}) was folded from: {subject}"
        numbers = f"the number {float(found.sources[0].value):.9g}" if one else "the numbers that A was exported with"
        fix = f"Give {named} {numbers}."
        where = replace(own, output=where.output)
    why = f"With the numbers that the fold implies, the two are the same function{at_the_end}."
    implied = found.sources[0].value.reshape(-1)[:_SHOWN].tolist()
    evidence = {"weight": told[0], "reference": told[1], "what was done": change.words, "implied": implied}
    return Finding(code, f"{what} {change.words}", why, fix, where, evidence, verified=True)

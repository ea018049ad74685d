"""What is said of a fold that was made of other numbers than the other program holds, whichever of the two folds."""

from __future__ import annotations

from dataclasses import replace

from driftscope.explain.causes.folded_sources import OtherFold
from driftscope.explain.locate.fingerprints import Visited
from driftscope.records.finding import Finding, Where

# Solved numbers that a record keeps.
_SHOWN = 8


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
    subject = "the first" if len(found.sources) > 1 else "it"
    if reference_apart:
        code, told = "W011", (stored.name, first.name)
        what = f"{stored.name} is folded from another {named} than the reference's: {subject} is that tensor"
        fix = f"Fold {named} of A into {stored.name} again."
    else:
        code, told, own = change.code, (first.name, stored.name), first.where
        verb = "are" if len(found.sources) > 1 else "is"
        what = f"{named} {verb} not what the reference's {fold.name} ({fold.operator}) was folded from: {subject} is"
        what += " that tensor"
        fix = f"Give {named} the numbers that A was exported with."
        where = replace(own, output=where.output)
    why = f"With the numbers that the fold implies, the two are the same function{at_the_end}."
    implied = found.sources[0].value.reshape(-1)[:_SHOWN].tolist()
    evidence = {"weight": told[0], "reference": told[1], "what was done": change.words, "implied": implied}
    return Finding(code, f"{what}, {change.words}", why, fix, where, evidence, verified=True)

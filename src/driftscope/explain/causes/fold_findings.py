"""What is found and said of a fold that was made of other numbers than the other program holds, whichever folds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from driftscope.explain.causes.alterations import Alteration, alteration_of
from driftscope.explain.locate.divergence import Parting, View
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.operators import family
from driftscope.lift.steps import Constant
from driftscope.records.finding import Finding, Where

# Solved numbers that a record keeps.
_SHOWN = 8
# Pairs of steps at which a fold is looked for.
_MOST_ENDS = 4


@dataclass(frozen=True, slots=True)
class FoldSource:
    """A tensor that a fold is computed from, and what it would have to be.

    Parameters
    ----------
    constant : Constant
        As its program holds it.
    value : Tensor
        What makes the fold the one that the other program stores (float64, in the stored shape).
    also : tuple of str
        Further tensors and settings of which each, alone, could do the same.
    """

    constant: Constant
    value: torch.Tensor
    also: tuple[str, ...] = ()

    @property
    def held(self) -> torch.Tensor:
        """What its program holds, in float64."""
        return self.constant.value.to(torch.float64)

    @property
    def words(self) -> str:
        """Its name, with those that cannot be told from it."""
        return f"{self.constant.name} (or {', or '.join(self.also)})" if self.also else self.constant.name


@dataclass(frozen=True, slots=True)
class OtherFold:
    """Why a fold is not what the other program stores.

    Parameters
    ----------
    sources : tuple of FoldSource
        One, or two that differ together (a norm's weight and its bias).
    stored : tuple of Constant
        The other program's folded tensors.
    exact : mapping of str to Tensor
        What these hold, not rounded, by their names: the fold of the solved sources.
    """

    sources: tuple[FoldSource, ...]
    stored: tuple[Constant, ...]
    exact: Mapping[str, torch.Tensor]

    def solved(self) -> dict[str, torch.Tensor]:
        """The solved sources by their names."""
        return {s.constant.name: s.value for s in self.sources}

    def alteration(self, backwards: bool = False) -> Alteration:
        """What was done to the first source, or (``backwards``) what makes the other program's of it."""
        first = self.sources[0]
        pair = (first.held, first.value)
        return alteration_of(*(pair[::-1] if backwards else pair), first.constant.value.dtype)


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

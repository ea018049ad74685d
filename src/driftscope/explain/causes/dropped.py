"""What A computes of a value before several steps read it, where B lets all of them read the value as it is.

A norm is read by the projections of queries, keys and values, or by both halves of a gated layer, and beside it the
residual reads what it was made of. Where it is left out, each of its readers parts from A: they are one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch

from driftscope.explain.causes.missing import made_of, way_words
from driftscope.explain.causes.rewiring import Reason, Trials
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Sketch, Visited, boundary
from driftscope.explain.locate.operators import MOVES, family
from driftscope.records.words import joined

# Ways of A from a value that are tried, and steps that read a value.
_MOST_WAYS = 3
_MOST_READERS = 8


def before_readers(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """Steps of A between a value and several readers, which read the value itself in B: tried on all at once."""
    read = _read_by(trials.makers)
    read_a = _read_by(trials.theirs)
    for name, given in _sources(parting, trials):
        mine = {s.index: s for s in read.get(name, ()) if not s.inside}
        if not 1 < len(mine) <= _MOST_READERS:
            continue
        for way in list(_ways(theirs, given))[:_MOST_WAYS]:
            wanted = _kinds(way[-1].outputs[0], read_a)
            if sum(wanted.values()) < 2:
                continue
            asked = [s for s in mine.values() if not wanted.keys().isdisjoint(_kinds_of(s, read))]
            for readers in (asked, *([s for s in asked if s is not left] for left in asked if len(asked) > 2)):
                values = trials.reading(name, way[-1].outputs[0], readers) if len(readers) > 1 else {}
                if values and trials.healed(values):
                    return _reason(name, way, readers, values)
    return None


def _reason(
    name: str, way: Sequence[Visited], readers: Sequence[Visited], values: Mapping[str, torch.Tensor]
) -> Reason:
    steps, names = way_words(way[0], way[-1]), joined([s.name for s in readers])
    words = f"here {names} read {name} as it is, where A computes {steps} of it first"
    return Reason(
        words, f"Compute {steps} of {name}, and let {names} read that.", True, readers[0], values=values, lacks=way[-1]
    )


def _sources(parting: Parting, trials: Trials) -> Iterator[tuple[str, Sketch]]:
    """The values that a piece is computed from, what they are views of and its views of them, where B makes them."""
    piece = parting.piece or (parting.step,)
    names = [*boundary(piece), *(s.outputs[0] for s in piece if family(s.operator) in MOVES)]
    for name in dict.fromkeys(n for first in names for n in _viewed(first, trials.makers)):
        maker = trials.makers[name]
        value = next((s for n, s in zip(maker.outputs, maker.sketches, strict=False) if n == name), None)
        if value is not None and not value.plain:
            yield name, value


def _viewed(name: str, makers: Mapping[str, Visited]) -> Iterator[str]:
    """A value and those that it is a view of, as far as steps make them."""
    while name in makers:
        yield name
        maker = makers[name]
        if family(maker.operator) not in MOVES or not maker.inputs:
            break
        name = maker.inputs[0]


def _ways(theirs: Sequence[Visited], given: Sketch) -> Iterator[list[Visited]]:
    """The ways of A's piece that lead from a value to as many elements."""
    for way in made_of(theirs, given):
        made = way[-1].sketches[0]
        if made is not None and made.count == given.count:
            yield way


def _read_by(makers: Mapping[str, Visited]) -> dict[str, list[Visited]]:
    """The steps that read each value."""
    found: dict[str, list[Visited]] = {}
    for step in {s.index: s for s in makers.values()}.values():
        for name in dict.fromkeys(step.inputs):
            found.setdefault(name, []).append(step)
    return found


def _kinds(name: str, read: Mapping[str, Sequence[Visited]]) -> Counter[str]:
    """How many steps of each kind read a value, as it is or through views."""
    found: Counter[str] = Counter()
    for step in read.get(name, ()):
        found.update(_kinds_of(step, read))
    return found


def _kinds_of(step: Visited, read: Mapping[str, Sequence[Visited]]) -> Counter[str]:
    if family(step.operator) in MOVES and step.outputs and step.outputs[0] in read:
        return _kinds(step.outputs[0], read)
    return Counter([family(step.operator)])

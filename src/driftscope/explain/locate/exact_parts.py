"""The way back from an exact value: the steps between what the other program has too and a value that it does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from driftscope.explain.locate.fingerprints import Sketch, Trail, ValueIndex, Visited
from driftscope.explain.locate.operators import family


@dataclass(frozen=True, slots=True)
class Parted:
    """The steps of one side from the first whose value the other does not have to the output."""

    first: Visited
    piece: tuple[Visited, ...]


def peers_of(mine: Parted, theirs: Parted) -> Iterator[tuple[Visited, Visited]]:
    """Steps of both pieces that are of one kind, from the first on."""
    left = list(theirs.piece)
    for step in mine.piece:
        peer = next((s for s in left if family(s.operator) == family(step.operator)), None)
        if peer is not None:
            left.remove(peer)
            yield step, peer


def parted(run: Trail, output: str, other: Trail) -> Parted | None:
    """The steps between the other program's values and an output; None where no step makes it."""
    makers = {name: step for step in run.steps if not step.inside for name in step.outputs if name}
    end = makers.get(output)
    if end is None:
        return None
    index, plain = ValueIndex(other), _plain_values(other)
    members, first, left = {end.index: end}, [], [end]
    while left:
        step = left.pop()
        unknown = [makers[n] for n, taken in zip(step.inputs, step.taken, strict=False)
                   if n in makers and not _known(taken, index, plain)]  # fmt: skip
        if not unknown:
            first.append(step)
        for maker in unknown:
            if maker.index not in members:
                members[maker.index] = maker
                left.append(maker)
    piece = tuple(members[k] for k in sorted(members))
    return Parted(min(first, key=lambda s: s.index), piece)


def _plain_values(run: Trail) -> list[Sketch]:
    computed = [s for step in run.steps for s in step.sketches]
    return [s for s in (*run.inputs.values(), *computed) if s is not None and s.plain]


def _known(value: Sketch | None, floats: ValueIndex, plain: Sequence[Sketch]) -> bool:
    if value is None:
        return True
    return any(value.same(p) for p in plain) if value.plain else floats.holds_in_order(value)

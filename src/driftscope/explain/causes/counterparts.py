"""The same piece elsewhere: what a healthy layer of the same graph has where the broken one has something else.

Graphs repeat themselves. A piece of B that A computes with one fused operator has no counterpart to be compared with
step by step; the same piece of another layer, or A's own when both graphs are of one kind, has. Both are walked
backwards in lockstep from their ends; operators, attributes and small constants are compared on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.explain.causes.attributes import defaults
from driftscope.explain.locate.divergence import Parting, View
from driftscope.explain.locate.fingerprints import Trail, Visited
from driftscope.explain.locate.operators import MOVES, family

# Differences up to which another piece passes for the same one.
_MOST_DIFFERENCES = 2
# Share of a piece's steps that must be alike in the other one.
_ALIKE = 0.6
# Healthy pieces looked at.
_MOST_TWINS = 6
# Elements up to which a constant is compared by its values: scalars, shapes, axes, permutations.
_SMALL = 16


@dataclass(frozen=True, slots=True)
class Odd:
    """A step of the broken piece that the healthy one has otherwise.

    ``attributes``, or ``constants`` by name in float64, are what the healthy one has.
    """

    step: Visited
    words: str
    fix: str
    attributes: Mapping[str, object] = field(default_factory=dict)
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Graph:
    """One run, as it is walked backwards."""

    trail: Trail
    constants: Mapping[str, torch.Tensor]
    makers: dict[str, Visited] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.makers = {n: s for s in self.trail.steps if not s.inside for n in s.outputs if n}


def odd_step(
    view: View, parting: Parting, constants: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]
) -> Odd | None:
    """Find the one step in which a broken piece differs from a healthy one; None when there is no such pair.

    Parameters
    ----------
    view : View
        Two runs, the reference's values forced where the programs part.
    parting : Parting
    constants : pair of mappings of str to Tensor
        A's and B's constants by name.
    """
    own = _Graph(view.b, constants[1])
    piece = _Piece({s.index for s in parting.piece}, _healthy(view, parting.piece))
    other = parting.counterpart
    if other is None:
        return None
    twins = [(s, own) for s in _twins(view, parting)]
    if view.a.tape == view.b.tape:
        twins.insert(0, (other, _Graph(view.a, constants[0])))
    best: list[Odd] = []
    for end, graph in twins:
        walk = _PairWalk(own, graph, piece)
        found = walk.differences(parting.step, end)
        # Two pieces that share little are two different pieces.
        if end is other and any(odd.step is parting.step and end.operator in odd.words for odd in found):
            continue  # another operator than A's: the finding says so already
        if walk.strangers or walk.alike() < _ALIKE * (len(parting.piece) - 1):
            continue
        if 0 < len(found) <= _MOST_DIFFERENCES and (not best or len(found) < len(best)):
            best = found
    return best[-1] if best else None


def _twins(view: View, parting: Parting) -> Sequence[Visited]:
    """Steps of B, nearest first, that do what the end of a broken piece should do, and do it right."""
    known, end, inside = view.alignment.partner, parting.step, {s.index for s in parting.piece}
    wanted = parting.counterpart.operator if parting.counterpart is not None else ""
    alike = [
        step
        for step in view.b.steps
        if step.index in known and step.index not in inside and len(step.inputs) == len(end.inputs)
        and view.a.steps[known[step.index]].operator == wanted and step.outputs[0] in view.sound_b
        and family(step.traced[1]) == family(end.traced[1])
    ]  # fmt: skip
    return sorted(alike, key=lambda s: (_distance(s, end), abs(s.index - end.index)))[:_MOST_TWINS]


def _distance(one: Visited, other: Visited) -> int:
    """How many parts of the module paths differ: a layer's twin has the same names and another number."""
    mine, theirs = (one.where.module or "").split("."), (other.where.module or "").split(".")
    if len(mine) != len(theirs):
        return 99
    return sum(1 for x, y in zip(mine, theirs, strict=True) if x != y and not (x.isdigit() and y.isdigit()))


def _healthy(view: View, piece: Sequence[Visited]) -> set[int]:
    """Steps of a piece from which something right is computed outside it."""
    inside = {s.index for s in piece}
    made = {name: s.index for s in piece for name in s.outputs}
    outside = (s for s in view.b.steps if s.index not in inside and not s.inside and s.outputs[0] in view.sound_b)
    return {made[n] for s in outside for n in s.inputs if n in made}


@dataclass(slots=True)
class _Piece:
    inside: set[int]
    healthy: set[int]


@dataclass(slots=True)
class _PairWalk:
    mine: _Graph
    theirs: _Graph
    piece: _Piece
    met: set[tuple[int, int]] = field(default_factory=set)
    found: list[Odd] = field(default_factory=list)
    strangers: bool = False  # a view against an operator: the two walks lost each other

    def differences(self, one: Visited, other: Visited) -> list[Odd]:
        """Everything in which the two pieces differ, from the ends backwards."""
        self._step(one, other, None)
        return self.found

    def alike(self) -> int:
        """How many steps of the broken piece have their like."""
        return len({k for k, _ in self.met}) - len({odd.step.index for odd in self.found})

    def _step(self, one: Visited, other: Visited, reader: Visited | None) -> None:
        if (one.index, other.index) in self.met or len(self.found) > _MOST_DIFFERENCES:
            return
        self.met.add((one.index, other.index))
        if one.operator != other.operator:
            if one.index in self.piece.healthy and reader is not None:
                words = (
                    f"it reads the result of {one.name} ({one.operator}), where its counterpart reads {other.operator}"
                )
                self.found.append(Odd(reader, words, _like(other)))
                return
            if (family(one.operator) in MOVES) != (family(other.operator) in MOVES):
                self.strangers = True
            words = f"it is {one.operator} where {other.name} is {other.operator}"
            self.found.append(Odd(one, words, _like(other)))
        elif _sizes(one) == _sizes(other):
            usual = defaults(one.operator)
            place = other.name if self.mine is self.theirs else "A"
            for name in dict.fromkeys((*one.attributes, *(other.attributes.keys() & usual.keys()))):
                value, theirs = (s.attributes.get(name, usual.get(name)) for s in (one, other))
                if not _equal(value, theirs):
                    words = f"{name} is {value} here and {theirs} in {place}"
                    fix = f"Set {name} of {one.name} to {theirs}, as in {place}."
                    self.found.append(Odd(one, words, fix, {name: theirs}))
        for name, peer in zip(one.inputs, other.inputs, strict=False):
            self._input(one, other, name, peer)

    def _input(self, one: Visited, other: Visited, name: str, peer: str) -> None:
        mine, theirs = self.mine.constants.get(name), self.theirs.constants.get(peer)
        if self.mine is self.theirs and family(one.operator) == "gather" and name in one.inputs[1:]:
            return  # twins in one program take other elements (a direction, a layer's state), and rightly
        if mine is not None and theirs is not None:
            small = mine.numel() <= _SMALL and mine.shape == theirs.shape and _sizes(one) == _sizes(other)
            # Layers have weights of their own; scalars, shapes and axes are alike.
            if small and (mine.numel() == 1 or not mine.dtype.is_floating_point) and not torch.equal(mine, theirs):
                words = f"its {name} is {mine.tolist()}, and {theirs.tolist()} in {other.name}"
                floats = {name: theirs.to(torch.float64)} if theirs.dtype.is_floating_point else {}
                fix = f"Set {name} to {theirs.tolist()}, as in {other.name}." if floats else _like(other)
                self.found.append(Odd(one, words, fix, constants=floats))
            return
        maker, made = self.mine.makers.get(name), self.theirs.makers.get(peer)
        if maker is not None and made is not None and maker.index in self.piece.inside:
            self._step(maker, made, one)


def _like(other: Visited) -> str:
    return f"Make it as {other.name} is, unless the two are meant to differ."


def _sizes(step: Visited) -> list[int]:
    """Element counts of what a step reads: attributes of layers of other sizes differ without harm."""
    return [t.count for t in step.taken if t is not None]


def _equal(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-6 * abs(other)
    try:
        return one == other
    except NotImplementedError:  # packed weights, which are compared as weights are
        return True

"""The same piece elsewhere: what a healthy layer of the same graph has where the broken one has something else.

Graphs repeat themselves. A piece of B that A computes with one fused operator has no counterpart to be compared with
step by step; the same piece of another layer, or A's own when both graphs are of one kind, has. Both are walked
backwards in lockstep from their ends; operators, attributes and small constants are compared on the way. Attributes are
compared with the operators' own defaults filled in.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.explain.causes.rewiring import Reason, Trials
from driftscope.explain.locate.divergence import Parting, View
from driftscope.explain.locate.fingerprints import Trail, Visited
from driftscope.explain.locate.operators import MOVES, family
from driftscope.lift.steps import Constant, plain_name

# Differences up to which another piece passes for the same one.
_MOST_DIFFERENCES = 2
# Share of a piece's steps that must be alike in the other one.
_ALIKE = 0.6
# Healthy pieces looked at.
_MOST_TWINS = 6
# Elements up to which a constant is compared by its values: scalars, shapes, axes, permutations.
_SMALL = 16

# The same attribute under the names that torch and ONNX give it.
_SYNONYMS = {
    "eps": "epsilon", "negative_slope": "alpha", "dim": "axis", "stride": "strides", "dilation": "dilations",
    "groups": "group", "num_groups": "group", "padding": "pads",
}  # fmt: skip
_BY_NAME: Mapping[str, Mapping[str, object]] = {
    "BiasGelu": {"approximate": "none"}, "FastGelu": {"approximate": "tanh"},
}  # fmt: skip
# Where a slice ends that leaves nothing out.
_TO_THE_END = 2**63 - 1
# Relative difference of two float attributes that is not the float32 in which ONNX stores them.
_SAME_ATTRIBUTE = 1e-6


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


def read_as_often(constant: Constant, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials) -> bool:
    """Whether both programs read a tensor's elements in as many steps: then neither lacks it, wherever it is read."""
    value, often = constant.value.reshape(-1).to(torch.float64), []
    for side, makers in zip(constants, (trials.theirs, trials.makers), strict=True):
        held = [c for c in side if c.value.numel() == value.numel()]
        held = [c for c in held if torch.equal(c.value.reshape(-1).to(value), value)]
        steps = {s.index: s for s in makers.values()}.values()
        often.append(sum(any(s.reads(c) for c in held) for s in steps))
    return often[0] == often[1] > 0  # who reads it is not always known


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


def changed_attributes(step: Visited, other: Visited) -> dict[str, object]:
    """The attributes (by ONNX's names) in which a step differs from its counterpart, with the latter's values."""
    ours, wanted = attributes_of(step), attributes_of(other)
    return {name: wanted[name] for name, value in ours.items() if name in wanted and differ(value, wanted[name])}


def attribute_cause(
    step: Visited, changed: Mapping[str, object], verified: bool | None, later: Visited | None
) -> Reason:
    """Say which attributes differ and what to set."""
    ours = attributes_of(step)
    words = "; ".join(f"{name} is {_plain(ours[name])} here and {_plain(v)} in A" for name, v in changed.items())
    settings = " and ".join(f"{name} of {step.name} to {_plain(value)}" for name, value in changed.items())
    fix = f"Set {settings}."
    if changed.keys() <= _implied(step.operator).keys():
        meant = " and ".join(f"{name} {_plain(value)}" for name, value in changed.items())
        fix = f"Put an operator with {meant} in the place of {step.name}, or leave it unfused."
    return Reason(words, fix, verified, later)


def other_setting(mine: Sequence[Visited], theirs: Sequence[Visited]) -> Reason | None:
    """Say which step is the first that does not have the settings of the step that stands there in A; not tried.

    None where the two are not the same operators in the same order: then it is not known which stands for which.
    """
    if [family(s.operator) for s in mine] != [family(s.operator) for s in theirs]:
        return None
    for step, other in zip(mine, theirs, strict=True):
        if changed := changed_attributes(step, other):
            return attribute_cause(step, changed, None, step)
    return None


def own_name(step: Visited, name: str) -> str:
    """What a step itself calls an attribute of ONNX's name."""
    known = (*step.attributes, *defaults(step.operator))
    return next((own for own in known if _SYNONYMS.get(own, own) == name), name)


def attributes_of(step: Visited) -> dict[str, object]:
    """A step's attributes under ONNX's names, the operator's defaults filled in, axes counted from the front."""
    found = {**defaults(step.operator), **{k: v for k, v in step.attributes.items() if v is not None}}
    named = {_SYNONYMS.get(k, k): v.decode() if isinstance(v, bytes) else v for k, v in found.items()}
    pads = named.get("pads")
    if isinstance(pads, (list, tuple)) and len(pads) == step.rank - 2 and step.operator.startswith("aten."):
        named["pads"] = [*pads, *pads]  # ONNX writes both ends of every axis
    axis = named.get("axis")
    rank = step.rank
    if any(named.get(name, True) in (False, 0) for name in ("keepdim", "keepdims")):
        rank += len(axis) if isinstance(axis, (list, tuple)) else 1  # what is reduced is in the input alone
    if isinstance(axis, int) and axis < 0 < rank:
        named["axis"] = axis + rank
    if isinstance(axis, (list, tuple)) and all(isinstance(a, int) for a in axis):
        named["axis"] = sorted(a + rank if a < 0 < rank else a for a in axis)
    return named


def _implied(operator: str) -> Mapping[str, object]:
    """What an operator of onnxruntime is by its name, where others have an attribute for it."""
    return _BY_NAME.get(operator, {})


@functools.cache
def defaults(operator: str) -> Mapping[str, object]:
    """The defaults of an operator's attributes, from torch's or ONNX's own schema; empty when neither knows it."""
    if _implied(operator):
        return _implied(operator)
    if operator.startswith("aten."):
        packet = getattr(torch.ops.aten, operator.removeprefix("aten.").split(".")[0], None)
        schemas = [getattr(packet, name)._schema for name in packet.overloads()] if packet is not None else []
        return {a.name: a.default_value for s in reversed(schemas) for a in s.arguments if a.has_default_value()}
    import onnx

    domain, _, name = operator.rpartition("::")
    if not onnx.defs.has(name, domain):
        return {}
    schema = onnx.defs.get_schema(name, domain=domain)
    values = {
        n: onnx.helper.get_attribute_value(a.default_value)
        for n, a in schema.attributes.items()
        if a.default_value.name
    }
    return {n: v for n, v in values.items() if v is not None}


def differ(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and one != other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) > _SAME_ATTRIBUTE * abs(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return list(one) != list(other)
    return False


def _plain(value: object) -> str:
    if isinstance(value, int) and value == _TO_THE_END:
        return "the last"
    return f"{value:g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)


def function_of(step: Visited) -> str:
    """What a step computes, by ONNX's name where it has one."""
    name, by = plain_name(step.operator), "tanh" if step.attributes.get("approximate") == "tanh" else "erf"
    return {"swish": "silu", "gelu": f"gelu by {by}", "fastgelu": "gelu by tanh"}.get(name, name)

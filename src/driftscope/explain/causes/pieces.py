"""Why two pieces that take the same values give others: an attribute, a wire, an extra step, a stored constant.

Nothing is guessed. Attributes are compared with the operators' own defaults filled in, wires by the values they
carry. What can be tried is tried: the piece runs once more in float64 with the constant that A holds, or without the
step that A does not have, and is blamed only if it then gives A's value.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from driftscope.explain.causes import missing, rewiring
from driftscope.explain.causes.alterations import alteration_of, shortest, uniform_of
from driftscope.explain.causes.gates import gate_order
from driftscope.explain.causes.rewiring import Reason, Trial, Trials
from driftscope.explain.causes.trying import nearby
from driftscope.explain.causes.weights import ChangedWeight
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.operators import family
from driftscope.lift.reconcile.matching import rearrangements, uniform
from driftscope.lift.steps import Constant, Origin
from driftscope.records.words import counted

# The same attribute under the names that torch and ONNX give it.
_SYNONYMS = {
    "eps": "epsilon", "negative_slope": "alpha", "dim": "axis", "stride": "strides", "dilation": "dilations",
    "groups": "group", "num_groups": "group", "padding": "pads",
}  # fmt: skip
_BY_NAME: Mapping[str, Mapping[str, object]] = {
    "BiasGelu": {"approximate": "none"}, "FastGelu": {"approximate": "tanh"},
}  # fmt: skip
# Relative difference of two float attributes that is not the float32 in which ONNX stores them.
_SAME_ATTRIBUTE = 1e-6
# Runs of B spent on one parting.
_MOST_TRIALS = 10
# Arrangements of A's constants kept to be tried, and elements up to which constants of other pieces are looked at.
_NEAREST = 4
_SMALL = 1 << 22
# What stands for weights and biases that A does not have, and the steps for which it is none.
_NEUTRAL = ((1.0, "the neutral factor", ("add", "sub")), (0.0, "the neutral term", ("mul", "div")))
# Numbers that are solved for, one at a time.
_MOST_SOLVED = 6
# Uniform constants above this are masks and limits, no weights.
_WEIGHTS = 1e6


def cause_of(
    parting: Parting,
    theirs: Sequence[Visited],
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    trials: Trials,
) -> Reason | None:
    """Name the cause of a parting; None when nothing in the two graphs says it.

    Parameters
    ----------
    parting : Parting
    theirs : sequence of Visited
        The piece of A that the parting's piece stands for.
    constants : pair of sequences of Constant
        A's and B's.
    trials : Trials
    """
    peers = functools.cache(trials.peers)
    wire = rewiring.wire(parting, trials.makers)
    detour = rewiring.detour(parting, theirs, trials.makers)
    return (
        _attribute(parting, theirs, trials)
        or rewiring.mended(rewiring.emptied(parting, trials.makers), theirs, trials)
        or gate_order(parting, constants, trials)
        or _constant(parting, theirs, constants, trials.constants)
        or _mask(parting, constants, trials.constants)
        or missing.stored_term(parting, constants, trials)
        or missing.turned(parting, trials)
        or rewiring.other_operator(parting, theirs, trials)
        or _tried(peers())
        or nearby(parting, constants, trials)
        or missing.causal_mask(parting, trials)
        or missing.stand_in(parting, trials)
        or _connected(wire, trials)
        or rewiring.extra(parting, theirs, trials.bypass)
        or missing.several(parting, theirs, trials)
        or _solved(parting, constants, trials)
        or peers()
        or _tried(_connected(detour, trials))
        or rewiring.order(parting, theirs, trials)
        or rewiring.mended(rewiring.handed_on(parting, theirs, trials.makers), theirs, trials)
        # What it reads is a fact, and with something else no cure.
        or (None if wire is None else replace(wire, fix="", reads=None))
        # Where a piece begins to read other values is a place, and no cause.
        or (None if detour is None else replace(detour, why="", fix="", reads=None))
    )


def _connected(cause: Reason | None, trials: Trials) -> Reason | None:
    """A cause that asks for another wire, unless that was tried and did not do it; verified where it did."""
    if cause is None or cause.reads is None:
        return cause
    works = trials.reconnect(*cause.reads)
    return None if works is False else replace(cause, verified=works)


def _tried(cause: Reason | None) -> Reason | None:
    return cause if cause is not None and cause.verified else None


# --- attributes ----------------------------------------------------------------------------------------------


def _attribute(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """An attribute in which a step of the piece differs from the one step of A's piece that is of its kind."""
    pairs = [] if parting.counterpart is None else [(parting.step, parting.counterpart)]
    pairs += _alone(parting.piece, theirs)
    untried: Reason | None = None
    for step, other in pairs:
        if family(step.operator) != family(other.operator):
            continue
        changed = changed_attributes(step, other)
        if not changed:
            continue
        later = None if step is parting.step else step
        for tried in ({n: v} for n, v in changed.items()), ((changed,) if len(changed) > 1 else ()):
            for some in tried:
                if _try_attributes(step, some, trials):
                    return attribute_cause(step, some, True, later)
        if untried is None and not all(isinstance(v, float) for v in changed.values()):
            untried = attribute_cause(step, changed, None, later)
    return untried


def changed_attributes(step: Visited, other: Visited) -> dict[str, object]:
    """The attributes (by ONNX's names) in which a step differs from its counterpart, with the latter's values."""
    ours, wanted = attributes_of(step), attributes_of(other)
    return {name: wanted[name] for name, value in ours.items() if name in wanted and _differ(value, wanted[name])}


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


def _try_attributes(step: Visited, changed: Mapping[str, object], trials: Trials) -> bool:
    """Whether the piece gives A's value with A's attributes in this step."""
    own = {own_name(step, name): _own_form(step, name, value) for name, value in changed.items()}
    if len(own) == 1:
        name, value = next(iter(own.items()))
        if isinstance(value, float) and name in step.attributes:
            return trials.constants({f"{step.name}.{name}": torch.tensor(value, dtype=torch.float64)})
    return trials.setting(step.name, own)


def _own_form(step: Visited, name: str, value: object) -> object:
    """An attribute's value as the step itself writes it: torch pads both ends of an axis alike."""
    if name == "pads" and step.operator.startswith("aten.") and isinstance(value, (list, tuple)):
        return list(value[: len(value) // 2])
    return value


def own_name(step: Visited, name: str) -> str:
    """What a step itself calls an attribute of ONNX's name."""
    known = (*step.attributes, *_defaults(step.operator))
    return next((own for own in known if _SYNONYMS.get(own, own) == name), name)


def _alone(piece: Sequence[Visited], theirs: Sequence[Visited]) -> list[tuple[Visited, Visited]]:
    """Steps of both pieces that are the only one of their kind there."""
    mine, others = ({f: [s for s in side if family(s.operator) == f] for f in map(_family, side)}
                    for side in (piece, theirs))  # fmt: skip
    return [(mine[f][0], others[f][0]) for f in mine if len(mine[f]) == 1 and len(others.get(f, [])) == 1]


def _family(step: Visited) -> str:
    return family(step.operator)


def attributes_of(step: Visited) -> dict[str, object]:
    """A step's attributes under ONNX's names, the operator's defaults filled in, axes counted from the front."""
    found = {**_defaults(step.operator), **{k: v for k, v in step.attributes.items() if v is not None}}
    named = {_SYNONYMS.get(k, k): v.decode() if isinstance(v, bytes) else v for k, v in found.items()}
    pads = named.get("pads")
    if isinstance(pads, (list, tuple)) and len(pads) == step.rank - 2 and step.operator.startswith("aten."):
        named["pads"] = [*pads, *pads]  # ONNX writes both ends of every axis
    axis = named.get("axis")
    if isinstance(axis, int) and axis < 0 < step.rank:
        named["axis"] = axis + step.rank
    return named


def _implied(operator: str) -> Mapping[str, object]:
    """What an operator of onnxruntime is by its name, where others have an attribute for it."""
    return _BY_NAME.get(operator, {})


@functools.cache
def _defaults(operator: str) -> Mapping[str, object]:
    """The defaults of an operator's attributes, from torch's or ONNX's own schema; empty when neither knows it."""
    if _implied(operator):
        return _implied(operator)
    if operator.startswith("aten."):
        packet = getattr(torch.ops.aten, operator.removeprefix("aten.").split(".")[0], None)
        if packet is None or "default" not in packet.overloads():
            return {}
        return {a.name: a.default_value for a in packet.default._schema.arguments if a.has_default_value()}
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


def _differ(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and one != other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) > _SAME_ATTRIBUTE * abs(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return list(one) != list(other)
    return False


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)


# --- constants -----------------------------------------------------------------------------------------------


def _constant(
    parting: Parting,
    theirs: Sequence[Visited],
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    works: Trial,
) -> Reason | None:
    """The constant of this piece that makes it give A's value when A's takes its place."""
    ours, own = constants
    owners = [s for s in (parting.counterpart, *theirs) if s is not None]
    floats = {c.name: c for c in own if c.value.dtype.is_floating_point}
    used = [
        (step, constant)
        for step in (*reversed(parting.piece or (parting.step,)), *parting.followers)
        for constant in floats.values()
        if constant.name in step.stored or constant.where.node == step.name
    ]
    trials = (
        (step, *trial) for step, constant in used for trial in _substitutes(step, constant, parting, owners, ours)
    )
    for step, constant, partner, value in itertools.islice(trials, _MOST_TRIALS):
        if works({constant.name: value}):
            alteration = alteration_of(constant.value.to(torch.float64), value, constant.value.dtype)
            number = uniform_of(value)
            fix = f"Store {partner} of A in {constant.name} again."
            if number is not None:
                fix = f"Set {constant.name} to {shortest(number)}."
            later = None if step is parting.step else step
            held = {c.name: c for c in ours}.get(partner)
            changed = None if number is not None or held is None else ChangedWeight(constant, held, value, alteration)
            words = f"its constant {constant.name} is {partner} of A, {alteration.words}"
            held_now = uniform_of(constant.value)
            if number is not None and held_now is not None:
                words = f"its constant {constant.name} is {shortest(held_now)}, in A {shortest(number)} ({partner})"
            return Reason(words, fix, True, later, changed)
    return None


def _solved(
    parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials
) -> Reason | None:
    """The one number of this piece that another number makes right, solved for: a scale that A's operator hides.

    Of several that would do alone (a factor of either operand), it is the one whose right number stands elsewhere.
    """
    steps = [*parting.piece, *parting.followers]
    floats = [c for c in constants[1] if c.value.dtype.is_floating_point and uniform(c) not in (None, 0.0)]
    used = [(s, c) for s in steps for c in floats if c.name in s.stored or c.where.node == s.name]
    if not parting.paired:  # it is not known how far the piece goes
        named = {s.name: s for s in trials.makers.values()}
        used += [(named[c.where.node], c) for c in floats if c.where.node in named]
    used = list({c.name: (s, c) for s, c in used if abs(uniform(c) or 0.0) <= _WEIGHTS}.values())
    found = [(s, c, number) for s, c in used[:_MOST_SOLVED] if (number := trials.solve(c)) is not None]
    if len(found) > 1:
        held = {c.name: uniform(c) for side in constants for c in side}
        found = [
            (s, c, n) for s, c, n in found
            if any(other is not None and name != c.name and not _differ(n, other) for name, other in held.items())
        ]  # fmt: skip
    if len(found) != 1:
        return None
    step, constant, number = found[0]
    shown = torch.tensor(number, dtype=constant.value.dtype)
    if not trials.constants({constant.name: torch.full(constant.value.shape, number, dtype=torch.float64)}):
        return None
    return Reason(
        f"its constant {constant.name} is {shortest(uniform(constant) or 0.0)}; with {shortest(float(shown))} it gives"
        " A's values",
        f"Set {constant.name} to {shortest(float(shown))}.",
        True,
        None if step is parting.step else step,
    )


def _substitutes(
    step: Visited, constant: Constant, parting: Parting, owners: Sequence[Visited], ours: Sequence[Constant]
) -> Iterator[tuple[Constant, str, torch.Tensor]]:
    """Yield what A might hold in place of ``constant``: scalars of the counterpart, then tensors, nearest first."""
    number = uniform(constant)
    shape, stored = constant.value.shape, constant.value.to(torch.float64)
    if number is not None or constant.value.numel() == 1:
        # torch's literals are named after their step; a file stores them beside it.
        names = tuple(f"{s.name}." for s in owners)
        read = {n for s in owners for n in s.stored}
        beside = [c for c in ours if c.name.startswith(names) or (c.name in read and c.value.dtype.is_floating_point)]
        for candidate in beside:
            value = candidate.value.to(torch.float64).reshape(-1)[:1]
            if value.numel() and float(value) != number:
                yield constant, candidate.name, value.expand(constant.value.numel()).reshape(shape).clone()
    if constant.value.numel() < 2:
        return
    if number is not None and abs(number) <= _WEIGHTS and constant.origin is Origin.WEIGHT:
        # A norm without weight or bias is written with ones and zeros that A never stores.
        for neutral, words, unless in _NEUTRAL:
            if neutral != number and _family(step) not in unless:
                yield constant, words, torch.full_like(stored, neutral)
    near: list[tuple[float, int, str, torch.Tensor]] = []
    for candidate in _partners(constant, parting, ours):
        # As it is, and transposed; the order of gate blocks would take more runs than it is worth.
        for arranged in itertools.islice(rearrangements(candidate.value, shape), 2):
            value = arranged.to(torch.float64)
            gap = float(torch.nan_to_num(value - stored, posinf=0.0, neginf=0.0).abs().sum())
            if gap > 0.0:
                near.append((gap, len(near), candidate.name, value))
                near = sorted(near, key=lambda entry: entry[:2])[:_NEAREST]
    for _, _, name, value in near:
        yield constant, name, value


def _mask(parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], works: Trial) -> Reason | None:
    """The mask of this piece that makes it give A's value when one of A's takes its place."""
    ours, own = ([c for c in side if c.value.dtype == torch.bool and c.value.numel() > 1] for side in constants)
    steps = [*reversed(parting.piece or (parting.step,)), *parting.followers]
    used = [(s, c) for s in steps for c in own if c.name in s.stored or c.where.node == s.name]
    pairs = ((s, c, other) for s, c in used for other in ours if other.value.numel() == c.value.numel())
    for step, constant, other in itertools.islice(pairs, _MOST_TRIALS):
        value = other.value.reshape(constant.value.shape)
        if not torch.equal(value, constant.value) and works({constant.name: value}):
            turned = f"{int((value != constant.value).sum())} of {counted(value.numel(), 'element')} turned"
            words = f"its constant {constant.name} is {other.name} of A with {turned}"
            later = None if step is parting.step else step
            return Reason(words, f"Store {other.name} of A in {constant.name} again.", True, later)
    return None


def _partners(constant: Constant, parting: Parting, ours: Sequence[Constant]) -> list[Constant]:
    """A's constants that may be meant: those its counterpart uses, else any of the same sizes."""
    sizes = sorted(n for n in constant.value.shape if n > 1)
    fitting = [
        c for c in ours
        if c.value.dtype.is_floating_point
        and c.value.numel() == constant.value.numel()
        and (c.origin is Origin.COMPUTED or sorted(n for n in c.value.shape if n > 1) == sizes)
    ]  # fmt: skip
    other = parting.counterpart
    read = {constant.name} if other is None else {constant.name, *other.stored}
    beside = [c for c in fitting if c.name in read or (other is not None and c.where.node == other.name)]
    return beside or (fitting if constant.value.numel() <= _SMALL else [])

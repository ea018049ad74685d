"""Why two pieces that take the same values give others: an attribute, a wire, an extra step, a stored constant.

Nothing is guessed. Attributes are compared with the operators' own defaults filled in, wires by the values they
carry. What can be tried is tried: the piece runs once more in float64 with the constant that A holds, or without the
step that A does not have, and is blamed only if it then gives A's value.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from driftscope.explain.causes import dropped, misplaced, missing, rewiring
from driftscope.explain.causes.alterations import alteration_of, told_apart, uniform_of
from driftscope.explain.causes.counterparts import attribute_cause, changed_attributes, differ, own_name
from driftscope.explain.causes.edits.nearby import nearby, offered_operator, offered_setting
from driftscope.explain.causes.rewiring import Reason, Trial, Trials
from driftscope.explain.causes.weights import ChangedWeight
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.operators import family, interchangeable
from driftscope.lift.reconcile.arrangements import rearrangements
from driftscope.lift.reconcile.matching import uniform
from driftscope.lift.steps import Constant, Origin, use_of
from driftscope.records.words import counted

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
    found = _cause(parting, theirs, constants, trials)
    if found is not None and found.verified:
        return found
    found = missing.computed_there(parting, theirs, trials, found) or found
    if found is None or found.verified or trials.tried or (found.step and found.step.operator == "Identity"):
        return found
    return replace(found, why="", fix="", reads=None)  # a place: what is otherwise in a guessed counterpart is no cause


def _cause(
    parting: Parting,
    theirs: Sequence[Visited],
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    trials: Trials,
) -> Reason | None:
    peers = functools.cache(trials.peers)
    wire = rewiring.wire(parting, trials.makers)
    seen = wire if trials.tried else None  # what a guessed counterpart reads says nothing
    detour = misplaced.detour(parting, theirs, trials.makers)
    return (
        _attribute(parting, theirs, trials)
        or missing.ended(parting, theirs, trials)
        or rewiring.mended(rewiring.emptied(parting, trials.makers), theirs, trials)
        or dropped.before_readers(parting, theirs, trials)
        or misplaced.gate_order(parting, constants, trials)
        or _constant(parting, theirs, constants, trials)
        or _mask(parting, constants, trials.constants)
        or missing.stored_term(parting, constants, trials)
        or missing.turned(parting, trials)
        or missing.transposed(parting, constants[1], trials)
        or missing.flattened(parting, trials)
        or _tried(peers())
        or offered_setting(parting, trials)
        or _operator(parting, theirs, constants, trials)
        or nearby(parting, constants, trials)
        or offered_operator(parting, trials)
        or missing.mask(parting, trials)
        or missing.stand_in(parting, trials)
        or _idle_attribute(wire, trials)
        or misplaced.exchanged_results(parting, trials)
        or misplaced.exchanged_wire(wire, trials)
        or _tried(misplaced.connected(wire, trials))
        or misplaced.exchanged_values(parting, trials)
        or missing.lacking(parting, theirs, trials)
        or misplaced.connected(seen, trials)
        or rewiring.extra(parting, theirs, trials)
        or missing.several(parting, theirs, trials)
        or _solved(parting, constants, trials)
        or missing.factor(parting, trials)
        or _tried(misplaced.connected(detour, trials))
        or misplaced.order(parting, theirs, trials)
        or misplaced.passed_through(parting, trials)
        or rewiring.mended(rewiring.handed_on(parting, theirs, trials.makers), theirs, trials)
        or misplaced.skipped(parting, trials)
        # What it reads is a fact, and with something else no cure.
        or (None if seen is None or misplaced.folded_in(seen, trials) else replace(seen, fix="", reads=None))
        # Where a piece begins to read other values is a place, and no cause.
        or (None if detour is None else replace(detour, why="", fix="", reads=None))
    )


def _operator(
    parting: Parting,
    theirs: Sequence[Visited],
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    trials: Trials,
) -> Reason | None:
    """A step of another kind than A's: what of its own operators could stand there says more than A's name for it."""
    pair = rewiring.other_operator(parting, theirs, trials)
    if pair is None:
        return None
    offered = offered_operator(parting, trials)
    if offered is not None:
        return offered
    step, other = pair
    name = other.operator if other is parting.counterpart else f"{other.operator} ({other.name})"
    words = f"{step.name} is {step.operator} where A has {name}"
    fix = f"Compute {other.operator} in {step.name}, as A does."
    a, b = ({uniform(c) for c in side if s.reads(c)} for s, side in ((other, constants[0]), (step, constants[1])))
    if interchangeable(step.operator, other.operator) and (a != b or None in a):
        # Which of them is written is taste, and what it is computed with is other.
        solved = _solved(parting, constants, trials)
        if solved is not None:
            return solved
        words = f"{step.name} ({step.operator}) makes something else of the same value than {name} in A"
        fix = f"Let {step.name} give what {other.operator} gives in A."
    return Reason(words, fix, True, None if step is parting.step else step)


def _tried(cause: Reason | None) -> Reason | None:
    return cause if cause is not None and cause.verified else None


# --- attributes ----------------------------------------------------------------------------------------------


def _attribute(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """An attribute in which a step of the piece differs from the one step of A's piece that is of its kind."""
    pairs = [] if parting.counterpart is None else [(parting.step, parting.counterpart)]
    pairs += _alone(parting.piece, theirs)
    untried: Reason | None = None
    for step, other in pairs:
        changed = changed_attributes(step, other)
        if step.rank != other.rank:  # a stack counts one axis more than what is joined along an axis
            changed.pop("axis", None)
        alike = family(step.operator) == family(other.operator)
        if not changed:
            continue
        later = None if step is parting.step else step
        for tried in ({n: v} for n, v in changed.items()), ((changed,) if len(changed) > 1 else ()):
            for some in tried:
                if _try_attributes(step, some, trials):
                    return attribute_cause(step, some, True, later)
        # What says how one value is turned says nothing of another one.
        alike = alike and all(t.same(w) for t, w in zip(step.taken, other.taken, strict=False) if t and w)
        if alike and untried is None and not all(isinstance(v, float) for v in changed.values()):
            untried = attribute_cause(step, changed, None, later)
    return untried


def _try_attributes(step: Visited, changed: Mapping[str, object], trials: Trials) -> bool:
    """Whether the piece gives A's value with A's attributes in this step."""
    own = {own_name(step, name): _own_form(step, name, value) for name, value in changed.items()}
    if len(own) == 1:
        name, value = next(iter(own.items()))
        if isinstance(value, float) and name in step.attributes:
            return trials.constants({f"{step.name}.{name}": torch.tensor(value, dtype=torch.float64)})
    return trials.setting(step.name, own)


def _idle_attribute(cause: Reason | None, trials: Trials) -> Reason | None:
    """An attribute with which a step does nothing (a factor of one), where A's step of its kind has another."""
    step = None if cause is None or not cause.instead else cause.step
    other = None if step is None or cause is None else trials.theirs.get(cause.instead)
    if step is None or other is None or family(step.operator) != family(other.operator):
        return None
    changed = changed_attributes(step, other)
    return attribute_cause(step, changed, _try_attributes(step, changed, trials) or None, step) if changed else None


def _own_form(step: Visited, name: str, value: object) -> object:
    """An attribute's value as the step itself writes it: torch pads both ends of an axis alike."""
    if name == "pads" and step.operator.startswith("aten.") and isinstance(value, (list, tuple)):
        return list(value[: len(value) // 2])
    return value


def _alone(piece: Sequence[Visited], theirs: Sequence[Visited]) -> list[tuple[Visited, Visited]]:
    """Steps of both pieces that are the only one of their kind there."""
    mine, others = ({f: [s for s in side if family(s.operator) == f] for f in map(_family, side)}
                    for side in (piece, theirs))  # fmt: skip
    return [(mine[f][0], others[f][0]) for f in mine if len(mine[f]) == 1 and len(others.get(f, [])) == 1]


def _family(step: Visited) -> str:
    return family(step.operator)


# --- constants -----------------------------------------------------------------------------------------------


def _constant(
    parting: Parting,
    theirs: Sequence[Visited],
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    trials: Trials,
) -> Reason | None:
    """The constant of this piece that makes it give A's value when A's takes its place, in one step if not in all."""
    ours, own = constants
    owners = [s for s in (parting.counterpart, *theirs) if s is not None]
    floats = {c.name: c for c in own if c.value.dtype.is_floating_point}
    used = [
        (step, constant)
        for step in (*reversed(parting.piece or (parting.step,)), *parting.followers)
        for constant in floats.values()
        if step.reads(constant)
    ]
    theirs_used = [(s, c) for s in owners for c in ours if s.reads(c) or c.name.startswith(f"{s.name}.")]
    kept = {c.name for _, c in theirs_used if _in_place(uniform(c), theirs_used, used)}
    used = [(s, c) for s, c in used if not _in_place(uniform(c), used, theirs_used)]
    ways = ((step, *trial) for step, constant in used for trial in _substitutes(step, constant, owners, ours))
    for step, constant, partner, value in itertools.islice((w for w in ways if w[2] not in kept), _MOST_TRIALS):
        works = trials.constants({constant.name: value})
        alone = not works and _shared(step, constant, trials)
        if works or (alone and trials.constants({use_of(constant.name, step.name): value})):
            held = {c.name: c for c in ours}.get(partner)
            told = _other_constant(constant, partner, value, held, step if alone else None)
            return replace(told, step=None if step is parting.step else step)
    return None


def _in_place(
    number: float | None, one: Sequence[tuple[Visited, Constant]], other: Sequence[tuple[Visited, Constant]]
) -> bool:
    """Whether every step of one piece that has this number stands for a step of the other that has it too.

    With another number a wrong step may well give A's value, times zero say: what both programs have is no cause.
    """
    kinds, others = (
        Counter(_family(step) for step in {s.index: s for s, c in piece if uniform(c) == number}.values())
        for piece in (one, other)
    )
    return number is not None and bool(kinds) and all(others[kind] >= count for kind, count in kinds.items())


def _shared(step: Visited, constant: Constant, trials: Trials) -> bool:
    """Whether other steps read a constant too."""
    readers = {s.name for s in trials.makers.values() if constant.name in s.stored}
    return bool({*readers, *constant.readers} - {step.name})


def _other_constant(
    constant: Constant, partner: str, value: torch.Tensor, held: Constant | None, step: Visited | None
) -> Reason:
    """A constant and what A holds in its place; ``step`` is the one that is wrong where others read it too."""
    numbers = uniform_of(constant.value), uniform_of(value)
    name, source = f"its constant {constant.name}", f"{partner} of A"
    meant = source
    alteration = alteration_of(constant.value.to(torch.float64), value, constant.value.dtype)
    words = f"{name} is {source}, {alteration.words}"
    fix = f"Store {source} in {constant.name} again."
    if numbers[1] is not None:
        here, meant = told_apart(numbers[1] if numbers[0] is None else numbers[0], numbers[1])
        fix = f"Set {constant.name} to {meant}."
        if numbers[0] is not None:
            words = f"{name} is {here}, in A {meant} ({partner})"
    if step is not None:
        words += "; other steps read it too"
        fix = f"Let {step.name} read {meant} in place of {constant.name}."
    if step is not None or numbers[1] is not None or held is None:
        return Reason(words, fix, True)
    return Reason(words, fix, True, changed=ChangedWeight(constant, held, value, alteration))


def _solved(
    parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials
) -> Reason | None:
    """The one number of this piece that another number makes right, solved for: a scale that A's operator hides.

    Of several that would do alone (a factor of either operand), it is the one whose right number stands elsewhere.
    """
    steps = [*parting.piece, *parting.followers]
    floats = [c for c in constants[1] if c.value.dtype.is_floating_point and uniform(c) not in (None, 0.0)]
    used = [(s, c) for s in steps for c in floats if s.reads(c)]
    if not parting.paired:  # it is not known how far the piece goes
        named = {s.name: s for s in trials.makers.values()}
        used += [(named[c.where.node], c) for c in floats if c.where.node in named]
    used = list({c.name: (s, c) for s, c in used if abs(uniform(c) or 0.0) <= _WEIGHTS}.values())
    found = [(s, c, number) for s, c in used[:_MOST_SOLVED] if (number := trials.solve(c)) is not None]
    if len(found) > 1:
        held = {c.name: uniform(c) for side in constants for c in side}
        found = [
            (s, c, n) for s, c, n in found
            if any(other is not None and name != c.name and not differ(n, other) for name, other in held.items())
        ]  # fmt: skip
    if len(found) != 1:
        return None
    step, constant, number = found[0]
    shown = torch.tensor(number, dtype=constant.value.dtype)
    if float(shown) == uniform(constant):
        return None  # nobody can set it to what its format rounds to what it is
    if not trials.constants({constant.name: torch.full(constant.value.shape, number, dtype=torch.float64)}):
        return None
    here, meant = told_apart(uniform(constant) or 0.0, float(shown))
    return Reason(
        f"its constant {constant.name} is {here}; with {meant} it gives A's values",
        f"Set {constant.name} to {meant}.",
        True,
        None if step is parting.step else step,
    )


def _substitutes(
    step: Visited, constant: Constant, owners: Sequence[Visited], ours: Sequence[Constant]
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
    near: list[tuple[bool, float, int, str, torch.Tensor]] = []
    for order, candidate in enumerate(_partners(constant, owners, ours)):
        # As it is, and transposed; the order of gate blocks would take more runs than it is worth.
        for arranged in itertools.islice(rearrangements(candidate.value, shape), 2):
            value = arranged.to(torch.float64)
            gap = float(torch.nan_to_num(value - stored, posinf=0.0, neginf=0.0).abs().sum())
            if gap > 0.0:
                near.append((order > 0, gap, len(near), candidate.name, value))
                near = sorted(near, key=lambda entry: entry[:3])[:_NEAREST]
    for *_, name, value in near:
        yield constant, name, value


def _mask(parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], works: Trial) -> Reason | None:
    """The mask of this piece that makes it give A's value when one of A's takes its place."""
    ours, own = ([c for c in side if c.value.dtype == torch.bool and c.value.numel() > 1] for side in constants)
    steps = [*reversed(parting.piece or (parting.step,)), *parting.followers]
    used = [(s, c) for s in steps for c in own if s.reads(c)]
    pairs = ((s, c, other) for s, c in used for other in ours if other.value.numel() == c.value.numel())
    for step, constant, other in itertools.islice(pairs, _MOST_TRIALS):
        value = other.value.reshape(constant.value.shape)
        if not torch.equal(value, constant.value) and works({constant.name: value}):
            turned = f"{int((value != constant.value).sum())} of {counted(value.numel(), 'element')} turned"
            words = f"its constant {constant.name} is {other.name} of A with {turned}"
            later = None if step is parting.step else step
            return Reason(words, f"Store {other.name} of A in {constant.name} again.", True, later)
    return None


def _partners(constant: Constant, owners: Sequence[Visited], ours: Sequence[Constant]) -> list[Constant]:
    """A's constants that may be meant: those that its piece reads, the last first, else any of the same sizes."""
    sizes = sorted(n for n in constant.value.shape if n > 1)
    fitting = [
        c for c in ours
        if c.value.dtype.is_floating_point
        and c.value.numel() == constant.value.numel()
        and (c.origin is Origin.COMPUTED or sorted(n for n in c.value.shape if n > 1) == sizes)
    ]  # fmt: skip
    in_order = [*owners[1:], *owners[:1]]  # the end of the piece stands first
    last = {c.name: max((k for k, step in enumerate(in_order) if step.reads(c)), default=-1) for c in fitting}
    beside = [c for c in fitting if last[c.name] >= 0 or c.name == constant.name]
    beside.sort(key=lambda c: -last[c.name])
    return beside or (fitting if constant.value.numel() <= _SMALL else [])

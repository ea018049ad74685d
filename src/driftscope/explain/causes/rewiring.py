"""Wires and steps of a piece against those of A's: values read that A does not read, steps that A does not have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import torch

from driftscope.explain.causes.weights import ChangedWeight
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Sketch, Visited, boundary, common_values
from driftscope.explain.locate.operators import MOVES, PICKS, family
from driftscope.lift.steps import Constant, Lifted
from driftscope.records.finding import Where

# Runs of B spent on leaving steps out.
_MOST_TRIALS = 10
# Steps before a piece in which an idle one is looked for.
_NEAR = 3

# Words that a reason begins with, where it does not begin with a name.
_OURS = frozenset({"it", "its", "the", "of", "what", "here", "nothing"})

# Whether the piece gives A's value with these constants of B replaced (float64).
Trial = Callable[[Mapping[str, torch.Tensor]], bool]
# Whether it does with these attributes (their own names) of the named step of B.
Setting = Callable[[str, Mapping[str, object]], bool]
# Whether it does when a value of B (the first name) is what another value (the second) is.
Bypass = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, and what to do about it, both in one sentence.

    ``verified`` says that doing it was tried and worked, ``step`` is set when it is at another step of the piece
    than its end, ``changed`` when it is a stored tensor. ``reads`` is set when a step should read other values: the
    step, and for names that it reads what A reads there; ``instead`` is what A computes where ``step`` does nothing;
    ``values`` of B where these, put in it, are the edit; ``lacks`` is the step of A that nothing in B stands for, and
    ``other`` the one that it speaks of; ``whole`` where all of the piece is what is to be computed otherwise.
    """

    why: str
    fix: str
    verified: bool | None = None
    step: Visited | None = None
    changed: ChangedWeight | None = None
    reads: tuple[Visited, Mapping[str, Sketch]] | None = None
    instead: str = ""
    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    lacks: Visited | None = None
    whole: bool = False
    other: Visited | None = None


def where_of(step: Visited, other: Visited | None, output: str, lacks: Visited | None = None) -> Where:
    """The place of B's step, in the source that it or its counterpart in A was written in.

    Where B lacks a step of A, the module is that step's, and not the one that reads what it gives.
    """
    known = [s.where.module for s in (lacks, step, other) if s is not None and s.where.module]
    source = step.where if step.where.file or other is None else other.where
    return Where(
        output=output, node=step.name, operator=step.operator, module=known[0] if known else None,
        file=source.file, line=source.line, expression=source.expression,
    )  # fmt: skip


def told(cause: Reason | None, other: Visited | None, end: str = "", seen: bool = True) -> tuple[str, str, bool | None]:
    """What a finding says of a reason and of A's counterpart: why, the fix, and whether it was tried.

    The counterpart is that of ``end``, the last step of a piece, where this is not the step that the reason names.
    Unless it was ``seen`` that A's value there mends something it is a guess, and a cause that was tried needs none.
    """
    other = other if seen or cause is None or not cause.verified else None
    word = "counterpart" if seen else "likeliest counterpart"
    whose = f"The {word} of {end}" if end else f"Its {word}"
    why = "" if other is None else f"{whose} in A is {other.operator} ({other.name})."
    if cause is None or not cause.why:
        return why, "", None
    first = cause.why[0].upper() if cause.why.split()[0] in _OURS else cause.why[0]
    why = f"{why[:-1]}: {cause.why}." if why else f"{first}{cause.why[1:]}."
    if cause.fix and cause.verified is not True:
        return why, f"Not tried: {cause.fix[0].lower()}{cause.fix[1:]}", cause.verified
    return why, cause.fix, cause.verified


def with_attributes(graph: Lifted, step: str, attributes: Mapping[str, object]) -> Lifted:
    """The program with other attributes of one step.

    Raises
    ------
    CannotLift
        If an attribute cannot be set there.
    """
    for name, value in attributes.items():
        graph = graph.with_attribute(step, name, value)
    return graph


@dataclass(frozen=True, slots=True)
class Trials:
    """What can be asked about a piece.

    Parameters
    ----------
    constants : Trial
    bypass : Bypass
    setting : Setting
    peers : callable
        Names what the same piece has elsewhere, where there is one.
    makers : mapping of str to Visited
        The step of B that computes each value.
    whole : Trial
        Whether the program's outputs are A's with these constants replaced.
    substitute : callable
        Whether B is mended where its step gives what a step of A makes of the same values.
    solve : callable
        The number that a constant of one number must be for the piece to give A's value; None where none does that.
    exchange : callable
        Whether the piece gives A's value with the inputs of the named step in another order.
    captured, forced : callable
        Values of B by name, where the piece is fed A's; and whether such values in it make it, or B, right.
    healed : callable
        Whether such values make B right as a whole.
    held : callable
        Whether B stores every tensor of these names of A, with A's elements.
    ends : callable
        What the piece gives and what A has there, laid out alike; None where A has nothing.
    reconnect : callable
        Whether the piece gives A's value when a step reads what A reads, where B has that value; None where its shape
        is another one, so that it cannot be tried.
    theirs : mapping of str to Visited
        The step of A that computes each value.
    values_a : callable
        Values of A by name.
    reading : callable
        What steps of B give where a value that they read is one of A's and all else reads it as it is; empty where
        their shapes differ.
    operator : callable
        Whether the piece gives A's value with another operator in the named step.
    tried : bool
        Whether A's value at the end of the piece brought the rest of B back to A's values.
    named : callable
        The names in B of a value.
    """

    constants: Trial
    bypass: Bypass
    setting: Setting = lambda _step, _attributes: False
    peers: Callable[[], Reason | None] = lambda: None
    makers: Mapping[str, Visited] = field(default_factory=dict)
    whole: Trial = lambda _replace: False
    substitute: Callable[[Visited, Visited], bool] = lambda _step, _other: False
    solve: Callable[[Constant], float | None] = lambda _constant: None
    exchange: Callable[[str, Sequence[int]], bool] = lambda _step, _order: False
    captured: Callable[[Sequence[str]], Mapping[str, torch.Tensor]] = lambda _names: {}
    forced: Trial = lambda _values: False
    healed: Trial = lambda _values: False
    held: Callable[[Collection[str]], bool] = lambda _names: False
    ends: Callable[[], tuple[torch.Tensor, torch.Tensor] | None] = lambda: None
    reconnect: Callable[[Visited, Mapping[str, Sketch]], bool | None] = lambda _step, _meant: None
    theirs: Mapping[str, Visited] = field(default_factory=dict)
    values_a: Callable[[Sequence[str]], Mapping[str, torch.Tensor]] = lambda _names: {}
    reading: Callable[[str, str, Sequence[Visited]], Mapping[str, torch.Tensor]] = lambda _name, _other, _steps: {}
    operator: Callable[[str, str], bool] = lambda _step, _operator: False
    tried: bool = False
    named: Callable[[Sketch], Sequence[str]] = lambda _value: ()

    def as_in_a(self, name: str, theirs: str) -> tuple[bool | None, Mapping[str, torch.Tensor]]:
        """Whether B is mended where a value of it is one of A's, and that edit; None where their shapes differ."""
        own, meant = self.captured((name,)).get(name), self.values_a((theirs,)).get(theirs)
        if own is None or meant is None or own.numel() != meant.numel():
            return None, {}
        edit = {name: meant.reshape(own.shape)}
        # In another shape the elements may stand in another order too: that it fails says nothing.
        return self.forced(edit) or (False if own.shape == meant.shape else None), edit


def wire(parting: Parting, makers: Mapping[str, Visited]) -> Reason | None:
    """Values of A, or inputs that nobody in A reads, that this piece's end reads where its counterpart reads others."""
    step, other = parting.step, parting.counterpart
    if other is None or family(step.operator) != family(other.operator):
        return None
    wanted = [(name, t) for name, t in zip(other.inputs, other.taken, strict=False) if is_telling(t)]
    read = [(n, t, a) for n, t, a in zip(step.inputs, step.taken, parting.reads, strict=False) if is_telling(t)]
    if len(read) != len(wanted) or not read:
        return None
    if common_values(step, other) == len(read):
        pairs = zip(read, wanted, strict=True)
        commutes = family(step.operator) in ("add", "mul")
        if len(read) > 1 and not commutes and any(not mine[1].agrees(theirs[1]) for mine, theirs in pairs):
            return Reason(
                f"{step.name} and {other.operator} in A read the same values in another order",
                f"Exchange the inputs of {step.name}.",
                reads=(step, {mine[0]: theirs[1] for mine, theirs in zip(read, wanted, strict=True)}),
            )
        return None
    wrong = [(n, a) for n, t, a in read if not any(t.agrees(w) for _, w in wanted)]
    wrong = [(n, a or n) for n, a in wrong if a or (makers and n not in makers)]
    missing = [name for name, w in wanted if not any(t.agrees(w) for _, t, _ in read)]
    if not wrong or not missing:
        return None
    (name, theirs), instead, meant = wrong[0], missing[0], next(w for called, w in wanted if called == missing[0])
    through = _identity(name, makers)
    if through is not None:
        why = f"{through.name} ({through.operator}) hands its input on unchanged, where A computes {instead}"
        return Reason(why, f"Compute in {through.name} what A calls {instead}.", None, through, instead=instead)
    called = "" if name == theirs else f", which is {theirs} in A,"
    return Reason(
        f"it reads {name}{called} where {other.operator} in A reads {instead}",
        f"Connect {step.name} to the value that A calls {instead}.",
        reads=(step, {name: meant}),
    )


def is_telling(sketch: Sketch | None) -> TypeGuard[Sketch]:
    """Whether a value can be told from others: masks and positions have many spellings."""
    return sketch is not None and not sketch.plain


def _identity(name: str, makers: Mapping[str, Visited]) -> Visited | None:
    """The step that hands a value on unchanged, looking back through views."""
    while name in makers:
        step = makers[name]
        if idle(step):
            return step
        if family(step.operator) not in MOVES:
            return None
        name = step.inputs[0]
    return None


def extra(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """A step of the piece without which it gives A's value."""
    families = {family(s.operator) for s in theirs}
    outside = boundary(parting.piece)
    known = {n: t for s in parting.piece for n, t in zip(s.inputs, s.taken, strict=False) if t is not None}
    ways = _ways_round(parting, families, known, outside)
    for step, name in itertools.islice(ways, _MOST_TRIALS):
        if trials.bypass(step.outputs[0], name):
            first, read = _chain(parting.piece, name, step), trials.captured((name,))
            return Reason(
                f"A has no such step: without {first.name} ({first.operator}) this piece gives A's values",
                f"Remove {first.name}; let what reads {step.outputs[0]} read {name}.",
                True,
                first,
                values={made: read[name] for made in step.outputs[:1] if name in read},
            )
    return None


def _ways_round(
    parting: Parting, families: set[str], known: Mapping[str, Sketch], outside: Mapping[str, Visited]
) -> Iterator[tuple[Visited, str]]:
    """Yield steps of a piece with values of the same size that could stand for their results."""
    # What an exporter wrote says what it was made of; what somebody put in afterwards does not.
    tagged = any(s.traced[0] for s in parting.piece)
    steps = sorted(parting.piece, key=lambda s: bool(tagged and s.traced[0]))
    for own in (True, False):
        for step in steps:
            made = step.sketches[0]
            # What A's piece has as well is not extra, but it may stand there twice.
            needed = step is parting.step and family(step.operator) in families
            if made is None or needed or step.operator == "Identity" or family(step.operator) in MOVES - {"cast"}:
                continue
            mine = [n for n in step.inputs if n in known]
            for name in mine if own else [n for n in outside if n not in mine]:
                if name not in step.outputs and known[name].count == made.count:
                    yield step, name


def _chain(piece: Sequence[Visited], name: str, last: Visited) -> Visited:
    """The first step on the way from a value to ``last``."""
    back, wanted = {last.index}, set(last.inputs)
    for step in reversed(piece):
        if step.index < last.index and wanted & set(step.outputs):
            back.add(step.index)
            wanted.update(step.inputs)
    reached, first = {name}, None
    for step in piece:
        if reached & set(step.inputs) and step.index in back:
            first = first or step
            reached.update(step.outputs)
    return first or last


def emptied(parting: Parting, makers: Mapping[str, Visited]) -> Reason | None:
    """A step that does nothing, although the exporter made it of an operator that does something."""
    near = list(parting.piece)
    for _ in range(_NEAR):
        near += [makers[n] for s in near for n in s.inputs if n in makers and makers[n] not in near]
    for step in near:
        if step.operator == "Identity" and step.traced[1] and family(step.traced[1]) not in MOVES:
            return _does_nothing(step)
    return None


def _does_nothing(step: Visited) -> Reason:
    words = f"{step.name} ({step.operator}) hands its input on unchanged"
    return Reason(words, f"Compute in {step.name} what A does between the same values.", None, step)


def other_operator(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> tuple[Visited, Visited] | None:
    """A step that computes something else of the values than A's step that reads the same ones; and that step."""
    # Casts and views are other operators by taste; behind a step that changes nothing, that one is the idle one.
    steps, made = (s for s in parting.piece if family(s.operator) not in MOVES), trials.makers
    steps = (s for s in steps if not any(idle(made[n]) for n in s.inputs if n in made))
    pairs = ((step, other) for step in steps for other in theirs if _reads_alike(step, other))
    # What stands in the piece as often as in A's is none that it lacks: done twice, an activation gives the same.
    kinds = [[family(s.operator) for s in piece] for piece in (parting.piece, theirs)]
    pairs = ((s, o) for s, o in pairs if kinds[0].count(family(o.operator)) < kinds[1].count(family(o.operator)))
    return next((pair for pair in itertools.islice(pairs, _MOST_TRIALS) if trials.substitute(*pair)), None)


def mended(cause: Reason | None, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """A step that does nothing, with the operator that A has there, where that was tried and works."""
    step = None if cause is None else cause.step
    if cause is None or step is None:
        return cause
    others = (other for other in theirs if _reads_alike(step, other))
    other = next((o for o in itertools.islice(others, _MOST_TRIALS) if trials.substitute(step, o)), None)
    fix = "" if other is None else f"Compute {other.operator} in {step.name}, as A does."
    return cause if other is None else replace(cause, fix=fix, verified=True)


def _reads_alike(step: Visited, other: Visited) -> bool:
    """Whether two steps of different kinds read the same values and make as many elements of them."""
    kinds = family(step.operator), family(other.operator)
    made, meant = step.sketches[0], other.sketches[0]
    # What picks says by its places what it is; a mask stands in no number's place.
    picks = not (PICKS - {"where"}).isdisjoint(kinds)
    other_kind = kinds[0] != kinds[1] and not picks and kinds[1] not in MOVES and not idle(other)
    if not other_kind or made is None or meant is None or made.count != meant.count or made.plain != meant.plain:
        return False
    mine, theirs = [t for t in step.taken if is_telling(t)], [t for t in other.taken if is_telling(t)]
    same = len(mine) == len(theirs) and all(x.agrees(y) for x, y in zip(mine, theirs, strict=True))
    return bool(mine) and same and not made.same(meant)


def handed_on(parting: Parting, theirs: Sequence[Visited], makers: Mapping[str, Visited]) -> Reason | None:
    """A step that does nothing to its input, in or before a piece whose counterpart does something."""
    readers = (*parting.piece, *(makers[n] for n in boundary(parting.piece) if n in makers))
    # A factor of one that A has as well is no cause, nor is a sum with zeros, which is idle on these inputs.
    as_well = {family(s.operator) for s in theirs if idle(s)}
    idles = (s for s in readers if len(s.taken) == 1 and idle(s) and family(s.operator) not in as_well)
    # What others read too would change for them.
    alone = (s for s in idles if sum(s.outputs[0] in other.inputs for other in makers.values()) < 2)
    return next(map(_does_nothing, alone), None)


def idle(step: Visited) -> bool:
    """Whether a step hands its input on unchanged."""
    if step.operator == "Identity":
        return True
    made = step.sketches[0]
    # A mask may let everything pass.
    if made is None or made.plain or family(step.operator) in MOVES | PICKS or step.stored:
        return False  # nor does a bias of zeros or a factor of one say more than that
    return any(t is not None and t.same(made) for t in step.taken)

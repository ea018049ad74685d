"""What A's piece has and B's lacks, or the other way round: a stored term or factor, a mask, another function.

Everything is tried: the reason is given only where the piece, so mended, gives A's value.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch.nn import functional

from driftscope.explain.causes.counterparts import function_of, other_setting, read_as_often
from driftscope.explain.causes.misplaced import read_otherwise
from driftscope.explain.causes.rewiring import Reason, Trials, idle
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Sketch, Visited, boundary, steps_to
from driftscope.explain.locate.operators import MOVES, TURNS, family
from driftscope.lift.noise.injector import MASKING
from driftscope.lift.steps import Constant
from driftscope.records.user_code import written
from driftscope.records.words import joined

# Relative to the difference it should be, what a constant may leave of it. Hidden scores, of the size of the others.
_SAME, _HIDDEN = 1e-6, 100.0
# Constants of one size looked at, steps and their stand-ins tried; steps of A that may stand for one of B, for several.
_MOST_CONSTANTS, _MOST_STEPS, _MOST_TRIALS, _MOST_OF_A, _MOST_OF_BOTH = 64, 3, 6, 12, 32

#: Functions of one value that are taken for one another, by ONNX's names where it has one.
_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sigmoid": torch.sigmoid, "hardsigmoid": functional.hardsigmoid, "tanh": torch.tanh, "relu": torch.relu,
    "silu": functional.silu, "hardswish": functional.hardswish, "elu": functional.elu,
    "gelu by erf": functional.gelu, "gelu by tanh": partial(functional.gelu, approximate="tanh"),
    "softplus": functional.softplus, "mish": functional.mish, "relu6": functional.relu6, "exp": torch.exp,
    "erf": torch.erf, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos,
}  # fmt: skip
_SOFTMAXES = {"softmax": torch.softmax, "logsoftmax": torch.log_softmax}
# Those that are tried in the place of one of them.
_LIKE = (
    ("sigmoid", "hardsigmoid", "tanh", "softplus", "exp"),
    ("relu", "silu", "gelu by erf", "gelu by tanh", "hardswish", "elu", "softplus", "mish", "relu6", "tanh"),
    ("sqrt", "rsqrt"), ("sin", "cos"), ("erf", "tanh"), ("tanh", "sigmoid", "erf", "relu", "gelu by erf", "silu"),
)  # fmt: skip


def stored_term(
    parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials
) -> Reason | None:
    """A stored tensor that A adds or multiplies with at the end of a piece and B does not, or the other way round."""
    ends = trials.ends()
    if ends is None or parting.counterpart is None:
        return None
    mine, wanted = ends
    step, used = parting.step, {n for s in parting.piece for n in s.stored}
    own = [c for c in constants[1] if c.name in used or c.where.node in {s.name for s in parting.piece}]
    gap = wanted - mine
    for constant in _fitting(constants[0], mine):
        for value in _placed(constant, mine):
            for whole, left, do in ((gap, value.expand_as(mine), "add"), (wanted, mine * value, "multiply with")):
                # Zeros make zeros of anything.
                if _alike(left, whole, gap) and bool(value.any()) and not read_as_often(constant, constants, trials):
                    does = "adds" if do == "add" else "multiplies with"
                    fix = f"{do.capitalize()} {constant.name} of A after {step.name}."
                    return Reason(f"A {does} {constant.name}, and nothing here does", fix, True)
    for constant in _fitting(own, mine):
        added = any(_alike(-value.expand_as(mine), gap, gap) for value in _placed(constant, mine))
        if added and not read_as_often(constant, constants, trials):
            words = f"it adds {constant.name}, and nothing in A does"
            return Reason(words, f"Leave {constant.name} out of {step.name}.", True)
    return None


def _fitting(constants: Sequence[Constant], end: torch.Tensor) -> list[Constant]:
    sizes = set(end.shape)
    fits = (
        c for c in constants
        if c.value.dtype.is_floating_point and c.value.numel() > 1 and c.frontier and set(c.value.shape) <= sizes | {1}
    )  # fmt: skip
    return list(itertools.islice(fits, _MOST_CONSTANTS))


def _placed(constant: Constant, end: torch.Tensor) -> Iterator[torch.Tensor]:
    """A constant laid along the axes of a value: as it broadcasts, or one axis of it along each axis of its length."""
    value = constant.value.to(end)
    flat = [n for n in value.shape if n > 1]
    if len(flat) == 1:
        for axis in (k for k, n in enumerate(end.shape) if n == flat[0]):
            yield value.reshape([flat[0] if k == axis else 1 for k in range(end.dim())])
    elif value.dim() <= end.dim():
        pairs = zip(reversed(value.shape), reversed(end.shape), strict=False)
        if all(n in (1, m) for n, m in pairs):
            yield value


def _alike(one: torch.Tensor, other: torch.Tensor, gap: torch.Tensor) -> bool:
    size = float(torch.linalg.vector_norm(gap))
    return bool(torch.isfinite(gap).all()) and float(torch.linalg.vector_norm(one - other)) <= _SAME * size


def turned(parting: Parting, trials: Trials) -> Reason | None:
    """A step before a piece that only puts elements elsewhere, and without which the piece gives A's value."""
    for name in boundary(parting.piece):
        maker = trials.makers.get(name)
        for _ in range(_MOST_STEPS):
            if maker is None or family(maker.operator) not in TURNS or not maker.inputs:
                break
            given, made = maker.taken[0] if maker.taken else None, maker.sketches[0]
            alike = given is not None and made is not None and given.count == made.count and not given.same(made)
            if alike and trials.bypass(maker.outputs[0], maker.inputs[0]):
                words = f"A has no such step: without {maker.name} ({maker.operator}) this piece gives A's values"
                fix = f"Remove {maker.name}; let what reads {maker.outputs[0]} read {maker.inputs[0]}."
                return Reason(words, fix, True, maker)
            maker = trials.makers.get(maker.inputs[0])
    return None


def transposed(parting: Parting, constants: Sequence[Constant], trials: Trials) -> Reason | None:
    """A product with a square matrix, where A has one with its transpose: both fit."""
    step, ends = parting.step, trials.ends()
    if ends is None or family(step.operator) != "linear":
        return None
    mine, wanted = ends
    read = [value for value in trials.captured(step.inputs).values() if value.is_floating_point() and value.dim()]
    square = [c for c in _fitting(constants, mine) if c.value.dim() == 2 and c.value.shape[0] == c.value.shape[1]]
    for constant, value in itertools.product(square, read):
        weight = constant.value.to(mine)
        if value.shape[-1:] != weight.shape[:1] or value.shape != mine.shape:
            continue
        one, other = value.to(mine) @ weight, value.to(mine) @ weight.T
        for own, theirs, words in ((one, other, ("", "its transpose")), (other, one, ("the transpose of ", "it"))):
            if _alike(theirs - own, wanted - mine, wanted - mine):
                what = f"it multiplies by {words[0]}{constant.name}, and A by {words[1]}"
                return Reason(what, f"Transpose {constant.name} in {step.name}.", True)
    return None


def flattened(parting: Parting, trials: Trials) -> Reason | None:
    """A softmax over one axis where the other one is over all from there on, as ONNX's was up to opset 12."""
    for step in (s for s in parting.piece or (parting.step,) if family(s.operator) in _SOFTMAXES):
        axis = step.attributes.get("axis", step.attributes.get("dim", 1))
        values = trials.captured([step.inputs[0], step.outputs[0]])
        given, made = (values.get(n) for n in (step.inputs[0], step.outputs[0]))
        if given is None or made is None or not isinstance(axis, int) or axis % given.dim() == given.dim() - 1:
            continue
        function, axis = _SOFTMAXES[family(step.operator)], axis % given.dim()
        alone, together = function(given, axis), function(given.flatten(axis), -1).reshape(given.shape)
        for own, meant, words in ((together, alone, 1), (alone, together, -1)):
            if torch.allclose(made, own, rtol=1e-9, atol=1e-12) and trials.forced({step.outputs[0]: meant}):
                all_axes = f"over all axes from {axis} on, as ONNX does up to opset 12"
                here, there = (all_axes, f"over axis {axis} alone")[::words]
                why = f"{step.name} normalises {here}, and A {there}"
                fix = f"Let {step.name} normalise {there.partition(', as')[0]}."
                return Reason(why, fix, True, None if step is parting.step else step)
    return None


def lacking(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """Steps of A's piece that nothing in B stands for: what they make, put before the piece, gives A's value."""
    outside = boundary(parting.piece)
    read = {
        n: t for s in parting.piece for n, t in zip(s.inputs, s.taken, strict=False)
        if t is not None and not t.plain and n in outside
    }  # fmt: skip
    # What B only views may be what A computes there; any other step of B does something of its own.
    other = parting.counterpart
    views = other is not None and family(other.operator) not in MOVES
    views = views and all(family(s.operator) in MOVES for s in parting.piece or (parting.step,))
    held = None if views else other
    ways = (
        (way, name) for name, t in read.items() for way in made_of(theirs, t) if way[-1] is not held and t.count
        == (way[-1].sketches[0].count if way[-1].sketches[0] is not None else 0)
    )  # fmt: skip
    for way, name in itertools.islice(ways, _MOST_TRIALS):
        # What B only views is then A's value by construction: there the outputs decide.
        end = parting.step.outputs[0] if way[-1] is parting.counterpart else name
        works, values = trials.as_in_a(end, way[-1].outputs[0])
        if works:
            steps = way_words(way[0], way[-1])
            words = f"{outside[name].name} reads {name} as it is, where A computes {steps} of it first"
            return Reason(words, f"Compute {steps} there, as A does.", True, values=values)
    return None


def ended(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """Steps of A of which B has only what they take: it hands that on, or returns it, as it is."""
    step, other, given = parting.step, parting.counterpart, parting.step.sketches[0]
    if other is None or given is None or given.plain or _changed_nothing(step, trials.makers):
        return None
    if _changed_nothing(other, trials.theirs):  # on these inputs; a Relu of positive numbers is another function
        return None
    source = next((n for n in boundary(parting.piece) if _gives(trials.makers.get(n), other.sketches[0])), "")
    if source and trials.bypass(step.outputs[0], source):
        needed = steps_to(trials.makers[source], trials.makers, lambda _: False, len(trials.makers))
        extra = [*(s for s in parting.piece if not (idle(s) or s.index in needed)), step]
        ways = way_words(extra[0], step)
        return Reason(f"A computes no {ways} of {source}", f"Leave {ways} out.", True, extra[0])
    steps = [s for s in theirs if not s.inside and not idle(s)]
    if not (first := next((s for s in steps if any(t is not None and t.same(given) for t in s.taken)), None)):
        return None
    works, values = trials.as_in_a(step.outputs[0], other.outputs[0])
    words = f"what {step.name} gives stays as it is, where A computes {way_words(first, other)} of it"
    fix = f"Compute {way_words(first, other)} there, as A does."
    return Reason(words, fix, True, values=values) if works else None


def _gives(step: Visited | None, value: Sketch | None) -> bool:
    return step is not None and value is not None and any(s is not None and s.same(value) for s in step.sketches)


def _changed_nothing(step: Visited | None, makers: Mapping[str, Visited]) -> bool:
    """Whether a step that may change its input ends there, behind views alone, and did not."""
    while step is not None and step.inputs and (step.operator == "Identity" or family(step.operator) in MOVES):
        step = makers.get(step.inputs[0])
    return step is not None and idle(step)


def way_words(first: Visited, last: Visited) -> str:
    """Name a way by its first and its last step, with the lines that they were written in."""
    return " to ".join(dict.fromkeys(f"{s.name} ({s.operator}{_line(s)})" for s in (first, last)))


def _line(step: Visited) -> str:
    return "" if step.where.line is None else f", {written(step.where.file or '')}:{step.where.line}"


def made_of(steps: Sequence[Visited], value: Sketch) -> Iterator[list[Visited]]:
    """Yield the ways on which steps lead on from a value to other elements or another order, the longest first."""
    ways: dict[str, list[Visited]] = {}
    for step in steps:
        taken = next((t for t in step.taken if t is not None and t.agrees(value)), None)
        before: list[Visited] | None = (
            [] if taken is not None else next((ways[n] for n in step.inputs if n in ways), None)
        )
        if before is not None and not idle(step):
            ways.update((name, [*before, step]) for name in step.outputs)
    yield from (way for way in reversed(ways.values()) if way[-1].sketches[0] is not None
                and not way[-1].sketches[0].same(value))  # fmt: skip


def factor(parting: Parting, trials: Trials) -> Reason | None:
    """One number by which a piece's result, or that of one of its steps, must be multiplied to be A's."""
    behind = () if parting.paired else parting.followers
    steps = [s for s in (*parting.piece, *behind) if family(s.operator) not in MOVES and s is not parting.step]
    for step in steps[:_MOST_TRIALS]:
        value = trials.captured(step.outputs[:1]).get(step.outputs[0])
        if value is not None and value.is_floating_point() and trials.forced({step.outputs[0]: -value}):
            return _wrong_sign(step, step)
    if (ends := trials.ends()) is not None:
        mine, wanted = ends
        size = float(torch.linalg.vector_norm(mine))
        ratio = float((mine * wanted).sum()) / size**2 if size else 0.0
        # A's value at the end of a piece is right by construction, whatever the two are to each other: ask the outputs.
        end = {parting.step.outputs[0]: mine * ratio}
        if ratio and _alike(mine * ratio, wanted, wanted) and trials.forced(end):
            number, step = float(f"{ratio:.9g}"), parting.step
            if number == -1.0:
                return _wrong_sign(step, None)
            words = f"what {step.name} ({step.operator}) gives is A's value multiplied with {1.0 / number:.6g}"
            return Reason(words, f"Multiply it with {number:.6g}.", True)
    return None


def _wrong_sign(step: Visited, later: Visited | None) -> Reason:
    words = f"{step.name} ({step.operator}) has the wrong sign: negated it gives A's values"
    return Reason(words, f"Turn the sign of what {step.name} gives.", True, later)


def mask(parting: Parting, trials: Trials) -> Reason | None:
    """Scores that a softmax reads without the mask of later positions that A has, or rows that A masks to zero."""
    for step in (s for s in parting.piece if family(s.operator) == "softmax"):
        scores, made = (trials.captured(names[:1]).get(names[0]) for names in (step.inputs, step.outputs))
        if scores is None or made is None or scores.dim() < 2 or min(scores.shape[-2:]) < 2:
            continue
        named, it = None if step is parting.step else step, f"{step.name} ({step.operator})"
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        if trials.forced({step.inputs[0]: scores.masked_fill(later, float("-inf"))}):
            fix = f"Mask the scores that {step.name} reads: no position may see a later one."
            size = max(float(torch.where(made > 0, scores.abs(), 0.0).max()), 1.0)  # shares are zero without masks too
            some = bool((scores[..., later] < -_HIDDEN * size).any())
            rest = f"what {it} reads leaves some of them as they are" if some else f"nothing that {it} reads does"
            return Reason(f"A masks {'all ' * some}later positions, and {rest}", fix, True, named)
        equal = made.amax(-1, keepdim=True) == made.amin(-1, keepdim=True)
        empty = (scores.amax(-1, keepdim=True) <= -MASKING) & equal
        if bool(empty.any()) and trials.forced({step.outputs[0]: made.masked_fill(empty, 0.0)}):
            fix = "Such rows belong to padding: compare on inputs without it, or give zeros there."
            return Reason(f"A gives zeros in rows that are masked as a whole, and {it} equal shares", fix, True, named)
    return None


def stand_in(parting: Parting, trials: Trials) -> Reason | None:
    """Another function of the same value in the place of a step."""
    steps = [s for s in parting.piece if len([t for t in s.taken if t is not None]) == 1 and not s.stored]
    for step in [s for s in steps if function_of(s) in _FUNCTIONS][:_MOST_STEPS]:
        kind = function_of(step)
        given = trials.captured(step.inputs[:1]).get(step.inputs[0])
        names = dict.fromkeys(name for group in _LIKE if kind in group for name in group if name != kind)
        # At the end of the piece A's value is known: of zeros, other functions lead to the same outputs.
        ends = trials.ends() if step is parting.step else None
        for name in names if given is not None and given.is_floating_point() else ():
            value = _FUNCTIONS[name](given)  # type: ignore[arg-type]
            idle_here = torch.equal(value, given)  # type: ignore[arg-type] # which says what does not stand there
            if idle_here or (ends and not torch.allclose(value.reshape(-1), ends[1].reshape(-1).to(value), 1e-6, 0.0)):
                continue
            if trials.forced({step.outputs[0]: value}):
                words = f"{step.name} is {step.operator}; with {name} in its place it gives A's values"
                return Reason(words, f"Compute {name} in {step.name}.", True, None if step is parting.step else step)
    return None


def several(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """Steps of B that together should be one operator of A: what that gives is put in their place."""
    ours = [s for s in parting.piece if s is not parting.step and family(s.operator) not in MOVES]
    whole = [s for s in theirs if family(s.operator) not in MOVES and not idle(s) and not s.stored]
    pairs = ((s, o) for o in whole for s in reversed(ours) if family(s.operator) != family(o.operator))
    for step, other in itertools.islice(pairs, _MOST_TRIALS):
        if trials.substitute(step, other):
            words = f"the steps up to {step.name} ({step.operator}) compute something else than {other.operator} in A"
            return Reason(words, f"Let {step.name} give what {other.operator} gives in A.", True, ours[0], other=other)
    return None


def computed_there(
    parting: Parting, theirs: Sequence[Visited], trials: Trials, untried: Reason | None
) -> Reason | None:
    """A's own steps in the place of one of B, or one of A's for several: with these B gives A's outputs.

    That is an edit of B only where B has everything that they read: the values, and the tensors that A stores.

    Parameters
    ----------
    parting : Parting
    theirs : sequence of Visited
        A's piece; it begins where B has A's values.
    trials : Trials
    untried : Reason or None
        What is known of the difference without a trial.
    """
    step = parting.step
    mine, telling = _both_ways(parting, theirs, trials, _MOST_OF_A)
    one, other = ([(family(s.operator), s.attributes, s.stored) for s in some] for some in (mine or [step], telling))
    itself = function_of(step) == "softmax" and other == [(family(step.operator), step.attributes, step.stored)]
    if itself or ([o[0] for o in one] == [o[0] for o in other] and function_of(step) in MOVES | {"add", "mul"}):
        return None  # of the same values that gives the same: it is given others
    ends = trials.ends() if telling and not len(mine) > 1 < len(telling) else None
    if ends is None or not trials.healed({step.outputs[0]: ends[1]}):
        return None
    ways, named = way_words(telling[0], telling[-1]), parting.first if untried is None else untried.step
    why = untried.why if untried is not None else ""
    if lacking := [] if why else _unread(parting.piece, theirs, trials):
        why = f"A computes {ways} there, of {joined(lacking)} too, which B does not read"
        named = named if untried is not None else next(iter(mine), named)
    if not (why := why or ("" if one == other else f"of the same values A computes {ways}")):
        return None
    fix = f"Compute in {step.name} what A computes there: {ways}."
    return Reason(why, fix, True, named, values={step.outputs[0]: ends[1]})


def _unread(piece: Sequence[Visited], theirs: Sequence[Visited], trials: Trials) -> list[str]:
    """The values that A's piece reads and this one does not, nor what they are views of: A may repeat keys before."""
    read = [t for s in piece for t in s.taken if t is not None]

    def is_shown(name: str) -> bool:
        step = trials.theirs.get(name)
        while step is not None and family(step.operator) in MOVES:
            if any(t is not None and t.agrees(r) for t in step.taken for r in read):
                return True
            step = trials.theirs.get(step.inputs[0])
        return False

    return [name for name in read_otherwise(piece, theirs, trials.makers)[1] if not is_shown(name)]


def whole_piece(parting: Parting, theirs: Sequence[Visited], trials: Trials, untried: Reason | None) -> Reason | None:
    """Several steps of A in the place of several of B, where A's value at their end mended B.

    Which of them is wrong is not seen: it is what is left to say where nothing smaller was found. Where that cannot be
    told it is what is known without a trial (``untried``), or, of steps of the same names, the first other setting.
    """
    mine, telling = _both_ways(parting, theirs, trials, _MOST_OF_BOTH)
    if not (trials.tried and len(mine) > 1 < len(telling)) or trials.ends() is None:
        return untried
    ways, own = way_words(telling[0], telling[-1]), way_words(mine[0], mine[-1])
    if ways == own:
        return untried or other_setting(mine, telling)
    why, fix = f"A computes {ways} where B computes {own}", f"Compute {ways} of A in the place of {own}."
    return Reason(why, fix, True, parting.first or mine[0], whole=True)


def _both_ways(
    parting: Parting, theirs: Sequence[Visited], trials: Trials, most: int
) -> tuple[list[Visited], list[Visited]]:
    """What B and A compute in a piece, views left out; nothing of A's where that is too much, or B lacks a tensor."""
    other = parting.counterpart
    steps = [s for s in theirs if not s.inside and other is not None and s.index <= other.index and not idle(s)]
    telling = [s for s in steps if family(s.operator) not in MOVES] or steps
    mine = [s for s in parting.piece if family(s.operator) not in MOVES and not idle(s)]
    fits = max(len(mine), len(telling)) <= most and trials.held({n for s in steps for n in s.stored})
    return mine, telling if fits else []

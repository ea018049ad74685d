"""Settings near those of a step, tried one after another: where nothing in A says what a step of B should have.

A computes a piece by other operators, or by one that has no such setting. What an operator takes is in its schema:
every axis, both values of a flag, the words of a choice, the operators that take the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from driftscope.explain.causes.counterparts import attributes_of, own_name
from driftscope.explain.causes.edits.schemas import choices, same_signature
from driftscope.explain.causes.rewiring import Reason, Trials
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.operators import MOVES, family
from driftscope.lift.steps import Constant

# Runs of B spent on axes and orders, and on what a schema offers besides.
_MOST_NEARBY = 24
_MOST_OFFERED = 48
# Operators whose inputs may stand in the wrong order.
_ORDERED = {"sub": (1, 0), "div": (1, 0), "cat": (1, 0), "pow": (1, 0), "where": (0, 2, 1)}
_AXES = 4
_REDUCES = frozenset({"mean", "sum", "amax", "amin", "prod", "cumsum"})


_Attempt = tuple[Visited, str, str, Callable[[], bool]]


def nearby(parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials) -> Reason | None:
    """One setting of one step, of those with which its result has the same shape, that makes the piece right.

    Where A computes the piece by one operator no attribute of A says what the step should have: every other axis,
    permutation and order of inputs is tried.
    """
    own = {c.name: c for c in constants[1]}
    ways = (way for step in _steps(parting) for way in _ways(step, own, trials))
    return _first(parting, itertools.islice(ways, _MOST_NEARBY))


def offered_setting(parting: Parting, trials: Trials) -> Reason | None:
    """One setting of one step that its schema offers besides what it has, and that makes the piece right."""
    ways = (way for step in _steps(parting) for way in _settings(step, trials))
    return _first(parting, itertools.islice(ways, _MOST_OFFERED))


def offered_operator(parting: Parting, trials: Trials) -> Reason | None:
    """One operator that takes what a step takes, and that makes the piece right in its place."""
    ways = (way for step in _steps(parting) for way in _operators(step, trials))
    found = _first(parting, itertools.islice(ways, _MOST_OFFERED))
    step = parting.step if found is None or found.step is None else found.step
    # A step too many is none that computes something else: with many an operator it does nothing.
    left_out = found is not None and any(trials.bypass(step.outputs[0], name) for name in step.inputs if name)
    return None if left_out else found


def _steps(parting: Parting) -> list[Visited]:
    steps = (parting.first, parting.step, *reversed(parting.piece))
    return list({s.index: s for s in steps if s is not None}.values())


def _first(parting: Parting, ways: Iterator[_Attempt]) -> Reason | None:
    """The first that works; later ones are not made."""
    for step, why, fix, works in ways:
        if works():
            return Reason(why, fix, True, None if step is parting.step else step)
    return None


def _ways(step: Visited, own: Mapping[str, Constant], trials: Trials) -> Iterator[_Attempt]:
    """Yield what a step could be otherwise: why it would be wrong as it is, the fix, and the trial of it."""
    kind = family(step.operator)
    order = _ORDERED.get(kind)
    if order is not None and len(step.inputs) >= len(order):
        one, two = (step.inputs[k] for k in order if order[k] != k)
        why = f"{step.name} has its inputs {two} and {one} in the other order" if two and one else ""
        why = why or f"{step.name} has its inputs in the other order"
        yield step, why, f"Exchange the inputs of {step.name}.", partial(trials.exchange, step.name, order)
    for name in {"axis", "dim"} & step.attributes.keys():
        was = step.attributes[name]
        several = isinstance(was, (list, tuple))
        was = was[0] if isinstance(was, (list, tuple)) and len(was) == 1 else was
        # The last first: where axes have one element, several would do.
        for axis in reversed(range(step.rank if isinstance(was, int) and kind != "cat" else 0)):
            if axis != int(str(was)) % step.rank:
                tried = {name: [axis] if several else axis}
                yield _other(step, name, was, axis, partial(trials.setting, step.name, tried))
    for constant in (own[n] for n in step.stored if n in own and (kind in _REDUCES or kind.startswith("reduce"))):
        if constant.value.numel() == 1 and constant.value.dtype == torch.int64:
            was = int(constant.value)
            for axis in (k for k in range(_AXES) if k != was):
                value = torch.full_like(constant.value, axis)
                yield _other(step, constant.name, was, axis, partial(trials.constants, {constant.name: value}))
    for name in {"perm", "dims"} & step.attributes.keys():
        for dims in _permutations(step, step.attributes[name]):
            yield _other(step, name, step.attributes[name], dims, partial(trials.setting, step.name, {name: dims}))


def _other(step: Visited, name: str, was: object, now: object, works: Callable[[], bool]) -> _Attempt:
    return step, f"{name} is {was} here; with {now} it gives A's values", f"Set {name} of {step.name} to {now}.", works


def _permutations(step: Visited, was: object) -> Iterator[list[int]]:
    """The other permutations that give a result of the same shape."""
    if not isinstance(was, (list, tuple)) or not step.shapes or not 1 < len(was) == step.rank <= _AXES:
        return
    given = dict(zip((k % step.rank for k in was), step.shapes[0], strict=True))
    for order in itertools.permutations(range(step.rank)):
        if tuple(given[k] for k in order) == step.shapes[0] and list(order) != [k % step.rank for k in was]:
            yield list(order)


def _settings(step: Visited, trials: Trials) -> Iterator[_Attempt]:
    known = attributes_of(step)
    for name, values in choices(step.operator).items():
        own = own_name(step, name)
        was = known.get(name, step.attributes.get(own))
        for value in values(was):
            yield _other(step, name, was, value, partial(trials.setting, step.name, {own: value}))


#: What gives the results of a plainer operator on some inputs, as on positive ones, is tried behind it.
_SELDOM = frozenset({"Abs", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"})


def _operators(step: Visited, trials: Trials) -> Iterator[_Attempt]:
    known = same_signature(step.operator) if family(step.operator) not in MOVES else ()
    for operator in sorted(known, key=_SELDOM.__contains__):
        why = f"{step.name} is {step.operator}; with {operator} in its place it gives A's values"
        fix = f"Put {operator} in the place of {step.operator} in {step.name}."
        yield step, why, fix, partial(trials.operator, step.name, operator)

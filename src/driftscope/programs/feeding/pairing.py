"""The same inputs for two programs: by name where names agree, else by order, and a word about anything odd."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.programs.arrays import dtype_name
from driftscope.programs.complex_pairs import as_pair
from driftscope.programs.feeding.binding import fit, inputs_of_slots, limits, words_for
from driftscope.programs.feeding.feeds import Inputs, make_inputs
from driftscope.programs.protocol import Bound, Program, Slot
from driftscope.records.finding import Finding, Where
from driftscope.records.words import agreeing, counted, listed

# Names must fit this much better when exchanged before anything is said: x, y against in0, in1 says nothing.
_CLEARLY_BETTER = 0.5


def pair_inputs(a: Program, b: Program, inputs: Any = None, *, seed: int = 0) -> tuple[Bound, Bound, list[Finding]]:
    """Fit the same inputs to two programs.

    Parameters
    ----------
    a, b : Program
        ``a`` is the reference: positional inputs are in its order, a mapping has its names.
    inputs : object or None
        Anything ``ds.inputs`` takes; None for what came with ``a``, or ``b``, or what they declare.
    seed : int
        Seed of tensors to be drawn.

    Returns
    -------
    bound_a, bound_b : Bound
    notes : list of Finding
        O001 bound by order, O002 an input that one side does not have, O005 names look exchanged, O009 values
        rounded to the narrower format that one side declares, O010 integers of unknown range, O023 complex numbers
        given as pairs of reals.

    Raises
    ------
    InputError
        If they do not fit.
    """
    if a.kind == "recorded" or b.kind == "recorded":
        return _beside_a_record(a, b, inputs)
    made = make_inputs(inputs, seed=seed) if inputs is not None else _inputs_of_either(a, b, seed)
    made = made.settle(limits(made, a, b)).realise()
    turned = _knows_no_complex(a, made) and not _knows_no_complex(b, made)
    first, second = (b, a) if turned else (a, b)
    bound = first.bind(made)
    bound, rounded = _in_common_formats(bound, second)
    other, notes = _follow(bound, second)
    bound_a, bound_b = (other, bound) if turned else (bound, other)
    found: dict[tuple[str, str], Finding] = {}
    for finding in (*bound_a.notes, *bound_b.notes, *rounded, *notes):
        found.setdefault((finding.code, finding.what), finding)
    return bound_a, bound_b, list(found.values())


def _knows_no_complex(program: Program, inputs: Inputs) -> bool:
    """Whether complex numbers are given to a program that declares none."""
    slots = program.slots()
    given = any(isinstance(leaf, torch.Tensor) and leaf.is_complex() for _, leaf in inputs.leaves)
    return given and bool(slots) and not any("complex" in (slot.dtype or "") for slot in slots or ())


def _beside_a_record(a: Program, b: Program, inputs: Any) -> tuple[Bound, Bound, list[Finding]]:
    """Recorded outputs take no inputs; the other side is fitted alone.

    Raises
    ------
    InputError
        If the other side's inputs would have to be drawn: nothing that was recorded can belong to them.
    """
    for recorded, other in ((a, b), (b, a)):
        # A program without any inputs always computes the same.
        needs = other.kind != "recorded" and other.default_inputs is None and other.slots() != []
        if inputs is None and recorded.kind == "recorded" and needs:
            raise InputError(
                f"{recorded.name} holds outputs only: give the inputs they were computed from, as a file or as "
                f"tensors, so that {other.name} can be run on the same"
            )
    bound_a, bound_b = a.bind(inputs), b.bind(inputs)
    return bound_a, bound_b, [*bound_a.notes, *bound_b.notes]


def _inputs_of_either(a: Program, b: Program, seed: int) -> Inputs:
    for program in (a, b):
        if program.default_inputs is not None:
            return program.default_inputs
    if a.slots() is None and b.slots() is not None:
        drawn = inputs_of_slots(b, seed)
        drawn = drawn.settle(limits(drawn, a, b))
        try:
            a.bind(drawn.realise())
        except InputError:
            # The names are b's own; a takes them in order.
            return Inputs(args=tuple(drawn.kwargs.values()), seed=drawn.seed)
        return drawn
    return inputs_of_slots(a, seed)


def _follow(bound_a: Bound, b: Program) -> tuple[Bound, list[Finding]]:
    return _follow_slots(bound_a, b) if b.slots() is not None else _follow_call(bound_a, b)


# --- b declares its inputs ------------------------------------------------------------------------------------


def _follow_slots(bound_a: Bound, b: Program) -> tuple[Bound, list[Finding]]:
    slots = b.slots() or []
    if any(slot.kind != "tensor" for slot in slots):
        return _follow_whole(bound_a, b)
    pairs, left_over = _match(bound_a.feeds, slots, b)
    feeds = {slot.name: fit(b, slot, _cast(bound_a.feeds[name], slot)) for name, slot in pairs}
    paired = [name for name, slot in pairs if _in_pairs(bound_a.feeds[name], slot)]
    names = [(name, slot.name) for name, slot in pairs]
    notes = _said_of_order(names, bound_a.feeds, b, order=[slot.name for slot in slots])
    notes += [_ignored(name, b) for name in left_over] + [_given_in_pairs(name, b) for name in paired]
    return b.bind(Inputs(kwargs={slot.name: feeds[slot.name] for slot in slots if slot.name in feeds})), notes


def _cast(leaf: Any, slot: Slot) -> Any:
    leaf = as_pair(leaf) if _in_pairs(leaf, slot) else leaf
    # Exact: the values were rounded to the narrower of the two formats before either side saw them.
    return leaf.to(getattr(torch, str(slot.dtype))) if _in_another_format(leaf, slot) else leaf


def _in_pairs(leaf: Any, slot: Slot) -> bool:
    """Whether an input takes the two parts of these complex numbers along one more axis."""
    dtype = getattr(torch, slot.dtype or "", None)
    if not isinstance(leaf, torch.Tensor) or not leaf.is_complex() or dtype is None or not dtype.is_floating_point:
        return False
    return slot.shape is not None and len(slot.shape) == leaf.dim() + 1 and slot.shape[-1] == 2


def _given_in_pairs(name: str, b: Program) -> Finding:
    return Finding(
        "O023",
        f"{name} is complex; {b.name} is given it as pairs of reals along one more axis, the real part first",
        where=Where(output=f"in[{name!r}]"),
        note=True,
    )


def _follow_whole(bound_a: Bound, b: Program) -> tuple[Bound, list[Finding]]:
    """Sequences and optionals are given whole: an argument of ``a`` is an input of ``b``."""
    given = Inputs(kwargs=dict(bound_a.arguments))
    slots = b.slots() or []
    names = [slot.name for slot in slots]
    if set(given.kwargs) <= set(names):
        return b.bind(given), []
    if len(names) != len(given.kwargs):
        were = f"{counted(len(given.kwargs), 'input')} {agreeing(len(given.kwargs), 'was', 'were')}"
        raise InputError(f"{b.name} takes {', '.join(map(str, slots))}, but {were} given: {', '.join(given.kwargs)}")
    pairs = list(zip(given.kwargs, names, strict=True))
    bound = b.bind(Inputs(kwargs={new: given.kwargs[old] for old, new in pairs}))
    return bound, _said_of_order(pairs, bound_a.feeds, b)


def _match(feeds: Mapping[str, Any], slots: Sequence[Slot], b: Program) -> tuple[list[tuple[str, Slot]], list[str]]:
    """Match a's leaves to b's slots: by name, then what is left by order."""
    by_name = {slot.name: slot for slot in slots}
    pairs = [(name, by_name[name]) for name in feeds if name in by_name]
    names = [name for name, leaf in feeds.items() if name not in by_name and leaf is not None]
    open_slots = [slot for slot in slots if slot.name not in feeds and not slot.optional]
    if len(names) != len(open_slots):
        names = [name for name in names if isinstance(feeds[name], torch.Tensor)] if open_slots else names
    if open_slots and len(names) != len(open_slots):
        raise InputError(
            f"{b.name} takes {', '.join(map(str, slots))}, which cannot be matched with"
            f" {', '.join(f'{n} {words_for(leaf)}' for n, leaf in feeds.items())};"
            " give a dict with its names, or the same number of inputs"
        )
    if not open_slots:
        return pairs, [name for name in names if isinstance(feeds[name], torch.Tensor)]
    return pairs + list(zip(names, open_slots, strict=True)), []


# --- b is called ----------------------------------------------------------------------------------------------


def _follow_call(bound_a: Bound, b: Program) -> tuple[Bound, list[Finding]]:
    arguments = {name: value for name, value in bound_a.arguments.items() if value is not None}
    if not any(name.isdecimal() for name in arguments) and not _by_position_only(bound_a, b):
        try:
            bound = b.bind(Inputs(kwargs=dict(arguments)))
        except InputError:
            pass  # its names differ; order is tried next
        else:
            order = [(name, name) for name in bound.arguments if name in arguments]
            return bound, _exchanged_order(list(bound_a.arguments), [n for n, _ in order], bound_a.feeds, b)
    bound = _by_order(bound_a, arguments, b)
    names = list(zip(arguments, bound.arguments, strict=False))
    known = [(x, y) for x, y in names if not x.isdecimal() and not y.isdecimal()]
    return bound, _said_of_order(known, bound_a.feeds, b)


def _by_position_only(bound_a: Bound, b: Program) -> bool:
    """Whether ``b`` tells no names (a built-in function) and the inputs came without any: their names are only a's."""
    parameters = getattr(b, "signature", inspect.Signature([])).parameters.values()
    nameless = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters) and bool(parameters)
    return nameless and bound_a.inputs is not None and not bound_a.inputs.kwargs


def _by_order(bound_a: Bound, arguments: Mapping[str, Any], b: Program) -> Bound:
    """Bind a's arguments in its order; the tree that was given decides where containers stand."""
    given = bound_a.inputs
    if bound_a.program.slots() is not None and given is not None and given.args:
        return b.bind(given)
    return b.bind(Inputs(args=tuple(arguments.values())))


# --- what a person should know --------------------------------------------------------------------------------


def _said_of_order(
    pairs: Sequence[tuple[str, str]], feeds: Mapping[str, Any], b: Program, order: Sequence[str] = ()
) -> list[Finding]:
    differing = [(x, y) for x, y in pairs if x != y]
    if not differing:
        return _exchanged_order(list(feeds), order or [y for _, y in pairs], feeds, b)
    exchanged = _exchanged_names(differing, feeds, b)
    if len(pairs) == 1 or exchanged:
        return exchanged
    listing = ", ".join(f"{x} as {y}" for x, y in differing)
    return [
        Finding(
            "O001",
            f"inputs of {b.name} are bound by order, because its names differ: {listing}",
            fix="give the inputs the same names on both sides if this order is not meant",
            where=Where(output="in"),
            evidence={"pairs": [list(pair) for pair in differing]},
            note=True,
        )
    ]


def _exchanged_names(pairs: Sequence[tuple[str, str]], feeds: Mapping[str, Any], b: Program) -> list[Finding]:
    found = []
    for (x1, y1), (x2, y2) in itertools.combinations(pairs, 2):
        if not _alike(feeds.get(x1), feeds.get(x2)):
            continue
        straight = _similarity(x1, y1) + _similarity(x2, y2)
        crossed = _similarity(x1, y2) + _similarity(x2, y1)
        if crossed > straight + _CLEARLY_BETTER:
            found.append(
                Finding(
                    "O005",
                    f"inputs {y1!r} and {y2!r} of {b.name} look exchanged: by order they receive {x1!r} and {x2!r}",
                    why="both have the same shape and dtype, so that no runtime can notice",
                    fix=f"check the order of input names with which {b.name} was written, or give inputs by name",
                    where=Where(output=f"in[{y1!r}]"),
                    evidence={"bound": [[x1, y1], [x2, y2]]},
                )
            )
    return found


def _exchanged_order(
    order_a: Sequence[str], order_b: Sequence[str], feeds: Mapping[str, Any], b: Program
) -> list[Finding]:
    """Say so when the same names stand in another order: harmless by name, wrong for whoever calls by order."""
    shared = [name for name in order_a if name in order_b]
    place = {name: i for i, name in enumerate(order_b)}
    for x, y in itertools.combinations(shared, 2):
        if place[x] > place[y] and _alike(feeds.get(x), feeds.get(y)):
            return [
                Finding(
                    "O005",
                    f"inputs {x!r} and {y!r} stand in another order in {b.name}; they are bound by name",
                    why="both have the same shape and dtype: calling by order would exchange them unnoticed",
                    where=Where(output=f"in[{x!r}]"),
                    evidence={"a": list(order_a), "b": list(order_b)},
                    note=True,
                )
            ]
    return []


def _alike(x: Any, y: Any) -> bool:
    both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
    return both and x.shape == y.shape and x.dtype == y.dtype


def _similarity(x: str, y: str) -> float:
    return difflib.SequenceMatcher(None, x.lower(), y.lower()).ratio()


def _ignored(name: str, b: Program) -> Finding:
    return Finding(
        "O002",
        f"{b.name} has no input {name!r}: nothing it computes can depend on it",
        why="an exporter drops inputs that the traced program did not use, or turned into constants",
        fix="export with an example in which this input matters, or leave it out on both sides",
        where=Where(output=f"in[{name!r}]"),
    )


# --- one side declares a narrower format ----------------------------------------------------------------------


def _in_common_formats(bound_a: Bound, b: Program) -> tuple[Bound, list[Finding]]:
    """Round float inputs to the narrower format when ``b`` declares another one, so that both see equal values."""
    slots = b.slots()
    if not slots or any(slot.kind != "tensor" for slot in slots):
        return bound_a, []
    pairs, _ = _match(bound_a.feeds, slots, b)
    rounded = {
        id(bound_a.feeds[name]): (name, slot, _there_and_back(bound_a.feeds[name], slot))
        for name, slot in pairs
        if _in_another_format(bound_a.feeds[name], slot)
    }
    if not rounded or bound_a.inputs is None:
        return bound_a, []
    inputs = bound_a.inputs.replacing({key: value for key, (_, _, value) in rounded.items()})
    formats: dict[tuple[str, str], list[str]] = {}
    for name, slot, value in rounded.values():
        formats.setdefault((dtype_name(value.dtype), str(slot.dtype)), []).append(name)
    notes = [_rounded(names, given, declared, b) for (given, declared), names in formats.items()]
    return bound_a.program.bind(inputs), notes


def _in_another_format(leaf: Any, slot: Slot) -> bool:
    if not isinstance(leaf, torch.Tensor) or slot.dtype is None or not leaf.is_floating_point():
        return False
    dtype = getattr(torch, slot.dtype, None)
    return dtype is not None and dtype.is_floating_point and dtype != leaf.dtype


def _there_and_back(leaf: torch.Tensor, slot: Slot) -> torch.Tensor:
    return leaf.to(getattr(torch, str(slot.dtype))).to(leaf.dtype)


def _rounded(names: Sequence[str], given: str, declared: str, b: Program) -> Finding:
    some = listed(names, 5)
    return Finding(
        "O009",
        f"{some}: {given} for one side and {declared} for {b.name}; the values are rounded so that both sides"
        " receive the same numbers",
        where=Where(output=f"in[{names[0]!r}]"),
        evidence={"inputs": list(names), "given": given, "declared": declared},
        note=True,
    )

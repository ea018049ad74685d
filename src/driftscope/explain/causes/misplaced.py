"""What is A's and stands in another place: values exchanged, elements or blocks of gates in another order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from driftscope.explain.causes.rewiring import Reason, Trials, is_telling
from driftscope.explain.locate.divergence import Parting
from driftscope.explain.locate.fingerprints import Sketch, Visited, boundary, steps_to
from driftscope.explain.locate.operators import MOVES, TURNS, family
from driftscope.lift.steps import Constant

# Steps before a piece that are looked through, and pairs of values that are tried.
_NEAR = 40
_MOST_TRIALS = 8
_MOST_TURNS = 3
# What is folded into the layer behind it.
_FOLDED = frozenset({"linear", "conv", "batchnorm", "mul", "div", "add", "sub"})
# torch's gates by letter, and ONNX's order of them: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html
_TORCH = {"LSTM": "ifco", "GRU": "rzh"}
_ONNX = {"LSTM": "iofc", "GRU": "zrh"}


def exchanged_values(parting: Parting, trials: Trials) -> Reason | None:
    """Two values that one operator makes of the same value, and with which exchanged the piece gives A's value."""
    for (one, first), (other, second) in itertools.islice(_pairs(parting, trials.makers), _MOST_TRIALS):
        values = trials.captured((one, other))
        x, y = values.get(one), values.get(other)
        if x is None or y is None or (x.shape, x.dtype) != (y.shape, y.dtype) or torch.equal(x, y):
            continue
        apart = _are_apart(one, other, trials.makers)
        read = all(_is_read(name, trials.makers) for name in (one, other))
        if apart and read and trials.forced({one: y, other: x}):
            return Reason(
                f"{one} and {other} stand in each other's places: with the two exchanged it gives A's values",
                f"Exchange {one} and {other}: let what reads one of them read the other.",
                True,
                min(first, second, key=lambda step: step.index),
                values={one: y, other: x},
            )
    return None


def detour(parting: Parting, theirs: Sequence[Visited], makers: Mapping[str, Visited]) -> Reason | None:
    """A value that the piece reads and A's piece does not, where A's piece reads one that this does not."""
    other = parting.counterpart
    if other is None or len(parting.piece) < 2 or not parting.paired:
        return None
    wrong, missing = read_otherwise(parting.piece, theirs, makers)
    if not wrong or not missing:
        return None
    called, meant = next(iter(missing.items()))
    name, reader = _not_shared(wrong[0], boundary(parting.piece)[wrong[0]], parting.piece, makers)
    return Reason(
        f"{reader.name} reads {name}, where A's {other.operator} is computed from {called}",
        f"Connect {reader.name} to the value that A calls {called}.",
        None,
        reader,
        reads=(reader, {name: meant}),
    )


def read_otherwise(
    piece: Sequence[Visited], theirs: Sequence[Visited], makers: Mapping[str, Visited]
) -> tuple[list[str], dict[str, Sketch]]:
    """The values that a piece reads and A's piece does not, and those that A's reads and this does not."""
    sketches = {n: t for s in (*piece, *theirs) for n, t in zip(s.inputs, s.taken, strict=False)}
    read, meant = ({n: t for n in boundary(some) if is_telling(t := sketches[n])} for some in (piece, theirs))
    wrong = [n for n, t in read.items() if not any(t.agrees(w) for w in meant.values())]
    missing = {n: w for n, w in meant.items() if not any(w.agrees(t) for t in read.values())}
    # What is computed from A's value inside a fused operator of A is read in its place.
    return wrong, {n: w for n, w in missing.items() if not any(_leads(w, name, makers) for name in wrong)}


def _not_shared(
    name: str, reader: Visited, piece: Sequence[Visited], makers: Mapping[str, Visited]
) -> tuple[str, Visited]:
    """Follow a value through views: where it is taken up for this piece, and not for another layer as well."""
    own, found = {s.index for s in piece}, (name, reader)
    while family(reader.operator) in MOVES:
        made = reader.outputs[0]
        readers = [s for s in makers.values() if made in s.inputs]
        following = next((s for s in readers if s.index in own), None)
        if following is None:
            break
        reader = following
        found = found if all(s.index in own for s in readers) else (made, reader)
    return found


def _leads(wanted: Sketch, name: str, makers: Mapping[str, Visited]) -> bool:
    """Whether a value is computed from another one in a few steps."""
    left, seen = [name], set[int]()
    while left and len(seen) < 32:
        step = makers.get(left.pop())
        if step is None or step.index in seen:
            continue
        seen.add(step.index)
        if any(t is not None and t.agrees(wanted) for t in step.taken):
            return True
        left.extend(n for n in step.inputs if n)
    return False


def connected(cause: Reason | None, trials: Trials) -> Reason | None:
    """A cause that asks for another wire, unless that was tried and did not do it; verified where it did."""
    if cause is None or cause.reads is None:
        return cause
    works = trials.reconnect(*cause.reads)
    return None if works is False else replace(cause, verified=works)


def exchanged_wire(wire: Reason | None, trials: Trials) -> Reason | None:
    """A value that a step reads and the one that A reads there, exchanged wherever one of the two is read."""
    if wire is None or wire.reads is None:
        return None
    step, meant = wire.reads
    for one, sketch in meant.items():
        for other in trials.named(sketch)[:1]:
            values = trials.captured((one, other))
            x, y = values.get(one), values.get(other)
            alike = x is not None and y is not None and (x.shape, x.dtype) == (y.shape, y.dtype)
            if x is None or y is None or not alike or not _is_read(other, trials.makers):
                continue
            if not _are_apart(one, other, trials.makers) or not trials.healed({one: y, other: x}):
                continue
            words = f"{one} and {other} stand in each other's places: with the two exchanged it gives A's values"
            fix = f"Exchange {one} and {other}: let what reads one of them read the other."
            return Reason(words, fix, True, step, values={one: y, other: x})
    return None


def _are_apart(one: str, other: str, makers: Mapping[str, Visited]) -> bool:
    """Whether neither value is computed from the other: exchanged, these would make a circle."""
    return not (_is_made_of(one, other, makers) or _is_made_of(other, one, makers))


def _is_made_of(name: str, source: str, makers: Mapping[str, Visited]) -> bool:
    """Whether a value is computed from another."""
    end = makers.get(name)
    made = {} if end is None else steps_to(end, makers, lambda _: False, len(makers))
    return any(source in step.inputs for step in made.values())


def _is_read(name: str, makers: Mapping[str, Visited]) -> bool:
    """Whether any step reads a value: what nobody reads is exchanged with nothing."""
    return any(name in step.inputs for step in makers.values())


def exchanged_results(parting: Parting, trials: Trials) -> Reason | None:
    """Two results of one step that stand in each other's places: exchanged they mend the whole program.

    The piece alone would be right with either: where all other readers of the two are, it is that one wire.
    """
    steps = {s.index: s for _, s in _before(parting, trials.makers) if len(s.outputs) > 1}
    pairs = ((s, *two) for s in steps.values() for two in itertools.combinations(filter(None, s.outputs), 2))
    for step, one, other in itertools.islice(pairs, _MOST_TRIALS):
        values = trials.captured((one, other))
        x, y = values.get(one), values.get(other)
        if x is None or y is None or (x.shape, x.dtype) != (y.shape, y.dtype) or torch.equal(x, y):
            continue
        if trials.healed({one: y, other: x}):
            words = f"the results {one} and {other} of {step.name} ({step.operator}) stand in each other's places"
            return Reason(words, f"Exchange the results {one} and {other} of {step.name}.", True, step,
                          values={one: y, other: x})  # fmt: skip
    return None


def passed_through(parting: Parting, trials: Trials) -> Reason | None:
    """A step of the piece through which it reads what A reads as it is; of other sizes, so that it cannot be left."""
    other = parting.counterpart
    # One operator that A computes in many steps' place is computed from its values through all of them.
    alike = other is not None and family(other.operator) == family(parting.step.operator)
    wanted = [(t, trials.theirs.get(n)) for n, t in _read(other)] if alike and other is not None else []
    for step in (s for s in parting.piece if family(s.operator) not in _FOLDED | {"cast"}):
        for name, taken in _read(step) if set(step.outputs) & set(parting.step.inputs) else ():
            # A that reads the same elements through a step of its own does not read them as they are.
            there = any(taken.agrees(t) and (m is None or family(m.operator) != family(step.operator))
                        for t, m in wanted)  # fmt: skip
            # A may have the same step, by another name.
            if other is not None and there and not _is_read_by(other, trials.captured(step.outputs[:1]), trials):
                words = f"it reads {name} through {step.name} ({step.operator}), and {other.operator} in A as it is"
                return Reason(words, f"Remove {step.name}; let {parting.step.name} read {name}.", None, step)
    return None


def skipped(parting: Parting, trials: Trials) -> Reason | None:
    """A step of A between a value and the piece that reads it, where the piece reads the value as it was before."""
    step, other = parting.step, parting.counterpart
    if other is None or family(step.operator) != family(other.operator):
        return None
    for name, own, wanted, meant in zip(step.inputs, step.taken, other.inputs, other.taken, strict=False):
        if own is None or meant is None or own.same(meant) or own.count != meant.count:
            continue
        maker = trials.theirs.get(wanted)
        for _ in range(_MOST_TURNS):
            if maker is None or not maker.inputs:
                break
            taken, made = [t for t in maker.taken if t is not None], maker.sketches[0]
            same = any(t.same(own) for t in taken)
            changes = made is not None and not any(t.same(made) for t in taken)  # a copy of a view does not
            before = same or (family(maker.operator) in TURNS and any(t.agrees(own) for t in taken))
            works, values = trials.as_in_a(name, wanted) if before and changes else (False, {})
            if works:
                words = f"it reads {name} as it is, where A computes {maker.name} ({maker.operator}) of it first"
                fix = f"Compute {maker.operator} of {name} before {step.name}, as A does."
                if not same:  # of the same elements, which may stand elsewhere already
                    words = f"{step.name} reads the elements that {other.operator} in A reads, in another order"
                    fix = f"Lay them out as A does before {step.name}."
                return Reason(words, fix, True, values=values)
            maker = trials.theirs.get(maker.inputs[0]) if family(maker.operator) in TURNS else None
    return None


def _is_read_by(other: Visited | None, values: Mapping[str, torch.Tensor], trials: Trials) -> bool:
    """Whether a step of A reads one of these values of B, in the same shape and whatever order."""
    read = trials.values_a(() if other is None else [n for n in other.inputs if n]).values()
    pairs = ((x, y.to(x)) for x, y in itertools.product(values.values(), read) if x.shape == y.shape)
    return any(torch.allclose(x.flatten().sort()[0], y.flatten().sort()[0], rtol=1e-9) for x, y in pairs)


def folded_in(wire: Reason, trials: Trials) -> bool:
    """Whether A computes what a step should read by a step that B may have folded into that one: no wire is wrong."""
    if wire.reads is None:
        return False
    step, meant = wire.reads
    own = [t for n, t in zip(step.inputs, step.taken, strict=False) if n in meant and t is not None]
    made = [s for s in trials.theirs.values() if family(s.operator) in _FOLDED and s.sketches]
    made = [s for s in made if any(m.agrees(t) for m in meant.values() for t in s.sketches[:1] if t is not None)]
    return any(t is not None and t.agrees(o) for s in made for t in s.taken for o in own)


def _pairs(parting: Parting, makers: Mapping[str, Visited]) -> Iterator[tuple[tuple[str, Visited], ...]]:
    """Yield pairs of values of one kind and shape that are made of the same value, the nearest to the piece first."""
    seen: dict[tuple[object, ...], list[tuple[str, Visited]]] = {}
    for name, step in _before(parting, makers):
        made = step.sketches[step.outputs.index(name)]
        if family(step.operator) in MOVES or made is None or made.plain or not step.inputs:
            continue
        # A split has several results; a layer of its own, or a selection, has one.
        kind = (family(step.operator), _source_of(step.inputs[0], makers), step.shapes[step.outputs.index(name)])
        yield from (((earlier, of), (name, step)) for earlier, of in seen.get(kind, ()))
        seen.setdefault(kind, []).append((name, step))


def _source_of(name: str, makers: Mapping[str, Visited]) -> str:
    """What a value is a view of."""
    while name in makers and makers[name].inputs and family(makers[name].operator) == "view":
        name = makers[name].inputs[0]
    return name


def _before(parting: Parting, makers: Mapping[str, Visited]) -> Iterator[tuple[str, Visited]]:
    """Yield the values that a piece is computed from, nearest first, each with its step."""
    left, seen = [*boundary(parting.piece), *parting.step.inputs], set[str]()
    while left and len(seen) < _NEAR:
        name = left.pop(0)
        step = makers.get(name)
        if name in seen or step is None:
            continue
        seen.add(name)
        yield name, step
        left += step.inputs


def order(parting: Parting, theirs: Sequence[Visited], trials: Trials) -> Reason | None:
    """Views before a piece that leave A's elements in another order than A reads them in."""
    step, other, makers = parting.step, parting.counterpart, trials.makers
    if other is None:
        return None
    if family(step.operator) == family(other.operator):
        pairs = list(zip(_read(step), _read(other), strict=False))
    else:
        mine, wanted = boundary(parting.piece), boundary(theirs)
        known = {n: t for s in (*parting.piece, *theirs) for n, t in _read(s)}
        ours = [(n, known[n]) for n in mine if n in known]
        pairs = [((n, t), (w, known[w])) for n, t in ours for w in wanted if w in known and known[w].agrees(t)]
        straight = {n for (n, t), (_, w) in pairs if t.same(w)}
        pairs = [pair for pair in pairs if pair[0][0] not in straight]
    for (name, value), (wanted_name, meant) in pairs:
        if value.agrees(meant) and not value.same(meant):
            moved, (works, values) = _mover(name, makers), trials.as_in_a(name, wanted_name)
            if moved is not None and works is not False:
                return Reason(
                    f"{step.name} reads the elements that {other.operator} in A reads, in another order",
                    f"Lay them out as A does before {step.name}.",
                    works,
                    moved,
                    values=values if works else {},
                )
    return None


def _mover(name: str, makers: Mapping[str, Visited]) -> Visited | None:
    """The first of the steps that only move a value's elements; a plain view only if there is nothing else."""
    chain = []
    while name in makers and family(makers[name].operator) in MOVES | {"cat", "split", "slice"}:
        chain.append(makers[name])
        name = makers[name].inputs[0]
    turned = [s for s in chain if family(s.operator) != "view"]
    return (turned or chain)[-1] if chain else None


def _read(step: Visited) -> list[tuple[str, Sketch]]:
    return [(n, t) for n, t in zip(step.inputs, step.taken, strict=False) if t is not None and not t.plain]


def gate_order(
    parting: Parting, constants: tuple[Sequence[Constant], Sequence[Constant]], trials: Trials
) -> Reason | None:
    """The stored tensors of an ONNX LSTM or GRU whose gate blocks, put in ONNX's order, give A's value.

    Parameters
    ----------
    parting : Parting
        Its counterpart is torch's layer, or a part of it.
    constants : pair of sequences of Constant
        A's and B's.
    trials : Trials
    """
    step = next((s for s in (parting.step, *parting.piece) if s.operator in _TORCH), None)
    if step is None or parting.counterpart is None or not parting.counterpart.operator.startswith("aten."):
        return None
    sources = [c.value for c in constants[0] if c.value.dtype.is_floating_point and c.value.numel() > 1]
    repaired, words = {}, ""
    for constant in _held(step, constants[1]):
        value, order = _in_order(constant.value, sources, step.operator)
        if value is not None and order != _ONNX[step.operator]:
            repaired[constant.name] = value.to(torch.float64)
            words = words or ", ".join(order)
    if not repaired or not (trials.constants(repaired) or trials.whole(repaired)):
        return None
    names, wanted = ", ".join(repaired), ", ".join(_ONNX[step.operator])
    return Reason(
        f"the gate blocks of {names} stand in the order {words}, and ONNX's {step.operator} reads {wanted}",
        f"Store the gate blocks of {names} in the order {wanted}.",
        True,
        None if step is parting.step else step,
    )


def _held(step: Visited, own: Sequence[Constant]) -> list[Constant]:
    return [c for c in own if c.name in (*step.inputs, *step.stored) and c.value.ndim in (2, 3)]


def _in_order(value: torch.Tensor, sources: Sequence[torch.Tensor], operator: str) -> tuple[torch.Tensor | None, str]:
    """Lay A's elements out as ONNX wants them; tell the order in which ``value`` holds them. None: they are not A's.

    ``value`` is (directions, gates * hidden, ...), or (directions, 2 * gates * hidden) for the two biases.
    """
    parts, order = [], _ONNX[operator]
    for direction in value:
        for half in direction.chunk(2, 0) if direction.ndim == 1 else (direction,):
            found = _source(half, sources)
            if found is None or found.shape[0] % len(order):
                return None, ""
            blocks = dict(zip(_TORCH[operator], found.chunk(len(order), 0), strict=True))
            mine = half.chunk(len(order), 0)
            held = "".join(next((g for g, b in blocks.items() if torch.equal(b, m)), "?") for m in mine)
            if "?" in held:
                return None, ""  # A's elements, and no blocks of them
            if held != _ONNX[operator] or order == _ONNX[operator]:
                order = held
            parts.append(torch.cat([blocks[g] for g in _ONNX[operator]], 0))
    return torch.cat(parts, 0).reshape(value.shape), order


def _source(part: torch.Tensor, sources: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A's tensor that holds the same numbers."""
    wanted = part.flatten().sort().values
    for source in sources:
        if source.numel() == part.numel():
            rounded = source.to(part)
            if torch.equal(rounded.flatten().sort().values, wanted):
                return rounded.reshape(part.shape)
    return None

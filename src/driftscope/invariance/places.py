"""The first operator whose bits change between two ways of running a program, and the value through which rows meet."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.invariance.orders import SumCall, two_orders
from driftscope.invariance.rows import same_bits
from driftscope.invariance.running import Runner
from driftscope.invariance.tracing import REGROUPING, TracedOperator, traced
from driftscope.invariance.trials.trial import AxisTrial, KeptPositions, RowMap, RunVariant
from driftscope.records.finding import Where

#: What a place is called, and what one where more than rounding sets in.
_BEYOND = ("whose bits change", "whose results differ by more than rounding")
#: Operators that put what was computed of some rows back among all.
_PUT_BACK = ("index_put", "index_add", "index_copy", "scatter", "where", "cat", "stack", "ScatterND", "ScatterElements")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a result begins to depend on how the program was run.

    Parameters
    ----------
    where : Where
        The first operator whose result differs.
    words : str
        One sentence for people.
    value : str
        The value without a batch axis through which rows reach each other; empty where there is none.
    evidence : mapping
    calls : tuple of SumCall or None
        The operator as both runs called it, where its order of addition can be asked.
    """

    where: Where
    words: str
    value: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[SumCall | None, SumCall | None] = (None, None)


def meeting_of(runner: Runner, trial: AxisTrial, *, rounding: bool = False) -> Meeting | None:
    """Trace both runs of a trial and find where their values part; None where that cannot be told.

    Parameters
    ----------
    runner : Runner
    trial : AxisTrial
        One that was seen to differ.
    rounding : bool
        Whether the results differ by rounding alone: values of whole numbers then tell nothing.
    """
    known = trial.told() if trial.told is not None else None
    if known is not None:
        return Meeting(Where(module=known[0] or None), known[1])
    if trial.last is None and any(v.calling is not None or v.fresh is not None for v in (trial.one, trial.other)):
        return None
    try:
        if trial.last is not None:
            return _in_last_piece(runner, trial, trial.last, rounding)
        one, other = traced(runner, trial.one), traced(runner, trial.other)
        if trial.kept is not None:
            base = traced(runner, RunVariant()) if trial.kept.both else one
            if rounding:
                return _with_orders(_first_kept(one, other, base, trial.kept, rounding), runner, trial)
            # At equal lengths nothing rounds otherwise, and one bit tells.
            walk = partial(_first_kept, one, other, base, trial.kept, rounding)
            return (None if trial.kept.both else _beyond(walk)) or walk()
        rows = trial.rows
        shapes = None
        if rows is not None and rows.counts[0] == rows.counts[1]:
            # At equal shapes nothing tells the batch axis of a value: a run on one row does.
            shapes = _doubled(runner, trial, rows, one)
            if shapes is None:
                return None
    except (CannotLift, DriftscopeError, RuntimeError, ValueError, TypeError, NotImplementedError):
        return None
    beyond = None
    if not rounding and shapes is None and (rows is not None or trial.axis in ("threads", "layout")):
        # Other sizes, threads and layouts round otherwise from the first product on: results part later.
        beyond = _beyond(partial(_first, one, other, rows, None)) or _in_one_alone(one, other)
    found = beyond or _first(one, other, rows, shapes)
    if trial.axis == "denormals":
        return _of_denormals(found, one)
    return _with_orders(found, runner, trial) if rounding else found


def _in_last_piece(
    runner: Runner, trial: AxisTrial, last: Callable[[], RunVariant], rounding: bool
) -> Meeting | None:  # fmt: skip
    """Walk the last piece beside the whole and stop at the first value that is another one at its positions."""
    one, other = traced(runner, last()), traced(runner, RunVariant())
    size = trial.pieces[-1]
    kept = KeptPositions(size, sum(trial.pieces) - size, left=True, both=False)
    return _first_kept(one, other, one, kept, rounding, same_bits if rounding else _agree, in_pieces=not rounding)


def _agree(one: torch.Tensor, other: torch.Tensor, share: float = 0.5) -> bool:
    """Whether two values are the same but for rounding: that share of the way to the last bit, others have begun."""
    if one.shape != other.shape:
        return False
    if not one.is_floating_point() and not one.is_complex():
        return bool(torch.equal(one, other))
    gap = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one - other).abs().double())
    size = torch.where(one.isfinite(), one, 0.0).abs().double()
    limit = torch.finfo(one.dtype).eps ** share * float(size.max()) if one.numel() else 0.0
    return not bool((gap.nan_to_num(torch.inf, torch.inf) > limit).any())


def _of_denormals(found: Meeting | None, values: Sequence[TracedOperator]) -> Meeting | None:
    """Say whether the first operator whose bits change returns denormal numbers itself."""
    seen = next((s for s in values if found is not None and s.where == found.where), None)
    if found is None or seen is None or not any(_has_denormals(x) for x in seen.outputs):
        return found
    smallest = torch.finfo(seen.outputs[0].dtype).tiny
    return replace(found, words=f"{seen.operator} returns denormal numbers, below {smallest:.1e}")


def _has_denormals(x: torch.Tensor) -> bool:
    return x.is_floating_point() and bool(((x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)).any())


def _with_orders(found: Meeting | None, runner: Runner, trial: AxisTrial) -> Meeting | None:
    """Add the two orders of addition of the first operator whose bits change, where its kernel can be asked."""
    if found is None:
        return None
    threads = trial.one.threads, trial.other.threads
    if trial.other.threads is not None and trial.one.threads is None:
        threads = runner.program.settings.get("threads", torch.get_num_threads()), trial.other.threads
    orders = two_orders(*found.calls, runner.program.runtime, threads)
    if orders is None:
        return found
    words = f"{found.words}: {orders.words}"
    return replace(found, words=words, evidence={**found.evidence, "orders": orders.evidence})


def _doubled(
    runner: Runner, trial: AxisTrial, rows: RowMap, one: Sequence[TracedOperator]
) -> list[TracedOperator] | None:
    """Return what the first run returned with the shapes that it has for twice the rows."""
    if trial.one.changed is None and trial.other.changed is None:
        return None
    tensors = {k: (trial.one.changed or {}).get(k, runner.tensors[k]) for k, _ in rows.axes}
    # Twice the rows rather than one: BatchNorm in train mode refuses one.
    doubled = {k: torch.cat([tensors[k]] * 2, dim=dim) for k, dim in rows.axes}
    try:
        grown = traced(runner, RunVariant(doubled))
    except (DriftscopeError, RuntimeError):  # made for this number of rows alone
        return [replace(seen, shapes=tuple(_grown(x.shape, rows.counts[0]) for x in seen.outputs)) for seen in one]
    return [replace(seen, shapes=tuple(tuple(x.shape) for x in seen.outputs)) for seen in grown]


def _grown(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """Take the first axis that is as long as the batch for it, or else the first that holds it several times."""
    exact = [d for d, n in enumerate(shape) if n == count]
    batch = (exact or [d for d, n in enumerate(shape) if n and n % count == 0])[:1]
    return tuple(2 * n if d in batch else n for d, n in enumerate(shape))


def _first(
    one: Sequence[TracedOperator],
    other: Sequence[TracedOperator],
    rows: RowMap | None,
    alone: Sequence[TracedOperator] | None,
    alike: Callable[[torch.Tensor, torch.Tensor], bool] = same_bits,
) -> Meeting | None:
    """Walk both runs in order and stop at the first value that differs in the row that is compared."""
    counterpart = _aligned(one, alone) if alone is not None else {}
    shared: TracedOperator | None = None
    resized: Meeting | None = None
    for i, j in _aligned(one, other).items():
        a, b = one[i], other[j]
        for k, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=False)):
            if rows is None:
                if not alike(x, y):
                    return _at(a, b, None)
                continue
            if alone is not None and x.shape != y.shape:
                resized = resized or _resized(a, b)
                continue
            single = _single_shape(alone, counterpart.get(i), k, x, y, rows)
            mine = _row(x, single, rows.one, rows.counts[0])
            theirs = _row(y, single, rows.other, rows.counts[1])
            if mine is None or theirs is None:
                if single is not None and x.shape == y.shape and not alike(x, y):
                    shared = shared or a
                continue
            if not any(alike(m, t) for m, t in zip(mine, theirs, strict=False)):
                if resized is not None and (a.pointwise or any(word in a.operator for word in _PUT_BACK)):
                    return resized
                return _at(a, b, shared, meets=rows.one == rows.other and alone is not None)
    return _at(shared, shared, shared) if shared is not None else resized


def _beyond(walk: Callable[[Callable[[torch.Tensor, torch.Tensor], bool]], Meeting | None]) -> Meeting | None:
    """Find a place by more than rounding: coarsely first, or rounding that grew would be taken for it."""
    for share in (0.5, 0.75):
        found = walk(partial(_agree, share=share))
        if found is not None:
            return replace(found, words=found.words.replace(*_BEYOND))
    return None


def _in_one_alone(one: Sequence[TracedOperator], other: Sequence[TracedOperator]) -> Meeting | None:
    """Return the first operator that only one of the runs calls: they went different ways."""
    met = _aligned(one, other)
    for steps, taken in ((one, set(met)), (other, set(met.values()))):
        alone = next((seen for k, seen in enumerate(steps) if k not in taken), None)
        if alone is not None:
            words = f"{alone.operator} runs in one of the two only"
            return Meeting(alone.where, words, "", {"operator": alone.operator})
    return None


def _first_kept(
    one: Sequence[TracedOperator],
    other: Sequence[TracedOperator],
    base: Sequence[TracedOperator],
    kept: KeptPositions,
    rounding: bool,
    alike: Callable[[torch.Tensor, torch.Tensor], bool] = same_bits,
    *,
    in_pieces: bool = False,
) -> Meeting | None:
    """Walk both runs and stop at the first value that differs at a position that is no padding."""
    short = _aligned(one, base)
    for i, j in _aligned(one, other).items():
        if i not in short:
            continue
        a, b = one[i], other[j]
        if in_pieces and a.operator.replace(".", "::") in REGROUPING:
            continue  # what only looks at values is never where they become others
        for x, y, z in zip(a.outputs, b.outputs, base[short[i]].outputs, strict=False):
            if not x.is_floating_point() and (rounding or not _along_positions(x, y, z, in_pieces=in_pieces)):
                continue  # sizes, and what is computed of sizes, are not along the sequence and differ by right
            mine = _positions(x, z.shape, kept) if kept.both else [x] * 2
            theirs = _positions(y, z.shape, kept)
            if mine and theirs and not any(alike(m, t) for m, t in zip(mine, theirs, strict=True)):
                return _at(a, b, None)
    return None


def _along_positions(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, in_pieces: bool) -> bool:
    """Whether whole numbers or booleans are values of positions.

    Numbers that count within a piece, to which a program adds where the piece begins, differ by right.
    """
    return x.dtype is torch.bool and y.shape != z.shape if in_pieces else x.shape != z.shape


def _positions(x: torch.Tensor, shape: Sequence[int], kept: KeptPositions) -> list[torch.Tensor]:
    """What a value holds of the sequence, given its shape without padding; nothing where it is not along an axis.

    Where one axis holds rows and positions, first with the rows outermost, then with the positions outermost.
    """
    found = [x, x]
    for d, short in enumerate(shape if x.dim() == len(shape) else ()):
        if x.shape[d] == short:
            continue
        parts, length = short // kept.length, kept.length + kept.added
        if short % kept.length or x.shape[d] != parts * length:
            return []
        start = kept.added if kept.left else 0
        rows_first = found[0].unflatten(d, (parts, length)).narrow(d + 1, start, kept.length)
        rows_last = found[1].unflatten(d, (length, parts)).narrow(d, start, kept.length)
        found = [part.flatten(d, d + 1) for part in (rows_first, rows_last)]
    return found if x.dim() == len(shape) else []


def _single_shape(
    alone: Sequence[TracedOperator] | None, at: int | None, k: int, x: torch.Tensor, y: torch.Tensor, rows: RowMap
) -> tuple[int, ...] | None:
    """Shape of the value for one row; None where it is not known."""
    if alone is not None:
        if at is None or k >= len(alone[at].shapes) or len(alone[at].shapes[k]) != x.dim():
            return None
        grown = alone[at].shapes[k]
        return tuple(n // rows.counts[0] if m == 2 * n and n else n for n, m in zip(x.shape, grown, strict=True))
    # Runs of different sizes tell it themselves.
    if x.dim() != y.dim():
        return None
    changed = [d for d in range(x.dim()) if x.shape[d] != y.shape[d]]
    if not changed:
        return tuple(x.shape)
    if len(changed) > 1 or x.shape[changed[0]] * rows.counts[1] != y.shape[changed[0]] * rows.counts[0]:
        return None
    shape = list(x.shape)
    shape[changed[0]] //= rows.counts[0]
    return tuple(shape)


def _row(x: torch.Tensor, single: tuple[int, ...] | None, row: int, count: int) -> list[torch.Tensor] | None:
    """What a value holds of one row, with the batch outermost and innermost in its axis; None without such an axis."""
    if single is None or len(single) != x.dim():
        return None
    axes = [d for d in range(x.dim()) if x.shape[d] != single[d]]
    if not axes:
        return [x] if count == 1 and tuple(x.shape) == single else None
    if len(axes) > 1 or x.shape[axes[0]] != count * single[axes[0]]:
        return None
    dim, inner = axes[0], single[axes[0]]
    head, tail = x.shape[:dim], x.shape[dim + 1 :]
    outermost = x.reshape(*head, count, inner, *tail).select(dim, row)
    innermost = x.reshape(*head, inner, count, *tail).select(dim + 1, row)
    return [outermost, innermost]


def _at(a: TracedOperator, b: TracedOperator, shared: TracedOperator | None, *, meets: bool = False) -> Meeting:
    place = shared or a
    shape = "x".join(map(str, place.outputs[0].shape)) or "scalar" if place.outputs else ""
    evidence = {"operator": a.operator, "shapes": [list(x.shape) for x in (*a.outputs[:1], *b.outputs[:1])]}
    if shared is not None:
        words = f"{shared.operator} returns one value for all rows ({shape}), and each row is computed from it"
        return Meeting(shared.where, words, f"{shared.name} ({shape})", evidence)
    if meets:
        return Meeting(
            a.where, f"rows meet inside {a.operator}: its result for a row depends on the others", "", evidence
        )
    changed = f", of {_shape(a)} and of {_shape(b)}" if _shape(a) != _shape(b) else ""
    words = f"{a.operator} is the first operator whose bits change{changed}"
    return Meeting(a.where, words, "", evidence, (a.call, b.call))


def _resized(a: TracedOperator, b: TracedOperator) -> Meeting:
    words = f"{a.operator} returns {_shape(a)} here and {_shape(b)} there: the other rows decide its size"
    shapes = [list(x.shape) for x in (*a.outputs[:1], *b.outputs[:1])]
    return Meeting(a.where, words, "", {"operator": a.operator, "shapes": shapes})


def _shape(seen: TracedOperator) -> str:
    return "x".join(map(str, seen.outputs[0].shape)) if seen.outputs else ""


def _aligned(one: Sequence[TracedOperator], other: Sequence[TracedOperator] | None) -> dict[int, int]:
    """Pair the operators of two runs: by order where they are the same, else by the longest common runs."""
    other = other or []
    left, right = [s.operator for s in one], [s.operator for s in other]
    if left == right:
        return {i: i for i in range(len(left))}
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return {block.a + k: block.b + k for block in blocks for k in range(block.size)}

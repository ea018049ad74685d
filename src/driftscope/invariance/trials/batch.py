"""A row alone, in batches of other sizes, beside other rows, and at other places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from driftscope.invariance.judging import Select
from driftscope.invariance.rows import BatchRows, same_bits, take
from driftscope.invariance.trials.trial import AxisPlan, AxisTrial, RowMap, RunVariant

#: Batches that one row is repeated to. Kernels work on tiles of 4, 6, 8, 12, 14 or 16 rows and have others for one row
#: or two; 17 and 33 leave one row over from any of them.
SIZES = (2, 3, 8, 16, 17, 32, 33)
_LARGE = 1e4

#: Inputs whose content says how others are to be read; they are left as they are.
_STRUCTURE = ("mask", "position", "length", "cu_seqlens", "token_type")


def batch(rows: BatchRows | str, base: RunVariant) -> AxisPlan:
    """Vary the company of a row: two of them stay, the others change; then the size of the batch."""
    if isinstance(rows, str):
        return AxisPlan("batch", reason=rows)
    trials = _content(rows, base)
    if not rows.resizable:
        if not trials:
            return AxisPlan("batch", reason=f"the batch has one row and cannot be another: {rows.refusal}")
        return AxisPlan("batch", trials, refusals=(("another number of rows", rows.refusal),))
    return AxisPlan("batch", [*trials, *_joining(rows, base)])


def order(rows: BatchRows | str, base: RunVariant) -> AxisPlan:
    """Put the rows in another order, and the results back."""
    if isinstance(rows, str):
        return AxisPlan("order", reason=rows)
    if rows.count < 2:
        return AxisPlan("order", reason="the batch has one row")
    n, axes = rows.count, tuple(rows.inputs.items())
    orders = {"rows in reverse": [*range(n)][::-1], "rows moved on by one": [n - 1, *range(n - 1)]}
    trials = []
    for name, moved in orders.items():
        back = sorted(range(n), key=moved.__getitem__)
        at = selecting(rows, back)
        trials.append(
            AxisTrial("order", name, base, RunVariant(rows.taking(moved), at), tuple(rows.outputs), whole_of(rows),
                  rows=RowMap(0, moved.index(0), (n, n), axes))
        )  # fmt: skip
    return AxisPlan("order", trials)


def selecting(rows: BatchRows, at: Sequence[int]) -> Select:
    """Return what picks these rows of an output."""

    def select(position: int, tensor: torch.Tensor) -> torch.Tensor:
        return rows.select(position, tensor, at)

    return select


def whole_of(rows: BatchRows) -> Select:
    """Return what picks every row."""
    return selecting(rows, range(rows.count))


def _looked_at(count: int) -> list[int]:
    """Rows at both ends of a batch and one between: the longest of all, or the neighbour of nobody, may be any."""
    return sorted({0, count // 2, count - 1})


# --- other rows change -----------------------------------------------------------------------------------------------


def _content(rows: BatchRows, base: RunVariant) -> list[AxisTrial]:
    tensors = {k: rows.runner.tensors[k] for k in rows.inputs}
    count, start, kept = rows.count, base, _looked_at(rows.count)
    if count == 1:
        if not rows.resizable:
            return []
        count, kept = 3, [0]
        tensors = take(rows.runner.tensors, rows.inputs, [0, 0, 0])
        start = RunVariant(tensors)
    trials = []
    for row in kept:
        inside = 0 < row < count - 1
        for words, change in _CHANGES.items():
            if inside and change is not _other_values:
                continue  # that it sees the others at all is what the rows at the ends may not show
            changed = _with_others(rows, tensors, row, change)
            if changed is None:
                continue
            at = selecting(rows, [row])
            based = at if count == rows.count else selecting(rows, [0])
            one, other = replace(start, select=at), RunVariant({**tensors, **changed}, at)
            trials.append(
                AxisTrial("batch", f"row {row} kept, the others {words}", one, other, tuple(rows.outputs), based,
                      strict=True, optional=words.startswith("NaN"),
                      rows=RowMap(row, row, (count, count), tuple(rows.inputs.items())), ways="content")
            )  # fmt: skip
    return trials


#: Takes an input tensor, its batch axis and the row that stays.
Change = Callable[[torch.Tensor, int, int], torch.Tensor | None]


def _made_equal(x: torch.Tensor, dim: int, kept: int) -> torch.Tensor:
    """Rows that want the same of what they share: the place in an expert, a bucket."""
    return x.index_select(dim, torch.tensor([kept] * x.shape[dim], device=x.device))


def _other_values(x: torch.Tensor, _dim: int, _kept: int) -> torch.Tensor | None:
    """The tensor's own values at other places: legal wherever they were."""
    if x.dtype is torch.bool:
        return None
    other = x.flatten().flip(0).roll(1).reshape(x.shape)
    if same_bits(x, other) and x.is_floating_point():
        return x * 0.5 + 0.25
    return other


def _scaled(x: torch.Tensor, _dim: int, _kept: int) -> torch.Tensor | None:
    return x * _LARGE if x.is_floating_point() else None


def _negated(x: torch.Tensor, _dim: int, _kept: int) -> torch.Tensor | None:
    """What counts or compares signs may not see another size."""
    return -x if x.is_floating_point() else None


def _not_a_number(x: torch.Tensor, _dim: int, _kept: int) -> torch.Tensor | None:
    return torch.full_like(x, torch.nan) if x.is_floating_point() else None


_CHANGES: dict[str, Change] = {
    "given other values": _other_values,
    "made equal to it": _made_equal,
    f"scaled by {_LARGE:.0e}".replace("e+0", "e"): _scaled,
    "negated": _negated,
    "NaN": _not_a_number,
}


def _with_others(
    rows: BatchRows, tensors: Mapping[int, torch.Tensor], kept: int, change: Change
) -> dict[int, torch.Tensor] | None:
    changed = {}
    for k, dim in rows.inputs.items():
        if any(word in rows.runner.names[k].lower() for word in _STRUCTURE):
            continue
        tensor = tensors[k]
        other = change(tensor, dim, kept)
        if other is None or same_bits(tensor, other):
            continue
        shape = [-1 if d == dim else 1 for d in range(tensor.dim())]
        keep = (torch.arange(tensor.shape[dim], device=tensor.device) == kept).reshape(shape)
        mixed = torch.where(keep, tensor, other.to(tensor.dtype))
        if not same_bits(mixed, tensor):
            changed[k] = mixed
    return changed or None


# --- other sizes -----------------------------------------------------------------------------------------------------


def _joining(rows: BatchRows, base: RunVariant) -> list[AxisTrial]:
    trials = []
    outputs = tuple(rows.outputs)
    alone = {row: RunVariant(rows.taking([row]), selecting(rows, [0])) for row in _looked_at(rows.count)}
    if rows.count > 1:
        for row, variant in alone.items():
            at = selecting(rows, [row])
            trials.append(
                AxisTrial("batch", f"row {row} alone", replace(base, select=at), variant, outputs, at, resized=True,
                      rows=RowMap(row, 0, (rows.count, 1)), ways="joining")
            )  # fmt: skip
    for size in SIZES:
        repeated = [0] * size
        first = RunVariant(alone[0].changed, selecting(rows, repeated))
        other = RunVariant(rows.taking(repeated), selecting(rows, range(size)))
        trials.append(
            AxisTrial("batch", f"row 0 repeated to a batch of {size}", first, other, outputs, selecting(rows, repeated),
                  resized=True, rows=RowMap(0, size - 1, (1, size)), ways="joining")
        )  # fmt: skip
    return trials

"""A sequence with padding after it or before it, and other values in the padding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from driftscope.invariance.judging import Select
from driftscope.invariance.pieces.streams import handed_on
from driftscope.invariance.rows import BatchRows, same_bits
from driftscope.invariance.running import RunResult
from driftscope.invariance.sequences import Sequence, lengthened
from driftscope.invariance.trials.trial import AxisPlan, AxisTrial, KeptPositions, RunVariant

_LARGE = 1e4
_LARGE_IN_HALF = 1e2

#: Position of an output to its axes that follow the sequence.
Axes = Mapping[int, tuple[int, ...]]


def padding(
    seq: Sequence | str, rows: BatchRows | str, base: RunVariant, token: int | None, handed: Collection[int] = ()
) -> AxisPlan:
    """Pad on the right and on the left; then fill the padding with other values.

    Parameters
    ----------
    seq : Sequence or str
    rows : BatchRows or str
    base : RunVariant
        The inputs as given.
    token : int or None
        What integers are padded with, where the program knows such a value; then with no other.
    handed : collection of int
        Outputs that are given to the next call: what a cache holds is judged by what is computed from it, because
        rotated keys know their places.
    """
    if isinstance(seq, str):
        return AxisPlan("padding", reason=seq)
    zeros = _filled(seq, _zero, token)
    # Programs that work on blocks take only some lengths.
    probes = {added: RunVariant(lengthened(seq, added, False, zeros)) for added in dict.fromkeys((1, seq.length))}
    tried = {added: variant.run(seq.runner) for added, variant in probes.items()}
    able = [added for added, result in tried.items() if result.ran]
    if not able:
        words = f"a sequence of {seq.length + 1}"
        return AxisPlan("padding", refusals=((words, next(iter(tried.values())).refusal),))
    axes = _axes(seq, rows, tried[able[0]], able[0], handed)
    if not axes:
        return AxisPlan("padding", reason="no output can be compared: each has another shape when padding is added")
    maker = _Maker(seq, rows, base, axes)
    return AxisPlan("padding", maker.joining(able, zeros) + maker.content(able[0], zeros, token))


def _axes(
    seq: Sequence, rows: BatchRows | str, probe: RunResult, added: int, handed: Collection[int]
) -> dict[int, tuple[int, ...]]:
    """Return the axes of each output that grew with the sequence; outputs that changed otherwise are left out."""
    found = {}
    base = seq.runner.base.leaves
    for k, ((_, x), (_, y)) in enumerate(zip(base, probe.leaves, strict=False)):
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.dim() != y.dim():
            continue
        x, y = _unfolded(rows, k, x), _unfolded(rows, k, y)
        changed = tuple(d for d in range(x.dim()) if x.shape[d] != y.shape[d])
        if all((x.shape[d], y.shape[d]) == (seq.length, seq.length + added) for d in changed):
            found[k] = changed
    if len(base) != len(probe.leaves):
        return {}
    results = {k: dims for k, dims in found.items() if k not in handed and not handed_on(base[k][0])}
    return results or found


def _unfolded(rows: BatchRows | str, k: int, x: torch.Tensor) -> torch.Tensor:
    """Give rows an axis of their own where an output has several entries for each of them in one axis."""
    if isinstance(rows, str) or k not in rows.folded:
        return x
    dim = rows.outputs[k]
    shape = list(x.shape)
    if rows.folded[k].outermost:
        return x.reshape(*shape[:dim], rows.count, -1, *shape[dim + 1 :])
    return x.reshape(*shape[:dim], -1, rows.count, *shape[dim + 1 :]).transpose(dim, dim + 1)


class _Maker:
    """Makes the trials of one sequence."""

    def __init__(self, seq: Sequence, rows: BatchRows | str, base: RunVariant, axes: Axes):
        self.seq, self.rows, self.axes = seq, rows, axes
        self.based = self.selecting(0)
        self.base = replace(base, select=self.based)

    def joining(self, able: list[int], zeros: Mapping[int, torch.Tensor]) -> list[AxisTrial]:
        """Compare with the sequence without padding."""
        # A program that is told nothing of padding can only be right where what comes later is not looked at.
        sides = (False,) if self.seq.mask is None or self.seq.lengths else (False, True)
        found = []
        for left in sides:
            for added in able:
                other = self.padded(added, left, zeros)
                name = f"padded by {added} on the {'left' if left else 'right'}"
                found.append(self.trial(name, self.base, other, added, left, resized=True, ways="joining"))
        return found

    def content(self, added: int, zeros: Mapping[int, torch.Tensor], token: int | None) -> list[AxisTrial]:
        """Compare, at equal shapes, what stands in the padding."""
        one, found = self.padded(added, False, zeros), []
        for words, change in _FILLS.items():
            fill = _filled(self.seq, change, token)
            other = self.padded(added, False, fill)
            if all(same_bits(a, b) for a, b in zip(one.changed.values(), other.changed.values(), strict=True)):  # type: ignore[union-attr]
                continue
            trial = self.trial(f"{words} in the padding on the right", one, other, added, False, strict=True)
            found.append(replace(trial, ways="content", aside=words == "NaN", optional=words == "NaN"))
        return found

    def padded(self, added: int, left: bool, fill: Mapping[int, torch.Tensor]) -> RunVariant:
        return RunVariant(lengthened(self.seq, added, left, fill), self.selecting(added if left else 0))

    def trial(
        self, name: str, one: RunVariant, other: RunVariant, added: int, left: bool, *, resized: bool = False,
        strict: bool = False, ways: str = "",
    ) -> AxisTrial:  # fmt: skip
        kept = KeptPositions(self.seq.length, added, left, both=strict)
        return AxisTrial("padding", name, one, other, tuple(self.axes), self.based, resized=resized, strict=strict,
                     kept=kept, ways=ways)  # fmt: skip

    def selecting(self, start: int) -> Select:
        """Return what picks the positions that are no padding, of an output in which they begin at ``start``."""

        def select(k: int, x: torch.Tensor) -> torch.Tensor:
            x = _unfolded(self.rows, k, x)
            for d in self.axes.get(k, ()):
                x = x.narrow(d, start, self.seq.length)
            return self._without_padding(k, x)

        return select

    def _without_padding(self, k: int, x: torch.Tensor) -> torch.Tensor:
        kept, dims = self.seq.kept, self.axes.get(k, ())
        batch = self.rows.outputs.get(k) if isinstance(self.rows, BatchRows) else None
        if kept is None or not dims or batch is None or x.shape[batch] != len(kept):
            return x
        return x.movedim((batch, dims[0]), (0, 1))[kept]


# --- what stands in the padding --------------------------------------------------------------------------------------

Fill = Callable[[torch.Tensor], torch.Tensor | None]


def _filled(seq: Sequence, change: Fill, token: int | None) -> dict[int, torch.Tensor]:
    found = {}
    for k in seq.inputs:
        x = seq.runner.tensors[k]
        if k == seq.mask:
            continue
        other = change(x) if x.is_floating_point() or x.is_complex() or token is None else None
        found[k] = _zero(x, token) if other is None else other
    return found


def _zero(x: torch.Tensor, token: int | None = None) -> torch.Tensor:
    whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
    return torch.full_like(x, token or 0) if whole else torch.zeros_like(x)


def _own(x: torch.Tensor) -> torch.Tensor:
    """The tensor's own values at other places: legal wherever they were."""
    return x.flatten().flip(0).reshape(x.shape)


def _large(x: torch.Tensor) -> torch.Tensor | None:
    if not x.is_floating_point():
        return None
    return _own(x) * (_LARGE_IN_HALF if x.dtype == torch.float16 else _LARGE)


def _not_a_number(x: torch.Tensor) -> torch.Tensor | None:
    return torch.full_like(x, torch.nan) if x.is_floating_point() else None


_FILLS: dict[str, Fill] = {"other values": _own, "large values": _large, "NaN": _not_a_number}

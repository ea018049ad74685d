"""Examples that a repair must hold for: the user's batch, and rows drawn from it that take other ways.

An edit that makes both branches of a condition run is only tried where examples take both: three rows that decide
alike agree with anything. The rows drawn are the user's own, turned, shrunk, grown, zero and one, where the function
itself runs on them and is finite; what it refuses, or makes infinite, says nothing about an edit.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from driftscope.transforms import derivatives
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.subject import Subject
from driftscope.transforms.transforming import slices_of
from driftscope.transforms.world.running import cloned, run_once

#: Rows of the user's batch that are tried, spread over it.
MOST_ROWS = 48
#: Seconds for one row.
_SECONDS = 5.0

Row = tuple[Any, ...]
Change = Callable[[torch.Tensor], torch.Tensor]


def _beside_zeros(t: torch.Tensor) -> torch.Tensor:
    """Return a row with every second number zero."""
    return torch.where(torch.arange(t.numel(), device=t.device).reshape(t.shape) % 2 == 0, t, torch.zeros_like(t))


_CHANGES: tuple[Change, ...] = (
    torch.zeros_like,
    torch.neg,
    torch.abs,
    lambda t: -t.abs(),
    lambda t: t * 4,
    lambda t: t * 1e-3,
    lambda t: t * 1e3,  # where exponentials of a branch that is not taken overflow
    torch.sign,  # and where its logarithms and quotients have a pole
    torch.ones_like,
    lambda t: -torch.ones_like(t),
    _beside_zeros,
    # A pole of the branch that is not taken is seen in rows that take the other: large ones of either sign.
    lambda t: _beside_zeros(t.abs() * 4),
    lambda t: _beside_zeros(-t.abs() * 4),
)


def witnessed(subject: Subject) -> Subject:
    """Return a subject with the user's batch, and rows drawn from it, as its examples."""
    own = slices_of(subject.batch, subject.in_dims, _size(subject.batch, subject.in_dims))
    step = max(1, -(-len(own) // MOST_ROWS))
    rows = [*own[: subject.size], *own[subject.size :: step]]
    if not _all_run(subject, rows):
        rows = [row for row in rows if _all_run(subject, [row])]
    if not rows:
        return subject
    finite = _finite(subject, rows[0])
    drawn = [row for row in _drawn(subject, rows) if _finite(subject, row) or (not finite and _all_run(subject, [row]))]
    return _of_rows(subject, [*rows, *drawn])


def _size(examples: tuple[Any, ...], in_dims: tuple[Any, ...]) -> int:
    for argument, entry in zip(examples, in_dims, strict=True):
        leaves, spec = internals.tree_flatten(argument)
        for leaf, dim in zip(leaves, internals.broadcast_to(entry, spec) or [], strict=True):
            if dim is not None:
                return int(leaf.shape[dim])
    return 1


def _all_run(subject: Subject, rows: list[Row]) -> bool:
    calls = [functools.partial(subject.function, *cloned(row)) for row in rows]
    try:
        return run_once(subject.world, calls, seconds=_SECONDS).error is None
    finally:
        subject.world.rewind()


def _finite(subject: Subject, row: Row) -> bool:
    """Whether the function and its derivative are finite at a row."""

    def both() -> Any:
        given = cloned(row)
        floats = [leaf.requires_grad_() for leaf in derivatives.float_leaves(given) if leaf.is_leaf]
        out = derivatives.float_leaves(subject.function(*given))
        tracked = [leaf.sum() for leaf in out if leaf.requires_grad and not leaf.is_complex()]
        slopes = torch.autograd.grad(tracked, floats, allow_unused=True) if tracked and floats else ()
        # Sparse tensors cannot be asked whether they are finite.
        return [leaf.detach().to_dense() for leaf in (*out, *(s for s in slopes if s is not None))]

    try:
        run = run_once(subject.world, [both], seconds=_SECONDS)
    finally:
        subject.world.rewind()
    return run.error is None and all(bool(torch.isfinite(leaf).all()) for leaf in run.value[0])


def _drawn(subject: Subject, rows: list[Row]) -> Iterator[Row]:
    """Yield the first row with its mapped floats changed, and with one of its arguments zero."""
    mapped = [entry is not None for entry in subject.in_dims]
    for change in _CHANGES:
        yield tuple(_changed(a, change) if m else a for a, m in zip(rows[0], mapped, strict=True))
    if sum(mapped) > 1:
        for i in (i for i, m in enumerate(mapped) if m):
            yield tuple(_changed(a, torch.zeros_like) if k == i else a for k, a in enumerate(rows[0]))


def _changed(argument: Any, change: Change) -> Any:
    def one(leaf: Any) -> Any:
        return change(leaf.detach()) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return internals.tree_map(one, argument)


def _of_rows(subject: Subject, rows: list[Row]) -> Subject:
    """Stack rows along the mapped axes again."""
    examples = []
    for position, entry in enumerate(subject.in_dims):
        first = rows[0][position]
        leaves, spec = internals.tree_flatten(first)
        dims = internals.broadcast_to(entry, spec) or []
        columns = zip(*(internals.tree_leaves(row[position]) for row in rows), strict=True)
        joined = [
            leaf if dim is None else torch.stack([part.detach() for part in column], dim)
            for leaf, dim, column in zip(leaves, dims, columns, strict=True)
        ]
        examples.append(first if entry is None else internals.tree_unflatten(joined, spec))
    given = tuple(examples)
    slices = tuple(slices_of(given, subject.in_dims, len(rows)))
    return replace(subject, examples=given, size=len(rows), slices=slices)


class Answers(TorchFunctionMode):
    """Collects, by line of a file, the truth values that the function decided by, masks element by element.

    Parameters
    ----------
    file : str
    """

    def __init__(self, file: str):
        super().__init__()
        self.file = file
        self.seen: dict[int, set[bool]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        truth = args[0] if func is torch.Tensor.__bool__ else None
        if func is torch.Tensor.__setitem__ and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool:
            truth = args[1]
        if truth is not None:
            self.seen.setdefault(self._line(), set()).update(truth.detach().bool().reshape(-1).tolist())
        return func(*args, **(kwargs or {}))

    def _line(self) -> int:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    def one_sided(self, first: int, last: int) -> int | None:
        """Return a line of a range whose condition was the same for every example, None where none was."""
        return next((line for line, seen in self.seen.items() if first <= line <= last and len(seen) == 1), None)


def answers_of(subject: Subject, file: str) -> Answers:
    """Run the plain function on every example and collect what it decided by."""
    answers = Answers(file)

    def watched(row: Row) -> None:
        with answers:
            subject.function(*row)

    try:
        run_once(subject.world, [functools.partial(watched, cloned(row)) for row in subject.slices], seconds=_SECONDS)
    finally:
        subject.world.rewind()
    return answers

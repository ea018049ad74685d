"""A kernel that gives a number where its operands give infinity or NaN, or the other way round, in no need of either.

A pooling that begins with the lowest number gives that of a window of minus infinities.
"""

from __future__ import annotations

import itertools

import torch

from driftscope.errors import CannotLift
from driftscope.explain.freed_values import FreedValues, RoundedStep
from driftscope.explain.leaving_ranges import where_of
from driftscope.explain.native.kernels_alone import NativeRun
from driftscope.lift.domains import AtEnds
from driftscope.lift.steps import plain_name
from driftscope.records.finding import Finding
from driftscope.records.words import counted

# Kernels that are tried.
_TRIED = 8


def odd_kernel(run: NativeRun, index: int, own: torch.Tensor, other: torch.Tensor, side: str) -> Finding | None:
    """Name the kernel of a side without whose infinities, NaN or numbers an output has these where the other has them.

    Parameters
    ----------
    run : NativeRun
        Of the side.
    index : int
        Of the output.
    own, other : Tensor
        That output of this side and of the other, in float64.
    side : str
        ``"A"`` or ``"B"``.
    """
    graph, natives = run
    parted = _classes(own) != _classes(other)
    try:
        watch = FreedValues(natives, AtEnds({}))
        graph.run(observe=watch)
        odd = ((name, one, marks) for name, one in watch.made.items() if bool((marks := _odd(one)).any()))
        for name, one, marks in itertools.islice(odd, _TRIED):
            freed = graph.run(observe=FreedValues(natives, AtEnds({}), {name}, {name: marks}))[index].value
            if freed is not None and bool((_classes(freed.cpu()) == _classes(other))[parted].all()):
                return _finding(one, marks.cpu(), side)
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return None  # an infinity can lead a graph where its lift does not follow
    return None


def _classes(value: torch.Tensor) -> torch.Tensor:
    """0 for numbers, the sign of infinities, 2 for NaN."""
    signs = torch.where(value.isinf(), value.sign(), torch.zeros_like(value))
    return torch.where(value.isnan(), torch.full_like(value, 2.0), signs)


def _odd(one: RoundedStep) -> torch.Tensor:
    """Mark the elements that a kernel gives another class than they have in its format."""
    return _classes(one.exact.to(one.format).double()) != _classes(one.rounded)


def _finding(one: RoundedStep, marks: torch.Tensor, side: str) -> Finding:
    wrong, right = (_said(float(v.cpu()[marks][0])) for v in (one.rounded, one.exact))
    where, fix = where_of(one), "Try the operator alone in another version of the runtime or with another provider."
    why = f"With {right} there, the results have infinities and NaN in the same places."
    if right == "NaN":  # which kernels pass NaN on nobody promises: another version need not do so
        fix = "Keep NaN from this operator, or put it back with a Where on IsNaN of its input."
    elif plain_name(where.operator or "") == "clip" and bool((one.rounded.cpu()[marks].abs() == _largest(one)).all()):
        why = f"{why} A Clip has the largest number of its format where a limit is left out, and clips infinity to it."
        fix = f"Give {where.node} both limits: infinity where there is to be none."
    return Finding(
        "R003",
        f"the kernel of {where.node} ({where.operator}) in {side} gives {wrong} where its operands give {right} "
        f"({counted(int(marks.sum()), 'element')})",
        why,
        fix,
        where,
    )


def _largest(one: RoundedStep) -> float:
    return torch.finfo(one.format).max


def _said(value: float) -> str:
    if value != value:
        return "NaN"
    return f"{'minus ' if value < 0 else ''}infinity" if abs(value) == float("inf") else f"{value:.3g}"

"""Values that leave the range of their format, at a step or inside its kernel, and so make infinities and NaN."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.explain.freed_values import RoundedStep
from driftscope.explain.native.ranges import Overflow, kernel_result, overflows
from driftscope.lift.steps import Kind
from driftscope.records.finding import Where

# Values that are tried alone.
_TRIED = 8
# By how much a sum or an exponential inside a kernel may be larger than its result: a hyperbolic cosine is half of one.
_NEAR = 16.0
# By how much what a kernel is seen to cancel may be larger than each of the numbers that it cancels.
_TERMS = 2.0
# The power of a format's largest number by which an operand is divided to see whether a kernel that is linear in it
# leaves the range only for its size.
_SMALLER = 0.25
# Kernels of torch that are linear in their first operand, by how their names begin.
_LINEAR = ("aten._fft", "aten.linalg_cross")


def overflow_behind(
    made: Mapping[str, RoundedStep], healed: Callable[[Mapping[str, torch.Tensor]], bool]
) -> Overflow | None:
    """The value that leaves the range of its format and so makes the output infinite or NaN.

    ``healed`` says whether the output is neither, with the marked elements of some values exact: of one, or of all.
    """
    marks = {name: overflows(one.exact, one.rounded, one.format) for name, one in made.items()}
    marks = {name: marked for name, marked in marks.items() if bool(marked.any())}
    if not marks or not healed(marks):
        return None
    tried = list(itertools.islice(marks, _TRIED))
    alone = (name for name in tried if healed({name: marks[name]}))
    needed = (name for name in tried if not healed({n: m for n, m in marks.items() if n != name}))
    name = next(itertools.chain(alone, needed), tried[0])
    return leaving(made[name], marks[name].cpu())


def leaving(one: RoundedStep, mask: torch.Tensor) -> Overflow | None:
    """The overflow of a step at some elements, where the format holds none of them."""
    if not bool(overflows(one.exact, one.rounded, one.format).cpu()[mask].all()):
        return None
    peak, name = float(one.exact.cpu()[mask].abs().max()), str(one.format).removeprefix("torch.")
    return Overflow(where_of(one), peak, torch.finfo(one.format).max, name)


def inside_of(one: RoundedStep, mask: torch.Tensor, inner: Mapping[str, RoundedStep] | None = None) -> Overflow | None:
    """How a kernel leaves the range of its format on the way to numbers that the format holds.

    It gives infinity of numbers near the end of it, or what it computes inside, or adds up, is larger.
    """
    limits, name = torch.finfo(one.format), str(one.format).removeprefix("torch.")
    left = mask & ~overflows(one.exact, one.rounded, one.format).cpu()
    exact, where = one.exact.cpu()[left].abs(), where_of(one)
    if not exact.numel() or not bool(torch.isfinite(exact).all()):
        return None
    if bool((one.rounded.cpu()[left].isinf() & (exact >= limits.max / _NEAR)).all()):
        return Overflow(where, float(exact.max()), limits.max, name, inside=True)
    parts = (part for key, part in (inner or {}).items() if key.startswith(f"{one.step.name}."))
    sizes = [float(v.max()) for p in parts if (v := p.exact[overflows(p.exact, p.rounded, p.format)].abs()).numel()]
    largest = max([*sizes, _terms(one, left)])
    if not limits.max < largest < math.inf:
        sums = _adds_up(one, limits.max) or _scales(one, left)
        largest, told = float(exact.max()), "partial sums"
        return Overflow(where, largest, limits.max, name, told=told, inside=True) if sums else None
    return Overflow(where, largest, limits.max, name, inside=True)


def _terms(one: RoundedStep, mask: torch.Tensor) -> float:
    """What some term of each of these elements is at least, by its terms' root mean square; 0 where nothing tells."""
    rounding = one.step.rounding
    if rounding.squares is not None:
        sizes = (rounding.squares() / rounding.length).sqrt()
    elif rounding.parts is not None:
        sizes = rounding.parts() / _TERMS
    else:
        return 0.0
    return float(sizes.expand(one.exact.shape).cpu()[mask].amin())


def _scales(one: RoundedStep, mask: torch.Tensor) -> bool:
    """Whether a kernel that is linear in its first operand, run again with a smaller one, gives numbers there."""
    if not one.step.operator.startswith(_LINEAR) or one.step.inputs[0] is None:
        return False
    first, *others = one.step.inputs
    again = kernel_result(one.step, [first * torch.finfo(one.format).max ** -_SMALLER, *others], one.format)
    return again is not None and bool(torch.isfinite(again).cpu()[mask].all())


def _adds_up(one: RoundedStep, limit: float) -> bool:
    """Whether sums with terms of equal size, as for the floor, have larger ones: finite terms make infinity so."""
    rounding, sums = one.step.rounding, one.step.rounding.kind in (Kind.SUM, Kind.DOT)
    given = sums and rounding.squares is None and rounding.parts is None
    return given and limit < rms(finite(one.exact)) / rounding.length**0.5 < math.inf


def where_of(one: RoundedStep) -> Where:
    return dataclasses.replace(one.step.where, node=one.step.name, operator=one.step.operator)

"""Infinities and NaN that come of a value at the end of a domain: a probability of one, a cosine a little above it.

A value may be rounded there, or a kernel that approximates its function may give it. Which of them it was is read from
the values that the runtime natively had; where they cannot be read, from what the declared formats make of the graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import drift_in_floors, finite
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift
from driftscope.explain.freed_values import FreedValues, RoundedStep, differing, first_broken
from driftscope.explain.kernel_classes import odd_kernel
from driftscope.explain.leaving_ranges import inside_of, leaving, overflow_behind, where_of
from driftscope.explain.locate.rerunning import AllSeen, ValueCapture
from driftscope.explain.native.kernels_alone import KernelLooks, NativeRun
from driftscope.explain.native.nonfinite import origins
from driftscope.explain.native.program_kernels import SourceLines
from driftscope.explain.native.ranges import Edge, Overflow, beyond_float64, first_overflow
from driftscope.lift.domains import AtEnds, at_ends
from driftscope.lift.evidence import Evidence
from driftscope.lift.finer.ends import spread
from driftscope.lift.noise.floor import kernels_of
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.side_lift import SideLift
from driftscope.lift.steps import Kind, Lifted, Step
from driftscope.lift.ties import noisy_values
from driftscope.records.finding import Finding, Where

# Values before a step that is not finite that are tried, the nearest first.
_TRIED = 8
# Unit roundoffs, of one or of the value, that rounding and an approximated function may be off by.
_KEEPS = 16.0


def behind_infinities(
    evidence: Evidence, pair: int, natives: Sequence[torch.Tensor], looks: KernelLooks | None = None
) -> tuple[str, Overflow | Edge] | None:
    """Find the side whose overflow, underflow or rounding leads to the infinities and NaN that the other lacks.

    Parameters
    ----------
    evidence : Evidence
    pair : int
    natives : (A's value, B's value)
        Of one output, in float64.
    looks : KernelLooks or None
        Asked for the values inside a side.

    Returns
    -------
    ("A" or "B", Overflow or Edge), or None
        The side with more of them comes first, and one without any is behind none. A value that becomes infinite or
        zero on the way, or the end of a domain, is believed only if there are none in their places once that value and
        what is computed of it are exact, and all others what they natively are. Where native values cannot be read,
        the declared formats, taken at their word, have to make infinities and NaN where they natively are.
    """
    for k, _ in _spoiled(evidence, natives):
        edge = edge_of((evidence.a, evidence.b)[k], evidence.pairs[pair][k], natives[k], natives[1 - k], looks, "AB"[k])
        edge = edge or _beyond_float64(evidence, pair, k, _worse(natives[k], natives[1 - k]))
        if edge is not None:
            return "AB"[k], edge
    return _behind_numbers(evidence, pair, natives, looks)


def _behind_numbers(
    evidence: Evidence, pair: int, natives: Sequence[torch.Tensor], looks: KernelLooks | None
) -> tuple[str, Overflow] | None:
    """Find the side that has numbers in the place of the other's infinities and NaN, because of an underflow.

    It is believed if there are none once that value, and what is computed of it, is exact.
    """
    for k in (0, 1):
        spared = torch.isfinite(natives[k]) & ~torch.isfinite(natives[1 - k])
        run = looks.natives("AB"[k]) if looks is not None and bool(spared.any()) else None
        if run is None:
            continue
        found = _spared(run, evidence.pairs[pair][k], spared)
        graph = (evidence.a, evidence.b)[k].graph
        if found is not None and graph is not None:
            return "AB"[k], dataclasses.replace(found, where=_placed(found.where, graph))
    return None


def _spared(run: NativeRun, index: int, spared: torch.Tensor) -> Overflow | None:
    """The value that natively becomes zero, without which these elements of an output were no numbers."""
    graph, natives = run
    try:
        ends = at_ends(graph, {})
        watch = FreedValues(natives, ends)
        last = watch.made.get(graph.run(observe=watch)[index].name)
        if last is None:
            return None
        for names, moved in itertools.islice(differing(watch.made, last, spared), _TRIED):
            value = graph.run(observe=FreedValues(natives, ends, set(names)))[index].value
            if value is not None and not bool(torch.isfinite(value.cpu()[spared]).any()):
                one = watch.made[names[-1]]
                told = _told(one, moved & (one.rounded == 0.0).cpu(), last.step) if bool(moved.any()) else None
                return told if isinstance(told, Overflow) else None
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return None  # an infinity can lead a graph where its lift does not follow
    return None


def unread_overflow(
    evidence: Evidence, natives: Sequence[torch.Tensor], looks: KernelLooks | None
) -> tuple[str, Overflow] | None:
    """An overflow of a side with infinities and NaN whose values inside cannot be read: nothing proves it."""
    for k, graph in _spoiled(evidence, natives):
        if looks is None or looks.natives("AB"[k]) is None:
            found = first_overflow(graph)
            if found is not None:
                return "AB"[k], found
    return None


def _spoiled(evidence: Evidence, natives: Sequence[torch.Tensor]) -> list[tuple[int, Lifted]]:
    """The sides that have infinities or NaN and a graph, the one with more of them first."""
    count = [int((~torch.isfinite(value)).sum()) for value in natives]
    graphs = [(k, (evidence.a, evidence.b)[k].graph) for k in sorted((1, 0), key=lambda k: -count[k]) if count[k]]
    return [(k, graph) for k, graph in graphs if graph is not None]


def _beyond_float64(evidence: Evidence, pair: int, k: int, alone: torch.Tensor) -> Overflow | Edge | None:
    """The value that float64 itself has no number for, where a side's float64 run has these infinities and NaN too."""
    lost = evidence.lost(pair)[k]
    if lost is None or lost.elements.shape != alone.shape or not bool((lost.elements & alone).any()):
        return None
    return beyond_float64(lost)


def edge_of(
    lift: SideLift, index: int, native: torch.Tensor, other: torch.Tensor, looks: KernelLooks | None, side: str
) -> Overflow | Edge | None:
    """The value of one side that leads to the infinities and NaN which one of its outputs has and the other side lacks.

    Parameters
    ----------
    lift : SideLift
        Of the side.
    index : int
        Of the output.
    native, other : Tensor
        That output of this side and of the other, in float64.
    looks : KernelLooks or None
    side : str
    """
    graph, other = lift.graph, _without_wrong_ends(native, other, lift.clean[index].value)
    alone = _worse(native, other)
    if graph is None or not bool(alone.any()):
        return None
    run = None if looks is None else looks.natives(side)
    if run is None:
        return _edge(graph, index, (native, other), alone)
    found = _native_edge(run, index, other, alone)
    return None if found is None else dataclasses.replace(found, where=_placed(found.where, graph))


@dataclass(frozen=True, slots=True)
class Ends:
    """What the native values of a side say of the infinities and NaN that an output of it has alone."""

    evidence: Evidence
    looks: KernelLooks

    def __call__(self, side: str, index: int, own: torch.Tensor, other: torch.Tensor) -> tuple[str, Where]:
        """What leads to them in words, "" where that is not known, and its step, or that whose kernel makes them."""
        lift, run = self.evidence.b if side == "B" else self.evidence.a, self.looks.natives(side)
        if lift.graph is None or run is None:
            return "", Where()
        edge = edge_of(lift, index, own, other, self.looks, side)
        if edge is not None:
            return edge.in_side(side), edge.where
        return "", _placed(_kernel_of(run, index, _worse(own, other)), lift.graph)

    def kernel(self, side: str, index: int, own: torch.Tensor, other: torch.Tensor) -> Finding | None:
        """The kernel of a side that gives another class of value than its operands have, where that is all of it."""
        graph, run = (self.evidence.b if side == "B" else self.evidence.a).graph, self.looks.natives(side)
        if graph is None or run is None or "N004" in self.evidence.places:
            return None
        found = odd_kernel(run, index, own, other, side)
        return None if found is None else dataclasses.replace(found, where=_placed(found.where, graph))


def _kernel_of(run: NativeRun, index: int, alone: torch.Tensor) -> Where:
    """The step whose kernel makes infinities or NaN of operands of which float64 makes none."""
    graph, natives = run
    try:
        watch = FreedValues(natives, AtEnds({}))
        found = first_broken(watch.made, graph.run(observe=watch)[index].name, alone)
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return Where()
    if found is None or not bool(torch.isfinite(found[0].exact.cpu()[found[1]]).all()):
        return Where()
    return dataclasses.replace(found[0].step.where, node=found[0].step.name, operator=found[0].step.operator)


def _edge(
    graph: Lifted, index: int, natives: tuple[torch.Tensor, torch.Tensor], alone: torch.Tensor
) -> Overflow | Edge | None:
    """The step whose rounding leads to the infinities and NaN that an output natively has; None where none does."""
    made: dict[str, RoundedStep] = {}
    native, other = natives

    def keep(step: Step, outputs: Sequence[torch.Tensor | None]) -> None:
        for name, exact, rounded, fmt in zip(step.output_names, step.outputs, outputs, step.formats, strict=False):
            if exact is not None and rounded is not None and fmt is not None and exact.is_floating_point():
                made[name] = RoundedStep(step, exact, rounded, fmt)

    try:
        seen = origins(graph, told=keep)
        output = seen.outputs[index]
        event = seen.events.get(str(output.path))
        if event is None or not _same_places(graph, index, output.value, native):
            return None
        first = next((one for one in made.values() if one.step.name == event.where.node), None)
        if first is None:
            return None
        broken = ~torch.isfinite(first.rounded)
        overflow = overflow_behind(
            made, lambda marks: _healed(origins(graph, exact=marks).outputs[index].value, other, alone)
        )
        if overflow is not None:
            return overflow
        crossed = (
            (n, ends)
            for n, m in differing(made, first, broken)
            if bool((ends := m & _at_end(made[n[-1]].rounded)).any())
        )
        names, moved = next(crossed, ([], broken))
        if not names or not _healed(origins(graph, exact=names).outputs[index].value, other, alone):
            return None
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return None  # an infinity can lead a graph where its lift does not follow
    return _told(made[names[-1]], moved, first.step)


def _native_edge(run: NativeRun, index: int, other: torch.Tensor, alone: torch.Tensor) -> Overflow | Edge | None:
    """The value whose native error leads to the infinities and NaN that an output natively has alone."""
    graph, natives = run
    try:
        ends = at_ends(graph, {})
        watch = FreedValues(natives, ends)
        output = graph.run(observe=watch)[index]

        def healed(marks: Mapping[str, torch.Tensor]) -> bool:
            return _healed(graph.run(observe=FreedValues(natives, ends, set(marks), marks))[index].value, other, alone)

        overflow, found = overflow_behind(watch.made, healed), first_broken(watch.made, output.name, alone)
        if overflow is not None or found is None:
            return overflow
        first, mask = found
        origin = inside_of(first, mask, watch.inner) or leaving(first, mask)
        if origin is not None:
            return origin
        for names, moved in itertools.islice(differing(watch.made, first, mask), _TRIED):
            again = FreedValues(natives, ends, set(names))
            if not _healed(graph.run(observe=again)[index].value, other, alone):
                continue
            one = watch.made[names[-1]]
            at_end = moved & _at_end(one.rounded.cpu())
            if not bool(at_end.any()):  # what adds up on the way carries its argument across
                name = first.step.input_names[0]
                one = dataclasses.replace(watch.made[name], exact=again.freed[name])
                at_end = spread(mask, one.exact.shape) & (one.exact != one.rounded).cpu()
            return _told(one, at_end, first.step) if _is_rounding(graph, one, at_end) else None
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return None  # an infinity can lead a graph where its lift does not follow
    return None


def _at_end(value: torch.Tensor) -> torch.Tensor:
    return (value == 0.0) | (value.abs() == 1.0)


def _is_rounding(graph: Lifted, one: RoundedStep, moved: torch.Tensor) -> bool:
    """Whether elements are off by what rounding, or the approximation of a function, may be off by."""
    gap = finite(one.rounded - one.exact).cpu()
    bound = _KEEPS * torch.finfo(one.format).eps / 2 * finite(one.exact).abs().clamp(min=1.0).cpu()
    if bool((gap.abs() <= bound)[moved].all()):
        return True
    name = next(n for n, v in zip(one.step.output_names, one.step.outputs, strict=True) if v is not None)
    values: list[torch.Tensor] = []
    for scale in (0.0, 1.0):
        seen = ValueCapture(frozenset({name}), {}, graph.kind == "torch")
        with contextlib.suppress(AllSeen):
            graph.run(observe=NoiseInjector(scale=scale, kernels=kernels_of(graph.kind), watch=seen))
        values += seen.values.values()
    return len(values) == 2 and drift_in_floors(gap, [finite(values[1] - values[0]).cpu()]).value <= THRESHOLDS.large


def _told(one: RoundedStep, moved: torch.Tensor, first: Step) -> Overflow | Edge:
    exact, rounded = one.exact[moved], one.rounded[moved]
    furthest = int((exact - rounded).abs().argmax())
    where = where_of(one)
    limits, name = torch.finfo(one.format), str(one.format).removeprefix("torch.")
    smallest = float(limits.smallest_normal) * float(limits.eps)
    value = float(exact[furthest])
    if not float(rounded[furthest]) and abs(value) <= smallest / 2:
        return Overflow(where, abs(value), smallest, name, under=True)
    kernel = one.step.rounding.kind is Kind.FUNCTION and float(exact[furthest].to(one.format)) != float(
        rounded[furthest]
    )
    return Edge(where, value, float(rounded[furthest]), name, f"{first.name} ({first.operator})", kernel)


def _placed(where: Where, file: Lifted) -> Where:
    """Give a place in an optimised graph the source line that the file has for it."""
    if where.line is not None or where.node is None:
        return where
    lines = SourceLines()
    file.run(observe=lines)
    known = next((w for w in lines.found.values() if w.node == where.node), Where())
    return dataclasses.replace(
        where, module=known.module, file=known.file, line=known.line, expression=known.expression
    )


def _same_places(graph: Lifted, index: int, value: torch.Tensor | None, native: torch.Tensor) -> bool:
    """Whether infinities and NaN are where they natively are, but for elements that ordinary rounding carries there."""
    if value is None or value.shape != native.shape:
        return False
    left = torch.isfinite(value.cpu()) != torch.isfinite(native)
    samples = noisy_values(graph, index, scale=THRESHOLDS.tie, seed=0)
    while bool(left.any()):
        noisy = next(samples, None)
        if noisy is None:
            return False
        left &= torch.isfinite(noisy.cpu())
    return True


def _worse(native: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Mark the elements that are infinite where the other side has numbers or the other infinity, or NaN alone."""
    return ~other.isnan() & (native.isnan() | (native.isinf() & (native != other)))


def _without_wrong_ends(native: torch.Tensor, other: torch.Tensor, exact: torch.Tensor | None) -> torch.Tensor:
    """The other side's value, but this one's where that is the infinity that any sum that large becomes.

    Partial sums that leave the range keep the sign they left it with: of two opposite infinities one is wrong.
    """
    if exact is None or exact.shape != native.shape:
        return other
    opposite = native.isinf() & other.isinf() & (native != other)
    return torch.where(opposite & (exact.cpu().sign() == native.sign()), native, other)


def _healed(value: torch.Tensor | None, other: torch.Tensor, alone: torch.Tensor) -> bool:
    """Whether the marked elements of a value are numbers where the other side has such, and of its sign elsewhere."""
    if value is None or value.shape != other.shape:
        return False
    own, other = value.cpu()[alone], other[alone]
    return bool(torch.where(torch.isfinite(other), torch.isfinite(own), own.sign() == other.sign()).all())

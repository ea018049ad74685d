"""Whether leaving the range of a format inside one side explains what it gave: finite results, infinities or NaN.

A square that leaves float16 becomes infinity, its inverse root zero, and the output a plain, wrong number: nothing in
the results says so. What the declared formats would give is computed, and it is believed only if the side really gave
that.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift
from driftscope.explain.half.keeping import HalfRuns
from driftscope.explain.native.nonfinite import origins
from driftscope.explain.native.ranges import Overflow, first_overflow
from driftscope.lift.evidence import Evidence
from driftscope.lift.steps import Lifted, Step
from driftscope.lift.ties import noisy_values
from driftscope.records.finding import Where

# Share of a side's error that may be left when its declared formats are taken at their word.
_LEFT = 0.1


def explaining_overflow(
    evidence: Evidence, natives: Sequence[tuple[int, torch.Tensor, torch.Tensor]]
) -> tuple[str, Overflow] | None:
    """Find the side whose overflow makes its results what they are.

    Parameters
    ----------
    evidence : Evidence
    natives : sequence of (pair, A's value, B's value)
        The native results that ordinary rounding does not explain, in float64.

    Returns
    -------
    ("A" or "B", Overflow), or None when neither side overflows, or its overflow is not what it gave.
    """
    for index, (name, side) in enumerate((("A", evidence.a), ("B", evidence.b))):
        if side.graph is None:
            continue
        found = first_overflow(side.graph)
        if found is None:
            continue
        given = [(evidence.pairs[pair][index], values[index]) for pair, *values in natives]
        if _gives(side.graph, given):
            return name, found
    return None


@dataclass(frozen=True, slots=True)
class Edge:
    """A result that its format rounds onto the end of the domain of what is computed of it: the logarithm's zero.

    Parameters
    ----------
    where : Where
        The step whose result is rounded.
    exact, rounded : float
        That result, where rounding moves it furthest, and what the format makes of it.
    format : str
    then : str
        The operator that makes infinity or NaN of it.
    """

    where: Where
    exact: float
    rounded: float
    format: str
    then: str

    def in_side(self, side: str) -> str:
        """Say what happens in ``"A"`` or ``"B"``."""
        place = f" at {self.where.node} ({self.where.operator})" if self.where.node else ""
        beyond = self.exact - self.rounded
        near = f"{self.rounded:g} {'+' if beyond > 0 else '-'} {abs(beyond):.2g}"  # 1 - 3e-08 in few digits
        exact = near if self.rounded else f"{self.exact:.3g}"
        becomes = f"{exact} becomes {self.rounded:g} in {self.format}, where {self.then} is not finite"
        return f"rounding in {side}, {becomes}{place}"


def behind_infinities(
    evidence: Evidence, pair: int, natives: Sequence[torch.Tensor]
) -> tuple[str, Overflow | Edge] | None:
    """Find the side whose overflow, underflow or rounding leads to the infinities and NaN that the other lacks.

    Parameters
    ----------
    evidence : Evidence
    pair : int
    natives : (A's value, B's value)
        Of one output, in float64.

    Returns
    -------
    ("A" or "B", Overflow or Edge), or None
        The side with more of them comes first, and one without any is behind none. A value that becomes zero on the
        way, or the end of a domain, is believed only if the declared formats, taken at their word, make infinities and
        NaN where they natively are, and none there when that value and what is computed of it are left exact.
    """
    spoiled = [int((~torch.isfinite(value)).sum()) for value in natives]
    graphs = [(k, (evidence.a, evidence.b)[k].graph) for k in sorted((1, 0), key=lambda k: -spoiled[k]) if spoiled[k]]
    sides = [(k, graph) for k, graph in graphs if graph is not None]
    for k, graph in sides:
        found = first_overflow(graph)
        if found is not None:
            return "AB"[k], found
    for k, graph in sides:
        alone = ~torch.isfinite(natives[k]) & torch.isfinite(natives[1 - k])
        edge = _edge(graph, evidence.pairs[pair][k], natives[k], alone)
        if edge is not None:
            return "AB"[k], edge
    return None


@dataclass(frozen=True, slots=True)
class _Made:
    """What a step made of rounded operands, before and after its own rounding."""

    step: Step
    exact: torch.Tensor
    rounded: torch.Tensor
    format: torch.dtype


def _edge(graph: Lifted, index: int, native: torch.Tensor, alone: torch.Tensor) -> Overflow | Edge | None:
    """The step whose rounding leads to the infinities and NaN that an output natively has; None where none does."""
    made: dict[str, _Made] = {}

    def keep(step: Step, outputs: Sequence[torch.Tensor | None]) -> None:
        for name, exact, rounded, fmt in zip(step.output_names, step.outputs, outputs, step.formats, strict=False):
            if exact is not None and rounded is not None and fmt is not None and exact.is_floating_point():
                made[name] = _Made(step, exact, rounded, fmt)

    try:
        seen = origins(graph, told=keep)
        output = seen.outputs[index]
        event = seen.events.get(str(output.path))
        if event is None or not _same_places(graph, index, output.value, native):
            return None
        first = next((one for one in made.values() if one.step.name == event.where.node), None)
        if first is None:
            return None
        names, moved = _crossing(made, first)
        if not names or not _finite_at(origins(graph, exact=names).outputs[index].value, alone):
            return None
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return None  # an infinity can lead a graph where its lift does not follow
    return _told(made[names[-1]], moved, first.step)


def _told(one: _Made, moved: torch.Tensor, first: Step) -> Overflow | Edge:
    exact, rounded = one.exact[moved], one.rounded[moved]
    furthest = int((exact - rounded).abs().argmax())
    where = dataclasses.replace(one.step.where, node=one.step.name, operator=one.step.operator)
    limits, name = torch.finfo(one.format), str(one.format).removeprefix("torch.")
    smallest = float(limits.smallest_normal) * float(limits.eps)
    value = float(exact[furthest])
    if not float(rounded[furthest]) and abs(value) <= smallest / 2:
        return Overflow(where, abs(value), smallest, name, under=True)
    return Edge(where, value, float(rounded[furthest]), name, f"{first.name} ({first.operator})")


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


def _finite_at(value: torch.Tensor | None, alone: torch.Tensor) -> bool:
    return value is not None and bool(torch.isfinite(value.cpu()[alone]).all())


def _crossing(made: Mapping[str, _Made], first: _Made) -> tuple[list[str], torch.Tensor]:
    """The nearest value before a step that its own rounding put to zero or one where the step is not finite.

    The last of the names; those before it lie nearer.
    """
    waiting = deque((name, ~torch.isfinite(first.rounded)) for name in first.step.input_names)
    walked: list[str] = []
    while waiting:
        name, mask = waiting.popleft()
        one = made.get(name)
        if one is None or name in walked:
            continue
        walked.append(name)
        mask = _spread(mask, one.exact.shape)
        ends = (one.rounded == 0.0) | (one.rounded.abs() == 1.0)
        moved = mask & ends & (one.exact != one.rounded)
        if bool(moved.any()):
            return walked, moved
        waiting.extend((each, mask) for each in one.step.input_names)
    return [], torch.zeros(())


def _spread(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The elements of an operand that those of a result may be computed from: all of them where shapes do not tell."""
    with contextlib.suppress(RuntimeError):
        return mask.double().sum_to_size(shape) > 0
    with contextlib.suppress(RuntimeError):
        return mask.expand(shape)
    return mask.new_ones(shape)


def _gives(graph: Lifted, given: Sequence[tuple[int, torch.Tensor]]) -> bool:
    """Whether the declared formats, taken at their word, lead to these outputs."""
    try:
        runs = HalfRuns(graph)
        outputs = runs.simulate().outputs
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return False  # an infinity can lead a graph where its lift does not follow
    for k, native in given:
        clean, declared = runs.clean[k].value, outputs[k].value
        if clean is None or declared is None or declared.shape != native.shape:
            return False
        if rms(finite(native - declared.cpu())) > _LEFT * rms(finite(native - clean.cpu())):
            return False
    return bool(given)

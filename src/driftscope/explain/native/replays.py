"""Causes that were reproduced: the lifted graph run again in a cheaper arithmetic, its errors held against the native.

Size proves nothing: many things make errors of one size. Rounded factors, rounded results and narrow running sums are
deterministic, so a replay predicts the native error element by element. It is believed when the two vectors correlate
and what is left between them is ordinary rounding. What that is in the replayed arithmetic is measured by replaying it
with the noise of ordinary rounding: a value close to a tie of the narrow format turns over now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from driftscope.comparison.measuring.prediction import correlation, without_zeros
from driftscope.comparison.measuring.spread import drift_in_floors, finite
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift
from driftscope.explain.half.simulation import Anatomy, DeclaredFormats, anatomy_of
from driftscope.explain.native.cheap_products import Changed, aside, rounding_to
from driftscope.explain.native.choices import chooses
from driftscope.explain.native.ranges import Flushing, flushed, given_as_zero, is_subnormal
from driftscope.explain.native.ways.known_ways import WAYS, Way, either, same_bits
from driftscope.explain.native.ways.read_numbers import numbers_read_in, rounding_of_numbers
from driftscope.lift.evidence import Evidence
from driftscope.lift.noise.floor import kernels_of
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.side_lift import SideLift
from driftscope.lift.steps import Constant, Kind, Lifted, LiftedOutput, Observer, Origin, Step

#: Share of the elements that have to fit where ties turned over, and the correlation from which that is asked.
_MOST, _EXACTLY = 0.8, 0.99


@dataclass(frozen=True, slots=True)
class Reproduced:
    """A way to compute whose errors are those natively seen.

    Parameters
    ----------
    way : Way
    side : str
        ``"A"`` or ``"B"``.
    correlation : float
        Smallest, over the outputs, between the replayed and the native error.
    rest : float
        Largest, over the outputs: what is left of the native drift, in floors of the replay.
    alike : tuple of str
        Names of ways of as many bits that explain it too, this one's among them; empty where it is the only one. TF32
        and float16 both keep 11 bits: only values outside float16's range tell them apart.
    """

    way: Way
    side: str
    correlation: float
    rest: float
    alike: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{either(self.alike or (self.way.name,))} in {self.side}"

    def to_dict(self) -> dict[str, Any]:
        """Return what was measured, for the evidence of a finding."""
        return {
            "way": either(self.alike or (self.way.name,)), "side": self.side, "kind": self.way.kind,
            "correlation": round(self.correlation, 6), "rest": round(self.rest, 4),
        }  # fmt: skip


def reproduce(
    evidence: Evidence,
    drifts: Sequence[tuple[int, torch.Tensor]],
    seed: int,
    suspects: str = "BA",
    ways: Sequence[Way] = WAYS,
    own: bool = False,
) -> Reproduced | None:
    """Find the way to compute that predicts native drifts, element by element.

    Parameters
    ----------
    evidence : Evidence
        A side that cannot be lifted is replayed through the other side's graph: the same function, as far as known.
    drifts : sequence of (pair index, native B - A), float64
        The outputs that ordinary rounding does not explain.
    seed : int
        Names the noise.
    suspects : str
        The sides that may be to blame, the likelier first.
    ways : sequence of Way
    own : bool
        Whether the drifts are from the side's own lift, constants as it stores them, and not from the other side.

    Returns
    -------
    Reproduced or None
        The one that leaves least; None when no replay predicts all of the drifts.
    """
    for name in suspects:
        side, other = (evidence.a, evidence.b) if name == "A" else (evidence.b, evidence.a)
        index = 0 if name == "A" else 1
        graph = side if side.graph is not None else other
        places = [(evidence.pairs[pair][index if graph is side else 1 - index]) for pair, _ in drifts]
        sign = 1.0 if name == "B" else -1.0
        wanted = [(k, sign * finite(drift)) for k, (_, drift) in zip(places, drifts, strict=True)]
        against = [evidence.noise_b(p) if name == "A" else evidence.noise_a(p) for p, _ in drifts]
        moves = [None if own or graph is not side else evidence.moved_a(p) if name == "A" else evidence.moved_b(p)
                 for p, _ in drifts]  # fmt: skip
        tried = _Tried(graph, wanted, against, moves, seed, unseen=graph is not side)
        found = [r for way in tried.possible(ways) if (r := tried.judge(way, name)) is not None]
        if found:
            # Every narrow format loses subnormal numbers too, and much that is larger.
            best = min(found, key=lambda r: (not r.way.flushes, r.rest))
            alike = dict.fromkeys(r.way.name for r in found if same_bits(r.way, best.way))  # in the order tried
            return best if len(alike) == 1 else replace(best, alike=tuple(alike))
    return None


@dataclass(slots=True)
class _Tried:
    """Replays of one graph against the errors that it should have; ``moves`` is what its rounded constants did."""

    side: SideLift
    wanted: Sequence[tuple[int, torch.Tensor]]
    against: Sequence[list[torch.Tensor]]
    moves: Sequence[torch.Tensor | None]
    seed: int
    unseen: bool = False  # it stands for a side that has no graph
    chooses: bool = False  # by floats; known once the ways were asked for

    def possible(self, ways: Sequence[Way]) -> list[Way]:
        """The ways that change anything in this graph."""
        if self.side.graph is None:
            return []
        kinds, low = set[Kind](), list[str]()

        def look(step: Step) -> None:
            kinds.add(Kind.EXACT if step.constant else step.rounding.kind)
            self.chooses = self.chooses or (not step.constant and chooses(step))
            if not low and (flushed(step) is not None or any(map(is_subnormal, step.inputs))):
                low.append(step.name)

        with Changed() as watch:
            self.side.graph.run(observe=look)
        weights = any(_is_weight(c) for c in self.side.graph.constants())
        found = [
            way for way in ways if way.acts_on(kinds, weights, bool(low), reads_other_numbers(self.side.graph, way))
        ]
        # Layers alone may multiply so and attention not.
        both = [w for w in found if w.factors is not None or w.total is not None] if len(watch.seen) > 1 else []
        return [*found, *(replace(way, stacks=False) for way in both)]

    def judge(self, way: Way, name: str) -> Reproduced | None:
        """Replay once; where the error fits, measure the rounding of the replay and what is left."""
        if (graph := self.side.graph) is None:
            return None
        try:
            replayed = run_in(graph, way)
            pairs = zip(self.wanted, self.moves, strict=True)
            predicted = [_moved(_gap(self.side.clean[k], replayed[k]), move) for (k, _), move in pairs]
            both = zip(predicted, self.wanted, strict=True)
            alike = [self._alike(way, p, d, replayed[k].value) for p, (k, d) in both]
            if any(c < THRESHOLDS.replay for c in alike):
                return None
            noisy = [run_in(graph, way, seed=self.seed + n) for n in (1, 2)]
        except CannotLift:
            return None
        rests = []
        for position, (k, drift) in enumerate(self.wanted):
            samples = [s * 2.0**-0.5 for run in noisy if (s := _gap(replayed[k], run[k])) is not None]
            prediction = predicted[position]
            if prediction is None:
                return None
            rests.append(_rest(drift - prediction, [*self.against[position], *samples], alike[position]))
        if max(rests) > THRESHOLDS.rounding:
            return None
        if way.numbers is not None:
            way = replace(way, name=rounding_of_numbers(graph, way.numbers))
        return Reproduced(way, name, min(alike), max(rests))

    def _alike(
        self, way: Way, predicted: torch.Tensor | None, drift: torch.Tensor, value: torch.Tensor | None
    ) -> float:
        plain = predicted if way.flushes else without_zeros(predicted, value)
        found = correlation(plain, drift, self.chooses, self.unseen)
        if found == -1.0 and way.kind == "order" and plain is not None and value is not None:
            # Sums that differ much in size: the largest few carry the error, each has a relative one of its own.
            size = value.cpu()
            return correlation(_relative(plain, size), _relative(drift, size), self.chooses, self.unseen)
        return found


def _relative(error: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.where(value != 0, error / value.abs(), torch.zeros_like(error))


def _rest(left: torch.Tensor, noises: list[torch.Tensor], alike: float) -> float:
    """What a replay leaves of a drift, in floors; without the few elements that carry it where all others fit exactly.

    A value close to a tie of the narrow format, turned over natively and not in the replay, moves a whole row.
    """
    rest = drift_in_floors(left, noises).overall
    if rest <= THRESHOLDS.rounding or alike < _EXACTLY:
        return rest
    sizes = left.abs()
    bound = sizes.reshape(-1).kthvalue(max(1, int(_MOST * sizes.numel()))).values
    return drift_in_floors(torch.where(sizes <= bound, left, torch.zeros_like(left)), noises).overall


def run_in(graph: Lifted, way: Way, seed: int | None = None) -> list[LiftedOutput]:
    """Run a lifted graph once in a way to compute; with the noise of ordinary rounding where a seed is given."""
    constants = given_in(graph, way)
    if way.weights is not None:
        narrow = rounding_to(way.weights)
        constants = {
            c.name: narrow(c.value.to(torch.float64))
            for c in graph.constants()
            if _is_weight(c) and c.value.dim() >= (2 if way.matrices else 1)
        }
    observer: Observer | None = None
    if way.flushes:
        observer = Flushing(None if seed is None else _noise(graph.kind, seed))
    elif way.results is not None:
        anatomy, _ = anatomy_of(graph, getattr(torch, way.results) if way.results else None)
        observer = _Rounding(anatomy, graph.kind, seed)
    elif seed is not None:
        observer = _noise(graph.kind, seed)
    with way.active():
        return graph.run(observe=observer, replace=constants)


def given_in(graph: Lifted, way: Way) -> dict[str, torch.Tensor]:
    """What a way to compute reads of what a graph was given and written with, where it is something else, by name."""
    if way.numbers is not None:
        return numbers_read_in(graph, way.numbers)
    return given_as_zero(graph) if way.flushes else {}


def reads_other_numbers(graph: Lifted, way: Way) -> bool:
    """Whether a graph was written with numbers that a way to compute reads otherwise."""
    return way.numbers is not None and bool(numbers_read_in(graph, way.numbers))


def _is_weight(c: Constant) -> bool:
    return c.origin is not Origin.LITERAL and c.frontier and c.value.dtype is torch.float32


def _noise(kind: str, seed: int) -> Observer:
    """The noise that still passes for ordinary: kernels differ by that much from their model."""
    return aside(NoiseInjector(seed=seed, scale=THRESHOLDS.large, kernels=kernels_of(kind)))


class _Rounding:
    """An observer that rounds every result to its format, after the noise of ordinary float32 rounding if asked."""

    def __init__(self, anatomy: Anatomy, kind: str, seed: int | None):
        self._formats = DeclaredFormats(anatomy)
        self._noise = None if seed is None else _noise(kind, seed)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if self._noise is not None and step.rounding.bits is None:
            # What a kernel computes in float32 before it rounds to the narrow format.
            wide = [torch.float32 if f in _HALVES else f for f in step.formats]
            noisy = self._noise(replace(step, formats=wide))
            step = step if noisy is None else replace(step, outputs=noisy)
        rounded = self._formats(step)
        return step.outputs if rounded is None else rounded


_HALVES = (torch.float16, torch.bfloat16)


def _moved(gap: torch.Tensor | None, by: torch.Tensor | None) -> torch.Tensor | None:
    """A replayed error with what rounding of constants adds to it, which both runs have."""
    return gap if gap is None or by is None or by.shape != gap.shape else gap + finite(by.cpu())


def _gap(clean: LiftedOutput, other: LiftedOutput) -> torch.Tensor | None:
    x, y = clean.value, other.value
    if x is None or y is None or x.shape != y.shape or not x.is_floating_point():
        return None
    return finite((y - x).cpu())

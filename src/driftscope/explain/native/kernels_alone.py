"""Both sides' kernels run alone: each on the values it natively had, and whether their errors make the result's.

Asked only when a result is outside its floor. The same look serves the judge, who wants to know whether a kernel is at
fault at all, and the findings, which name it; it is taken once for each side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.measuring.prediction import correlation
from driftscope.comparison.measuring.spread import drift_in_floors, finite
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.native.pieces import PieceDrift, outside_their_floor
from driftscope.explain.native.program_kernels import native_parts_of, native_pieces_of, placed
from driftscope.lift.evidence import Evidence
from driftscope.lift.steps import Lifted, LiftedOutput, Step
from driftscope.programs.protocol import Bound
from driftscope.records.finding import Finding


@dataclass(frozen=True, slots=True)
class KernelsAlone:
    """What the kernels of one side do on the values they are given.

    Parameters
    ----------
    side : str
    count : int
        Values measured; 0 when the values of this runtime cannot be read.
    outside : list of PieceDrift
        Those outside their floor, the furthest first, with their source lines.
    disturbed : Finding or None
        Reading the values changed the result: nothing is concluded.
    graph : Lifted or None
        The graph that the runtime runs.
    errors : mapping of str to Tensor
        What the outliers are off by, by the names of their values.
    """

    side: str
    count: int = 0
    outside: Sequence[PieceDrift] = ()
    disturbed: Finding | None = None
    graph: Lifted | None = None
    errors: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def within(self) -> bool:
        """Whether every kernel is known to be within its own rounding."""
        return self.count > 0 and not self.outside and self.disturbed is None

    @property
    def known(self) -> bool:
        """Whether every kernel is within its own rounding, or off by an approximation or a cancellation of its own."""
        return self.count > 0 and self.disturbed is None and all(d.approximation is not None for d in self.outside)

    def predicted(self, k: int, shape: torch.Size) -> torch.Tensor | None:
        """What the outliers alone lead to at an output of this side; None where that cannot be said."""
        if self.graph is None or not self.errors:
            return None
        clean, moved = self.graph.run()[k].value, _with_errors(self.graph, self.errors)[k].value
        if clean is None or moved is None or clean.shape != shape or not clean.is_floating_point():
            return None
        return finite((moved - clean).cpu())


#: The graph that a runtime runs, and its native values by their names.
NativeRun = tuple[Lifted, Mapping[str, torch.Tensor]]


@dataclass(slots=True)
class KernelLooks:
    """The kernels of A and B, each side looked at once when first asked.

    Parameters
    ----------
    bounds : pair of Bound
    evidence : Evidence
    seed : int
    """

    bounds: tuple[Bound, Bound]
    evidence: Evidence
    seed: int = 0
    _found: dict[str, KernelsAlone] = field(default_factory=dict)
    _natives: dict[str, NativeRun | None] = field(default_factory=dict)

    def of(self, side: str) -> KernelsAlone:
        """Run the kernels of ``"A"`` or ``"B"`` alone."""
        if side not in self._found:
            self._found[side] = self._look(side)
        return self._found[side]

    def _look(self, side: str) -> KernelsAlone:
        index = 0 if side == "A" else 1
        file = (self.evidence.a if side == "A" else self.evidence.b).graph
        errors: dict[str, torch.Tensor] = {}
        try:
            drifts, disturbed, graph = native_pieces_of(self.bounds[index], self.seed, side, errors)
            outside = placed(outside_their_floor(drifts), file)
        except (RuntimeRefused, CannotLift):
            return KernelsAlone(side)
        return KernelsAlone(side, len(drifts), outside, disturbed, graph, errors)

    def natives(self, side: str) -> NativeRun | None:
        """The graph that ``"A"`` or ``"B"`` runs and what its values natively were; None where they cannot be read."""
        if side not in self._natives:
            try:
                graph, parts, disturbed = native_parts_of(self.bounds["AB".index(side)], side)
                values = {name: value for part in parts for name, value in part.items()}
            except (RuntimeRefused, CannotLift):
                self._natives[side] = None
            else:
                self._natives[side] = None if disturbed() else (graph, values)
        return self._natives[side]

    def explaining(
        self, drifts: Sequence[tuple[int, torch.Tensor]], suspects: str
    ) -> tuple[KernelsAlone, float, float] | None:
        """Find the side, or both, without whose outliers these drifts are rounding, in every slice too.

        Parameters
        ----------
        drifts : sequence of (pair index, native B - A)
        suspects : str
            The sides that may be to blame, the likelier first; the outliers of both together are asked last.

        Returns
        -------
        (KernelsAlone, float, float) or None
            The likelier side of those that explain, the smallest correlation, the largest rest in floors.
        """
        looked = [self.of(side) for side in (*suspects, *(s for s in "AB" if s not in suspects))]
        looked = [one for one in looked if one.outside and one.disturbed is None]
        alone = [[one] for one in looked]
        for group in [*alone, looked] if len(looked) > 1 else alone:
            found = [self._left(group, pair, drift) for pair, drift in drifts]
            alike, left = min(c for c, _ in found), max(r for _, r in found)
            if left <= THRESHOLDS.rounding:
                return group[0], alike, left
        return None

    def _left(self, group: Sequence[KernelsAlone], pair: int, drift: torch.Tensor) -> tuple[float, float]:
        """Correlation of a drift with what the outliers of these sides lead to, and what they leave of it in floors."""
        predicted = torch.zeros_like(drift)
        for one in group:
            sign, index = (1.0, 1) if one.side == "B" else (-1.0, 0)
            own = one.predicted(self.evidence.pairs[pair][index], drift.shape)
            if own is None:
                return -1.0, math.inf
            predicted = predicted + sign * own
        noises = [*self.evidence.noise_a(pair), *self.evidence.noise_b(pair)]
        return correlation(predicted, drift), drift_in_floors(drift - predicted, noises).value


def _with_errors(graph: Lifted, errors: Mapping[str, torch.Tensor]) -> list[LiftedOutput]:
    """Run a lifted graph in float64 but for these values, which are off by what they natively are off by."""

    def add(step: Step) -> Sequence[torch.Tensor | None] | None:
        if not any(name in errors for name in step.output_names):
            return None
        pairs = zip(step.output_names, step.outputs, strict=True)
        return [v if v is None or n not in errors else v + errors[n].to(v.device) for n, v in pairs]

    return graph.run(observe=add)

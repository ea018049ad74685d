"""Which kernel is outside its floor: each operator of a runtime's own graph, fed the values it natively had.

The graph is evaluated in float64 once more, and after each step the value that the runtime really had takes the place
of the exact one. So every step starts from native inputs, and what its native output is off by was made there and
nowhere else. It is measured against the noise of one ordinary rounding of that one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.comparison.spread import drift_in_floors, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.targets import as_double, finite
from driftscope.lift.arithmetics import ARITHMETICS, ORDINARY, Arithmetic
from driftscope.lift.injector import NoiseInjector
from driftscope.lift.steps import Lifted, Step
from driftscope.numerics import error_model
from driftscope.numerics.formats import format_of
from driftscope.records.finding import Where

# Error relative to the values below which a step that should be exact is exact: denormals flushed to zero.
_NOTHING = 1e-30
# Difference of two logarithms of ratios that one noise sample does not tell apart.
_ALIKE = 0.25
# Unit roundoffs up to which an error relative to the output is ordinary, whatever the floor of the one operator.
_ROUNDINGS = 2.0


@dataclass(frozen=True, slots=True)
class PieceDrift:
    """What one operator natively made of its native inputs.

    Parameters
    ----------
    where : Where
        The node, with its operator.
    floors : float
        rms(native - float64 of the same inputs) in floors of this one operator.
    error : float
        The same, relative to the rms of the output.
    arithmetic : str
        The cheaper arithmetic whose floor lies nearest, for a piece outside its floor; empty when none fits.
    unit : float
        Unit roundoff of the output's format.
    value : str
        Name of the output in its graph.
    attributes : mapping
        The node's attributes.
    """

    where: Where
    floors: float
    error: float
    arithmetic: str = ""
    unit: float = 0.0
    value: str = ""
    attributes: Mapping[str, object] = field(default_factory=dict)

    @property
    def outside(self) -> bool:
        """Whether this kernel's error is more than ordinary rounding.

        A sum of float16 numbers is nearly always exact in float32; where few elements round at all the floor says
        little. So an error of about one rounding of the format is none: honest kernels outside their floor (batch
        normalisation, at 4.1 floors) reached 1.1 unit roundoffs on the planted programs.
        """
        return self.floors > THRESHOLDS.large and self.error > _ROUNDINGS * self.unit


@dataclass(slots=True)
class _Forced:
    """An observer that puts native values in the place of exact ones and measures what each step added.

    With ``noise`` it also draws the noise of the steps inside fused operators; what that does to the whole is
    compared with ``clean``, the results of the pass without it.
    """

    natives: Mapping[str, torch.Tensor]
    tape: bool = False
    seed: int = 0
    noise: bool = False
    clean: dict[str, torch.Tensor] = field(default_factory=dict)
    samples: dict[str, torch.Tensor] = field(default_factory=dict)
    found: list[PieceDrift] = field(default_factory=list)
    _inside: bool = False
    _unread: set[str] = field(default_factory=set)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if step.constant:
            return None
        if not any(name in self.natives for name in step.output_names):
            # Inside a fused operator, which follows, or a value that cannot be read: judged with what reads it.
            self._inside = self._inside or not any(step.input_names) or self.tape
            self._unread.update(step.output_names)
            return self._injector(ORDINARY)(step) if self.noise else None
        fused = self._inside or any(name in self._unread for name in step.input_names if name)
        self._inside = False
        noisy = self._injector(ORDINARY)(step) or step.outputs
        forced: list[torch.Tensor | None] = []
        for k, (name, value) in enumerate(zip(step.output_names, step.outputs, strict=True)):
            native = self.natives.get(name)
            if native is None or value is None or native.shape != value.shape:
                forced.append(value)
                continue
            if value.is_floating_point() and native.is_floating_point():
                wide = as_double(native).to(value.device)
                self._judge(step, k, (value, wide, noisy[k]), fused)
                forced.append(wide)
            else:
                forced.append(native.to(value.dtype))
        return forced

    def _judge(
        self, step: Step, k: int, values: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], fused: bool
    ) -> None:
        value, wide, noisy = values
        name = step.output_names[k]
        if self.noise:
            if name in self.clean:
                self.samples[name] = finite((value if noisy is None else noisy) - self.clean[name])
            return
        if fused:
            self.clean[name] = value
        drift = finite(wide - value)
        own = finite(noisy - value) if noisy is not None else torch.zeros_like(value)
        sample = self.samples.get(name, own)
        floors = _floors(drift, sample, value)
        arithmetic = self._arithmetic(step, k, drift, value) if floors > THRESHOLDS.large and not fused else ""
        where = replace(step.where, node=step.name, operator=step.operator)
        size, known = rms(finite(value)), format_of(str(step.formats[k]))
        unit = known.unit_roundoff if known is not None else 0.0
        error = rms(drift) / size if size else 0.0
        self.found.append(PieceDrift(where, floors, error, arithmetic, unit, name, dict(step.attributes)))

    def _arithmetic(self, step: Step, k: int, drift: torch.Tensor, value: torch.Tensor) -> str:
        """Name the cheaper arithmetic whose floor at this step lies nearest to the drift; of two alike, the milder."""
        fitting = []
        for arithmetic in ARITHMETICS:
            noisy = self._injector(arithmetic)(step)
            if noisy is None or noisy[k] is None:
                continue
            ratio = _floors(drift, finite(noisy[k] - value), value)  # type: ignore[operator]
            if 0 < ratio <= THRESHOLDS.large:
                fitting.append((abs(math.log(ratio)), arithmetic.name))
        nearest = min(fitting, default=(0.0, ""))[0]
        return next((name for distance, name in fitting if distance <= nearest + _ALIKE), "")

    def _injector(self, arithmetic: Arithmetic) -> NoiseInjector:
        kernels = error_model.TORCH if self.tape else error_model.ONNXRUNTIME
        return NoiseInjector(arithmetic, self.seed, kernels=kernels)


def _floors(drift: torch.Tensor, noise: torch.Tensor, value: torch.Tensor) -> float:
    if not bool(noise.any()):
        peak = float(drift.abs().max()) if drift.numel() else 0.0
        size = float(finite(value).abs().max()) if value.numel() else 0.0
        return math.inf if peak > _NOTHING + 1e-15 * size else 0.0
    return drift_in_floors(drift, [noise]).value


def native_drifts(graph: Lifted, natives: Mapping[str, torch.Tensor], seed: int = 0) -> list[PieceDrift]:
    """Measure every operator of a graph on its native inputs.

    Parameters
    ----------
    graph : Lifted
        The graph that the runtime runs.
    natives : mapping of value name to Tensor
        What each value natively was; values that are missing are evaluated in float64.
    seed : int

    Returns
    -------
    list of PieceDrift
        In the order of the run. Linear in the graph: one float64 run, and one more for the operators that the lift
        takes apart.

    Raises
    ------
    CannotLift
        Naming the operator that has no float64 evaluation.
    """
    tape = graph.kind == "torch"
    first = _Forced(natives, tape, seed)
    graph.run(observe=first)
    if not first.clean:
        return first.found
    inside = _Forced(natives, tape, seed, noise=True, clean=first.clean)
    graph.run(observe=inside)
    fused = _Forced(natives, tape, seed, samples=inside.samples)
    graph.run(observe=fused)
    return fused.found


def outside_their_floor(drifts: Sequence[PieceDrift]) -> list[PieceDrift]:
    """The pieces whose kernels are outside their floor, the furthest first."""
    return sorted((d for d in drifts if d.outside), key=lambda d: -d.floors)

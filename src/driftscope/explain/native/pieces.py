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

from driftscope.comparison.measuring.prediction import correlation, without_zeros
from driftscope.comparison.measuring.spread import drift_in_floors, finite, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift
from driftscope.explain.locate.targets import as_double
from driftscope.explain.native.cheap_products import aside, rounding_to
from driftscope.explain.native.ranges import flushed
from driftscope.explain.native.replays import given_in, reads_other_numbers
from driftscope.explain.native.ways.known_ways import CHIRP, WAYS, Way, either, same_bits
from driftscope.lift.noise.arithmetics import ORDINARY, Arithmetic
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.steps import Kind, Lifted, Step, plain_name
from driftscope.numerics import error_model
from driftscope.numerics.formats import format_of
from driftscope.records.finding import Where

# Error relative to the values below which a step that should be exact is exact: denormals flushed to zero.
_NOTHING = 1e-30
# Unit roundoffs up to which an error relative to the output is ordinary, whatever the floor of the one operator.
_ROUNDINGS = 2.0
# Values outside their floor whose errors are kept to be explained.
_KEPT = 16
# Correlation that a narrow running sum must reach: where it ties and turns over is not known.
_RUNNING = 0.99
# Unit roundoffs, of one or of the argument, that an approximated function may be off by, and the relative error from
# which its digits count as lost.
_KEEPS = 16.0
_LOST = 1e-4
# Ratio of size to spread from which centring a row costs more than ordinary rounding.
_FAR = 4.0
# accuracy_level of onnxruntime's MatMulNBits -> what it lets the activations be, and the spacing of that, relative
_ALLOWED = {2: ("float16", 2.0**-10), 3: ("bfloat16", 2.0**-7), 4: ("8-bit integers", 1 / 127)}
_RECURRENT = ("lstm", "gru", "rnn")
_GROWING = frozenset({"exp", "exp2", "expm1", "sinh", "cosh"})  # an ulp of whose arguments is many of their results
_FUNCTIONS = ("gelu", "sigmoid", "silu", "swish", "tanh", "elu", "celu", "mish", "erf", "softplus")


@dataclass(frozen=True, slots=True)
class Approximation:
    """A kernel that keeps an absolute error and lets the relative one go, as measured on the values it was given.

    Parameters
    ----------
    absolute : float
        Largest |native - float64|.
    lost_below : float
        Largest |float64| at which the relative error exceeds 1e-4; 0.0 when there is none.
    cancels : float
        For a normalisation: how many times larger its input is than the spread of the rows that it centres.
    allowed : str
        The coarser operands that an attribute of the node allows, where the error is no larger than theirs.
    relative : float
        For a function that grows like an exponential: the largest relative error of results beyond one.
    """

    absolute: float
    lost_below: float = 0.0
    cancels: float = 0.0
    allowed: str = ""
    relative: float = 0.0

    def __str__(self) -> str:
        if self.allowed or self.relative:
            return self.allowed or f"relative error up to {self.relative:.0e} where results exceed one"
        if self.cancels:
            return f"which loses digits by cancellation: its input is {self.cancels:.2g} times as large as its spread"
        lost = f", relative accuracy is lost below {self.lost_below:.0e}" if self.lost_below else ""
        return f"absolute error up to {self.absolute:.0e}{lost}"


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
    cause : dict
        The replay that reproduced the error, for a piece outside its floor; empty when none did.
    unit : float
        Unit roundoff of the output's format.
    value : str
        Name of the output in its graph.
    attributes : mapping
        The node's attributes.
    approximation : Approximation or None
        For a function outside its floor whose error is small beside its argument or one.
    """

    where: Where
    floors: float
    error: float
    cause: Mapping[str, object] = field(default_factory=dict)
    unit: float = 0.0
    value: str = ""
    attributes: Mapping[str, object] = field(default_factory=dict)
    approximation: Approximation | None = None

    @property
    def outside(self) -> bool:
        """Whether this kernel's error is more than ordinary rounding.

        A sum of float16 numbers is nearly always exact in float32; where few elements round at all the floor says
        little. So an error of about one rounding of the format is none: honest kernels outside their floor (batch
        normalisation, at 4.1 floors) reached 1.1 unit roundoffs on the planted programs.
        """
        return self.floors > THRESHOLDS.large and self.error > _ROUNDINGS * self.unit


@dataclass(frozen=True, slots=True)
class Outlier:
    """A value outside its floor: what float64 makes of the native inputs, by how much native is off, one rounding."""

    exact: torch.Tensor
    drift: torch.Tensor
    sample: torch.Tensor
    kind: Kind


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
    errors: dict[str, Outlier] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    _inside: bool = False
    _unread: set[str] = field(default_factory=set)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if step.constant:
            return None
        self.read.update(step.input_names)
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
        where = replace(step.where, node=step.name, operator=step.operator)
        size, known = rms(finite(value)), format_of(str(step.formats[k]))
        unit, error = known.unit_roundoff if known is not None else 0.0, rms(drift) / size if size else 0.0
        near = _approximation(step, drift, value, unit) if floors > THRESHOLDS.large else None
        self.found.append(piece := PieceDrift(where, floors, error, {}, unit, name, dict(step.attributes), near))
        if piece.outside and len(self.errors) < _KEPT:
            self.errors[name] = Outlier(value, drift, sample, step.rounding.kind)

    def _injector(self, arithmetic: Arithmetic) -> NoiseInjector:
        kernels = error_model.TORCH if self.tape else error_model.ONNXRUNTIME
        return NoiseInjector(arithmetic, self.seed, kernels=kernels)


def _approximation(step: Step, drift: torch.Tensor, value: torch.Tensor, unit: float) -> Approximation | None:
    """Say that a function keeps its error small beside one, or beside its argument, where it does."""
    words = step.operator.lower()
    coarse, spacing = _ALLOWED.get(step.attributes.get("accuracy_level", 0), ("", 0.0))  # type: ignore[call-overload]
    if coarse and rms(drift) <= 2 * spacing * rms(finite(value)):
        allowed = f"its accuracy_level {step.attributes['accuracy_level']} allows activations in {coarse}"
        return Approximation(float(drift.abs().max()), allowed=allowed)
    given = next((x for x in step.inputs if x is not None and x.is_floating_point()), value)
    if step.rounding.kind is Kind.NORM:
        cancels = _cancels(given)
        bound = _KEEPS * unit * cancels * finite(value).abs().clamp(min=1.0)
        kept = cancels > _FAR and not bool((drift.abs() > bound).any())
        return Approximation(float(drift.abs().max()), cancels=cancels) if kept else None
    # The functions in a recurrent kernel are asked for their own result, a state of at most one.
    recurrent = any(word in words for word in _RECURRENT)
    given = value if recurrent else given
    if step.rounding.kind is not Kind.FUNCTION and not recurrent and not any(word in words for word in _FUNCTIONS):
        return None
    scale = finite(given).abs().clamp(min=1.0)
    scale = scale if scale.shape == drift.shape else scale.max() if scale.numel() else scale.new_ones(())
    size = finite(value).abs()
    large = (size > 1.0) & (plain_name(step.operator) in _GROWING)
    off = drift.abs() / size.where(large, torch.ones_like(size))
    if bool((off > _KEEPS * unit * scale).any()):
        return None
    if bool(large.any()):
        return Approximation(float(drift.abs().max()), relative=float(off[large].max()))
    lost = size[drift.abs() > _LOST * size]
    return Approximation(float(drift.abs().max()), float(lost.max()) if lost.numel() else 0.0)


def _cancels(given: torch.Tensor) -> float:
    """How many times larger values are than the spread of the rows that a normalisation may centre."""
    x = finite(given)
    rows = [x.reshape(-1, x.shape[-1])] if x.dim() else []
    rows += [x.reshape(x.shape[0], -1)] if x.dim() > 1 else []
    rows += [x.reshape(x.shape[0] * x.shape[1], -1)] if x.dim() > 2 else []
    spreads = [float(r.std(1).median()) for r in rows if r.shape[1] > 1]
    smallest = min((s for s in spreads if s > 0.0), default=0.0)
    return rms(x) / smallest if smallest else 0.0


def _floors(drift: torch.Tensor, noise: torch.Tensor, value: torch.Tensor) -> float:
    if not bool(noise.any()):
        peak, size = (float(x.abs().max()) if x.numel() else 0.0 for x in (drift, finite(value)))
        return math.inf if peak > _NOTHING + 1e-15 * size else 0.0
    return drift_in_floors(drift, [noise]).value


def native_drifts(
    graph: Lifted, natives: Mapping[str, torch.Tensor], seed: int = 0, kept: dict[str, torch.Tensor] | None = None
) -> list[PieceDrift]:
    """Measure every operator of a graph on its native inputs.

    Parameters
    ----------
    graph : Lifted
        The graph that the runtime runs.
    natives : mapping of value name to Tensor
        What each value natively was; values that are missing are evaluated in float64.
    seed : int
    kept : dict or None
        Filled with what the native values outside their floor are off by, by name.

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
    last = _Forced(natives, tape, seed)
    outputs = graph.run(observe=last)
    if last.clean:
        inside = _Forced(natives, tape, seed, noise=True, clean=last.clean)
        graph.run(observe=inside)
        last = _Forced(natives, tape, seed, samples=inside.samples)
        graph.run(observe=last)
    # What nobody reads (the mean that a layer norm also returns) does no harm.
    read = last.read | {output.name for output in outputs}
    found, errors = [d for d in last.found if d.value in read], {n: e for n, e in last.errors.items() if n in read}
    if not errors:
        return found
    if kept is not None:
        kept.update((name, error.drift) for name, error in errors.items())
    transforms = any(d.where.operator and "DFT" in d.where.operator for d in found if d.outside)
    causes, chained = _reproduced(graph, natives, errors, (CHIRP, *WAYS) if transforms else WAYS)
    # Terms that repeat are rounded alike, again and again: no noise says how far that carries a sum, only adding does.
    least = {d.value: min(d.floors, chained.get(d.value, math.inf)) for d in found}
    return [replace(d, cause=causes.get(d.value, {}), floors=least[d.value]) for d in found]


def _reproduced(
    graph: Lifted, natives: Mapping[str, torch.Tensor], errors: Mapping[str, Outlier], ways: Sequence[Way]
) -> tuple[dict[str, Mapping[str, object]], dict[str, float]]:
    """For values outside their floor the replay of the operator alone that predicts its error, where one does.

    Second, for those of them that none predicts, their size in errors of the same sum, really added in some order; of
    those that are right of the numbers as they read them, what is left.
    """
    chained: dict[str, float] = {}
    found: dict[str, list[tuple[Way, tuple[float, float]]]] = {}
    kinds = {error.kind for error in errors.values()}
    if Kind.EXACT in kinds:  # the last step of several that one call of a library stands for
        kinds |= {Kind.SUM, Kind.DOT}
    for way in ways:
        # Weights are what they are here, and whether they were rounded too makes no difference to one operator.
        if way.weights is not None or not way.acts_on(kinds, numbers=reads_other_numbers(graph, way)):
            continue
        watch = _Replayed(natives, way, errors)
        try:
            with way.active():
                graph.run(observe=aside(watch), replace=given_in(graph, way))
        except CannotLift:
            continue
        for name, rest in watch.rests.items():
            found.setdefault(name, []).append((way, rest))
        chained.update((name, min(size, chained.get(name, math.inf))) for name, size in watch.sizes.items())
    read = {n: left for n, rests in found.items() for way, (_, left) in rests if way.numbers is not None}
    explained: dict[str, Mapping[str, object]] = {n: _named(rests) for n, rests in found.items() if n not in read}
    return explained, {name: size for name, size in (chained | read).items() if name not in explained}


def _named(rests: Sequence[tuple[Way, tuple[float, float]]]) -> dict[str, object]:
    """The way that leaves least of an operator's error, with the names of those of as many bits that explain it too."""
    best, (alike, left) = min(rests, key=lambda one: (not one[0].flushes, one[1][1]))
    near = [w.name for w, (_, rest) in rests if same_bits(w, best) and rest <= max(left, THRESHOLDS.rounding)]
    return {"way": either(list(dict.fromkeys(near))), "kind": best.kind, "correlation": alike, "rest": left}


@dataclass(slots=True)
class _Replayed:
    """An observer that hands every operator its native inputs and holds what a way to compute makes of them.

    ``rests`` has, for the outliers that it predicts, the correlation and what is left in floors; ``sizes``, where it
    is an order of additions, how large they are beside the errors that it makes.
    """

    natives: Mapping[str, torch.Tensor]
    way: Way
    outliers: Mapping[str, Outlier]
    rests: dict[str, tuple[float, float]] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if step.constant:
            return None
        forced: list[torch.Tensor | None] = []
        results = flushed(step) if self.way.flushes else None
        for name, value in zip(step.output_names, results or step.outputs, strict=True):
            native = self.natives.get(name)
            if native is None or value is None or native.shape != value.shape:
                forced.append(value)
                continue
            if name in self.outliers and value.is_floating_point():
                self._hold(name, value)
            wide = value.is_floating_point() and native.is_floating_point()
            forced.append(as_double(native).to(value.device) if wide else native.to(value.dtype))
        return forced

    def _hold(self, name: str, value: torch.Tensor) -> None:
        known = self.outliers[name]
        samples = [known.sample]
        if self.way.results:
            rounded = rounding_to(self.way.results)
            # Ordinary rounding before the narrow one turns a value over here and there.
            samples.append(finite(rounded(value + known.sample) - rounded(value)))
            value = rounded(value)
        predicted = finite(value - known.exact)
        if self.way.kind == "order" and bool(predicted.any()):
            self.sizes[name] = drift_in_floors(known.drift, [predicted, known.sample]).value
        alike = correlation(predicted if self.way.flushes else without_zeros(predicted, value), known.drift)
        if alike < (THRESHOLDS.replay if self.way.total is None else _RUNNING):
            return
        left = drift_in_floors(known.drift - predicted, samples).overall
        if self.way.total is not None or left <= THRESHOLDS.rounding:
            self.rests[name] = (alike, left)


def outside_their_floor(drifts: Sequence[PieceDrift]) -> list[PieceDrift]:
    """The pieces whose kernels are outside their floor, the furthest first."""
    return sorted((d for d in drifts if d.outside), key=lambda d: -d.floors)

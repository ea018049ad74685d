"""A graph as a device would compute it that takes the declared formats at their word: one rounding per operator.

Each operator is evaluated in float64 on rounded inputs, and its result is rounded to its declared format; what does
not fit becomes infinity and is passed on. Inside a fused operator nothing is rounded, as kernels keep wider formats
there. Sums are exact, so a device that also accumulates narrowly is worse than this, never better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.lift.onnx.element_types import round_to
from driftscope.lift.steps import Lifted, LiftedOutput, Step
from driftscope.records.finding import Where
from driftscope.records.words import agreeing, counted

HALVES = (torch.float16, torch.bfloat16)
# A number this large was written into a mask; it did not grow.
_SENTINEL = 1e30


@dataclass(frozen=True, slots=True)
class Incident:
    """Where the declared format fails.

    Parameters
    ----------
    kind : str
        ``"overflow"``: a finite value rounds to infinity. ``"lost"``: NaN or infinity out of finite inputs that a
        wider format computes.
    where : Where
        The operator.
    output : str
        Name of the value.
    magnitude : float
        Largest |value| before rounding (overflow), in float64.
    largest : float
        Largest number of the format.
    format : str
        That half format; for what is lost in a wider one, the half format of what leads to it.
    count, total : int
        Elements concerned, of how many.
    led : bool
        Whether the operator's own format is wider.
    """

    kind: str
    where: Where
    output: str
    magnitude: float
    largest: float
    format: str
    count: int = 0
    total: int = 0
    led: bool = False

    def __str__(self) -> str:
        place = f"{self.where.node} ({self.where.operator})"
        if self.kind == "overflow":
            return f"{self.magnitude:.3g} exceeds the largest {self.format}, {self.largest:.5g}, at {place}"
        are = agreeing(self.count, "is", "are")
        return f"{self.count} of {counted(self.total, 'element')} {are} NaN or infinite at {place}"


@dataclass(slots=True)
class Anatomy:
    """What one clean run tells about a graph: who reads what, what lies inside what, what is too large or too small.

    Parameters
    ----------
    narrow : torch.dtype or None
        Format that stands for float32, when a conversion is simulated.
    """

    narrow: torch.dtype | None = None
    tape: bool = False
    order: list[str] = field(default_factory=list)
    operators: dict[str, str] = field(default_factory=dict)
    readers: dict[str, set[str]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    halves: set[str] = field(default_factory=set)
    beyond: set[str] = field(default_factory=set)
    vanishing: set[str] = field(default_factory=set)
    unbounded: set[str] = field(default_factory=set)
    half: torch.dtype | None = None
    written: dict[str, list[str]] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        if step.constant:
            return
        if not self.tape and step.inputs and not any(step.input_names):
            self.inside.add(step.name)
            return
        self.order.append(step.name)
        self.operators[step.name] = step.operator
        for name, value in zip(step.input_names, step.inputs, strict=False):
            if name:
                self.readers.setdefault(name, set()).add(step.name)
                if name not in self.writers and value is not None and self._vanishes(value):
                    self.vanishing.add(name)
        for name, value, fmt in zip(step.output_names, step.outputs, step.formats, strict=True):
            if not name or value is None or fmt is None:
                continue
            self.writers[name] = step.name
            self.written.setdefault(step.name, []).append(name)
            if value.is_floating_point() and not _usable(value):
                self.unbounded.add(name)
            narrow = declared(fmt, self.narrow)
            if narrow in HALVES and value.is_floating_point():
                self.halves.add(step.name)
                self.half = self.half or narrow
                if exceeds(value, narrow) is not None:
                    self.beyond.add(name)

    def _vanishes(self, value: torch.Tensor) -> bool:
        """Whether a constant is a number that the half format cannot tell from zero."""
        if not value.is_floating_point() or value.numel() != 1:
            return False
        tiny = torch.finfo(self.narrow or torch.float16).smallest_normal
        return 0.0 < abs(float(value)) < tiny

    def finish(self) -> Anatomy:
        """Find out what lies inside fused steps of a tape: their names continue the whole's, and nobody reads them."""
        if self.tape:
            whole = set(self.order)
            for name in whole:
                parts = name.split(".")
                nested = any(".".join(parts[:k]) in whole for k in range(1, len(parts)))
                if nested and not any(self.readers.get(value) for value in self.written.get(name, ())):
                    self.inside.add(name)
        return self


def declared(fmt: torch.dtype, narrow: torch.dtype | None) -> torch.dtype:
    """The format a value has: its own, or the narrow one that stands for float32."""
    return narrow if narrow is not None and fmt == torch.float32 else fmt


def exceeds(value: torch.Tensor, fmt: torch.dtype) -> float | None:
    """Largest finite magnitude that rounds to infinity in a format; None when all fit."""
    if value.numel():
        low, high = value.aminmax()  # nearly always that is enough, and one look
        if bool(torch.isfinite(torch.maximum(-low, high).to(fmt))):
            return None
    finite = value[torch.isfinite(value)].abs()
    finite = finite[finite < _SENTINEL]
    if not finite.numel():
        return None
    peak = finite.max()
    return float(peak) if bool(torch.isinf(peak.to(fmt))) else None


@dataclass(slots=True)
class DeclaredFormats:
    """An observer that rounds every result to its declared format.

    Parameters
    ----------
    anatomy : Anatomy
    keep : set of str
        Operators kept in float32. Their results stay in float32 where only such operators read them.
    incidents : list of Incident
        Filled during the run, in order.
    """

    anatomy: Anatomy
    keep: frozenset[str] = frozenset()
    incidents: list[Incident] = field(default_factory=list)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if step.constant or step.name in self.anatomy.inside:
            return None
        rounded: list[torch.Tensor | None] = []
        for name, value, fmt in zip(step.output_names, step.outputs, step.formats, strict=True):
            if value is None or fmt is None or not value.is_floating_point() or not fmt.is_floating_point:
                rounded.append(value)
                continue
            if step.rounding.bits is not None:
                rounded.append(step.rounding.bits)  # the program rounds by hand, and so it is
                continue
            narrow = self._format(step, name, fmt)
            result = round_to(value, narrow)
            self._notice(step, name, (value, result), narrow)
            rounded.append(result)
        return rounded

    def _format(self, step: Step, name: str, fmt: torch.dtype) -> torch.dtype:
        narrow = declared(fmt, self.anatomy.narrow)
        if narrow in HALVES and step.name in self.keep:
            readers = self.anatomy.readers.get(name, set())
            if readers and readers <= self.keep:
                return torch.float32
        return narrow

    def _notice(self, step: Step, name: str, values: tuple[torch.Tensor, torch.Tensor], fmt: torch.dtype) -> None:
        value, result = values
        if bool(torch.isfinite(result).all()):
            return
        where = replace(step.where, node=step.name, operator=step.operator)
        largest, word = torch.finfo(fmt).max, str(fmt).removeprefix("torch.")
        born = torch.isfinite(value) & (value.abs() < _SENTINEL) & torch.isinf(result)
        if bool(born.any()):
            peak = float(value[born].abs().max())
            self.incidents.append(Incident("overflow", where, name, peak, largest, word, int(born.sum()), born.numel()))
            return
        fresh = all(v is None or not v.is_floating_point() or _usable(v) for v in step.inputs)
        # An infinity that the clean run has too is the program's own, and a mask's lowest number becomes one.
        bad = ~torch.isfinite(result) & ~(torch.isfinite(value) & (value.abs() >= _SENTINEL))
        if fresh and name not in self.anatomy.unbounded and bool(bad.any()):
            led = fmt not in HALVES and self.anatomy.half is not None
            word = str(self.anatomy.half).removeprefix("torch.") if led else word
            self.incidents.append(
                Incident("lost", where, name, float("nan"), largest, word, int(bad.sum()), bad.numel(), led)
            )


def _usable(value: torch.Tensor) -> bool:
    return bool(torch.isfinite(value).all())


@dataclass(frozen=True, slots=True)
class Simulation:
    """One run in the declared formats: its outputs and where the formats failed."""

    outputs: list[LiftedOutput]
    incidents: list[Incident]

    @property
    def finite(self) -> bool:
        """Whether nothing failed that a wider format computes."""
        return not self.incidents


def anatomy_of(graph: Lifted, narrow: torch.dtype | None = None) -> tuple[Anatomy, list[LiftedOutput]]:
    """Run a lifted graph once as it is, and learn what it is made of."""
    anatomy = Anatomy(narrow, graph.kind == "torch")
    outputs = graph.run(observe=anatomy)
    return anatomy.finish(), outputs


def simulate(
    graph: Lifted,
    anatomy: Anatomy,
    keep: frozenset[str] = frozenset(),
    replace_constants: Mapping[str, torch.Tensor] | None = None,
) -> Simulation:
    """Run a lifted graph with every result rounded to its declared format.

    Parameters
    ----------
    graph : Lifted
    anatomy : Anatomy
        Of the same graph.
    keep : set of str
        Operators to keep in float32.
    replace_constants : mapping or None
        Constants as the narrow format stores them, when a conversion is simulated.
    """
    observer = DeclaredFormats(anatomy, keep)
    outputs = graph.run(observe=observer, replace=replace_constants)
    return Simulation(outputs, observer.incidents)

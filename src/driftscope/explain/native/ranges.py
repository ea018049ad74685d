"""Where a value leaves the range of its format: the first step whose float64 value the format cannot hold.

It is larger than the largest number and becomes infinity, or nearer to zero than the smallest and becomes zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from driftscope.lift.finer.ends import Lost
from driftscope.lift.steps import Kind, Lifted, Step
from driftscope.numerics.formats import format_of
from driftscope.programs.torch_run import can_flush, flushing
from driftscope.records.finding import Where
from driftscope.records.words import beside_whole

# Formats whose subnormal numbers float64 holds as normal ones.
_STORED = (torch.float32, torch.float16, torch.bfloat16)


def at_step(where: Where) -> str:
    """Name a step at the end of a sentence, where it is known."""
    return f" at {where.node} ({where.operator})" if where.node else ""


@dataclass(frozen=True, slots=True)
class Overflow:
    """A step whose result its native format cannot hold.

    Parameters
    ----------
    where : Where
        The step.
    magnitude : float
        Largest |value| in float64, or the smallest where that is what the format cannot hold.
    limit : float
        Largest finite number of the format, or its smallest positive one.
    format : str
    under : bool
        Whether values become zero.
    told : str
        That value, where float64 itself has no number for it; what leaves the range, where no size is known.
    inside : bool
        Whether the format holds the result, and the kernel leaves the range on the way to it.
    """

    where: Where
    magnitude: float
    limit: float
    format: str
    under: bool = False
    told: str = ""
    inside: bool = False

    def in_side(self, side: str) -> str:
        """Say what happens in ``"A"`` or ``"B"``."""
        if self.inside:
            largest = f"the largest {self.format}, {self.limit:.5g}"
            said = f"{self.magnitude:.3g}, near {largest}, becomes infinite"
            said = f"{self.told} on the way to {self.magnitude:.3g}" if self.told else said
            said = f"{_at_least(self.magnitude)} or more exceeds {largest}" if self.magnitude > self.limit else said
            return f"overflow inside a kernel of {side}, {said}{at_step(self.where)}"
        beyond = "is below the smallest" if self.under else "exceeds the largest"
        number = self.told or f"{self.magnitude:.3g}"
        words = f"{number} {beyond} {self.format}, {self.limit:.5g}{at_step(self.where)}"
        return f"{'underflow' if self.under else 'overflow'} in {side}, {words}"


def _at_least(magnitude: float) -> str:
    """A number of one digit that is no larger."""
    unit = 10.0 ** math.floor(math.log10(magnitude))
    return f"{math.floor(magnitude / unit) * unit:.1g}"


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
    kernel : bool
        Whether it is no rounding: the kernel of the step approximates a function, and is off by more.
    told : str
        That result, where float64 itself has no number for it.
    """

    where: Where
    exact: float
    rounded: float
    format: str
    then: str
    kernel: bool = False
    told: str = ""

    def in_side(self, side: str) -> str:
        """Say what happens in ``"A"`` or ``"B"``."""
        becomes = f"{self.told or beside_whole(self.exact)} becomes {beside_whole(self.rounded)} in {self.format}"
        becomes += f", where {self.then} is not finite"
        return f"{'approximation' if self.kernel else 'rounding'} in {side}, {becomes}{at_step(self.where)}"


def beyond_float64(lost: Lost) -> Overflow | Edge:
    """What a side makes of a value for which even float64 has no number."""
    limits, name = torch.finfo(lost.format or torch.float64), str(lost.format).removeprefix("torch.")
    if lost.kind == "rounding":
        return Edge(lost.where, float(lost.exact), 0.0, "float64", lost.then, told=lost.exact)
    under = lost.kind == "underflow"
    limit = float(limits.smallest_normal) * float(limits.eps) if under else float(limits.max)
    return Overflow(lost.where, 0.0 if under else math.inf, limit, name, under, lost.exact)


# Larger than what adding to float32's largest number, or rounding it to bfloat16, can make of it.
_BEYOND = 3.5e38


@dataclass(slots=True)
class _RangeWatch:
    """An observer that remembers the first step whose finite values its native format cannot hold."""

    beyond: Callable[[Step, torch.Tensor, torch.dtype], Overflow | None]
    found: Overflow | None = None

    def __call__(self, step: Step) -> None:
        if step.constant or self.found is not None:
            return
        for value, fmt in zip(step.outputs, step.formats, strict=True):
            if value is None or fmt is None or not fmt.is_floating_point or not value.dtype.is_floating_point:
                continue
            self.found = self.found or self.beyond(step, value, fmt)


def _where(step: Step) -> Where:
    return Where(
        node=step.name, operator=step.operator, module=step.where.module, file=step.where.file, line=step.where.line,
        expression=step.where.expression,
    )  # fmt: skip


def _too_large(step: Step, value: torch.Tensor, fmt: torch.dtype) -> Overflow | None:
    largest = torch.finfo(fmt).max
    finite = value[torch.isfinite(value)].abs()
    if any(v is not None and v.is_floating_point() and _sentinel(v, largest) for v in step.inputs):
        # A sentinel of a wider format (finfo.min of float32 or float64 in a mask) is not a result that overflowed.
        finite = finite[finite < 1e30] if largest < 1e30 else finite[finite < 1e300]
    finite = finite if largest < 1e30 else finite[finite > _BEYOND]
    if not finite.numel() or float(finite.max()) <= largest:
        return None
    return Overflow(_where(step), float(finite.max()), largest, str(fmt).removeprefix("torch."))


def overflows(exact: torch.Tensor, rounded: torch.Tensor, fmt: torch.dtype) -> torch.Tensor:
    """Mark the elements that are infinite, or NaN, because a format does not hold them."""
    return torch.isfinite(exact) & ~torch.isfinite(rounded) & (exact.abs() > torch.finfo(fmt).max)


def _sentinel(value: torch.Tensor, largest: float) -> bool:
    """Whether what a step is given holds numbers that no result of this format is as large as."""
    return bool((torch.isfinite(value) & (value.abs() >= (1e30 if largest < 1e30 else 1e300))).any())


def first_overflow(graph: Lifted, replace: Mapping[str, torch.Tensor] | None = None) -> Overflow | None:
    """Run a lifted graph once and return the first step whose result its format cannot hold, if any."""
    watch = _RangeWatch(_too_large)
    graph.run(observe=watch, replace=replace)
    return watch.found


# The smallest normal number of float32.
_SMALLEST = float(torch.finfo(torch.float32).smallest_normal)


def is_subnormal(value: torch.Tensor | None) -> bool:
    """Whether a value holds subnormal numbers of float32."""
    return value is not None and value.is_floating_point() and bool(((value.abs() < _SMALLEST) & (value != 0)).any())


def given_as_zero(graph: Lifted) -> dict[str, torch.Tensor]:
    """What a torch program was given, with zero in the place of subnormal numbers, by name."""
    made, found = set[str](), dict[str, torch.Tensor]()

    def look(step: Step) -> None:
        for name, value, held in zip(step.input_names, step.inputs, step.held, strict=False):
            if value is not None and name and not held and name not in made and is_subnormal(value):
                found[name] = torch.where(value.abs() < _SMALLEST, torch.zeros_like(value), value)
        made.update(step.output_names)

    if graph.kind == "torch":
        graph.run(observe=look)
    return found


@dataclass(slots=True)
class Flushing:
    """An observer that takes subnormal results as zero, after the noise of ordinary rounding if asked."""

    noise: Callable[[Step], Sequence[torch.Tensor | None] | None] | None

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        noisy = None if self.noise is None else self.noise(step)
        step = step if noisy is None else replace(step, outputs=noisy)
        low = flushed(step)
        return noisy if low is None else low


def flushed(step: Step) -> list[torch.Tensor | None] | None:
    """Give the results of a step with zero in the place of subnormal numbers; None where it has none."""
    results, any_low = list(step.outputs), False
    for k, (value, dtype) in enumerate(zip(step.outputs, step.formats, strict=True)):
        known = format_of(str(dtype)) if dtype in _STORED and not step.constant else None
        if known is None or value is None or not value.is_floating_point():
            continue
        low = (value.abs() < known.smallest_normal) & (value != 0)
        if bool(low.any()):
            results[k], any_low = torch.where(low, torch.zeros_like(value), value), True
    return (_by_kernel(step) or results) if any_low else None


def _by_kernel(step: Step) -> list[torch.Tensor | None] | None:
    """What torch's kernel gives that takes them as zero on the way too: products, and sums of these.

    None where it is none of torch's in float32, or this processor cannot do so.
    """
    if step.rounding.kind is not Kind.DOT or step.formats[0] != torch.float32 or not can_flush():
        return None
    with flushing():
        found = kernel_result(step, step.inputs, torch.float32)
    return None if found is None else [found.to(torch.float64), *step.outputs[1:]]


def kernel_result(step: Step, inputs: Sequence[torch.Tensor | None], fmt: torch.dtype) -> torch.Tensor | None:
    """What torch's own kernel of a step makes of other inputs, in a format; None where it is not to be called so."""
    kernel = getattr(torch.ops.aten, step.operator.removeprefix("aten."), None)
    if kernel is None or not step.operator.startswith("aten."):
        return None
    try:
        with torch.no_grad():
            found = kernel(*(_in_format(v, fmt) for v in inputs), **step.attributes)
    except (RuntimeError, TypeError):  # it was called otherwise than with its tensors first
        return None
    return found if isinstance(found, torch.Tensor) else None


def _in_format(value: torch.Tensor | None, fmt: torch.dtype) -> torch.Tensor | None:
    """A lifted value as a kernel reads it; integers stay what they are."""
    if value is None or value.dtype not in (torch.float64, torch.complex128):
        return value
    return value.to(fmt.to_complex() if value.is_complex() else fmt.to_real())

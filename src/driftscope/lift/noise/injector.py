"""The observer that adds the noise of one ordinary rounding to every step of a lifted run.

Inputs are exact, so nothing is added to them, and nothing to steps that only move, select or compare values, nor
to constants, which were evaluated natively. NaN, infinities, integers and booleans pass untouched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.comparison.measuring.spread import largest_magnitude
from driftscope.lift.formulas.terms import ProductSquares
from driftscope.lift.noise.arithmetics import ORDINARY, Arithmetic
from driftscope.lift.noise.measured import TORCH, part_share
from driftscope.lift.noise.perturbing import LEVELS, Noise, RowNoise, TermSizes, broadcasts, drawn
from driftscope.lift.noise.rows import rows_of
from driftscope.lift.noise.spreads import Model, samples_at_coordinates, stores_statistics
from driftscope.lift.steps import Kind, Rounding, Step
from driftscope.numerics import error_model
from driftscope.numerics.error_model import Kernels, Spread, Units
from driftscope.numerics.formats import Format, format_of
from driftscope.numerics.seeds import seed_of

#: Numbers that masks are made of lie beyond this, and little else does.
MASKING = 2.0**96


@dataclass(slots=True)
class NoiseInjector:
    """An observer that adds the noise of one ordinary rounding to every step's outputs.

    Parameters
    ----------
    arithmetic : Arithmetic
    seed : int
        Same seed, same noise, step by step, whatever else runs.
    scale : float
        Factor on all noise.
    unit : float or None
        One unit roundoff to use instead of every format's own (for floors of float64 evaluation).
    kernels : Kernels
        Groupings of additions, see :mod:`driftscope.numerics.error_model`.
    units : set of Units
        Filled during the run: which unit roundoffs acted.
    watch : callable or None
        Sees every step before its noise is added.
    """

    arithmetic: Arithmetic = ORDINARY
    seed: int = 0
    scale: float = 1.0
    unit: float | None = None
    kernels: Kernels = TORCH
    units: set[Units] = field(default_factory=set)
    watch: Callable[[Step], object] | None = None
    _generator: torch.Generator = field(default_factory=torch.Generator, repr=False)
    _model: Model = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._model = Model(self.kernels, self.arithmetic, self.unit)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        """Return the step's outputs with noise, or None to leave them as they are."""
        if self.watch is not None:
            self.watch(step)
        if step.constant or step.rounding.kind is Kind.EXACT:
            return None
        if step.rounding.narrows and self.unit is not None:
            return None  # the rounding of a format, not of the arithmetic that this unit is of
        self._generator.manual_seed(seed_of(self.seed, self.arithmetic.name, step.index, step.name))
        noisy: list[torch.Tensor | None] = []
        for position, (value, dtype) in enumerate(zip(self._moved(step), step.formats, strict=True)):
            if position and step.rounding.kind is Kind.NORM:
                step = replace(step, rounding=Rounding(Kind.ROUND))  # mean and scale, or a sum on the way
            if value is None or dtype is None or not value.numel():
                noisy.append(value)
            elif value.is_complex() and dtype.is_complex:
                noisy.append(self._with_complex_noise(step, value, dtype))
            elif value.is_floating_point() and dtype.is_floating_point:
                noisy.append(self._with_noise(step, value, dtype))
            else:
                noisy.append(value)
        return noisy

    def _moved(self, step: Step) -> Sequence[torch.Tensor | None]:
        """What a step gives on operands as far off as its kernel errs, where that is how it rounds."""
        formats = [f for f in step.formats if f is not None and (f.is_floating_point or f.is_complex)]
        if step.rounding.moved is None or not formats:
            return step.outputs
        unit = self._model.units(step.rounding.kind, formats[0]).storage
        share = self.scale * unit * step.rounding.moved.growth()
        found = step.rounding.moved.run(share, self._generator)
        return [*found, *step.outputs[len(found) :]] if found is not None else step.outputs

    def _with_complex_noise(self, step: Step, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Both parts of a complex result are computed together: each gets noise in units of the modulus."""
        units = self._model.units(step.rounding.kind, dtype)
        self.units.add(units)
        spread = self._model.spread(step, units, parts=False)
        modulus = value.abs().mul_(self.scale * spread.value / (math.sqrt(2) * LEVELS))
        noise = torch.complex(self._draw(modulus), self._draw(modulus))
        noisy = value + noise.mul_(modulus)
        real, out = torch.view_as_real(value.resolve_conj()), torch.view_as_real(noisy)
        out.copy_(torch.where(out == 0.0, real, out))  # signs of zeros
        self._add_underflow(real, out, 0.0, None if self.unit is not None else self._model.storage(dtype))
        return torch.where(torch.isfinite(noisy), noisy, value)

    def _with_noise(self, step: Step, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        model = self._model
        units = model.units(step.rounding.kind, dtype)
        self.units.add(units)
        exact = None
        if step.rounding.kind is Kind.ROUND and self.unit is None and step.rounding.parts is None:
            exact = _exactly_stored(value, model.storage(dtype))
            if exact is not None and bool(exact.all()):
                return value
        value = value.to(torch.float64).contiguous()
        noise, spread = self._sized(step, value, dtype, units)
        saturates = model.reaches_exact_values(step, units)
        argument = _argument(step, value)
        if saturates and not (argument is None and noise.is_plain and self._stays_below_one(value, spread)):
            noise.room = math.sqrt(3) * self.scale  # uniform noise of standard deviation s stays within s * sqrt(3)
        noise.argument = argument
        noisy, smallest, largest = noise.added(value)
        self._add_underflow(value, noisy, smallest, None if self.unit is not None else model.storage(dtype))
        if not largest < MASKING:
            noisy.copy_(torch.where(_moves(value, noisy, model.storage(dtype)), noisy, value))
        if spread.shared or spread.level or spread.absolute:
            self._add_row_noise(noisy, value, step, spread)
        if noise.room:
            noisy = _within_one(value, noisy)
        return noisy if exact is None else torch.where(exact, value, noisy)

    def _sized(self, step: Step, value: torch.Tensor, dtype: torch.dtype, units: Units) -> tuple[Noise, Spread]:
        """How much noise each element gets, and how much its row has in common."""
        errors = self._model.measured_errors(step, dtype)
        terms = self._terms(step, value.shape)
        if errors is not None and step.inputs[0].shape == value.shape:  # type: ignore[union-attr]
            share = self.scale * units.storage
            return Noise(share, self._generator, terms, share * part_share(dtype), errors), Spread()
        spread = self._model.spread(step, units, parts=terms is not None)
        return Noise(self.scale * spread.value, self._generator, terms, self.scale * spread.terms), spread

    def _terms(self, step: Step, shape: torch.Size) -> TermSizes | None:
        """What noise is in units of besides the value, when the step knows it and this output is what it speaks of."""
        rounding = step.rounding
        if rounding.parts is not None and self.unit is None:  # what a kernel cancels on the way
            sizes = rounding.parts()
            return TermSizes.of(sizes, shape) if sizes.shape == shape else None
        if samples_at_coordinates(step) and step.inputs and step.inputs[0] is not None:
            return TermSizes.of_squares(step.inputs[0].to(torch.float64).square().mean(), shape)
        if rounding.squares is None or rounding.kind not in (Kind.SUM, Kind.DOT):
            return None
        if isinstance(rounding.squares, ProductSquares) and (found := TermSizes.of_product(rounding.squares, shape)):
            return found
        squares = rounding.squares()
        return TermSizes.of_squares(squares, shape) if broadcasts(squares.shape, shape) else None

    def _stays_below_one(self, value: torch.Tensor, spread: Spread) -> bool:
        """Whether noise comes near no value that a function without an argument returns exactly: most softmaxes.

        Nothing is kept within its distance to one, nor to zero, of which noise is a share.
        """
        reach = spread.value + spread.shared + spread.absolute
        return largest_magnitude(value) <= 1.0 - math.sqrt(3) * max(self.scale, 1.0) * reach

    def _add_row_noise(self, noisy: torch.Tensor, value: torch.Tensor, step: Step, spread: Spread) -> None:
        """Add the errors that all elements of one normalised row have in common."""
        rows = rows_of(step, value)
        mean = 0.0
        if spread.level and self.unit is None and step.formats[0] is not torch.float64:
            # A mean among the subnormal numbers of its format has an absolute error, which the scale enlarges.
            kept = _with_subnormals(step.formats[0]) if stores_statistics(step) and step.formats[0] else None
            smallest = 2.0**-149 if kept is None else kept.smallest_subnormal
            mean = error_model.subnormal_rms(smallest) / math.sqrt(max(rows.epsilon, 1e-30))
        common = RowNoise(*(self.scale * x for x in (spread.absolute, spread.level, mean, spread.shared)))
        sizes = rows.size() if spread.level else None
        if rows.lie_in(value):
            finite = common.add(noisy, rows.view, sizes, self._generator)
        else:
            moved = torch.zeros_like(rows.view, memory_format=torch.contiguous_format)
            finite = common.add(moved, rows.view.contiguous(), sizes, self._generator)
            noisy += rows.restore(moved)
        if not finite:
            noisy.copy_(torch.where(torch.isfinite(value) & torch.isfinite(noisy), noisy, value))

    def _add_underflow(
        self, clean: torch.Tensor, out: torch.Tensor, smallest: float, dtype: torch.dtype | None
    ) -> None:
        """Add the absolute error of numbers that are subnormal in the format they are stored in."""
        stored = None if dtype is None else _with_subnormals(dtype)
        if stored is None or smallest >= stored.smallest_normal:  # nearly always
            return
        magnitude = clean.abs()
        low = (magnitude < stored.smallest_normal) & (magnitude > 0)
        if bool(low.any()):
            # A number below the smallest subnormal becomes zero, and its error is itself.
            rms = magnitude.clamp_(max=error_model.subnormal_rms(stored.smallest_subnormal)).mul_(low)
            out.addcmul_(self._draw(clean), rms, value=self.scale / LEVELS)

    def _draw(self, like: torch.Tensor) -> torch.Tensor:
        """Draw noise of mean 0, uniform over 256 levels -127.5 ... 127.5, in the shape of a float64 tensor."""
        levels = drawn(like.numel(), self._generator).view(like.shape)
        return torch.empty(like.shape, dtype=torch.float64, device=like.device).copy_(levels).add_(0.5)


def _within_one(clean: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
    """Keep what is at most one at most one: rounding passes no number that a format holds.

    A probability of more than one has no entropy, a cosine of more than one no angle.
    """
    if not largest_magnitude(noisy) > 1.0:
        return noisy
    return torch.where((clean.abs() <= 1.0) & (noisy.abs() > 1.0), clean.sign(), noisy)


def _argument(step: Step, value: torch.Tensor) -> torch.Tensor | None:
    """The argument of a function, which gelu and its kind return for large ones."""
    argument = step.inputs[0] if step.rounding.kind is Kind.FUNCTION and step.inputs else None
    if argument is None or argument.shape != value.shape or not argument.is_floating_point():
        return None
    return argument.to(torch.float64).contiguous()


def _with_subnormals(dtype: torch.dtype) -> Format | None:
    """A format whose subnormal numbers a lifted value can be compared with; float64's own are out of reach."""
    return None if dtype in (torch.float64, torch.complex128) else format_of(str(dtype))


def _moves(clean: torch.Tensor, noisy: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Mark what rounding can move: finite numbers, but for huge ones that the format holds exactly.

    A mask's -3.4e38 absorbs whatever is added to it, in float64 too, and a row that is masked as a whole stays even.
    """
    held = torch.isfinite(clean) & torch.isfinite(noisy)
    if dtype in (torch.float64, torch.complex128):
        return held
    return held & ~((clean.abs() >= MASKING) & (clean.to(dtype).to(clean.dtype) == clean))


def _exactly_stored(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Mark the elements that the format holds exactly, and so without rounding; None when there are none to speak of.

    Integers, masks and powers of two stay exact through many a program. Looking at one row first keeps the usual
    case, where nothing is exact, free.
    """
    if dtype is torch.float64:
        return None  # the lifted value itself is rounded: it says nothing about the exact one
    row: tuple[int | slice[None, int, None], ...] = (*(-1,) * (value.dim() - 1), slice(64))
    sample = value[row] if value.dim() else value
    if not torch.equal(sample.to(dtype).to(sample.dtype), sample):
        return None
    return value.to(dtype).to(value.dtype) == value

"""The observer that adds the noise of one ordinary rounding to every step of a lifted run.

Inputs are exact, so nothing is added to them, and nothing to steps that only move, select or compare values, nor
to constants, which were evaluated natively. NaN, infinities, integers and booleans pass untouched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.comparison.measuring.spread import largest_magnitude
from driftscope.lift.noise.arithmetics import ORDINARY, Arithmetic
from driftscope.lift.noise.measured import TORCH, errors_at, part_share
from driftscope.lift.noise.rows import rows_of
from driftscope.lift.noise.spreads import Model, samples_at_coordinates, stores_statistics
from driftscope.lift.steps import Kind, Rounding, Step
from driftscope.numerics import error_model
from driftscope.numerics.error_model import Kernels, Spread, Units
from driftscope.numerics.formats import Format, format_of
from driftscope.numerics.seeds import seed_of

#: Standard deviation of bytes -128 ... 127.
_BYTE_SPREAD = math.sqrt((256**2 - 1) / 12)
#: Numbers that masks are made of lie beyond this, and little else does.
MASKING = 2.0**96
#: Elements perturbed at a time: a few float64 blocks of this size stay in a core's cache.
_BLOCK = 2**15


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
        spread = self._model.spread(step, units, squares=None)
        modulus = value.abs().mul_(self.scale * spread.value / (math.sqrt(2) * _BYTE_SPREAD))
        noise = torch.complex(self._draw(modulus), self._draw(modulus))
        noisy = value + noise.mul_(modulus)
        smallest = None if self.unit is not None else _with_subnormals(self._model.storage(dtype))
        self._add_underflow(torch.view_as_real(value.resolve_conj()), torch.view_as_real(noisy), smallest)
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
        squares, spread = self._sized(step, value, dtype, units)
        value = value.to(torch.float64).contiguous()
        noisy = torch.empty_like(value)
        argument = _argument(step, value) if model.reaches_exact_values(step, units) else None
        if argument is not None and squares is None and self._stays_below_one(value, argument, spread):
            argument = None
        smallest = None if self.unit is not None else _with_subnormals(model.storage(dtype))
        for clean, out, terms, same in _blocks(value, noisy, squares, argument):
            self._perturb(clean, out, terms, spread)
            if same is not None:
                _limit(clean, out, same, self.scale)
            self._add_underflow(clean, out, smallest)
            if not abs(out.sum().item()) < MASKING:
                out.copy_(torch.where(_moves(clean, out, model.storage(dtype)), out, clean))
        if spread.shared or spread.level or spread.absolute:
            self._add_row_noise(noisy, value, step, spread)
        if argument is not None:
            noisy = _within_one(value, noisy)
        return noisy if exact is None else torch.where(exact, value, noisy)

    def _sized(
        self, step: Step, value: torch.Tensor, dtype: torch.dtype, units: Units
    ) -> tuple[torch.Tensor | None, Spread]:
        """What noise is in units of, besides the value itself, and how much of each."""
        errors = self._model.measured_errors(step, dtype)
        squares = _squares(step, value.shape) if step.rounding.parts is None or self.unit is not None else _parts(step)
        if squares is not None and step.rounding.parts is not None and squares.shape != value.shape:
            squares = None  # it speaks of another output of this step
        if errors is None:
            return squares, self._model.spread(step, units, squares)
        size = value.square()
        if squares is not None:
            size = size.add_(squares, alpha=part_share(dtype) ** 2)
        own = errors_at(step.inputs[0].to(torch.float64), errors).square_().mul_(size)  # type: ignore[union-attr]
        return own, Spread(terms=units.storage)

    def _stays_below_one(self, value: torch.Tensor, argument: torch.Tensor, spread: Spread) -> bool:
        """Whether noise comes near no value that a function without an argument returns exactly: most softmaxes.

        Nothing is kept within its distance to one, nor to zero, of which noise is a share.
        """
        reach = spread.value + spread.shared + spread.absolute
        room = 1.0 - math.sqrt(3) * max(self.scale, 1.0) * reach
        return argument.shape != value.shape and largest_magnitude(value) <= room

    def _perturb(self, clean: torch.Tensor, out: torch.Tensor, terms: torch.Tensor | None, spread: Spread) -> None:
        """Write ``clean`` and the noise of its own size and of its terms' size into ``out``."""
        torch.addcmul(clean, clean, self._draw(clean), value=self.scale * spread.value / _BYTE_SPREAD, out=out)
        if terms is not None and spread.terms:
            out.addcmul_(terms.sqrt(), self._draw(clean), value=self.scale * spread.terms / _BYTE_SPREAD)

    def _add_row_noise(self, noisy: torch.Tensor, value: torch.Tensor, step: Step, spread: Spread) -> None:
        """Add the errors that all elements of one normalised row have in common."""
        rows = rows_of(step, value)
        one = rows.view[:, :1]
        offset = self._draw(one).mul_(spread.absolute)
        if spread.level:
            offset = offset.add_(self._draw(one).mul_(rows.size()), alpha=spread.level)
            if self.unit is None and step.formats[0] is not torch.float64:
                # A mean among the subnormal numbers of its format has an absolute error, which the scale enlarges.
                kept = _with_subnormals(step.formats[0]) if stores_statistics(step) and step.formats[0] else None
                smallest = 2.0**-149 if kept is None else kept.smallest_subnormal
                mean = error_model.subnormal_rms(smallest) / math.sqrt(max(rows.epsilon, 1e-30))
                offset = offset.add_(self._draw(one), alpha=mean)
        offset = offset.mul_(self.scale / _BYTE_SPREAD).nan_to_num_(0.0, 0.0, 0.0)
        common = self._draw(one).mul_(self.scale * spread.shared / _BYTE_SPREAD)
        if rows.lie_in(value):
            target = noisy.view(rows.view.shape)
            target.addcmul_(rows.view, common).add_(offset)
        else:
            noisy += rows.restore(torch.addcmul(offset, rows.view, common))
        if not math.isfinite(noisy.sum().item()):
            noisy.copy_(torch.where(torch.isfinite(value) & torch.isfinite(noisy), noisy, value))

    def _add_underflow(self, clean: torch.Tensor, out: torch.Tensor, stored: Format | None) -> None:
        """Add the absolute error of numbers that are subnormal in the format they are stored in; keep signs of zeros.

        atan2(-0.0, -1) lies 2 pi from atan2(0.0, -1), and no rounding turns one zero into the other.
        """
        magnitude = clean.abs()
        smallest = magnitude.amin().item()
        if not smallest > 0.0:
            out.copy_(torch.where(out == 0.0, clean, out))
        if stored is None or smallest >= stored.smallest_normal:  # nearly always, and four times cheaper
            return
        low = (magnitude < stored.smallest_normal) & (magnitude > 0)
        if bool(low.any()):
            # A number below the smallest subnormal becomes zero, and its error is itself.
            rms = magnitude.clamp_(max=error_model.subnormal_rms(stored.smallest_subnormal)).mul_(low)
            out.addcmul_(self._draw(clean), rms, value=self.scale / _BYTE_SPREAD)

    def _draw(self, like: torch.Tensor) -> torch.Tensor:
        """Draw noise of mean 0, uniform over 256 levels -127.5 ... 127.5, in the shape of a float64 tensor."""
        count = like.numel()
        # Eight elements for each draw of the generator: sixteen times faster than torch.rand.
        words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=self._generator)
        levels = words.view(torch.int8)
        levels = levels if count % 8 == 0 else levels[:count]
        drawn = torch.empty(like.shape, dtype=torch.float64, device=like.device)
        return drawn.copy_(levels.view(like.shape)).add_(0.5)  # twice as fast as a cast of few


def _blocks(
    value: torch.Tensor, noisy: torch.Tensor, squares: torch.Tensor | None, argument: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]]:
    """Cut contiguous tensors of one shape, and what broadcasts to it, into blocks of rows that fit a cache."""
    if value.numel() <= _BLOCK:
        yield value, noisy, squares, argument
        return
    columns = value.shape[-1] if value.dim() else 1
    clean, out = value.view(-1, columns), noisy.view(-1, columns)
    terms = None if squares is None else _as_rows(squares, value.shape)
    same = None if argument is None else argument.expand(value.shape).reshape(-1, columns)
    height = max(1, _BLOCK // columns)
    for start in range(0, clean.shape[0], height):
        block = slice(start, start + height)
        yield (
            clean[block],
            out[block],
            terms if terms is None or terms.shape[0] == 1 else terms[block],
            None if same is None else same[block],
        )


def _as_rows(squares: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """View a tensor that broadcasts to ``shape`` as rows and columns, either of them 1 where it repeats."""
    full = squares.reshape((1,) * (len(shape) - squares.dim()) + tuple(squares.shape))
    if not len(shape):
        return full.reshape(1, 1)
    if full.shape[:-1].numel() == 1:
        return full.reshape(1, -1)
    return full.expand(*shape[:-1], full.shape[-1]).reshape(-1, full.shape[-1])


def _limit(clean: torch.Tensor, out: torch.Tensor, argument: torch.Tensor, scale: float) -> None:
    """Keep noise within the distance to a value that a saturating function returns exactly: one, or its argument.

    A result that close rounds to that value, and its error is that distance. (Uniform noise of standard deviation s
    stays within s * sqrt(3).)
    """
    limit = torch.minimum(clean.abs().sub_(1).abs_(), (clean - argument).abs_()).mul_(math.sqrt(3) * scale)
    noise = (out - clean).nan_to_num_(0.0, 0.0, 0.0)  # near float64's largest number noise leaves its range
    torch.minimum(noise, limit, out=noise)
    torch.add(clean, torch.maximum(noise, limit.neg_(), out=noise), out=out)


def _within_one(clean: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
    """Keep what is at most one at most one: rounding passes no number that a format holds.

    A probability of more than one has no entropy, a cosine of more than one no angle.
    """
    if not largest_magnitude(noisy) > 1.0:
        return noisy
    return torch.where((clean.abs() <= 1.0) & (noisy.abs() > 1.0), clean.sign(), noisy)


def _argument(step: Step, value: torch.Tensor) -> torch.Tensor:
    """The argument of a function, which gelu and its kind return for large ones; zero where there is none."""
    argument = step.inputs[0] if step.rounding.kind is Kind.FUNCTION and step.inputs else None
    if argument is not None and argument.shape == value.shape and argument.is_floating_point():
        return argument.to(torch.float64)
    return value.new_zeros(())


def _with_subnormals(dtype: torch.dtype) -> Format | None:
    """A format whose subnormal numbers a lifted value can be compared with; float64's own are out of reach."""
    return None if dtype in (torch.float64, torch.complex128) else format_of(str(dtype))


def _squares(step: Step, shape: torch.Size) -> torch.Tensor | None:
    """Sum of squared terms of each element, when the step knows it and this output is the one it speaks of."""
    if samples_at_coordinates(step) and step.inputs and step.inputs[0] is not None:
        return step.inputs[0].to(torch.float64).square().mean()
    if step.rounding.squares is None or step.rounding.kind not in (Kind.SUM, Kind.DOT):
        return None
    squares = step.rounding.squares()
    sizes = zip(reversed(squares.shape), reversed(shape), strict=False)
    fits = squares.dim() <= len(shape) and all(mine in (1, theirs) for mine, theirs in sizes)
    return squares.to(torch.float64) if fits else None


def _parts(step: Step) -> torch.Tensor | None:
    """Square of what a kernel cancels on the way to each element, where its step says it."""
    return None if step.rounding.parts is None else step.rounding.parts().to(torch.float64).square()


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
    sample = value
    while sample.dim() > 1:
        sample = sample[-1]
    sample = sample.reshape(-1)[:64]
    if not torch.equal(sample.to(dtype).to(sample.dtype), sample):
        return None
    return value.to(dtype).to(value.dtype) == value

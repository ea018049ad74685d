"""The observer that adds the noise of one ordinary rounding to every step of a lifted run.

Inputs are exact, so nothing is added to them, and nothing to steps that only move, select or compare values, nor
to constants, which were evaluated natively. NaN, infinities, integers and booleans pass untouched.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.lift.arithmetics import ORDINARY, Arithmetic, unit_of
from driftscope.lift.rows import rows_of
from driftscope.lift.steps import Kind, Step
from driftscope.numerics import error_model
from driftscope.numerics.error_model import Kernels, Spread, Units

#: Standard deviation of bytes -128 ... 127.
_BYTE_SPREAD = math.sqrt((256**2 - 1) / 12)


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
    """

    arithmetic: Arithmetic = ORDINARY
    seed: int = 0
    scale: float = 1.0
    unit: float | None = None
    kernels: Kernels = error_model.TORCH
    units: set[Units] = field(default_factory=set)
    _generator: torch.Generator = field(default_factory=torch.Generator, repr=False)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        """Return the step's outputs with noise, or None to leave them as they are."""
        if step.constant or step.rounding.kind is Kind.EXACT:
            return None
        self._generator.manual_seed(_seed_of(self.seed, self.arithmetic.name, step.index, step.name))
        noisy: list[torch.Tensor | None] = []
        for value, dtype in zip(step.outputs, step.formats, strict=True):
            if value is None or dtype is None or not value.numel():
                noisy.append(value)
            elif value.is_complex() and dtype.is_complex:
                noisy.append(self._with_complex_noise(step, value, dtype))
            elif value.is_floating_point() and dtype.is_floating_point:
                noisy.append(self._with_noise(step, value, dtype))
            else:
                noisy.append(value)
        return noisy

    def _with_complex_noise(self, step: Step, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Both parts of a complex result are computed together: each gets noise in units of the modulus."""
        units = self._units_for(dtype)
        self.units.add(units)
        spread = self._spread(step, units, squares=None)
        modulus = value.abs().mul_(self.scale * spread.value / math.sqrt(2))
        noise = torch.complex(self._draw(value.shape, modulus.dtype), self._draw(value.shape, modulus.dtype))
        noisy = value + noise.mul_(modulus)
        return torch.where(torch.isfinite(noisy), noisy, value)

    def _with_noise(self, step: Step, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        units = self._units_for(dtype)
        self.units.add(units)
        exact = None
        if step.rounding.kind is Kind.ROUND and self.unit is None:
            exact = _exactly_stored(value, self._storage(dtype))
            if exact is not None and bool(exact.all()):
                return value
        squares = _squares(step, value.shape)
        spread = self._spread(step, units, squares)
        # float32 is plenty for noise, and three times cheaper, but float64 programs may exceed its range.
        work = torch.float64 if dtype is torch.float64 else torch.float32
        delta = self._draw(value.shape, work).mul_(value.to(work)).mul_(self.scale * spread.value)
        if squares is not None:
            roots = squares.sqrt().mul_(self.scale * spread.terms).to(work)
            delta.addcmul_(self._draw(value.shape, work), roots.expand(value.shape))
        if spread.shared or spread.level or spread.absolute:
            self._add_row_noise(delta, value, step, spread)
        if exact is not None:
            delta.masked_fill_(exact, 0.0)
        if not math.isfinite(delta.sum().item()):
            delta.masked_fill_(~torch.isfinite(value), 0.0).nan_to_num_(0.0, 0.0, 0.0)
        return value + delta

    def _add_row_noise(self, delta: torch.Tensor, value: torch.Tensor, step: Step, spread: Spread) -> None:
        """Add the errors that all elements of one normalised row have in common."""
        rows = rows_of(step, value)
        common = self._draw((rows.count, 1), torch.float64).mul_(self.scale * spread.shared)
        offset = self._draw((rows.count, 1), torch.float64)
        size = rows.size() * spread.level + spread.absolute if spread.level else spread.absolute
        delta += rows.restore(rows.view * common + offset * (size * self.scale)).to(delta.dtype)

    def _draw(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Draw noise of mean 0 and standard deviation 1, uniform over 256 levels."""
        count = math.prod(shape)
        # Eight elements for each draw of the generator: sixteen times faster than torch.rand.
        words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=self._generator)
        noise = torch.add(words.view(torch.int8)[:count], 0.5)
        return noise.mul_(1 / _BYTE_SPREAD).to(dtype).view(tuple(shape))

    def _spread(self, step: Step, units: Units, squares: torch.Tensor | None) -> Spread:
        spread = _SPREADS[step.rounding.kind](self, step, units)
        if spread.terms and squares is None:
            # Terms of equal size: sum t^2 = S^2 / n.
            alike = spread.terms / math.sqrt(max(step.rounding.length, 1))
            spread = Spread(value=math.hypot(spread.value, alike))
        return spread

    def _storage(self, dtype: torch.dtype) -> torch.dtype:
        """Format in which a result of this declared format is stored."""
        override = self.arithmetic.storage
        if override is not None and unit_of(override) > unit_of(_name(dtype)):
            return getattr(torch, override)  # type: ignore[no-any-return]
        return dtype

    def _units_for(self, dtype: torch.dtype) -> Units:
        if self.unit is not None:
            return Units(self.unit, self.unit)
        declared = unit_of(_name(dtype))
        cheap = self.arithmetic
        accumulator = min(unit_of("float32"), declared)
        product = unit_of(cheap.product) if cheap.product else 0.0
        return Units(
            storage=unit_of(_name(self._storage(dtype))),
            accumulator=max(accumulator, unit_of(cheap.accumulator)) if cheap.accumulator else accumulator,
            # Factors that are already stored this coarsely lose nothing.
            product=product if product > declared else 0.0,
        )

    def _folds(self, usual: Callable[[int], tuple[float, ...]], length: int) -> tuple[float, ...]:
        return error_model.sequential(length) if self.arithmetic.accumulator else usual(length)


_SPREADS: Mapping[Kind, Callable[[NoiseInjector, Step, Units], Spread]] = {
    Kind.ROUND: lambda injector, step, units: error_model.rounding(units),
    Kind.FUNCTION: lambda injector, step, units: error_model.function(units),
    Kind.SUM: lambda injector, step, units: error_model.reduction(
        units, injector._folds(injector.kernels.sum, step.rounding.length)
    ),
    Kind.DOT: lambda injector, step, units: error_model.dot(
        units, injector._folds(injector.kernels.dot, step.rounding.length)
    ),
    Kind.NORM: lambda injector, step, units: error_model.normalisation(units),
    Kind.SOFTMAX: lambda injector, step, units: (
        error_model.log_softmax if "log" in step.operator.lower() else error_model.softmax
    )(units, injector._folds(injector.kernels.softmax, step.rounding.length)),
}


def _squares(step: Step, shape: torch.Size) -> torch.Tensor | None:
    """Sum of squared terms of each element, when the step knows it and this output is the one it speaks of."""
    if step.rounding.squares is None or step.rounding.kind not in (Kind.SUM, Kind.DOT):
        return None
    squares = step.rounding.squares()
    sizes = zip(reversed(squares.shape), reversed(shape), strict=False)
    fits = squares.dim() <= len(shape) and all(mine in (1, theirs) for mine, theirs in sizes)
    return squares.to(torch.float64) if fits else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _seed_of(*names: object) -> int:
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _exactly_stored(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """Mark the elements that the format holds exactly, and so without rounding; None when there are none to speak of.

    Integers, masks and powers of two stay exact through many a program. Looking at one row first keeps the usual
    case, where nothing is exact, free.
    """
    sample = value
    while sample.dim() > 1:
        sample = sample[-1]
    sample = sample.reshape(-1)[:64]
    if not torch.equal(sample.to(dtype).to(sample.dtype), sample):
        return None
    return value.to(dtype).to(value.dtype) == value

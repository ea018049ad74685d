"""The observer that adds the noise of one ordinary rounding to every step of a lifted run.

Inputs are exact, so nothing is added to them, and nothing to steps that only move, select or compare values, nor
to constants, which were evaluated natively. NaN, infinities, integers and booleans pass untouched.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from driftscope.lift.arithmetics import ORDINARY, Arithmetic
from driftscope.lift.rows import rows_of
from driftscope.lift.spreads import Model
from driftscope.lift.steps import Kind, Step
from driftscope.numerics import error_model
from driftscope.numerics.error_model import Kernels, Spread, Units
from driftscope.numerics.formats import format_of

#: Standard deviation of bytes -128 ... 127.
_BYTE_SPREAD = math.sqrt((256**2 - 1) / 12)
#: Below this, a format's subnormal numbers are out of the range in which programs compute (float16's are not).
_DEEP = 1e-30


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
        model = Model(self.kernels, self.arithmetic, self.unit)
        noisy: list[torch.Tensor | None] = []
        for value, dtype in zip(step.outputs, step.formats, strict=True):
            if value is None or dtype is None or not value.numel():
                noisy.append(value)
            elif value.is_complex() and dtype.is_complex:
                noisy.append(self._with_complex_noise(model, step, value, dtype))
            elif value.is_floating_point() and dtype.is_floating_point:
                noisy.append(self._with_noise(model, step, value, dtype))
            else:
                noisy.append(value)
        return noisy

    def _with_complex_noise(self, model: Model, step: Step, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Both parts of a complex result are computed together: each gets noise in units of the modulus."""
        units = model.units(step.rounding.kind, dtype)
        self.units.add(units)
        spread = model.spread(step, units, squares=None)
        modulus = value.abs().mul_(self.scale * spread.value / math.sqrt(2))
        noise = torch.complex(self._draw(value, modulus.dtype), self._draw(value, modulus.dtype))
        noisy = value + noise.mul_(modulus)
        return torch.where(torch.isfinite(noisy), noisy, value)

    def _with_noise(self, model: Model, step: Step, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        units = model.units(step.rounding.kind, dtype)
        self.units.add(units)
        exact = None
        if step.rounding.kind is Kind.ROUND and self.unit is None:
            exact = _exactly_stored(value, model.storage(dtype))
            if exact is not None and bool(exact.all()):
                return value
        squares = _squares(step, value.shape)
        spread = model.spread(step, units, squares)
        # float32 is plenty for noise, and three times cheaper, but float64 programs may exceed its range.
        work = torch.float64 if dtype is torch.float64 else torch.float32
        delta = self._draw(value, work).mul_(self.scale * spread.value).mul_(value.to(work))
        if squares is not None:
            roots = squares.sqrt().mul_(self.scale * spread.terms).to(work)
            delta.addcmul_(self._draw(value, work), roots.expand(value.shape))
        if spread.shared or spread.level or spread.absolute:
            self._add_row_noise(delta, value, step, spread)
        if model.reaches_exact_values(step, units):
            limit = _distance_to_exact(step, value).mul_(math.sqrt(3) * self.scale).to(work)
            torch.minimum(torch.maximum(delta, -limit, out=delta), limit, out=delta)
        if self.unit is None:
            self._add_underflow(delta, value, model.storage(dtype))
        if exact is not None:
            delta.masked_fill_(exact, 0.0)
        if not math.isfinite(delta.sum().item()):
            delta.masked_fill_(~torch.isfinite(value), 0.0).nan_to_num_(0.0, 0.0, 0.0)
        return value + delta

    def _add_row_noise(self, delta: torch.Tensor, value: torch.Tensor, step: Step, spread: Spread) -> None:
        """Add the errors that all elements of one normalised row have in common."""
        rows = rows_of(step, value)
        one = rows.view[:, :1]
        noise = self._draw(one, value.dtype).mul_(spread.absolute)
        if spread.level:
            noise = noise.add_(self._draw(one, value.dtype).mul_(rows.size()), alpha=spread.level)
        if spread.shared:
            noise = noise + rows.view * self._draw(one, value.dtype).mul_(spread.shared)
        delta += rows.restore(noise.expand(rows.view.shape) * self.scale).to(delta.dtype)

    def _add_underflow(self, delta: torch.Tensor, value: torch.Tensor, storage: torch.dtype) -> None:
        """Add the absolute error of numbers that are subnormal in the format they are stored in."""
        stored = format_of(str(storage))
        if stored is None or stored.smallest_normal < _DEEP:
            return
        magnitude = value.abs()
        low = (magnitude < stored.smallest_normal) & (magnitude > 0)
        if bool(low.any()):
            # A number below the smallest subnormal becomes zero, and its error is itself.
            rms = magnitude.clamp_(max=error_model.subnormal_rms(stored.smallest_subnormal)).mul_(low)
            delta.addcmul_(self._draw(value, delta.dtype), rms.to(delta.dtype), value=self.scale)

    def _draw(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Draw noise of mean 0 and standard deviation 1, uniform over 256 levels, in the shape of a tensor."""
        count = like.numel()
        # Eight elements for each draw of the generator: sixteen times faster than torch.rand.
        words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=self._generator)
        noise = torch.add(words.view(torch.int8)[:count], 0.5).mul_(1 / _BYTE_SPREAD)
        return noise.to(device=like.device, dtype=dtype).view(like.shape)


def _squares(step: Step, shape: torch.Size) -> torch.Tensor | None:
    """Sum of squared terms of each element, when the step knows it and this output is the one it speaks of."""
    if step.rounding.squares is None or step.rounding.kind not in (Kind.SUM, Kind.DOT):
        return None
    squares = step.rounding.squares()
    sizes = zip(reversed(squares.shape), reversed(shape), strict=False)
    fits = squares.dim() <= len(shape) and all(mine in (1, theirs) for mine, theirs in sizes)
    return squares.to(torch.float64) if fits else None


def _distance_to_exact(step: Step, value: torch.Tensor) -> torch.Tensor:
    """Distance to the values a saturating function returns exactly: one, and for gelu and its kind the argument.

    A result that close rounds to that value, and its error is that distance. (Uniform noise of standard deviation s
    stays within s * sqrt(3).)
    """
    distance = value.abs().sub_(1).abs_()
    argument = step.inputs[0] if step.rounding.kind is Kind.FUNCTION and step.inputs else None
    if argument is not None and argument.shape == value.shape and argument.is_floating_point():
        distance = torch.minimum(distance, (value - argument).abs_())
    return distance


def _seed_of(*names: object) -> int:
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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

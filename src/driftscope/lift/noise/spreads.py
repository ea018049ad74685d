"""Which formula of :mod:`driftscope.numerics.error_model` describes a step, and with which unit roundoffs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch

from driftscope.lift.noise.arithmetics import Arithmetic, unit_of
from driftscope.lift.noise.measured import FUNCTIONS, function_errors
from driftscope.lift.noise.products import OTHERS, ProductKind
from driftscope.lift.noise.rows import softmax_axis
from driftscope.lift.steps import Kind, Step
from driftscope.numerics import error_model, groupings
from driftscope.numerics.error_model import Kernels, Spread, Units
from driftscope.numerics.groupings import Growth


@functools.lru_cache(maxsize=256)
def _units(arithmetic: Arithmetic, cheap_sums: bool, dtype: torch.dtype, stored: torch.dtype) -> Units:
    declared = unit_of(_name(dtype))
    working = min(unit_of("float32"), declared)
    product = unit_of(arithmetic.product) if arithmetic.product else 0.0
    if cheap_sums:
        working = max(working, unit_of(str(arithmetic.accumulator)))
    return Units(
        storage=unit_of(_name(stored)),
        accumulator=working,
        # Factors that are already stored this coarsely lose nothing.
        product=product if product > declared else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Model:
    """The error model of one runtime's kernels under one arithmetic.

    Parameters
    ----------
    kernels : Kernels
    arithmetic : Arithmetic
    unit : float or None
        One unit roundoff to use instead of every format's own.
    """

    kernels: Kernels
    arithmetic: Arithmetic
    unit: float | None = None

    def storage(self, dtype: torch.dtype) -> torch.dtype:
        """Format in which a result of this declared format is stored."""
        override = self.arithmetic.storage
        if override is not None and unit_of(override) > unit_of(_name(dtype)):
            return getattr(torch, override)  # type: ignore[no-any-return]
        return dtype

    def units(self, kind: Kind, dtype: torch.dtype) -> Units:
        """Unit roundoffs that act in a step of a kind whose result is declared in ``dtype``."""
        if self.unit is not None:
            return Units(self.unit, self.unit)
        return _units(self.arithmetic, self._cheap_sums(kind), dtype, self.storage(dtype))

    def spread(self, step: Step, units: Units, *, parts: bool) -> Spread:
        """Standard deviations of the rounding error of a step's result.

        ``parts`` says whether the terms' own sizes are known; otherwise they are taken to be of equal size.
        """
        if step.rounding.stored:
            units = replace(units, accumulator=units.storage)
        spread = self._formula(step, units, parts)
        if samples_at_coordinates(step):
            farthest = _farthest(step, self.kernels.divides)
            return error_model.interpolated(spread, units, farthest, stored_coordinates=_named(step, ("grid",)))
        if _named(step, ("kaiser",)):
            return error_model.kaiser(units, float(step.attributes.get("beta", 12.0)))  # type: ignore[arg-type]
        if _named(step, ("fft",)):
            return error_model.fourier(units, step.rounding.length)
        if self.kernels.fourier is not None and _named(step, ("dft", "stft")):
            return error_model.measured_fourier(units, self.kernels.fourier(step.rounding.length))
        if spread.terms and not parts:
            # Terms of equal size: sum t^2 = S^2 / n.
            alike = spread.terms / math.sqrt(max(step.rounding.length, 1))
            return Spread(value=math.hypot(spread.value, alike))
        return spread

    def reaches_exact_values(self, step: Step, units: Units) -> bool:
        """Whether a result close to a value the format holds (tanh near 1) rounds to it and no more happens.

        Not so where several functions are evaluated in a row and the result is as wide as the work: then the error
        of the parts stays, though the whole is close to its argument (gelu).
        """
        if self.unit is not None or step.rounding.kind not in (Kind.FUNCTION, Kind.SOFTMAX):
            return False
        return units.storage > units.accumulator or not _named(step, self.kernels.composite)

    def _formula(self, step: Step, units: Units, parts: bool) -> Spread:
        length = step.rounding.length
        match step.rounding.kind:
            case Kind.EXACT:
                return Spread()
            case Kind.ROUND:
                kind = error_model.rounding(units)
                return error_model.with_parts(kind, units, functions=False) if parts else kind
            case Kind.FUNCTION:
                kind = error_model.function(units, composite=_named(step, self.kernels.composite))
                return error_model.with_parts(kind, units, functions=True) if parts else kind
            case Kind.SUM:
                return error_model.reduction(units, self._grouping(step))
            case Kind.DOT:
                return error_model.dot(units, self._grouping(step))
            case Kind.NORM:
                affine = _named(step, ("batch", "instance"))
                return error_model.normalisation(units, stored_statistics=stores_statistics(step), affine=affine)
            case Kind.SOFTMAX:
                inner = _innermost(step)
                folds = self.kernels.softmax(length) if inner else groupings.sequential(length)
                shared = self.kernels.denominator(length, step.device) if inner and self.kernels.denominator else None
                if _named(step, ("log",)):
                    return error_model.log_softmax(units, folds, shared)
                return error_model.softmax(units, folds, shared)

    def _grouping(self, step: Step) -> tuple[float, ...] | Growth:
        """One running sum where known or where the accumulator is cheap; else the step's own tree, or the usual one."""
        if step.rounding.running or self._cheap_sums(step.rounding.kind):
            return groupings.sequential(step.rounding.length)
        return self.kernels.revealed.get(step.name) or self._usual_grouping(step)

    def _usual_grouping(self, step: Step) -> tuple[float, ...] | Growth:
        usual = self.kernels.sum if step.rounding.kind is Kind.SUM else self.kernels.dot
        return self._convolved(step) or self._multiplied(step) or usual(step.rounding.length)

    def usual_growth(self, step: Step) -> Growth:
        """How the error of a SUM or DOT step is taken to grow while its own tree of additions is not known."""
        grouped = self._usual_grouping(step)
        products = step.rounding.kind is Kind.DOT
        return grouped if isinstance(grouped, Growth) else groupings.growth(grouped, products=products)

    def _convolved(self, step: Step) -> Growth | None:
        """What convolving with such a filter was measured to do; None where its shape does not tell its terms."""
        if self.kernels.convolution is None or not _named(step, ("conv",)) or step.attributes.get("transposed"):
            return None
        weight = step.inputs[1] if len(step.inputs) > 1 else None
        if weight is None or weight.dim() < 3 or weight[0].numel() != step.rounding.length:
            return None
        return self.kernels.convolution(weight.shape[1], tuple(weight.shape[2:]), step.device)

    def _multiplied(self, step: Step) -> Growth | None:
        """What multiplying matrices of such sizes was measured to do; None where the step does not multiply two."""
        if self.kernels.product is None or step.operator not in _PRODUCTS:
            return None
        a, b = list(step.inputs)[-2:]
        if a is None or b is None or a.dim() != b.dim() or not a.numel() or not b.numel():
            return None
        library = (step.where.operator or "").partition(".")[0]
        kind = ProductKind.of(library if library in OTHERS else "torch", a, b)
        return self.kernels.product(kind, step.device)

    def measured_errors(self, step: Step, dtype: torch.dtype) -> torch.Tensor | None:
        """The errors measured of a step's function, in storage units by its argument; None where there are none."""
        name = step.operator.removeprefix("aten.").removesuffix("_")
        own = step.rounding.errors
        known = self.kernels.measured and step.rounding.kind is Kind.FUNCTION and (own or name in FUNCTIONS)
        if not known or self.unit is not None or self.arithmetic.storage is not None or dtype.itemsize < 2:
            return None
        source = step.inputs[0] if len(step.inputs) else None
        if source is None or not source.is_floating_point() or source.shape != step.outputs[0].shape:  # type: ignore[union-attr]
            return None
        # float64 has nothing finer to be measured against; its kernels are as good as float32's.
        dtype = torch.float32 if dtype is torch.float64 else dtype
        if own is not None:
            return own(dtype)
        form = str(step.attributes.get("approximate", "none")) if name == "gelu" else ""
        return function_errors(name, form, dtype, step.device)

    def _cheap_sums(self, kind: Kind) -> bool:
        return self.arithmetic.accumulator is not None and kind in (Kind.SUM, Kind.DOT)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _named(step: Step, words: tuple[str, ...]) -> bool:
    return _has_one(step.operator, words)


@functools.lru_cache(maxsize=4096)
def _has_one(operator: str, words: tuple[str, ...]) -> bool:
    return any(word in operator.lower() for word in words)


def samples_at_coordinates(step: Step) -> bool:
    """Whether a step interpolates between elements, at places that it computes."""
    return step.rounding.kind is Kind.DOT and _named(step, _SAMPLERS)


#: Operators whose last two tensors are matrices, or batches of them, that are multiplied.
_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})
#: Operators that interpolate, by words in their names.
_SAMPLERS = ("upsample", "resize", "grid_sampl", "gridsample", "roialign", "roi_align")


def _farthest(step: Step, divides: bool) -> int:
    """Largest coordinate that an interpolation rounds; 0 where all coordinates are short fractions and so exact."""
    source, result = step.inputs[0], step.outputs[0]
    if source is None or result is None or source.dim() != result.dim():
        return 0 if source is None else max(source.shape[2:], default=0)
    # Aligned corners make coordinates multiples of (n - 1) / (m - 1), else of n / m.
    ends = 1 if _aligned(step) else 0
    pairs = [(a - ends, max(b - ends, 1)) for a, b in zip(source.shape, result.shape, strict=True) if a != b]
    if divides and not ends:
        pairs += [(b, max(a, 1)) for a, b in pairs]
    if _named(step, ("upsample", "resize")) and all(_short(a / b) for a, b in pairs):
        scales = [v for name, v in step.attributes.items() if "scale" in name and isinstance(v, float)]
        return 0 if all(_short(1 / scale) for scale in scales) else max(source.shape)
    return max(source.shape[2:], default=0)


def _short(ratio: float) -> bool:
    """Whether a ratio is a fraction of few bits, such as 1/2 or 3/4."""
    return (ratio * 2**10).is_integer()


def _aligned(step: Step) -> bool:
    """Whether the corners of source and result are the same points."""
    mode = step.attributes.get("coordinate_transformation_mode")
    return step.attributes.get("align_corners") is True or mode in ("align_corners", b"align_corners")


def _innermost(step: Step) -> bool:
    """Whether a softmax runs along the last axis: kernels keep several running sums there, and one elsewhere."""
    value = step.outputs[0]
    return value is None or softmax_axis(step, value) in (None, value.dim() - 1)


def stores_statistics(step: Step) -> bool:
    """Whether a normalisation rounds mean and scale to the storage format between taking and using them.

    torch's batch normalisation does while training, and instance normalisation is made of it.
    """
    if _named(step, ("instance",)):
        return True
    return _named(step, ("batch",)) and step.attributes.get("training") is True

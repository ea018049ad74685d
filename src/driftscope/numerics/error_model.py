"""How large the error of one ordinary rounding is: formulas alone, no tensors.

Everything here is a standard deviation, in units of a value or of the terms that were added up to get it. The
model of one step is a sum of independent errors,

    error = value |y| z1 + terms sqrt(sum t^2) z2 + shared |y| z3 + (level r + absolute) z4

where ``z1`` and ``z2`` are drawn for every element, ``z3`` and ``z4`` once for a row (all elements that one
reduction normalises together), and ``r`` is the size of a row before it is centred, in units of the result.
:class:`Spread` holds the five coefficients.

References
----------
Higham and Mary, *A new approach to probabilistic rounding error analysis*, SIAM J. Sci. Comput. 41 (2019): rounding
errors as independent random variables. Parker, *Monte Carlo Arithmetic* (1997): injecting them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from driftscope.numerics.groupings import ROUNDING_RMS, Growth, blocked, cascade, growth, lanes


@dataclass(frozen=True, slots=True)
class Units:
    """Unit roundoffs that act in one step.

    Parameters
    ----------
    storage : float
        Of the format the result is stored in.
    accumulator : float
        Of the format in which the kernel works and adds up.
    product : float
        Of the format to which a kernel rounds the factors of its products; 0.0 when it takes them as they are.
    """

    storage: float
    accumulator: float
    product: float = 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of the rounding error of one step (see the module's formula)."""

    value: float = 0.0
    terms: float = 0.0
    shared: float = 0.0
    level: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Kernels:
    """How a runtime's kernels group their additions.

    Parameters
    ----------
    dot, sum, softmax : callable
        Number of terms to nested folds, for matrix products and convolutions, for sums and means, and for the
        denominator of a softmax.
    composite : tuple of str
        Words in the names of operators that evaluate several functions in one kernel, or a coarse approximation.
    revealed : mapping of str to Growth
        For steps whose tree of additions is known: what it does to rounding, by the step's name.
    denominator : callable or None
        Number of terms and device to the error that a row of a softmax shares, in accumulator units, where it was
        measured.
    convolution : callable or None
        Channels of a group, sizes of a filter and device to the growth of a convolution's error, where it was measured.
    product : callable or None
        Layout of a matrix product and device to the growth of its error, where it was measured.
    measured : bool
        Whether the errors of functions are looked up where they were measured, see
        :mod:`driftscope.lift.noise.measured`.
    fourier : callable or None
        Number of points to the error of a Fourier transform, in accumulator units, where it was measured.
    divides : bool
        Whether an interpolation divides places by the ratio of sizes, rounded, instead of multiplying with its inverse.
    """

    dot: Callable[[int], tuple[float, ...]]
    sum: Callable[[int], tuple[float, ...]]
    softmax: Callable[[int], tuple[float, ...]]
    composite: tuple[str, ...] = ("gelu", "silu", "swish", "mish", "selu", "pow")
    revealed: Mapping[str, Growth] = field(default_factory=dict)
    denominator: Callable[[int, str], float] | None = None
    convolution: Callable[[int, tuple[int, ...], str], Growth | None] | None = None
    product: Callable[..., Growth | None] | None = None
    measured: bool = False
    fourier: Callable[[int], float] | None = None
    divides: bool = False


def _butterflies(length: int) -> float:
    """Error of onnxruntime's Fourier transform of so many points, in unit roundoffs.

    Measured for 2 to 4096 points: radix 2, and three of those, of at least twice the points, where the length is no
    power of two (apart from the angles of the chirp, which are no rounding of the transform).
    """
    if length & (length - 1) == 0:
        return 0.8 * math.log2(max(length, 2))
    return 2.2 * math.ceil(math.log2(2 * length - 1))


#: Revealed by probing: MKL and oneDNN add blocks of 384 products, torch.sum cascades, softmax keeps 16 lanes.
TORCH = Kernels(dot=lambda n: blocked(n, 384), sum=cascade, softmax=lambda n: lanes(n, 16))
#: Revealed by probing: MLAS adds blocks of 256 products (128 for some shapes); ReduceSum keeps 8 lanes, Softmax 16.
#: Its approximations of tanh, asin and acos have 1.7 times the error of correctly rounded ones, and so have the
#: functions inside its recurrent layers.
ONNXRUNTIME = Kernels(
    dot=lambda n: blocked(n, 256),
    sum=lambda n: lanes(n, 8),
    softmax=lambda n: lanes(n, 16),
    composite=(*TORCH.composite, "tanh", "asin", "acos", "gate", "candidate", "activated"),
    fourier=_butterflies,
    divides=True,
)


# ---------------------------------------------------------------------------------------------------------------
# One step of each kind. The constants are calibrated: tests/lift/calibration.py, docs/explanation/noise-floor.md.

#: Error of a transcendental's approximation, in accumulator units. Measured on 22 functions of torch and onnxruntime
#: in float32: most are correctly rounded but for one in ten results (see docs/explanation/noise-floor.md).
FUNCTION_ERROR = 0.4
#: The same for kernels that evaluate several functions in a row, see :attr:`Kernels.composite`.
COMPOSITE_ERROR = 0.8
#: Error of normalising one element, of the row's scale, and of its mean, in accumulator units.
NORM_ERROR = 0.8
#: The same where it is a factor and an offset: between a fused rounding (0) and one of its own (0.415).
AFFINE_ERROR = 0.3
NORM_SHARED = 0.4
NORM_LEVEL = 0.8
#: Error of the exponential and the division inside a softmax, in accumulator units.
SOFTMAX_ERROR = 1.0
#: Error of the subtractions inside a log-softmax, in accumulator units.
LOG_SOFTMAX_ERROR = 0.5
#: Error of a coordinate at which an interpolation samples, in accumulator units of the largest one.
COORDINATE_ERROR = 1.0
#: The same where coordinates are an input and only shifted and scaled, in storage units of the largest one.
GRID_ERROR = 0.5
#: Error of the weights of an interpolation in a narrow format, in storage units of an element.
WEIGHT_ERROR = 0.3
#: Error of one level of a Fourier transform, in accumulator units.
FOURIER_ERROR = 0.5


def _stored(units: Units) -> float:
    """Variance of the rounding on storing, in units of y^2; none when the last operation already rounded to it."""
    return (ROUNDING_RMS * units.storage) ** 2 if units.storage > units.accumulator else 0.0


@functools.lru_cache(maxsize=256)
def rounding(units: Units) -> Spread:
    """One correctly rounded operation: ``0.415 u |y|``."""
    return Spread(value=ROUNDING_RMS * max(units.storage, units.accumulator))


@functools.lru_cache(maxsize=256)
def function(units: Units, *, composite: bool = False) -> Spread:
    """A transcendental: the rounding of its result, and the error of its approximation in the working format."""
    approximation = COMPOSITE_ERROR if composite else FUNCTION_ERROR
    return Spread(value=math.hypot(rounding(units).value, approximation * units.accumulator))


@functools.lru_cache(maxsize=256)
def kaiser(units: Units, beta: float) -> Spread:
    """A Kaiser window ``I0(beta sqrt(1 - t^2)) / I0(beta)``.

    ``beta`` times what the argument lost in two roundings: ``|I0'| = |I1| <= I0`` (Abramowitz and Stegun 9.6.27), so an
    absolute error of the argument becomes a relative one.
    """
    argument = math.sqrt(2.0) * ROUNDING_RMS * beta * units.accumulator
    return Spread(value=math.hypot(function(units, composite=True).value, argument))


@functools.lru_cache(maxsize=256)
def with_parts(spread: Spread, units: Units, *, functions: bool) -> Spread:
    """Add the error of what a kernel cancels on the way; ``sum t^2`` stands for the square of its size.

    What is cancelled is the value of a function (``erf``), or has been rounded once.
    """
    return replace(spread, terms=part_error(functions=functions) * units.accumulator)


def part_error(*, functions: bool) -> float:
    """Error of what a kernel cancels, in accumulator units of its size."""
    return math.hypot(ROUNDING_RMS, FUNCTION_ERROR) if functions else ROUNDING_RMS


def reduction(units: Units, folds: Sequence[float] | Growth) -> Spread:
    """A sum of values, grouped as ``folds`` or grown as a known tree does."""
    grown = folds if isinstance(folds, Growth) else growth(folds)
    work = (ROUNDING_RMS * units.accumulator) ** 2
    # One more rounding: the division of a mean, or nothing (a plain sum's last addition is in the tree).
    return Spread(
        value=math.sqrt(work * (grown.total + 1.0) + _stored(units)),
        terms=math.sqrt(work * grown.terms),
    )


def dot(units: Units, folds: Sequence[float] | Growth) -> Spread:
    """A sum of products, grouped as ``folds`` or grown; factors rounded to the product format first if there is one."""
    grown = folds if isinstance(folds, Growth) else growth(folds, products=True)
    work = (ROUNDING_RMS * units.accumulator) ** 2
    factors = 2 * (ROUNDING_RMS * units.product) ** 2
    return Spread(
        value=math.sqrt(work * grown.total + _stored(units)),
        terms=math.sqrt(work * grown.terms + factors),
    )


@functools.lru_cache(maxsize=256)
def normalisation(units: Units, *, stored_statistics: bool = False, affine: bool = False) -> Spread:
    """Layer, group, batch or RMS normalisation: errors of each element, of the row's scale and of its mean.

    With ``stored_statistics`` mean and scale are rounded to the storage format before they are used; ``affine``
    kernels multiply by one factor and add one offset, so that an element is rounded twice, or once where that is fused.
    """
    between = ROUNDING_RMS * units.storage if stored_statistics else 0.0
    return Spread(
        value=math.hypot((AFFINE_ERROR if affine else NORM_ERROR) * units.accumulator, ROUNDING_RMS * units.storage),
        shared=math.hypot(NORM_SHARED * units.accumulator, between),
        level=math.hypot(NORM_LEVEL * units.accumulator, between),
    )


def softmax(units: Units, folds: Sequence[float], shared: float | None = None) -> Spread:
    """Softmax: errors of each exponential, and of the denominator that a row shares.

    All terms of the denominator are positive, so its relative error is that of a sum of equal terms; ``shared`` is
    it in accumulator units, where it was measured.
    """
    if shared is None:
        grown = growth(folds)
        shared = ROUNDING_RMS * math.sqrt(grown.total + grown.terms / math.prod(folds))
    return Spread(
        value=math.hypot(SOFTMAX_ERROR * units.accumulator, ROUNDING_RMS * units.storage),
        shared=shared * units.accumulator,
    )


def log_softmax(units: Units, folds: Sequence[float], shared: float | None = None) -> Spread:
    """Log-softmax and logsumexp: the logarithm turns the denominator's relative error into an absolute one."""
    return Spread(
        value=math.hypot(LOG_SOFTMAX_ERROR * units.accumulator, ROUNDING_RMS * units.storage),
        absolute=math.hypot(softmax(units, folds, shared).shared, ROUNDING_RMS * units.accumulator),
    )


def interpolated(spread: Spread, units: Units, farthest: int, *, stored_coordinates: bool = False) -> Spread:
    """Interpolation at computed coordinates: their rounding shifts the weights of neighbouring elements.

    Parameters
    ----------
    spread : Spread
        Of the weighted sum alone.
    units : Units
    farthest : int
        Largest coordinate. Its error moves the result by that share of the difference of two neighbours;
        ``sum t^2`` stands for the mean square of an element here.
    stored_coordinates : bool
        Whether coordinates are computed in the storage format (they are an input then), else as sums are.
    """
    shift = GRID_ERROR * units.storage if stored_coordinates else COORDINATE_ERROR * units.accumulator
    # Kernels for narrow formats round the weights too.
    weights = WEIGHT_ERROR * units.storage if units.storage > units.accumulator else 0.0
    return Spread(value=math.hypot(spread.value, spread.terms), terms=math.hypot(shift * farthest, weights))


def fourier(units: Units, levels: int) -> Spread:
    """A fast Fourier transform: each of its levels of butterflies rounds, and so do its twiddle factors."""
    return measured_fourier(units, FOURIER_ERROR * math.sqrt(levels))


def measured_fourier(units: Units, error: float) -> Spread:
    """A Fourier transform whose error is known, in accumulator units."""
    return Spread(value=math.hypot(error * units.accumulator, ROUNDING_RMS * units.storage))


def subnormal_rms(smallest: float) -> float:
    """Absolute error of one rounding among the subnormal numbers: uniform in half a step either way."""
    return smallest / math.sqrt(12)

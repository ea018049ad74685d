"""What torch's kernels really lose on the device they run on, measured where it differs from one processor to the next.

Kernels for vectors compute exponentials, error functions and their like by polynomials whose error depends on the
instruction set, add up a softmax's denominator in as many lanes as a register has, and convolve in blocks of their
own. Each is run once on a few thousand numbers, natively and in float64; that takes a millisecond and is kept for the
process, in which neither the processor nor the library changes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import torch

from driftscope.lift.formulas.activations import gelu_parts
from driftscope.lift.noise.products import product_growth
from driftscope.numerics import error_model
from driftscope.numerics.groupings import ROUNDING_RMS, Growth
from driftscope.programs.state.torch_settings import backend_flags

#: Functions of one argument whose kernels differ, by their names in ATen.
_NAMES = """
exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid
gelu silu mish softplus elu log_sigmoid log_sigmoid_forward rsqrt lgamma digamma
"""
FUNCTIONS = frozenset(_NAMES.split())
#: Exponents of the arguments at which a function is measured; smaller and larger ones count as the first and last.
EXPONENTS = range(-24, 8)
SAMPLES = 32
#: Rounding errors, in units of the last roundoff, between which a kernel is taken to round. More is an approximation
#: or a cancellation, and no longer the ordinary rounding that a floor is made of; less may be chance.
LEAST, MOST = 0.05, 2.5
#: Where a function has no finite value to measure.
USUAL = 0.58


@functools.cache
def function_errors(name: str, approximate: str, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Root mean square error of a function's kernel, in unit roundoffs of its result and of what it cancels.

    Parameters
    ----------
    name : str
        One of :data:`FUNCTIONS`.
    approximate : str
        GELU's form; "" for other functions.
    dtype : torch.dtype
    device : str
        Where the kernel runs.

    Returns
    -------
    torch.Tensor of float64, shape (4096,)
        By the bits of a float64 argument's sign and exponent, negative arguments first; see :func:`errors_at`.
    """
    kernel = getattr(torch.ops.aten, name).default
    options = {"approximate": approximate} if approximate else {}
    return errors_of(
        lambda x: _first(kernel(x.to(device), **options)).cpu(), lambda x: _first(kernel(x, **options)), dtype,
        gelu_parts if name == "gelu" else None,
    )  # fmt: skip


def errors_of(
    native: Callable[[torch.Tensor], torch.Tensor], exact: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype,
    parts: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Measure a kernel of one argument; see :func:`function_errors`.

    Parameters
    ----------
    native : callable
        The kernel, of numbers in ``dtype``.
    exact : callable
        The same function of float64 numbers.
    dtype : torch.dtype
    parts : callable or None
        Size of what the kernel cancels on the way, from argument and result in float64.
    """
    x = _arguments().to(dtype)
    wide = x.to(torch.float64)
    made, wanted = native(x).to(torch.float64), exact(wide)
    limits = torch.finfo(dtype)
    fits = (wanted.abs() > limits.tiny) & (wanted.abs() < limits.max) & torch.isfinite(made)
    size = wanted.abs() if parts is None else torch.hypot(wanted.abs(), parts(wide, wanted) * part_share(dtype))
    relative = torch.where(fits, (made - wanted) / (size * (limits.eps / 2)), torch.zeros(()).double())
    counted = fits.sum(1)
    rms = (relative.square().sum(1) / counted.clamp(min=1)).sqrt()
    return _by_bits(torch.where(counted == 0, torch.full_like(rms, USUAL), rms.clamp(LEAST, MOST)))


def _by_bits(errors: torch.Tensor) -> torch.Tensor:
    """Lay errors that go by sign and :data:`EXPONENTS` out for every exponent that a float64 can have."""
    place = (torch.arange(2048) - (1023 + EXPONENTS[0])).clamp_(0, len(EXPONENTS) - 1)
    negative, positive = errors[place], errors[place + len(EXPONENTS)]
    negative[0] = positive[0] = errors[-1 - EXPONENTS[0]]  # nothing, of which frexp says 0 * 2**0
    return torch.cat([negative, positive])


def part_share(dtype: torch.dtype) -> float:
    """Unit roundoff in which kernels compute what they cancel, beside that of the format they store."""
    return min(1.0, 2.0**-24 / (torch.finfo(dtype).eps / 2))


def _first(result: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


@functools.cache
def _arguments() -> torch.Tensor:
    """Significands of every exponent and both signs, float32; the same everywhere (torch's generator is not)."""
    significands = np.random.default_rng(20240607).uniform(1.0, 2.0, (2 * len(EXPONENTS), SAMPLES))
    powers = np.array([*EXPONENTS, *EXPONENTS], dtype=np.float64)[:, None]
    signs = np.repeat([-1.0, 1.0], len(EXPONENTS))[:, None]
    return torch.from_numpy((signs * np.ldexp(significands, powers.astype(np.int64))).astype(np.float32))


def errors_at(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Look a function's error up at float64 arguments, any shape."""
    place = (x.contiguous().view(torch.int64) >> 52).add_(2048)  # the sign is the highest bit, and keeps its place
    return table.index_select(0, place.reshape(-1)).reshape(x.shape)


@functools.cache
def denominator_error(length: int, device: str) -> float:
    """Error that a softmax's row shares, in float32's unit roundoffs, over the last axis of some length.

    Measured at the next power of two, on rows among whose terms some are large: weighed as the result weighs them.
    """
    size = min(1 << max(length - 1, 1).bit_length(), 1 << 14)
    x = torch.from_numpy(np.random.default_rng(size).standard_normal((2**16 // size + 8, size)).astype(np.float32))
    errors = []
    for scale in (1.0, 10.0):
        rows = x * scale
        exact = torch.softmax(rows.to(torch.float64), -1)
        relative = torch.softmax(rows.to(device), -1).cpu().to(torch.float64) / exact - 1
        weights = exact.square()
        common = (relative * weights).sum(-1) / weights.sum(-1)
        errors.append(float(common.square().mean()))
    return math.sqrt(sum(errors) / len(errors)) / 2.0**-24 * math.sqrt(max(1.0, length / size))


def convolution_growth(channels: int, window: tuple[int, ...], device: str) -> Growth | None:
    """How the error of a convolution in float32 grows with its terms; None where it is too large to be tried.

    Measured anew when somebody switches a backend of torch off or on, or lets it multiply in TF32.

    Parameters
    ----------
    channels : int
        Input channels of one group.
    window : tuple of int
        The filter's spatial sizes.
    device : str
        Where the kernel runs.
    """
    return _convolved(channels, window, device, backend_flags())


@functools.cache
def _convolved(channels: int, window: tuple[int, ...], device: str, _flags: tuple[object, ...]) -> Growth | None:
    length = channels * math.prod(window)
    if length < 2 or length > 2**14 or len(window) > 3:
        return None
    random = np.random.default_rng(length)
    sides = [max(2 * w, 12 if len(window) < 3 else 4) for w in window]
    draw: Callable[..., torch.Tensor] = lambda *s: torch.from_numpy(random.standard_normal(s).astype(np.float32))  # noqa: E731
    x, w = draw(1, channels, *sides), draw(16, channels, *window)
    convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[len(window) - 1]
    wide, filters = x.to(torch.float64), w.to(torch.float64)
    exact = convolve(wide, filters)
    error = convolve(x.to(device), w.to(device)).cpu().to(torch.float64) - exact
    unit = (ROUNDING_RMS * 2.0**-24) ** 2 * float(convolve(wide.square(), filters.square()).mean())
    # Terms of mean zero say what sum t^2 is multiplied by; a total that is large beside them grows as long sums do.
    terms = max(float(error.square().mean()) / unit, 1.0)
    if terms > 2 * length:  # no sum in float32, but cheaper arithmetic
        return None
    return Growth(terms, terms * 2 / 3)


#: torch's kernels as this machine's devices run them.
TORCH = dataclasses.replace(
    error_model.TORCH,
    denominator=denominator_error,
    convolution=convolution_growth,
    product=product_growth,
    measured=True,
)

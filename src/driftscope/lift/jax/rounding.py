"""How XLA rounds: what its kernels of one argument really lose, measured on the processor that they run on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from driftscope.lift.jax.rules import RULES
from driftscope.lift.noise.measured import errors_of
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.programs.arrays import jax_array_of, tensor_of

#: Primitives of one argument that are measured, by their names in jax.lax.
_NAMES = """
exp exp2 log log1p expm1 tanh logistic sin cos tan asin acos atan sinh cosh asinh acosh atanh rsqrt cbrt erf erfc
erf_inv lgamma digamma bessel_i0e bessel_i1e
"""
_MEASURED = frozenset(_NAMES.split())
# Lanczos's approximation of the gamma function, g = 7 (Lanczos, 1964).
_LANCZOS = 7.0


def jax_rounding(call: Call, rounding: Rounding) -> Rounding:
    """Describe the rounding of a step that XLA computed."""
    name = (call.entry.place.operator or "").removeprefix("jax.lax.")
    if rounding.kind is not Kind.FUNCTION or name not in _MEASURED:
        return rounding
    terms = _CANCELLED.get(name)
    parts = None if terms is None else lambda: terms(call.value("self"))
    return replace(rounding, errors=functools.partial(_errors, name), parts=parts)


@functools.cache
def _errors(name: str, dtype: torch.dtype) -> Tensor:
    """The errors of one primitive in one format; see :func:`driftscope.lift.noise.measured.function_errors`."""
    kernel = getattr(jax.lax, name)
    rule, terms = RULES[name], _CANCELLED.get(name)
    with _disable_current_modes():
        cancelled = None if terms is None else lambda x, _result: terms(x)
        return errors_of(lambda x: tensor_of(kernel(jax_array_of(x))), rule, dtype, cancelled)


def _logarithms(x: Tensor) -> Tensor:
    """Terms of which XLA adds up the logarithm of the gamma function: that is zero at one and two, they are not."""
    shifted = x + _LANCZOS - 0.5
    return torch.hypot((x - 0.5) * shifted.abs().log(), shifted)


def _constants(x: Tensor) -> Tensor:
    return torch.full_like(x, _LANCZOS)


_CANCELLED: dict[str, Callable[[Tensor], Tensor]] = {"lgamma": _logarithms, "digamma": _constants}

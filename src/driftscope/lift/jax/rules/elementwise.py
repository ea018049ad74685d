"""Primitives that compute each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from driftscope.errors import CannotLift
from driftscope.lift.arrays.tracing import torch_dtype

Tensor = torch.Tensor
Rule = Callable[..., Any]


def plain(function: Rule) -> Rule:
    """Make a rule of a function that no parameter of the primitive changes."""
    return lambda *tensors, **_: function(*tensors)


def _div(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y) if x.is_floating_point() or x.is_complex() else torch.div(x, y, rounding_mode="trunc")


def _round(x: Tensor, rounding_method: Any = 1, **_: Any) -> Tensor:
    if int(rounding_method) == 1:
        return torch.round(x)
    return torch.trunc(x + torch.sign(x) * 0.5)  # away from zero


def _integer_pow(x: Tensor, y: int, **_: Any) -> Tensor:
    return torch.pow(x, y)


def _select_n(which: Tensor, *cases: Tensor) -> Tensor:
    if len(cases) == 2:
        return torch.where(which.bool(), cases[1], cases[0])
    result = cases[0]
    for k, case in enumerate(cases[1:], 1):
        result = torch.where(which == k, case, result)
    return result


def _convert(x: Tensor, new_dtype: Any, **_: Any) -> Tensor:
    return x.to(torch_dtype(np.dtype(new_dtype)))


def _reduce_precision(x: Tensor, exponent_bits: int, mantissa_bits: int, **_: Any) -> Tensor:
    formats = {(8, 7): torch.bfloat16, (5, 10): torch.float16, (8, 23): torch.float32}
    if (exponent_bits, mantissa_bits) not in formats:
        raise CannotLift(
            f"jax.lax.reduce_precision to {exponent_bits} and {mantissa_bits} bits has no float64 evaluation"
        )
    return x.to(formats[exponent_bits, mantissa_bits]).to(x.dtype)


def _bitcast(x: Tensor, new_dtype: Any, **_: Any) -> Tensor:
    return x.view(torch_dtype(np.dtype(new_dtype)))


def _not(x: Tensor) -> Tensor:
    return torch.logical_not(x) if x.dtype == torch.bool else torch.bitwise_not(x)


def _cbrt(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.abs(x) ** (1.0 / 3.0)


def _same(x: Tensor) -> Tensor:
    return x


def _clamp(low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


_UNARY = {
    "neg": torch.neg, "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log1p": torch.log1p,
    "expm1": torch.expm1, "tanh": torch.tanh, "logistic": torch.sigmoid, "sin": torch.sin, "cos": torch.cos,
    "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh,
    "cosh": torch.cosh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "cbrt": _cbrt, "abs": torch.abs, "sign": torch.sign, "floor": torch.floor,
    "ceil": torch.ceil, "is_finite": torch.isfinite, "erf": torch.erf, "erfc": torch.erfc,
    "erf_inv": torch.erfinv, "lgamma": torch.lgamma, "digamma": torch.digamma, "square": torch.square,
    "not": _not, "real": torch.real, "imag": torch.imag, "conj": torch.conj_physical, "copy": _same,
    "copy_p": _same, "stop_gradient": _same, "optimization_barrier": lambda *x: list(x), "name": _same,
    "bessel_i0e": torch.special.i0e, "bessel_i1e": torch.special.i1e,
}  # fmt: skip

_BINARY = {
    "add": torch.add, "add_any": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _div,
    "max": torch.maximum, "min": torch.minimum, "pow": torch.pow, "atan2": torch.atan2, "rem": torch.fmod,
    "nextafter": torch.nextafter, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "lt_to": torch.lt, "le_to": torch.le,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "shift_left": torch.bitwise_left_shift, "shift_right_arithmetic": torch.bitwise_right_shift,
    "complex": torch.complex, "igamma": torch.special.gammainc, "igammac": torch.special.gammaincc,
    "zeta": torch.special.zeta,
}  # fmt: skip

ELEMENTWISE: dict[str, Rule] = {
    **{name: plain(function) for name, function in (_UNARY | _BINARY).items()},
    "round": _round,
    "integer_pow": _integer_pow,
    "select_n": plain(_select_n),
    "clamp": plain(_clamp),
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "bitcast_convert_type": _bitcast,
}

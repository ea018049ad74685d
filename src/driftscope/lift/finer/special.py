"""Special functions and activations of parts on balls, whose float64 kernels have ten to fifteen digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flint
import numpy as np

from driftscope.lift.finer.given import Balls, Given, NoRule, each


def _half() -> Any:
    return flint.arb(2).sqrt()


# From here on the complement of erf is written by its scaled form, which a ball far out keeps its digits in.
_FAR = 16.0


def _scaled_erfc(v: Any) -> Any:
    """The complement of erf times ``exp(v**2)``, by the confluent hypergeometric function (DLMF 7.11.5)."""
    if float(v) < _FAR:
        return (v * v).exp() * v.erfc()
    half = flint.arb(0.5)
    return (v * v).hypgeom_u(half, half) / flint.arb.const_sqrt_pi()


def erfc(v: Any) -> Any:
    """The complement of erf."""
    return v.erfc() if float(v) < _FAR else (-v * v).exp() * _scaled_erfc(v)


def _cdf(v: Any) -> Any:
    """The cumulative distribution of the normal law."""
    return erfc(-v / _half()) / 2


def _log_cdf(v: Any) -> Any:
    w = -v / _half()
    return _cdf(v).log() if float(w) < _FAR else (_scaled_erfc(w) / 2).log() - w * w


def _scaled_bessel(order: int) -> Callable[[Any], Any]:
    return lambda v: v.bessel_i(order) * (-abs(v)).exp()


def _entropy(v: Any) -> Any:
    return flint.arb(0) if v == 0 else -v * v.log()


def _hard_sigmoid(v: Any) -> Any:
    return (v + 3).max(flint.arb(0)).min(flint.arb(6)) / 6


def _polygamma(g: Given) -> Balls:
    """By Hurwitz's zeta function (DLMF 25.11.12)."""
    order = g.attribute("n")
    if not isinstance(order, int) or order < 1:
        raise NoRule
    factor = (-1) ** (order + 1) * math.factorial(order)
    return each(lambda v: factor * flint.arb(order + 1).zeta(v))(g.real(0))  # type: ignore[no-any-return]


def _celu(g: Given) -> Balls:
    alpha = flint.arb(float(g.attribute("alpha") or 1.0))
    return each(lambda v: v if float(v) > 0 else alpha * (v / alpha).expm1())(g.real(0))  # type: ignore[no-any-return]


def _leaky(g: Given) -> Balls:
    slope = g.attribute("negative_slope", "alpha")
    factor = flint.arb(0.01 if slope is None else float(slope))
    return each(lambda v: v if float(v) > 0 else v * factor)(g.real(0))  # type: ignore[no-any-return]


def _logit(g: Given) -> Balls:
    if g.attribute("eps") is not None:
        raise NoRule
    return each(lambda v: (v / (1 - v)).log())(g.real(0))  # type: ignore[no-any-return]


def _lerp(g: Given) -> Balls:
    weight = g.real(2) if len(g.inputs) > 2 and g.inputs[2] is not None else flint.arb(float(g.attribute("weight")))
    one = g.real(0)
    return np.asarray(one + weight * (g.real(1) - one), dtype=object)


def _fused(divides: bool) -> Callable[[Given], Balls]:
    def rule(g: Given) -> Balls:
        value = g.attribute("value")
        one, two = g.real(1), g.real(2)
        scaled = (one / two if divides else one * two) * flint.arb(1.0 if value is None else float(value))
        return np.asarray(g.real(0) + scaled, dtype=object)

    return rule


def _products(g: Given) -> Balls:
    x = g.real(0)
    return np.asarray(np.multiply.reduce(x, axis=g.axes(x.ndim), keepdims=False), dtype=object).reshape(g.shape)


def _running_product(g: Given) -> Balls:
    axis = g.attribute("dim")
    if axis is None:
        raise NoRule
    return np.asarray(np.multiply.accumulate(g.real(0), axis=int(axis)), dtype=object)


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[[Given], Balls]:
    mapped = np.frompyfunc(function, 2, 1)
    return lambda g: np.asarray(mapped(g.real(0), g.other("other")), dtype=object)


def _of_one(function: Callable[[Any], Any]) -> Callable[[Given], Balls]:
    return lambda g: each(function)(g.real(0))


_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "erfinv": lambda v: v.erfinv(), "special_ndtri": lambda v: _half() * (2 * v - 1).erfinv(),
    "special_ndtr": _cdf, "special_log_ndtr": _log_cdf, "special_erfcx": _scaled_erfc, "erfc": erfc,

    "i0": lambda v: v.bessel_i(0), "special_i0e": _scaled_bessel(0), "special_i1": lambda v: v.bessel_i(1),
    "special_i1e": _scaled_bessel(1), "special_entr": _entropy, "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda v: v * _hard_sigmoid(v),
}  # fmt: skip

SPECIAL: dict[str, Callable[[Given], Balls]] = {
    **{name: _of_one(function) for name, function in _OF_ONE.items()},
    "polygamma": _polygamma, "special_zeta": _of_two(lambda s, a: s.zeta(a)), "celu": _celu, "leaky_relu": _leaky,
    "leakyrelu": _leaky, "logit": _logit, "lerp": _lerp, "addcmul": _fused(False), "addcdiv": _fused(True),
    "prod": _products, "cumprod": _running_product, "hypot": _of_two(lambda x, y: (x * x + y * y).sqrt()),
    "igamma": _of_two(lambda s, x: x.gamma_lower(s, regularized=1)),
    "igammac": _of_two(lambda s, x: x.gamma_upper(s, regularized=1)),
}  # fmt: skip

"""Operators on arrays of balls: numbers of 212 bits with a proven bound of their error.

A rule takes the ball arrays of a step's inputs and gives the balls of its first output. Selections (relu, where,
maximum) are decided by the midpoints. A rule that does not fit a step raises :class:`NoRule`, and what follows is
left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import flint
import numpy as np
import torch

from driftscope.lift.finer.given import Balls, Given, NoRule, each
from driftscope.lift.finer.losses import LOSSES, log1pexp
from driftscope.lift.finer.moves import MOVES
from driftscope.lift.finer.special import SPECIAL
from driftscope.lift.finer.windows import attention, convolution
from driftscope.lift.steps import Step

Rule: TypeAlias = Callable[[Given], Balls]


def ball_array(value: torch.Tensor) -> Balls:
    """Give the exact balls of a float64 tensor."""
    flat = [flint.arb(v) for v in value.detach().cpu().to(torch.float64).reshape(-1).tolist()]
    found = np.empty(len(flat), dtype=object)
    found[:] = flat
    return found.reshape(tuple(value.shape))


def as_balls(found: Any) -> Balls:
    """Give what a rule found as an array of balls: a sum of nothing is Python's zero."""
    made: Balls = np.frompyfunc(lambda v: v if isinstance(v, flint.arb) else flint.arb(v), 1, 1)(found)
    return np.asarray(made, dtype=object)


def _unary(function: Callable[[Any], Any]) -> Rule:
    mapped = each(function)
    return lambda g: mapped(g.real(0))


def _gelu(g: Given) -> Balls:
    x, kind = g.real(0), g.attribute("approximate")
    half = flint.arb(1) / 2
    if kind in ("tanh", b"tanh"):
        scale, cubic = (flint.arb(2) / flint.arb.pi()).sqrt(), flint.arb(44715) / 1000000
        return each(lambda v: v * half * (1 + (scale * (v + cubic * v * v * v)).tanh()))(x)  # type: ignore[no-any-return]
    root = flint.arb(2).sqrt()
    return each(lambda v: v * half * (-v / root).erfc())(x)  # type: ignore[no-any-return]


def _add(sign: int) -> Rule:
    def rule(g: Given) -> Balls:
        alpha = g.attribute("alpha")
        other = g.other("other")
        return g.real(0) + other * (sign * (1 if alpha is None else flint.arb(float(alpha))))  # type: ignore[no-any-return]

    return rule


def _pow(g: Given) -> Balls:
    number = g.attribute("exponent")
    held = g.step.inputs[1] if len(g.step.inputs) > 1 else None
    exponent = float(held) if number is None and held is not None and held.numel() == 1 else number
    if not isinstance(exponent, int | float) or not math.isfinite(exponent):
        raise NoRule
    if exponent == 0.5:
        return each(lambda v: v.sqrt())(g.real(0))  # type: ignore[no-any-return]
    whole = int(exponent) if exponent == int(exponent) else flint.arb(float(exponent))
    return each(lambda v: v**whole)(g.real(0))  # type: ignore[no-any-return]


def _reduce(g: Given, mean: bool) -> Balls:
    x = g.real(0)
    axes = g.axes(x.ndim)
    count = math.prod(x.shape[k] for k in axes)
    total = np.add.reduce(x, axis=axes, keepdims=True)
    return np.asarray(total / count if mean else total, dtype=object).reshape(g.shape)


def _softmax(g: Given, log: bool) -> Balls:
    x = g.real(0)
    axis = g.axes(x.ndim)
    shifted = x - np.vectorize(float)(x).max(axis=axis, keepdims=True).astype(object)
    powers = each(lambda v: v.exp())(shifted)
    total = np.add.reduce(powers, axis=axis, keepdims=True)
    return shifted - each(lambda v: v.log())(total) if log else powers / total  # type: ignore[no-any-return]


def _layer_norm(g: Given) -> Balls:
    x = g.real(0)
    normalized = g.attribute("normalized_shape")
    start = g.attribute("axis")
    count = len(normalized) if isinstance(normalized, list | tuple) else x.ndim - (int(start) % x.ndim if start else -1)
    axes = tuple(range(x.ndim - max(count, 1), x.ndim)) if normalized or start is not None else (x.ndim - 1,)
    size, eps = math.prod(x.shape[k] for k in axes), g.attribute("eps", "epsilon")
    centred = x - np.add.reduce(x, axis=axes, keepdims=True) / size
    variance = np.add.reduce(centred * centred, axis=axes, keepdims=True) / size
    found = centred * each(lambda v: v.rsqrt())(variance + flint.arb(float(1e-5 if eps is None else eps)))
    rest = [v for v in g.inputs[1:] if v is not None]
    found = found * rest[0] if rest else found
    return np.asarray(found + rest[1] if len(rest) > 1 else found, dtype=object)


def _variance(g: Given) -> Balls:
    x = g.real(0)
    axes = g.axes(x.ndim)
    correction = g.attribute("correction", "unbiased")
    count = math.prod(x.shape[k] for k in axes)
    centred = x - np.add.reduce(x, axis=axes, keepdims=True) / count
    free = count - (1 if correction is None else float(correction))
    total = np.add.reduce(centred * centred, axis=axes, keepdims=True)
    return np.asarray(total / flint.arb(free), dtype=object).reshape(g.shape)


def _linear(g: Given) -> Balls:
    found = g.real(0) @ g.real(1).T
    return np.asarray(found + g.real(2) if len(g.inputs) > 2 and g.inputs[2] is not None else found, dtype=object)


def _shares(g: Given) -> tuple[Any, Any]:
    """What an added matrix and a product are multiplied by, one where that is not said: beta and alpha."""
    beta, alpha = (flint.arb(1.0 if v is None else float(v)) for v in (g.attribute("beta"), g.attribute("alpha")))
    return beta, alpha


def _addmm(g: Given) -> Balls:
    beta, alpha = _shares(g)
    return g.real(0) * beta + g.real(1) @ g.real(2) * alpha  # type: ignore[no-any-return]


def _gemm(g: Given) -> Balls:
    one, other = (g.real(k).T if g.attribute(name) else g.real(k) for k, name in ((0, "transA"), (1, "transB")))
    beta, alpha = _shares(g)
    found = one @ other * alpha
    return np.asarray(
        found + g.real(2) * beta if len(g.inputs) > 2 and g.inputs[2] is not None else found, dtype=object
    )


def _chosen(pick: Callable[[Any, Any], Any]) -> Rule:
    return lambda g: np.frompyfunc(pick, 2, 1)(g.real(0), g.other("other"))


def _softplus(g: Given) -> Balls:
    """Beyond its threshold, torch's own where none is given, the identity; ONNX has neither threshold nor slope."""
    beta, threshold = (g.attribute(name) for name in ("beta", "threshold"))
    usual = 20.0 if g.step.operator.startswith("aten.") else math.inf
    slope, end = flint.arb(1.0 if beta is None else float(beta)), usual if threshold is None else float(threshold)
    return each(lambda v: v if float(v * slope) > end else log1pexp(v * slope) / slope)(g.real(0))  # type: ignore[no-any-return]


def _div(g: Given) -> Balls:
    mode = g.attribute("rounding_mode")
    quotients = g.real(0) / g.other("other")
    return as_balls(quotients if mode is None else each(ELEMENTWISE[mode])(quotients))


def _floor_divide(g: Given) -> Balls:
    return as_balls(each(ELEMENTWISE["floor"])(g.real(0) / g.other("other")))


def _to_even(v: Any) -> Any:
    """The nearest whole number, of two the even one; no ball that holds both says which."""
    whole = (v + flint.arb(0.5)).floor()
    return whole - 1 if whole - v == flint.arb(0.5) and (whole / 2).floor() * 2 != whole else whole


def _round(g: Given) -> Balls:
    scale = flint.arb(10) ** int(g.attribute("decimals") or 0)
    return as_balls(each(lambda v: _to_even(v * scale) / scale)(g.real(0)))


def _remainder(towards_zero: bool) -> Rule:
    def one(x: Any, y: Any) -> Any:
        quotient = x / y
        whole = quotient.ceil() if towards_zero and float(quotient) < 0 else quotient.floor()
        return x - y * whole

    return lambda g: np.frompyfunc(one, 2, 1)(g.real(0), g.other("other"))


def _mod(g: Given) -> Balls:
    return _remainder(bool(g.attribute("fmod")))(g)


def _where(g: Given) -> Balls:
    chosen = g.step.inputs[0]
    if chosen is None or chosen.dtype is not torch.bool:
        raise NoRule
    return np.asarray(np.where(chosen.cpu().numpy(), g.real(1), g.real(2)), dtype=object)


def _clamped(g: Given) -> Balls:
    found, bounds = g.real(0), (g.attribute("min", "min_val"), g.attribute("max", "max_val"))
    for k, bound in enumerate(bounds, start=1):
        held = g.inputs[k] if len(g.inputs) > k else None
        if bound is None and held is None:
            continue
        limit = held if held is not None else flint.arb(float(bound))
        found = np.frompyfunc(_larger if k == 1 else _smaller, 2, 1)(found, limit)
    return np.asarray(found, dtype=object)


def _larger(one: Any, two: Any) -> Any:
    return _unknown(one, two) or (one if float(one) >= float(two) else two)


def _smaller(one: Any, two: Any) -> Any:
    return _unknown(one, two) or (two if float(one) >= float(two) else one)


def _unknown(*balls: Any) -> Any:
    """One of these that may be any number; None where all are known, infinities included."""
    return next((ball for ball in balls if math.isnan(float(ball)) or not (ball.is_finite() or ball.is_exact())), None)


def _logsumexp(g: Given) -> Balls:
    x = g.real(0)
    axes = g.axes(x.ndim)
    top = np.vectorize(float)(x).max(axis=axes, keepdims=True).astype(object)
    total = np.add.reduce(each(lambda v: v.exp())(x - top), axis=axes, keepdims=True)
    return np.asarray(top + each(lambda v: v.log())(total), dtype=object).reshape(g.shape)


def _logaddexp(one: Any, two: Any) -> Any:
    large, small = (one, two) if float(one) >= float(two) else (two, one)
    return large + (small - large).exp().log1p()


def _xlogy(x: Any, y: Any) -> Any:
    return flint.arb(0) if x == 0 else x * y.log()


def _vector_norm(g: Given) -> Balls:
    if g.attribute("ord") not in (None, 2, 2.0):
        raise NoRule
    x = g.real(0)
    total = np.add.reduce(x * x, axis=g.axes(x.ndim), keepdims=True)
    return each(lambda v: v.sqrt())(as_balls(total)).reshape(g.shape)  # type: ignore[no-any-return]


def _elu(g: Given) -> Balls:
    alpha, scale, inner = (
        flint.arb(1.0 if v is None else float(v)) for v in map(g.attribute, ("alpha", "scale", "input_scale"))
    )
    return each(lambda v: scale * (v if float(v) > 0 else alpha * (v * inner).expm1()))(g.real(0))  # type: ignore[no-any-return]


def _extreme(pick: Callable[[Any, Any], Any]) -> Rule:
    function = np.frompyfunc(pick, 2, 1)

    def rule(g: Given) -> Balls:
        found = g.real(0)
        for axis in g.axes(found.ndim):
            found = function.reduce(found, axis=axis, keepdims=True)
        return np.asarray(found, dtype=object).reshape(g.shape)

    return rule


ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "neg": lambda v: -v, "abs": abs, "exp": lambda v: v.exp(), "log": lambda v: v.log(), "sqrt": lambda v: v.sqrt(),
    "rsqrt": lambda v: v.rsqrt(), "reciprocal": lambda v: 1 / v, "erf": lambda v: v.erf(),
    "tanh": lambda v: v.tanh(), "sin": lambda v: v.sin(), "cos": lambda v: v.cos(), "square": lambda v: v * v,
    "log1p": lambda v: v.log1p(), "expm1": lambda v: v.expm1(), "sigmoid": lambda v: 1 / (1 + (-v).exp()),
    "silu": lambda v: v / (1 + (-v).exp()), "log_sigmoid_forward": lambda v: -log1pexp(-v),
    "relu": lambda v: _larger(v, flint.arb(0)), "sinh": lambda v: v.sinh(), "cosh": lambda v: v.cosh(),
    "floor": lambda v: v.floor(), "ceil": lambda v: v.ceil(),
    "trunc": lambda v: v.floor() if float(v) >= 0 else v.ceil(), "tan": lambda v: v.tan(), "atan": lambda v: v.atan(),
    "exp2": lambda v: (v * flint.arb.const_log2()).exp(), "log2": lambda v: v.log() / flint.arb.const_log2(),
    "log10": lambda v: v.log() / flint.arb(10).log(), "sign": lambda v: v.sgn(), "asinh": lambda v: v.asinh(),
    "acosh": lambda v: v.acosh(), "atanh": lambda v: v.atanh(), "asin": lambda v: v.asin(),
    "acos": lambda v: v.acos(), "lgamma": lambda v: v.lgamma(), "digamma": lambda v: v.digamma(),
}  # fmt: skip

ATTENTION = (
    "scaled_dot_product_attention", "scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_attention_math"
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{name: _unary(function) for name, function in ELEMENTWISE.items()},
    "gelu": _gelu, "add": _add(1), "sub": _add(-1), "pow": _pow, "layer_norm": _layer_norm,
    "native_layer_norm": _layer_norm, "layernormalization": _layer_norm, "var": _variance,
    "mul": lambda g: g.real(0) * g.other("other"), "div": _div, "softplus": _softplus,
    "rsub": lambda g: g.other("other") - g.real(0),
    "sum": lambda g: _reduce(g, False), "reducesum": lambda g: _reduce(g, False),
    "mean": lambda g: _reduce(g, True), "reducemean": lambda g: _reduce(g, True),
    "softmax": lambda g: _softmax(g, False), "log_softmax": lambda g: _softmax(g, True),
    "logsoftmax": lambda g: _softmax(g, True), "linear": _linear, "addmm": _addmm, "gemm": _gemm,
    "mm": lambda g: g.real(0) @ g.real(1), "bmm": lambda g: g.real(0) @ g.real(1),
    "matmul": lambda g: g.real(0) @ g.real(1), "maximum": _chosen(_larger), "max": _chosen(_larger),
    "minimum": _chosen(_smaller), "min": _chosen(_smaller),
    "floor_divide": _floor_divide, "round": _round,
    "remainder": _remainder(False), "fmod": _remainder(True), "mod": _mod, "where": _where,
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "clip", "hardtanh"), _clamped),
    "logsumexp": _logsumexp, "reducelogsumexp": _logsumexp, "amax": _extreme(_larger), "amin": _extreme(_smaller),
    "reducemax": _extreme(_larger), "reducemin": _extreme(_smaller),
    **dict.fromkeys(("convolution", "conv", "conv1d", "conv2d", "mkldnn_convolution"), convolution),
    **dict.fromkeys(ATTENTION, attention),
    "xlogy": lambda g: np.frompyfunc(_xlogy, 2, 1)(g.real(0), g.other("other")),
    "special_xlog1py": lambda g: np.frompyfunc(_xlogy, 2, 1)(g.real(0), 1 + g.other("other")),
    "logaddexp": lambda g: np.frompyfunc(_logaddexp, 2, 1)(g.real(0), g.other("other")),
    "atan2": lambda g: np.frompyfunc(flint.arb.atan2, 2, 1)(g.real(0), g.other("other")),
    "mish": _unary(lambda v: v * log1pexp(v).tanh()), "elu": _elu, "linalg_vector_norm": _vector_norm,
    "std": lambda g: each(lambda v: v.sqrt())(_variance(g)), "safe_softmax": lambda g: _softmax(g, False),
    **LOSSES, **MOVES, **SPECIAL,
}  # fmt: skip


def operations(name: str, step: Step) -> int:
    """Scalar operations that a rule takes for a step, about."""
    output, first = step.outputs[0], step.inputs[0] if step.inputs else None
    second = step.inputs[1] if len(step.inputs) > 1 else None
    count, given = output.numel() if output is not None else 0, first.numel() if first is not None else 0
    if name == "gemm" and first is not None:
        return first.numel() * (output.shape[-1] if output is not None else 1)
    if name in ("linear", "mm", "bmm", "matmul", "addmm") and first is not None and second is not None:
        return count * (second if name == "addmm" else first).shape[-1]
    if RULES.get(name) is convolution and second is not None:
        return count * second[0].numel()
    if name in ATTENTION and second is not None:
        return 2 * count * second.shape[-2]
    return max(count, given)

"""Arithmetic, comparison, logic and bits, element by element."""

from __future__ import annotations

import operator as python
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driftscope.lift.formulas.terms import Number, summed
from driftscope.lift.onnx.element_types import INT2, INT4, UINT2, UINT4, range_of
from driftscope.lift.onnx.registry import Node, Result, operator, strings
from driftscope.lift.steps import Kind, Rounding

_ROUND = Rounding(Kind.ROUND)


def _rounded_once(result: Tensor) -> Result:
    return Result(result, _ROUND if result.is_floating_point() or result.is_complex() else Rounding())


@operator("Add", since=7)
def add(node: Node, a: Tensor, b: Tensor) -> Result:
    """``a + b`` with numpy broadcasting."""
    return _rounded_once(a + b)


@operator("Sub", since=7)
def subtract(node: Node, a: Tensor, b: Tensor) -> Result:
    """``a - b`` with numpy broadcasting."""
    return _rounded_once(a - b)


@operator("Mul", since=7)
def multiply(node: Node, a: Tensor, b: Tensor) -> Result:
    """``a * b`` with numpy broadcasting."""
    return _rounded_once(a * b)


@operator("Div", since=7)
def divide(node: Node, a: Tensor, b: Tensor) -> Result:
    """``a / b``; integers truncate towards zero."""
    if a.is_floating_point() or a.is_complex():
        return _rounded_once(a / b)
    return Result(torch.div(a, b, rounding_mode="trunc"))


@operator("Pow", since=7)
def power(node: Node, base: Tensor, exponent: Tensor) -> Result:
    """``base ** exponent`` in the base's type."""
    if base.is_floating_point():
        # A square is one product, not a transcendental.
        small = exponent.numel() == 1 and not exponent.requires_grad and float(exponent) in (1.0, 2.0)
        return Result(
            base.square() if small and float(exponent) == 2.0 else torch.pow(base, exponent.to(base.dtype)),
            _ROUND if small else Rounding(Kind.FUNCTION),
            [node.format(0)],
        )
    if exponent.is_floating_point():
        result = torch.pow(base.to(torch.float64), exponent.to(torch.float64)).to(base.dtype)
    else:
        result = torch.pow(base, exponent.to(base.dtype))
    return Result(result, formats=[node.format(0)])


@operator("Mod")
def modulo(node: Node, a: Tensor, b: Tensor) -> Result:
    """Remainder with the sign of the divisor, or of the dividend where ``fmod`` is 1."""
    truncating = node.integer("fmod", 0) == 1
    if not a.is_floating_point():
        return Result(torch.fmod(a, b) if truncating else torch.remainder(a, b))
    # The quotient is a decision; the remainder follows in float64.
    decided_a, decided_b = node.rounded(a, 0), node.rounded(b, 1)
    if not node.lifted or torch.isinf(decided_b).any():
        return Result(torch.fmod(a, b) if truncating else torch.remainder(a, b))
    exact = torch.fmod(decided_a, decided_b) if truncating else torch.remainder(decided_a, decided_b)
    quotient = torch.round((decided_a - exact) / decided_b)
    return Result(torch.where(torch.isnan(exact), exact, exact + (a - decided_a) - quotient * (b - decided_b)))


@operator("Max", since=6)
def maximum(node: Node, *inputs: Tensor) -> Tensor:
    """Largest of any number of tensors."""
    return reduce(torch.maximum, inputs)


@operator("Min", since=6)
def minimum(node: Node, *inputs: Tensor) -> Tensor:
    """Smallest of any number of tensors."""
    return reduce(torch.minimum, inputs)


@operator("Sum", since=6)
def sum_of(node: Node, *inputs: Tensor) -> Result:
    """Sum of any number of tensors."""
    return Result(reduce(python.add, inputs), summed(len(inputs)) if len(inputs) > 1 else Rounding())


@operator("Mean", since=6)
def mean_of(node: Node, *inputs: Tensor) -> Result:
    """Mean of any number of tensors."""
    return Result(reduce(python.add, inputs) / len(inputs), summed(len(inputs)))


@operator("Sign")
def sign(node: Node, x: Tensor) -> Tensor:
    """The sign, NaN of NaN, where torch gives zero; a number too small for its format is lost, and decided nothing."""
    rounded = node.rounded(x)
    kept = torch.where((rounded == 0) | rounded.isnan(), x, rounded)
    return torch.where(kept.isnan(), kept, kept.sign()) if x.is_floating_point() else x.sign()


# -- one operand ----------------------------------------------------------------------------------------------

_EXACT: dict[str, Callable[[Tensor], Tensor]] = {"Abs": torch.abs, "Neg": torch.neg}
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Exp": torch.exp, "Log": torch.log, "Erf": torch.erf, "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan,
    "Asin": torch.asin, "Acos": torch.acos, "Atan": torch.atan, "Sinh": torch.sinh, "Cosh": torch.cosh,
    "Tanh": torch.tanh, "Asinh": torch.asinh, "Acosh": torch.acosh, "Atanh": torch.atanh,
}  # fmt: skip
_ROUNDED: dict[str, Callable[[Tensor], Tensor]] = {"Reciprocal": torch.reciprocal, "Sqrt": torch.sqrt}
_DECISIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Ceil": torch.ceil, "Floor": torch.floor, "Round": torch.round,
}  # fmt: skip


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[[Node, Tensor], Tensor]:
    return lambda node, x: function(x)


def _decision(function: Callable[[Tensor], Tensor]) -> Callable[[Node, Tensor], Tensor]:
    def decided(node: Node, x: Tensor) -> Tensor:
        rounded = node.rounded(x)
        # What left the range of its format decided nothing.
        return function(torch.where(torch.isinf(rounded) & torch.isfinite(x), x, rounded))

    return decided


for _kind, _functions in ((Kind.EXACT, _EXACT), (Kind.FUNCTION, _FUNCTIONS), (Kind.ROUND, _ROUNDED)):
    for _name, _function in _functions.items():
        operator(_name, kind=_kind)(_unary(_function))
for _name, _function in _DECISIONS.items():
    operator(_name)(_decision(_function))


# -- comparison and logic -------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": python.eq, "Greater": python.gt, "Less": python.lt, "GreaterOrEqual": python.ge, "LessOrEqual": python.le,
}  # fmt: skip


def _comparison(compare: Callable[[Any, Any], Any]) -> Callable[[Node, Any, Any], Tensor]:
    def evaluate(node: Node, a: Any, b: Any) -> Tensor:
        if isinstance(a, np.ndarray):
            return torch.from_numpy(np.asarray(compare(a, b), dtype=bool)).to(node.device)
        return torch.as_tensor(compare(node.rounded(a, 0), node.rounded(b, 1)))

    return evaluate


for _name, _compare in _COMPARISONS.items():
    operator(_name)(_comparison(_compare))

_LOGIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
}  # fmt: skip


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Node, Tensor, Tensor], Tensor]:
    return lambda node, a, b: function(a, b)


for _name, _combine in _LOGIC.items():
    operator(_name)(_binary(_combine))


@operator("Not")
def logical_not(node: Node, x: Tensor) -> Tensor:
    """Negation of booleans."""
    return torch.logical_not(x)


@operator("BitwiseNot")
def bitwise_not(node: Node, x: Tensor) -> Tensor:
    """Complement of every bit."""
    return torch.bitwise_not(x)


@operator("BitShift")
def bit_shift(node: Node, x: Tensor, shift: Tensor) -> Tensor:
    """Logical shift of unsigned integers."""
    if node.text("direction") == "LEFT":
        return torch.bitwise_left_shift(x, shift)
    return torch.bitwise_right_shift(x, shift)


@operator("Where")
def where(node: Node, condition: Tensor, a: Any, b: Any) -> Result:
    """Elements of ``a`` where the condition holds, else of ``b``."""
    if isinstance(a, np.ndarray):
        return Result(strings(np.where(condition.cpu().numpy(), a, b)))
    return Result(torch.where(condition, a, b), formats=[node.format(1)])


@operator("IsNaN")
def is_nan(node: Node, x: Tensor) -> Tensor:
    """Which elements are NaN."""
    return torch.isnan(x)


@operator("IsInf")
def is_inf(node: Node, x: Tensor) -> Tensor:
    """Which elements are infinite in the native format."""
    decided = node.rounded(x)
    negative = torch.isneginf(decided) & (node.integer("detect_negative", 1) == 1)
    return negative | (torch.isposinf(decided) & (node.integer("detect_positive", 1) == 1))


# -- limits ---------------------------------------------------------------------------------------------------


@operator("Clip", since=6)
def clip_by_attributes(node: Node, x: Tensor) -> Tensor:
    """Clip between attributes (up to opset 10)."""
    if node.has("min"):
        x = torch.maximum(x, _like(node.number("min"), x))
    if node.has("max"):
        x = torch.minimum(x, _like(node.number("max"), x))
    return x


@operator("Clip", since=11)
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Clip between inputs; where they cross, the upper limit wins."""
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _like(limit: Number, x: Tensor) -> Tensor:
    return torch.as_tensor(limit, dtype=x.dtype, device=x.device)


# -- types ----------------------------------------------------------------------------------------------------

_PACKED = (INT4, UINT4, INT2, UINT2)


@operator("BitCast")
def bit_cast(node: Node, x: Tensor) -> Result:
    """The same bits read as another type of the same width."""
    from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, to_format, to_storage

    source, target = node.format(0), FORMAT_OF_ELEMENT[node.integer("to")]
    if source is None or source in _PACKED or target in _PACKED:
        raise node.refuse("packed types have no bits of their own here")
    if target == torch.bool:
        return Result(to_format(node.rounded(x), source).view(torch.uint8) != 0, formats=[target])
    return Result(to_storage(to_format(x, source).view(target)), formats=[target])


def saturated(x: Tensor, format: torch.dtype) -> Tensor:
    """Clip integers to the range of a format."""
    low, high = range_of(format)
    return x.clamp(low, high)

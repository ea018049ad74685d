"""Conditions on sizes as a dispatcher needs them: plain Python integers in, yes or no out, and plain JSON on disk."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from driftscope.errors import RecordError
from driftscope.shapes.conditions.expressions import OPERATORS, Number, Operation, Size, Term, operation

_LARGEST = 2**64
Sizes = Mapping[str, int]
Check = Callable[[Sizes], Any]


#: The operators of :data:`driftscope.shapes.conditions.expressions.OPERATORS` on Python numbers, without numpy.
_PLAIN: Mapping[str, Callable[..., Any]] = {
    "or": lambda *terms: any(terms),
    "and": lambda *terms: all(terms),
    "not": operator.not_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": lambda *terms: sum(terms),
    "*": lambda *terms: reduce(operator.mul, terms),
    "//": operator.floordiv,
    "/": operator.truediv,
    "%": operator.mod,
    "**": lambda a, b: float(a) ** b,
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
    "round": round,
    "float": float,
    "abs": abs,
    "sqrt": lambda a: math.sqrt(max(a, 0)),
    "log2": lambda a: math.log2(max(a, 1)),
    "where": lambda condition, a, b: a if condition else b,
}


def compiled(condition: Term) -> Callable[[Sizes], bool]:
    """Turn a condition into a function of sizes by axis name.

    As with arrays, a condition that divides by a size that is zero does not hold; nor does one on numbers beyond all
    bounds.
    """
    value = _compiled(condition)

    def check(sizes: Sizes) -> bool:
        try:
            return bool(value(sizes))
        except (ZeroDivisionError, OverflowError, ValueError):
            return False

    return check


def _compiled(condition: Term) -> Check:
    if isinstance(condition, Number):
        value = condition.value
        return lambda sizes: value
    if isinstance(condition, Size):
        name = condition.name
        return lambda sizes: sizes[name]
    rule = _PLAIN[condition.operator]
    parts = [_compiled(term) for term in condition.terms]
    if len(parts) == 2:
        first, second = parts
        return lambda sizes: rule(first(sizes), second(sizes))
    return lambda sizes: rule(*[part(sizes) for part in parts])


def all_of(conditions: Sequence[Term]) -> Callable[[Sizes], bool]:
    """Turn several conditions into one function that says whether all of them hold."""
    checks = [compiled(condition) for condition in conditions]
    return lambda sizes: all(check(sizes) for check in checks)


def to_json(term: Term) -> Any:
    """Write a term as lists, strings and numbers: ``["==", "x.shape[0]", 3]``."""
    if isinstance(term, Number):
        return term.value
    if isinstance(term, Size):
        return term.name
    return [term.operator, *(to_json(part) for part in term.terms)]


def from_json(data: Any) -> Term:
    """Read a term back.

    Raises
    ------
    RecordError
        If it is none.
    """
    if isinstance(data, (bool, int, float)) and abs(data) < _LARGEST:
        return Number(data)
    if isinstance(data, str):
        return Size(data)
    if isinstance(data, list) and len(data) > 1 and isinstance(data[0], str) and data[0] in OPERATORS:
        return Operation(data[0], tuple(from_json(part) for part in data[1:]))
    raise RecordError(f"{str(data)[:60]!r} is not a condition on sizes; was the manifest written by driftscope?")


def condition(symbol: str, left: Term, right: Term | int) -> Term:
    """Make ``left symbol right``."""
    return operation(symbol, left, right)

"""Expressions over sizes: one tree, which is evaluated on arrays of points, given to z3, and written for people."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A constant."""

    value: int | float | bool

    # To Python 1 == True, and a cache would give the text or the meaning of one for the other.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number):
            return NotImplemented
        return self.value == other.value and isinstance(self.value, bool) is isinstance(other.value, bool)

    def __hash__(self) -> int:
        return hash((self.value, isinstance(self.value, bool)))


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an axis, by the axis's name (``x.shape[1]``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of :data:`OPERATORS` on other terms."""

    operator: str
    terms: tuple[Term, ...]


Term = Number | Size | Operation


@dataclass(frozen=True, slots=True)
class OperatorMeaning:
    """What an operator means, three times.

    Parameters
    ----------
    evaluate : callable
        On numbers or numpy arrays that broadcast.
    z3 : callable
        Takes the module ``z3`` and translated terms; None where z3 has no such thing.
    symbol : str
        How it is written between its terms; empty for ``name(terms)``.
    binding : int
        How tightly it binds, for parentheses.
    """

    evaluate: Callable[..., Any]
    z3: Callable[..., Any] | None
    symbol: str = ""
    binding: int = 9


def _integer(rounding: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: np.asarray(rounding(np.asarray(a, np.float64))).astype(np.int64)


def _safely(divide: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Where Python would raise ZeroDivisionError, give -1: no size, so no guard on it holds by accident."""

    def result(a: Any, b: Any) -> Any:
        zero = np.asarray(b) == 0
        return np.where(zero, -1, divide(a, np.where(zero, 1, b)))

    return result


def _all(*terms: Any) -> Any:
    return reduce(np.logical_and, terms)


def _any(*terms: Any) -> Any:
    return reduce(np.logical_or, terms)


def _larger(z3: Any, a: Any, *more: Any) -> Any:
    return reduce(lambda x, y: z3.If(x > y, x, y), more, a)


def _smaller(z3: Any, a: Any, *more: Any) -> Any:
    return reduce(lambda x, y: z3.If(x < y, x, y), more, a)


OPERATORS: Mapping[str, OperatorMeaning] = {
    "or": OperatorMeaning(_any, lambda z3, *t: z3.Or(*t), "or", 1),
    "and": OperatorMeaning(_all, lambda z3, *t: z3.And(*t), "and", 2),
    "not": OperatorMeaning(np.logical_not, lambda z3, a: z3.Not(a)),
    "==": OperatorMeaning(operator.eq, lambda z3, a, b: a == b, "==", 3),
    "!=": OperatorMeaning(operator.ne, lambda z3, a, b: a != b, "!=", 3),
    "<": OperatorMeaning(operator.lt, lambda z3, a, b: a < b, "<", 3),
    "<=": OperatorMeaning(operator.le, lambda z3, a, b: a <= b, "<=", 3),
    ">": OperatorMeaning(operator.gt, lambda z3, a, b: a > b, ">", 3),
    ">=": OperatorMeaning(operator.ge, lambda z3, a, b: a >= b, ">=", 3),
    "+": OperatorMeaning(lambda *t: reduce(operator.add, t), lambda z3, *t: reduce(operator.add, t), "+", 5),
    "*": OperatorMeaning(lambda *t: reduce(operator.mul, t), lambda z3, *t: reduce(operator.mul, t), "*", 6),
    "//": OperatorMeaning(_safely(np.floor_divide), lambda z3, a, b: a / b, "//", 6),
    "/": OperatorMeaning(_safely(np.true_divide), lambda z3, a, b: z3.ToReal(a) / z3.ToReal(b), "/", 6),
    "%": OperatorMeaning(_safely(np.mod), lambda z3, a, b: a % b, "%", 6),
    "**": OperatorMeaning(lambda a, b: np.power(np.asarray(a, np.float64), b), None, "**", 8),
    "max": OperatorMeaning(lambda *t: reduce(np.maximum, t), _larger),
    "min": OperatorMeaning(lambda *t: reduce(np.minimum, t), _smaller),
    "ceil": OperatorMeaning(_integer(np.ceil), lambda z3, a: -z3.ToInt(-z3.ToReal(a))),
    "floor": OperatorMeaning(_integer(np.floor), lambda z3, a: z3.ToInt(a)),
    "trunc": OperatorMeaning(_integer(np.trunc), lambda z3, a: z3.If(a >= 0, z3.ToInt(a), -z3.ToInt(-a))),
    "round": OperatorMeaning(_integer(np.rint), None),
    "float": OperatorMeaning(lambda a: np.asarray(a, np.float64), lambda z3, a: z3.ToReal(a)),
    "abs": OperatorMeaning(np.abs, lambda z3, a: z3.If(a >= 0, a, -a)),
    "sqrt": OperatorMeaning(lambda a: np.sqrt(np.maximum(a, 0)), None),
    "log2": OperatorMeaning(lambda a: np.log2(np.maximum(a, 1)), None),
    "where": OperatorMeaning(np.where, lambda z3, c, a, b: z3.If(c, a, b)),
}


def operation(name: str, *terms: Term | int | float) -> Term:
    """Apply an operator, folding constants and flattening sums, products, conjunctions and disjunctions."""
    made = tuple(t if isinstance(t, (Number, Size, Operation)) else Number(t) for t in terms)
    if name in ("+", "*", "and", "or"):
        flat: list[Term] = []
        for term in made:
            flat += term.terms if isinstance(term, Operation) and term.operator == name else (term,)
        made = tuple(flat)
        if len(made) == 1:
            return made[0]
    if all(isinstance(t, Number) for t in made):
        value = OPERATORS[name].evaluate(*(t.value for t in made if isinstance(t, Number)))
        return Number(value.item() if isinstance(value, (np.ndarray, np.generic)) else value)
    return Operation(name, made)


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def negated(term: Term) -> Term:
    """Return the opposite of a condition."""
    if isinstance(term, Operation) and term.operator in _OPPOSITE:
        return operation(_OPPOSITE[term.operator], *term.terms)
    return operation("not", term)


def conjuncts(term: Term) -> tuple[Term, ...]:
    """Return the conditions of which a condition is the conjunction."""
    return term.terms if isinstance(term, Operation) and term.operator == "and" else (term,)


@lru_cache(maxsize=4096)
def sizes_in(term: Term) -> frozenset[str]:
    """Names of the axes an expression speaks of."""
    return frozenset(part.name for part in walk(term) if isinstance(part, Size))


def walk(term: Term) -> Iterator[Term]:
    """Every part of an expression, itself first."""
    yield term
    if isinstance(term, Operation):
        for part in term.terms:
            yield from walk(part)


def ordered(term: Term, rank: Mapping[str, int]) -> Term:
    """Write sums and products in the order of the axes: torch's own order is that of its symbols' numbers.

    Parameters
    ----------
    term : Term
    rank : mapping of str to int
        Place of each axis.
    """
    if not isinstance(term, Operation):
        return term
    terms = [ordered(part, rank) for part in term.terms]
    if term.operator in ("+", "*", "max", "min"):
        terms.sort(key=lambda part: min((rank.get(name, 0) for name in sizes_in(part)), default=-1))
    return operation(term.operator, *terms)


def substitute(term: Term, values: Mapping[str, Term]) -> Term:
    """Put other terms in the place of sizes."""
    if isinstance(term, Size):
        return values.get(term.name, term)
    if isinstance(term, Operation):
        return operation(term.operator, *(substitute(part, values) for part in term.terms))
    return term


def evaluate(term: Term, sizes: Mapping[str, Any]) -> Any:
    """Evaluate on sizes given by name, each a number or an array; arrays broadcast.

    Raises
    ------
    KeyError
        If a size is missing.
    """
    if isinstance(term, Number):
        return term.value
    if isinstance(term, Size):
        return sizes[term.name]
    return OPERATORS[term.operator].evaluate(*(evaluate(part, sizes) for part in term.terms))


def holds(term: Term, sizes: Mapping[str, Any], count: int) -> np.ndarray:
    """Evaluate a condition on ``count`` points.

    Returns
    -------
    ndarray of bool, shape (count,)
        False where a size that is divided by is zero: torch's own guard raises there.
    """
    with np.errstate(all="ignore"):
        result = np.broadcast_to(np.asarray(evaluate(term, sizes), bool), (count,))
        for part in walk(term):
            if isinstance(part, Operation) and part.operator in ("//", "/", "%"):
                divisor = part.terms[1]
                if not isinstance(divisor, Number):
                    result = result & (np.asarray(evaluate(divisor, sizes)) != 0)
    return result


def to_z3(term: Term, variables: Mapping[str, Any]) -> Any:
    """Translate for z3.

    Parameters
    ----------
    term : Term
    variables : mapping of str to z3 Int
        One for every size.

    Raises
    ------
    NotImplementedError
        If z3 has no such operator.
    """
    import z3

    if isinstance(term, Number):
        return z3.BoolVal(term.value) if isinstance(term.value, bool) else _z3_number(z3, term.value)
    if isinstance(term, Size):
        return variables[term.name]
    rule = OPERATORS[term.operator].z3
    if rule is None:
        raise NotImplementedError(f"z3 has nothing for {term.operator!r}")
    return rule(z3, *(to_z3(part, variables) for part in term.terms))


def _z3_number(z3: Any, value: float) -> Any:
    return z3.IntVal(int(value)) if float(value).is_integer() else z3.RealVal(value)


def text(term: Term) -> str:
    """Write an expression the way the user would: ``2*x.shape[1] + 1``."""
    return _text(term)[0]


@lru_cache(maxsize=4096)
def _text(term: Term) -> tuple[str, int]:
    """The text and how tightly its outermost operator binds."""
    if isinstance(term, Number):
        number = term.value
        if isinstance(number, float) and math.isfinite(number) and number.is_integer():
            number = int(number)
        return str(number), 9 if not isinstance(number, (int, float)) or number >= 0 else 5
    if isinstance(term, Size):
        return term.name, 9
    rule = OPERATORS[term.operator]
    if not rule.symbol:
        return f"{term.operator}({', '.join(text(t) for t in term.terms)})", 9
    if term.operator == "+":
        return _sum_text(term), rule.binding
    first = term.terms[0]
    if term.operator == "*" and isinstance(first, Number) and first.value < 0:
        # A negative factor becomes the sign of the rest; _sum_text turns it into a subtraction.
        return f"-{_text(operation('*', -first.value, *term.terms[1:]))[0]}", rule.binding
    if term.operator == "*" and first == Number(1) and len(term.terms) > 1:
        rest = operation("*", *term.terms[1:])
        return _wrapped(rest, rule.binding), rule.binding
    parts = []
    for place, part in enumerate(term.terms):
        written, binding = _text(part)
        mixed = isinstance(part, Operation) and binding == rule.binding and part.operator != term.operator
        # The right side of // binds one tighter: a//(b*c) is not a//b*c; and a*(b//c) is not a*b//c.
        tight = rule.binding + (mixed or rule.binding == 3 or (place > 0 and term.operator in ("//", "/", "%", "**")))
        parts.append(written if binding >= tight and not (place and written[0] == "-") else f"({written})")
    gap = "" if term.operator in ("*", "**", "//", "/") else " "
    return f"{gap}{rule.symbol}{gap}".join(parts), rule.binding


def _wrapped(term: Term, binding: int) -> str:
    """The text of a factor: in parentheses if it binds less than a product, or is a quotient."""
    written, tight = _text(term)
    quotient = isinstance(term, Operation) and term.operator in ("//", "/", "%")
    return f"({written})" if tight < binding or quotient else written


def _sum_text(term: Operation) -> str:
    """``a - b + 1``: a negative part is subtracted, constants come last."""
    ordered = sorted(term.terms, key=lambda t: isinstance(t, Number))
    # A sum that starts with a minus reads badly when something positive could come first.
    written = sorted((_text(t) for t in ordered), key=lambda pair: pair[0].startswith("-") and pair[1] > 5)
    found = ""
    for word, binding in written:
        word = f"({word})" if binding < 5 else word
        if not found:
            found = word
        else:
            found += f" - {word[1:]}" if word.startswith("-") else f" + {word}"
    return found

"""Linear expressions of sizes with integer coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.shapes.conditions.expressions import Number, Size, Term, operation


@dataclass(frozen=True, slots=True)
class Linear:
    """``slopes . sizes + offset``, slopes by the axis's name, none of them zero."""

    slopes: Mapping[str, int] = field(default_factory=dict)
    offset: int = 0

    def times(self, factor: int) -> Linear:
        """Every coefficient times an integer."""
        return Linear({n: s * factor for n, s in self.slopes.items()} if factor else {}, self.offset * factor)

    def plus(self, number: int) -> Linear:
        """Another offset."""
        return Linear(self.slopes, self.offset + number)

    def and_(self, other: Linear) -> Linear:
        """The sum of two."""
        slopes = dict(self.slopes)
        for name, slope in other.slopes.items():
            slopes[name] = slopes.get(name, 0) + slope
        return Linear({n: s for n, s in slopes.items() if s}, self.offset + other.offset)

    def minus(self, other: Linear) -> Linear:
        """The difference of two."""
        return self.and_(other.times(-1))

    def __str__(self) -> str:
        parts = sorted(self.slopes.items(), key=lambda item: item[1] < 0)
        if parts and parts[0][1] < 0 < self.offset:
            return f"{self.offset}{Linear(self.slopes)}".replace("-", " - ", 1)
        words = ""
        for name, slope in parts:
            size = name if abs(slope) == 1 else f"{abs(slope)}*{name}"
            sign = ("-" if slope < 0 else "") if not words else (" - " if slope < 0 else " + ")
            words += sign + size
        if not words:
            return str(self.offset)
        return words + (f" {'-' if self.offset < 0 else '+'} {abs(self.offset)}" if self.offset else "")


def linear_of(term: Term) -> Linear | None:
    """Return a term as a linear expression, or None if it is not one."""
    if isinstance(term, Number):
        return Linear({}, int(term.value)) if float(term.value).is_integer() else None
    if isinstance(term, Size):
        return Linear({term.name: 1})
    parts = [linear_of(part) for part in term.terms]
    if term.operator not in ("+", "*") or any(part is None for part in parts):
        return None
    found = [part for part in parts if part is not None]
    result = found[0]
    for part in found[1:]:
        if term.operator == "+":
            result = result.and_(part)
        elif not part.slopes:
            result = result.times(part.offset)
        elif not result.slopes:
            result = part.times(result.offset)
        else:
            return None
    return result


def term_of(line: Linear) -> Term:
    """A linear expression as a term."""
    if not line.slopes:
        return Number(line.offset)
    terms = [operation("*", slope, Size(name)) if slope != 1 else Size(name) for name, slope in line.slopes.items()]
    return operation("+", *terms, line.offset) if line.offset else operation("+", *terms)

"""Solve the linear relations between sizes: which sizes may move together so that every equation still holds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import sympy

from driftscope.shapes.conditions.expressions import Operation, Term
from driftscope.shapes.conditions.linear import Linear, linear_of

#: More sizes than this in equations are left to the search by asking: elimination is exact, not fast.
_MOST = 80


def equation_of(condition: Term) -> Linear | None:
    """``a == b + c`` as the line ``a - b - c`` that is zero; None for what is no linear equation."""
    if not isinstance(condition, Operation) or condition.operator != "==":
        return None
    left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left is None or right is None or not left.minus(right).slopes:
        return None
    return left.minus(right)


def bounded_on_both_sides(conditions: Iterable[Term]) -> list[Linear]:
    """Lines that are zero because one condition holds them to 0 from above and another from below."""
    held: set[tuple[frozenset[tuple[str, int]], int]] = set()
    found = []
    for condition in conditions:
        if not isinstance(condition, Operation) or condition.operator not in ("<=", ">="):
            continue
        left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
        if left is None or right is None:
            continue
        at_most_zero = left.minus(right) if condition.operator == "<=" else right.minus(left)
        opposite = Linear().minus(at_most_zero)
        if at_most_zero.slopes and _key(opposite) in held:
            found.append(at_most_zero)
        held.add(_key(at_most_zero))
    return found


def _key(line: Linear) -> tuple[frozenset[tuple[str, int]], int]:
    return frozenset(line.slopes.items()), line.offset


def steps_together(equations: Iterable[Linear], example: dict[str, int]) -> list[dict[str, int]]:
    """Find steps of sizes that keep every equation.

    Parameters
    ----------
    equations : iterable of Linear
        Each of them is zero at the example.
    example : dict of str to int
        Sizes by name. The largest are written as sums of the others: a mask is as long as past and step together.

    Returns
    -------
    list of dict of str to int
        A basis of whole steps by name, the first entry the size that leads (its step is positive).
    """
    lines = list({str(line): line for line in equations}.values())
    named = {name for line in lines for name in line.slopes}
    # Of equal sizes the later axis is written as the earlier one; the order of a set is another in each process.
    names = sorted((name for name in reversed(example) if name in named), key=lambda name: -example[name])
    if not names or len(names) > _MOST:
        return []
    matrix = sympy.Matrix([[line.slopes.get(name, 0) for name in names] for line in lines])
    reduced, pivots = matrix.rref()
    found = []
    for place in (i for i in range(len(names)) if i not in pivots):
        step = {names[place]: sympy.Integer(1)}
        for row, pivot in enumerate(pivots):
            if reduced[row, place]:
                step[names[pivot]] = -reduced[row, place]
        whole = math.lcm(*(int(value.q) for value in step.values()))
        found.append({name: int(value * whole) for name, value in step.items()})
    return found

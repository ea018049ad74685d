"""Write conditions the way a person would: solved for a size, as a multiple, as a set of sizes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from driftscope.shapes.conditions.expressions import (
    Number,
    Operation,
    Size,
    Term,
    holds,
    operation,
    sizes_in,
    text,
    walk,
)
from driftscope.shapes.conditions.linear import Linear, linear_of, term_of
from driftscope.shapes.conditions.relations import Clause

# Sizes over which a condition on one size is described.
_LONGEST = 200
# A set of more sizes than this is not written out.
_LISTED = 8


def phrase(clause: Clause) -> Clause:
    """Return the clause with the plainest true text for its condition."""
    if clause.kind == "decided":
        return dataclasses.replace(clause, text=f"{text(clause.condition)} was decided while tracing, not checked")
    names = sorted(clause.names)
    candidates = [_solved(clause.condition), _divisible(clause.condition), _ordered(clause.condition)]
    if len(names) == 1:
        candidates.append(_described(clause.condition, names[0]))
    words = next((c for c in candidates if c), text(clause.condition))
    if not clause.enforced:
        words = _unchecked(clause, words)
    return dataclasses.replace(clause, text=words)


def _unchecked(clause: Clause, words: str) -> str:
    condition = clause.condition
    if isinstance(condition, Operation) and condition.operator == ">=" and clause.kind == "range":
        return f"{text(condition.terms[0])} traced as >= {text(condition.terms[1])}, not checked"
    return f"{words} (assumed, not checked)"


_FLIPPED = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}


def _ordered(condition: Term) -> str:
    """A linear inequality between several sizes, solved for one of them."""
    if not (isinstance(condition, Operation) and condition.operator in _FLIPPED):
        return ""
    left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left is None or right is None:
        return ""
    line = left.minus(right)
    # The size that stands alone on its side of most of the others: mask <= s + p, not s >= mask - p.
    alone = [n for n, slope in line.slopes.items() if abs(slope) == 1]
    negative = sum(slope < 0 for slope in line.slopes.values())
    lonely = [n for n in alone if (line.slopes[n] < 0) == (negative * 2 <= len(line.slopes))]
    if len(line.slopes) < 2 or not alone:
        return ""
    name = (lonely or alone)[-1]
    slope = line.slopes[name]
    rest = Linear({n: s for n, s in line.slopes.items() if n != name}, line.offset).times(-slope)
    word = condition.operator if slope > 0 else _FLIPPED[condition.operator]
    return f"{name} {word} {rest}"


def _solved(condition: Term) -> str:
    """``a == (t + c)//m`` says ``t in {m*a - c, ..., m*a - c + m - 1}``; a linear equality is solved for one size."""
    if not (isinstance(condition, Operation) and condition.operator == "=="):
        return ""
    for left, right in (condition.terms, condition.terms[::-1]):
        if isinstance(right, Operation) and right.operator == "//" and isinstance(right.terms[1], Number):
            inside, outside = linear_of(right.terms[0]), linear_of(left)
            divisor = int(right.terms[1].value)
            if inside and outside and len(inside.slopes) == 1 and len(outside.slopes) > 0 and 1 < divisor <= _LISTED:
                (name, slope), *_ = inside.slopes.items()
                if slope == 1 and name not in outside.slopes:
                    first = outside.times(divisor).plus(-inside.offset)
                    return f"{name} in {{{', '.join(str(first.plus(i)) for i in range(divisor))}}}"
    left_line, right_line = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left_line is None or right_line is None:
        return ""
    return _linear_equality(left_line.minus(right_line))


def _linear_equality(line: Linear) -> str:
    """Solve ``line == 0`` for a size that is the sum of the others, or at least stands alone."""
    if len(line.slopes) < 2:
        return ""
    solved = []
    for name, slope in line.slopes.items():
        if abs(slope) == 1:
            rest = Linear({n: s for n, s in line.slopes.items() if n != name}, line.offset).times(-slope)
            solved.append((sum(s < 0 for s in rest.slopes.values()), f"{name} == {rest}"))
    fewest = min((negative for negative, _ in solved), default=0)
    return next((words for negative, words in reversed(solved) if negative == fewest), "")


def _divisible(condition: Term) -> str:
    """``e % m == 0`` and ``a*(b//a) == b`` say "is a multiple of"."""
    if not (isinstance(condition, Operation) and condition.operator == "=="):
        return ""
    for left, right in (condition.terms, condition.terms[::-1]):
        if isinstance(left, Operation) and left.operator == "%" and right == Number(0):
            whole, part = without_common_factors(*left.terms)
            return f"{_words(whole)} is a multiple of {_words(part)}"
        if isinstance(left, Operation) and left.operator == "*" and len(left.terms) == 2:
            for a, quotient in (left.terms, left.terms[::-1]):
                if quotient == Operation("//", (right, a)):
                    return f"{_words(right)} is a multiple of {_words(a)}"
    return " and ".join(f"{name} is a multiple of {step}" for name, step in multiples(condition))


def multiples(condition: Term) -> list[tuple[str, int]]:
    """``b*h*w == 16*b*(h//4)*(w//4)``, as cutting into patches asks for, says that h and w are multiples of 4.

    No quotient is more than its size over the step, so the products are equal only where none of them is less; a size
    on both sides is left out, as in :func:`without_common_factors`.

    Returns
    -------
    list of (str, int)
        Names of sizes and their steps; [] for a condition that is none of this kind.
    """
    if not (isinstance(condition, Operation) and condition.operator == "=="):
        return []
    for whole, cut in (condition.terms, condition.terms[::-1]):
        left, right = _factors(whole), _factors(cut)
        for factor in [f for f in right if isinstance(f, Size) and f in left]:
            left.remove(factor)
            right.remove(factor)
        steps = {t.terms[0]: t.terms[1] for t in right if isinstance(t, Operation) and t.operator == "//"}
        sizes = [t for t in left if isinstance(t, Size) and isinstance(steps.get(t), Number)]
        times = math.prod(int(t.value) for t in right if isinstance(t, Number))
        found = [(t.name, int(steps[t].value)) for t in sizes]  # type: ignore[union-attr]
        rest = [t for t in right if not isinstance(t, Number)]
        matched = len(sizes) == len(left) == len(set(left)) == len(rest) == len(steps)
        if found and matched and times == math.prod(step for _, step in found):
            return found
    return []


def _factors(term: Term) -> list[Term]:
    return list(term.terms) if isinstance(term, Operation) and term.operator == "*" else [term]


def without_common_factors(whole: Term, part: Term) -> tuple[Term, Term]:
    """``a*b`` is a multiple of ``3*a`` where ``b`` is one of 3; where a is zero torch's own guard raises."""
    factors = [_factors(whole), _factors(part)]
    for factor in list(factors[1]):
        if isinstance(factor, Size) and factor in factors[0]:
            factors[0].remove(factor)
            factors[1].remove(factor)
    return operation("*", *(factors[0] or [Number(1)])), operation("*", *(factors[1] or [Number(1)]))


def _words(term: Term) -> str:
    line = linear_of(term)
    return str(line) if line else text(term)


def _described(condition: Term, name: str) -> str:
    """Describe the sizes that satisfy a condition on one size."""
    sizes = np.arange(1, _LONGEST + 1)
    true = holds(condition, {name: sizes}, len(sizes))
    first = int(np.argmax(true)) + 1
    if first > 1 and true[first - 1 :].all() and holds(condition, {name: np.zeros(1, np.int64)}, 1)[0]:
        # Size 0 passes as well, and ">=" would deny it.
        return f"{name} != 1" if first == 2 else f"{name} not in 1..{first - 1}"
    return f"{name} {said}" if (said := described_set(sizes[true].tolist(), _LONGEST)) else ""


def described_set(sizes: Sequence[int], longest: int) -> str:
    """Describe a set of sizes out of 1..longest: ``>= 9``, ``in {3, 4}``, ``is a multiple of 4``.

    Returns
    -------
    str
        Empty when none of the plain forms fits.
    """
    chosen = sorted(sizes)
    if not chosen:
        return "has no valid size"
    missing = sorted(set(range(1, longest + 1)) - set(chosen))
    if not missing:
        return ">= 1"
    if chosen == list(range(chosen[0], longest + 1)):
        return f">= {chosen[0]}"
    if chosen == list(range(1, chosen[-1] + 1)):
        return f"<= {chosen[-1]}"
    if len(chosen) == 1:
        return f"== {chosen[0]}"
    if chosen == list(range(chosen[0], chosen[-1] + 1)) and len(chosen) > 2 and chosen[-1] < longest:
        return f"in {chosen[0]}..{chosen[-1]}"
    if len(chosen) <= _LISTED and chosen[-1] <= longest // 2:
        return f"in {{{', '.join(map(str, chosen))}}}"
    if len(missing) <= _LISTED and missing[-1] <= longest // 2:
        return f"!= {missing[0]}" if len(missing) == 1 else f"not in {{{', '.join(map(str, missing))}}}"
    return _progression(chosen, longest)


def _progression(chosen: Sequence[int], longest: int) -> str:
    steps = {b - a for a, b in itertools.pairwise(chosen)}
    if len(steps) != 1 or chosen[-1] + max(steps) <= longest:
        return ""
    step = steps.pop()
    if chosen[0] % step:
        return f"in {{{chosen[0]}, {chosen[1]}, {chosen[2]}, ...}}" if len(chosen) > 2 else ""
    return f"is a multiple of {step}" + (f", >= {chosen[0]}" if chosen[0] > step else "")


# Points on which a condition that cannot fail is told: small sizes, where conditions fail, and some larger ones.
_TOLD = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 97, 128, 1000, 4097)


@lru_cache(maxsize=4096)
def always(condition: Term) -> bool:
    """Whether a condition holds at all sizes that were tried: it says nothing, as ``min(a, b) <= a``."""
    names = sorted(sizes_in(condition))
    if len(names) > 3:
        return False
    numbers = [int(part.value) for part in walk(condition) if isinstance(part, Number) and abs(part.value) < 2**31]
    sizes = sorted({*_TOLD, *(n + d for n in numbers[:8] for d in (-1, 0, 1) if n + d >= 0)})
    grid = np.array(list(itertools.product(sizes, repeat=len(names))), np.int64).reshape(-1, len(names))
    return bool(holds(condition, {name: grid[:, i] for i, name in enumerate(names)}, len(grid)).all())


@lru_cache(maxsize=4096)
def canonical(condition: Term) -> Term:
    """A linear equation without its common factor and with its sides in one order: ``40*a == 40*b`` is ``a == b``."""
    if not (isinstance(condition, Operation) and condition.operator in ("==", "!=")):
        return condition
    left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left is None or right is None or not left.minus(right).slopes:
        return condition
    line = left.minus(right)
    factor = math.gcd(line.offset, *line.slopes.values())
    first = min(line.slopes)
    sign = 1 if line.slopes[first] > 0 else -1
    slopes = {name: sign * slope // factor for name, slope in sorted(line.slopes.items())}
    ahead = Linear({n: s for n, s in slopes.items() if s > 0})
    behind = Linear({n: -s for n, s in slopes.items() if s < 0}, -sign * line.offset // factor)
    return operation(condition.operator, term_of(ahead), term_of(behind))

"""Two sums side by side, in two sentences."""

from __future__ import annotations

import numpy as np

from driftscope.accumulation.order import RevealedOrder
from driftscope.errors import InputError
from driftscope.records.words import counted


def contrast(a: RevealedOrder, b: RevealedOrder) -> str:
    """Say in one sentence how the orders differ and in another what that means for the result.

    Raises
    ------
    InputError
        If the sums have different numbers of terms.
    """
    if a.n != b.n:
        raise InputError(f"sums of {a.n} and of {b.n} terms have no common order; reveal both with the same n")
    left, right = _names(a, b)
    if a.tree == b.tree:
        return (
            f"{left} and {right} add the {a.n} terms in the same order: {a.family}, {_short(a.pattern)}. {_same(a, b)}"
        )
    first = f"{left} adds its {a.n} terms like this: {_manner(a)}; {right} like this: {_manner(b)}."
    shared = np.intersect1d(a.tree.groups, b.tree.groups).size - 1
    depths = f"{a.depth} and {b.depth}" if a.depth != b.depth else f"{a.depth} in both"
    second = (
        f"Of their {a.tree.additions} and {counted(b.tree.additions, 'partial sum')} {shared} are the same besides the"
        f" total, the longest chains of additions are {depths}, and {_arithmetic(a, b)}."
    )
    return f"{first} {second}"


def difference(a: RevealedOrder, b: RevealedOrder) -> tuple[str, str] | None:
    """Say how two sums of a reference A and of B differ, and what that does; None where they are the same sum.

    Raises
    ------
    InputError
        If the sums have different numbers of terms.
    """
    if a.n != b.n:
        raise InputError(f"sums of {a.n} and of {b.n} terms have no common order")
    if a.tree != b.tree:
        what = f"adds {a.n} terms in another order than A: here {b.family}; in A {a.family}"
        shared = np.intersect1d(a.tree.groups, b.tree.groups).size - 1
        why = (
            f"Of {counted(b.tree.additions, 'partial sum')} {shared} are the same besides the total, the longest chains"
            f" of additions are {b.depth} here and {a.depth} in A, and {_arithmetic(b, a)}. Other orders round"
            " otherwise."
        )
        return what, why
    if a.accumulator != b.accumulator:
        what = f"adds {a.n} terms in A's order, but accumulates in {b.accumulator} where A does in {a.accumulator}"
        return what, f"Both: {a.family}. Every partial sum is rounded to another format."
    if a.products and b.products and (a.fma != b.fma or a.fma_terms != b.fma_terms):
        what = f"adds {a.n} products in A's order, with FMA {_fma(b)} here and {_fma(a)} in A"
        return what, f"Both: {a.family}. A product that is rounded before it is added rounds once more."
    if a.arithmetic.mean != b.arithmetic.mean:
        return f"adds {a.n} terms in A's order, but divides otherwise", f"Both: {a.family}."
    return None


#: What is returned, by the mean of an arithmetic.
MEANS = {
    "none": "the sum",
    "divide": "the sum divided by n",
    "reciprocal": "the sum times 1/n",
    "divide-last": "the rounded sum divided by n",
    "divide-first": "every term times 1/n",
}


def _names(a: RevealedOrder, b: RevealedOrder) -> tuple[str, str]:
    if a.kernel != b.kernel:
        return a.kernel, b.kernel
    for word in ("threads", "shape", "dtype", "library"):
        x, y = getattr(a, word), getattr(b, word)
        if x != y:
            return f"{a.kernel} with {word} {x}", f"{b.kernel} with {word} {y}"
    return a.kernel, "the other"


def _manner(a: RevealedOrder) -> str:
    return f"{a.family}, {_short(a.pattern)}"


def _short(pattern: str) -> str:
    return pattern if len(pattern) <= 160 else f"{pattern[:157]}..."


def _arithmetic(a: RevealedOrder, b: RevealedOrder) -> str:
    words = [f"both accumulate in {a.accumulator}"]
    if a.accumulator != b.accumulator:
        words = [f"one accumulates in {a.accumulator}, the other in {b.accumulator}"]
    if a.products and b.products and a.fma != b.fma:
        words.append(f"FMA is {_fma(a)} here and {_fma(b)} there")
    return ", ".join(words)


def _fma(a: RevealedOrder) -> str:
    words: dict[bool | str | None, str] = {True: "used", False: "not used", None: "of no effect"}
    return words.get(a.fma, "used for some terms")


def _same(a: RevealedOrder, b: RevealedOrder) -> str:
    """Say what two sums of one order differ in besides."""
    if a.fma == b.fma == "mixed" and a.fma_terms != b.fma_terms:
        return "FMA is used for different terms, so the same values can give other last bits."
    means = MEANS[a.arithmetic.mean], MEANS[b.arithmetic.mean]
    apart = [
        *([f"one accumulates in {a.accumulator}, the other in {b.accumulator}"] * (a.accumulator != b.accumulator)),
        *([f"FMA is {_fma(a)} here and {_fma(b)} there"] * (a.products and b.products and a.fma != b.fma)),
        *([f"one returns {means[0]}, the other {means[1]}"] * (means[0] != means[1])),
        *([f"the results are {a.output} and {b.output}"] * (a.output != b.output)),
    ]
    if not apart:
        return "Accumulator and rounding are the same too, so the same values give the same bits."
    sized = means[0] != means[1] and "none" in (a.arithmetic.mean, b.arithmetic.mean)
    so = "the results are not of one size" if sized else "the last bits can differ"
    return f"But {', and '.join(apart)}, so {so}."

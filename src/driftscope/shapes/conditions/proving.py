"""Prove or refute a statement about sizes with z3, from what an exported program checks. z3 is an optional extra."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driftscope.errors import DependencyMissing, InputError
from driftscope.shapes.conditions.expressions import (
    Number,
    Operation,
    Size,
    Term,
    holds,
    operation,
    sizes_in,
    to_z3,
    walk,
)
from driftscope.shapes.conditions.parsing import Inexpressible, parse_text
from driftscope.shapes.conditions.phrasing import without_common_factors
from driftscope.shapes.conditions.relations import Relations

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"


@dataclass(frozen=True, slots=True)
class Proof:
    """What z3 said.

    Parameters
    ----------
    answer : str
        ``"proved"``, ``"refuted"``, or ``"unknown"`` where z3 gave up, or where a condition has no translation.
    counterexample : mapping of str to int
        Sizes by name at which the premises hold and the conclusion does not; only where refuted.
    reason : str
        Why it is unknown.
    """

    answer: str
    counterexample: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    def __bool__(self) -> bool:
        return self.answer == PROVED


def implied(premises: Sequence[Term], conclusion: Term, *, least: int = 0, seconds: float = 5.0) -> Proof:
    """Decide whether premises imply a conclusion for all sizes.

    Parameters
    ----------
    premises : sequence of Term
    conclusion : Term
    least : int
        Sizes below this are left out.
    seconds : float
        After which z3 gives up.

    Raises
    ------
    DependencyMissing
        If z3 is not installed.
    """
    if importlib.util.find_spec("z3") is None:
        raise DependencyMissing("proving a statement about sizes", "z3", "shapes")
    import z3

    names = sorted(set().union(sizes_in(conclusion), *(sizes_in(p) for p in premises)))
    sizes = {name: z3.Int(name) for name in names}
    solver = z3.Solver()
    solver.set("timeout", int(1000 * seconds))
    try:
        solver.add(*(variable >= least for variable in sizes.values()))
        solver.add(*(to_z3(_plain(p), sizes) for p in premises), z3.Not(to_z3(_plain(conclusion), sizes)))
    except (NotImplementedError, z3.Z3Exception) as error:
        return Proof(UNKNOWN, reason=f"a condition has no translation for z3: {error}")
    answer = solver.check()
    if answer == z3.unsat:
        return Proof(PROVED)
    if answer != z3.sat:
        return Proof(UNKNOWN, reason=f"z3 gave up: {solver.reason_unknown()}")
    model = solver.model()
    found = {name: int(str(model.eval(variable, model_completion=True))) for name, variable in sizes.items()}
    # z3 may choose what a division by zero is; arithmetic here does not let it.
    return _checked(premises, conclusion, found)


def _plain(term: Term) -> Term:
    """The same condition with what z3 cannot do said otherwise.

    Dividing by a size of zero is false here, and anything at all in z3; products of sizes that cancel are beyond it.
    """
    divisors = {
        part.terms[1]
        for part in walk(term)
        if isinstance(part, Operation) and part.operator in ("//", "/", "%") and not isinstance(part.terms[1], Number)
    }
    return operation("and", _cancelled(term), *(operation("!=", divisor, 0) for divisor in divisors))


def _cancelled(term: Term) -> Term:
    if not isinstance(term, Operation):
        return term
    parts = tuple(_cancelled(part) for part in term.terms)
    if term.operator == "==" and Number(0) in parts:
        remainder = parts[0] if parts[1] == Number(0) else parts[1]
        if isinstance(remainder, Operation) and remainder.operator == "%":
            return operation("==", operation("%", *without_common_factors(*remainder.terms)), 0)
    return operation(term.operator, *parts)


def _checked(premises: Sequence[Term], conclusion: Term, found: dict[str, int]) -> Proof:
    row: dict[str, Any] = {name: np.asarray([size]) for name, size in found.items()}
    true = all(holds(p, row, 1)[0] for p in premises) and not holds(conclusion, row, 1)[0]
    if true:
        return Proof(REFUTED, found)
    return Proof(UNKNOWN, reason="z3's counterexample divides by zero")


def statement(words: str, relations: Relations) -> Term:
    """Read a statement in the names of a program's axes: ``"x.shape[1] % 4 == 0"``.

    Raises
    ------
    InputError
        If it is no condition, or names something that is no axis.
    """
    names = {ast.unparse(ast.parse(axis.name, mode="eval")): axis.name for axis in relations.axes}
    try:
        return parse_text(words, lambda source: Size(names[source]) if source in names else None)
    except Inexpressible as error:
        raise InputError(f"{words!r}: {error} is not a size; the sizes are {', '.join(names.values())}") from error


def prove(relations: Relations, words: str, *, least: int = 0, seconds: float = 5.0) -> Proof:
    """Decide whether every call that an exported program lets pass satisfies a statement.

    Parameters
    ----------
    relations : Relations
        Of the program; only what it checks when it is called is taken for granted.
    words : str
        ``"x.shape[0] == y.shape[0]"``.
    least : int
        Sizes below this are left out; 2 leaves out what torch traces apart.
    seconds : float

    Raises
    ------
    InputError
        If the statement cannot be read.
    DependencyMissing
        If z3 is not installed.
    """
    premises = [c.condition for c in relations.recorded if c.enforced and c.names]
    return implied(premises, statement(words, relations), least=least, seconds=seconds)

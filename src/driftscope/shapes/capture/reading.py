"""Read every relation an exported program was traced under, from the four places where torch 2.13 records them.

1. Shapes of the placeholders: equal symbols, fixed sizes, derived sizes.
2. ``range_constraints``, of which only lower bounds above 2 and finite upper bounds are checked at run time.
3. ``_guards_code``: conditions decided while tracing, checked by ``module()``.
4. ``_assert_scalar`` nodes: conditions left to run time (unbacked sizes, deferred ones, data).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.export import ExportedProgram

from driftscope.shapes import private_torch
from driftscope.shapes.capture.source_lines import TraceLog, parse_line
from driftscope.shapes.capture.tracing_notes import TracingNotes, decided
from driftscope.shapes.capture.unbacked import UnbackedSizes
from driftscope.shapes.conditions.expressions import (
    Number,
    Operation,
    Size,
    Term,
    conjuncts,
    operation,
    ordered,
    sizes_in,
    substitute,
    text,
)
from driftscope.shapes.conditions.minimising import minimised
from driftscope.shapes.conditions.naming import Sources
from driftscope.shapes.conditions.parsing import Inexpressible, from_sympy, parse_text
from driftscope.shapes.conditions.phrasing import always, canonical
from driftscope.shapes.conditions.relations import Clause, Relations, SourceLine, clause, size_of
from driftscope.shapes.probe.axes import Arguments, Axis

T = TypeVar("T")

# Bounds beyond this are torch's "any integer", however it is written.
_UNBOUNDED = 2**31
# torch.export checks a lower bound at run time only when it is larger than this (torch/export/_unlift.py).
_UNCHECKED_LOWER = 2


def relations_of(exported: ExportedProgram, arguments: Arguments, log: TraceLog | None = None) -> Relations:
    """Read and minimise everything a program assumes of the sizes of its inputs.

    Parameters
    ----------
    exported : ExportedProgram
    arguments : Arguments
        The example it was traced with.
    log : TraceLog, optional
        What was noted while it was traced: the user's lines, and decisions that left no guard.

    What torch does not record where it did is named in ``Relations.unread``; the rest is still read.
    """
    reader = _Reader(exported, arguments, log or TraceLog())
    places = (reader.placeholders, reader.ranges, reader.guards, reader.asserts, reader.decisions)
    nothing: list[Clause] = []
    found = [one for place in places for one in reader.attempt(place, nothing)]
    rank = {axis.name: place for place, axis in enumerate(arguments.axes)}
    recorded = tuple(_without_repeats([_in_order(one, rank) for one in found]))
    clauses, classes = minimised(recorded, arguments.axes)
    return Relations(arguments.axes, recorded, clauses, classes, tuple(dict.fromkeys(reader.unread)))


def _in_order(one: Clause, rank: dict[str, int]) -> Clause:
    if not one.names:
        return one
    condition = ordered(one.condition, rank)
    return dataclasses.replace(one, condition=condition, text=text(condition))


def _without_repeats(clauses: list[Clause]) -> list[Clause]:
    """Keep one clause per condition; it is enforced if any of its copies is."""
    kept: dict[str, Clause] = {}
    for one in clauses:
        key = text(one.condition) if one.names else one.text
        before = kept.get(key)
        if before is None:
            kept[key] = one
        elif one.enforced and not before.enforced:
            kept[key] = dataclasses.replace(before, enforced=True, torch_line=one.torch_line, user_line=one.user_line)
    return list(kept.values())


class _Reader:
    """Reads one program; sizes are named by the user's axes."""

    def __init__(self, exported: ExportedProgram, arguments: Arguments, log: TraceLog):
        self.exported = exported
        self.arguments = arguments
        self.unread: list[str] = []
        self.environment = private_torch.shape_environment(exported)
        self.sources = Sources(arguments)
        self.symbols: dict[str, Term] = {}
        unsized: list[tuple[Axis, Any]] = []
        self.sized = self.attempt(self._sized, unsized)
        self._name_symbols()
        self.log = log
        self.notes = self.attempt(
            lambda: TracingNotes(self.environment, self.symbols, log), TracingNotes(None, self.symbols, log)
        )
        self.canonical = self._canonical()
        self.unbacked = UnbackedSizes(exported)

    def attempt(self, read: Callable[[], T], otherwise: T) -> T:
        """Read one place; one that torch moved is noted and left out."""
        try:
            return read()
        except private_torch.Moved as error:
            self.unread.append(str(error))
            return otherwise

    def _sized(self) -> list[tuple[Axis, Any]]:
        """Every axis of every input with torch's expression for it."""
        found = []
        for node, leaf in zip(private_torch.input_nodes(self.exported), self.sources.order, strict=False):
            value = node.meta.get("val")
            axes = self.sources.axes_of(leaf)
            pairs: list[tuple[Axis, Any]]
            if isinstance(value, torch.Tensor):
                pairs = list(zip(axes, value.shape, strict=True))
            elif isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
                pairs = [(axis, value) for axis in axes]
            else:
                pairs = []
            found += [(axis, private_torch.symbolic(size)) for axis, size in pairs]
        return found

    def _name_symbols(self) -> None:
        """Decide what each symbol means: the first axis that is it, else solved from the first axis made of it."""
        for axis, expression in self.sized:
            if getattr(expression, "is_Symbol", False):
                self.symbols.setdefault(str(expression), size_of(axis))
        for source_symbol, sources in self._symbol_sources().items():
            if source_symbol not in self.symbols:
                terms = [t for t in map(self.sources.size, sources) if t is not None]
                if terms:
                    self.symbols[source_symbol] = terms[0]
        for axis, expression in self.sized:
            self._solve(axis, expression)
        if self.environment is not None:
            # Unbacked sizes have no source; one that another replaced means what the other means.
            none: Mapping[Any, Any] = {}
            replaced = self.attempt(lambda: private_torch.replacements(self.environment), none)
            for symbol, expression in replaced.items():
                with contextlib.suppress(Inexpressible):
                    self.symbols.setdefault(str(symbol), from_sympy(expression, self.symbols))

    def _canonical(self) -> dict[str, Term]:
        """From every axis to the first axis that has the same symbol."""
        first: dict[str, Term] = {}
        return {axis.name: first.setdefault(str(expression), size_of(axis)) for axis, expression in self.sized}

    def _symbol_sources(self) -> dict[str, list[str]]:
        if self.environment is None:
            return {}
        return self.attempt(lambda: private_torch.symbol_sources(self.environment), {})

    def _solve(self, axis: Axis, expression: Any) -> None:
        """A derived Dim may have a root that is no input: ``2*_k`` on an axis makes ``_k`` half of it."""
        free = list(getattr(expression, "free_symbols", ()))
        if len(free) != 1 or str(free[0]) in self.symbols:
            return
        polynomial = expression.as_poly(free[0])
        if polynomial is None or polynomial.degree() != 1:
            return
        slope, offset = (int(c) for c in polynomial.all_coeffs())
        self.symbols[str(free[0])] = operation("//", operation("+", size_of(axis), -offset), slope)

    # --- the four places --------------------------------------------------------------------------------------

    def placeholders(self) -> list[Clause]:
        """Equal, fixed and derived sizes."""
        found: list[Clause] = []
        ranges = {str(key) for key in self.exported.range_constraints}
        for axis, expression in self.sized:
            checked = isinstance(expression, int) or str(expression) in ranges
            here = {"place": "placeholder", "enforced": checked}
            number = _as_integer(expression)
            if number is not None:
                lines = self.notes.replacement(axis.name)
                found.append(clause("static", operation("==", size_of(axis), number), **here, **lines))
                continue
            try:
                meaning = from_sympy(expression, self.symbols)
            except Inexpressible:
                continue
            if meaning == size_of(axis):
                continue
            kind = "equal" if isinstance(meaning, Size) else "derived"
            condition = operation("==", size_of(axis), meaning)
            lines = self.notes.replacement(axis.name, text(meaning))
            found.append(clause(kind, _tidy(condition, axis, meaning), **here, **lines))
        return found

    def ranges(self) -> list[Clause]:
        """Lower and upper bounds, with those that nothing checks."""
        found: list[Clause] = []
        assumed = private_torch.value_ranges(self.environment) if self.environment is not None else {}
        for key, constraint in self.exported.range_constraints.items():
            try:
                meaning = from_sympy(key, self.symbols)
            except Inexpressible:
                continue
            lower, upper = _bound(constraint.lower), _bound(constraint.upper)
            traced = assumed.get(str(key), (constraint.lower, constraint.upper))
            lower = max((b for b in (lower, _bound(traced[0])) if b is not None), default=None)
            if lower is not None and lower > 0:
                checked = lower > _UNCHECKED_LOWER
                condition = operation(">=", meaning, lower)
                lines = self.notes.lines(condition) if checked else {}
                found.append(clause("range", condition, place="range", enforced=checked, **lines))
            if upper is not None:
                condition = operation("<=", meaning, upper)
                found.append(clause("range", condition, place="range", **self.notes.lines(condition)))
        return found

    def guards(self) -> list[Clause]:
        """Conditions that ``module()`` checks, and those the trace decided that did not reach it."""
        found: list[Clause] = []
        for words in private_torch.guard_texts(self.exported):
            try:
                condition = parse_text(words, self.sources.size)
            except Inexpressible:
                found.append(Clause("guard", Number(True), words, True))
                continue
            for part in conjuncts(condition):
                if not isinstance(part, Number) and not always(part):
                    found.append(
                        clause("guard", canonical(part), **(self._lines_of(condition) or self._lines_of(part)))
                    )
        return found

    def _lines_of(self, condition: Term) -> dict[str, SourceLine]:
        """Lines of a guard; an equality of two axes was noted where one symbol replaced the other."""
        same = substitute(condition, self.canonical)
        if isinstance(same, Number):
            return self.notes.replacement(*sorted(sizes_in(condition)))
        return self.notes.lines(same)

    def decisions(self) -> list[Clause]:
        """Answers given to the model's own Python; those that no guard repeats are checked by nothing."""
        found: list[Clause] = []
        for decision in self.log.decisions:
            condition = decided(decision, self.symbols)
            if condition is not None:
                here = {"user_line": decision.line, "place": "decision", "enforced": False}
                found.append(clause("decided", condition, **here))
        return found

    def asserts(self) -> list[Clause]:
        """Conditions left to run time by nodes of the graph."""
        found: list[Clause] = []
        stated = [
            (private_torch.asserted(node), parse_line(node.meta.get("stack_trace") or ""))
            for node in self.exported.graph.nodes
            if node.op == "call_function" and "_assert_scalar" in str(node.target)
        ]
        for expression, _ in stated:
            self.symbols |= self.unbacked.defined_by(expression, self.symbols)
        for expression, line in stated:
            lines = {"user_line" if line and line.user else "torch_line": line}
            try:
                condition = from_sympy(expression, self.symbols)
            except Inexpressible:
                found += self._unbacked(expression, lines)
                continue
            if not isinstance(condition, Number) and not always(condition):
                if line is None or not line.user:  # a pass of torch put the node there; the trace knows for which line
                    lines |= self._lines_of(condition)
                found.append(clause("assert", condition, place="assert", **lines))
        return found + self._deferred()

    def _unbacked(self, expression: Any, lines: dict[str, SourceLine | None]) -> list[Clause]:
        """A condition on what is no size of an input, in words; none where it says nothing."""
        by_values = self.unbacked.by_values(expression)
        if not by_values and self.unbacked.is_no_news(expression):
            return []
        line = self.unbacked.line(expression)
        if line is not None and line.user:
            lines = {"user_line": line}
        words = str(expression)
        with contextlib.suppress(Inexpressible):
            words = text(from_sympy(expression, {**self.unbacked.names, **self.symbols}))
        return [Clause("assert" if by_values else "guard", Number(True), words, True, place="assert", **lines)]

    def _deferred(self) -> list[Clause]:
        """Conditions left to run time for which the graph has no node: only a kernel may refuse what breaks them."""
        found: list[Clause] = []
        for expression in private_torch.deferred_asserts(self.environment) if self.environment is not None else []:
            try:
                condition = from_sympy(expression, self.symbols)
            except Inexpressible:
                continue
            if not isinstance(condition, Number):
                lines = self._lines_of(condition)
                found.append(clause("assert", condition, place="deferred", enforced=False, **lines))
        return found


def _tidy(condition: Term, axis: Axis, meaning: Term) -> Term:
    """An axis solved from itself (``2*(s//2) == s``) is a divisibility."""
    if axis.name in sizes_in(meaning) and isinstance(meaning, Operation):
        for part in meaning.terms:
            if isinstance(part, Number) and isinstance(part.value, int) and part.value > 1 and meaning.operator == "*":
                return operation("==", operation("%", size_of(axis), part), 0)
    return condition


def _as_integer(expression: Any) -> int | None:
    """A size that is a number, also where torch wraps it in a SymInt."""
    if isinstance(expression, int):
        return expression
    return int(expression) if getattr(expression, "is_Integer", False) else None


def _bound(value: Any) -> int | None:
    """A bound as an integer; None for "no bound"."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if math.isfinite(number) and abs(number) < _UNBOUNDED else None

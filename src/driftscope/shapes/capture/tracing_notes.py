"""Which lines of code asked for a condition: the shape environment's notes, matched with the clauses read."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from driftscope.shapes import private_torch
from driftscope.shapes.capture.source_lines import Decision, TraceLog, parse_line
from driftscope.shapes.conditions.expressions import Number, Size, Term, holds, negated, operation, sizes_in, text
from driftscope.shapes.conditions.parsing import Inexpressible, from_sympy
from driftscope.shapes.conditions.relations import SourceLine

# Points at which two conditions are compared to tell whether they are the same one, differently written.
_SAMPLES = 256


class TracingNotes:
    """The notes of one trace.

    Parameters
    ----------
    environment : ShapeEnv or None
    symbols : mapping of str to Term
        What torch's symbols stand for.
    log : TraceLog
        What was noted while tracing.
    """

    def __init__(self, environment: Any | None, symbols: Mapping[str, Term], log: TraceLog):
        self._noted = log.lines
        self._entries: list[tuple[Term, dict[str, SourceLine]]] = []
        self._replaced: dict[str, dict[str, SourceLine]] = {}
        if environment is None:
            return
        for guard in private_torch.recorded_guards(environment):
            try:
                term = from_sympy(guard.condition, symbols)
            except Inexpressible:
                continue
            if not isinstance(term, Number):
                self._entries.append((term, self._lines(guard.place)))
        for symbol, place in private_torch.replacement_places(environment).items():
            meaning = symbols.get(symbol)
            if isinstance(meaning, Size):
                self._replaced[meaning.name] = self._lines(place)

        for expression, lines in log.deferred:
            with contextlib.suppress(Inexpressible):
                self._entries.append((from_sympy(expression, symbols), lines.known))
        for decision in log.decisions:
            made = decided(decision, symbols)
            if made is not None:
                self._entries.append((made, {"user_line": decision.line}))

    def _lines(self, place: Any) -> dict[str, SourceLine]:
        if id(place) in self._noted:
            return self._noted[id(place)].known
        theirs = parse_line(str(place))
        return {} if theirs is None else {"torch_line": theirs}

    def replacement(self, *names: str) -> dict[str, SourceLine]:
        """Lines that made an axis equal to another, by the names of both."""
        return next((self._replaced[name] for name in names if name in self._replaced), {})

    def lines(self, condition: Term) -> dict[str, SourceLine]:
        """Lines that asked for a condition: the note with its text, else the first that agrees everywhere tried."""
        words = text(condition)
        for term, found in self._entries:
            if text(term) == words:
                return found
        names = sizes_in(condition)
        alike = [(term, found) for term, found in self._entries if sizes_in(term) == names]
        for term, found in alike:
            if np.array_equal(_trace_of(term), _trace_of(condition)):
                return found
        return {}


def decided(decision: Decision, symbols: Mapping[str, Term]) -> Term | None:
    """Return the condition that a decision made true, or None where it is not about sizes of inputs."""
    try:
        asked = from_sympy(decision.condition, symbols)
    except Inexpressible:
        return None
    if isinstance(asked, Number):
        return None
    if getattr(decision.answer, "is_Integer", False) or type(decision.answer) is int:
        return operation("==", asked, int(decision.answer))
    return asked if bool(decision.answer) else negated(asked)


@lru_cache(maxsize=1024)
def _trace_of(condition: Term) -> np.ndarray:
    """Truth of a condition at sizes drawn by the axes' names, alike for every condition."""
    sizes = {}
    for name in sorted(sizes_in(condition)):
        generator = np.random.default_rng(sum(name.encode()) + len(name))
        sizes[name] = generator.integers(0, 24, _SAMPLES)
    return holds(condition, sizes, _SAMPLES)

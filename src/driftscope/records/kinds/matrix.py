"""The record of several programs compared pairwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.errors import RecordError
from driftscope.records.frames import frame
from driftscope.records.json_schema import schema_of
from driftscope.records.kinds.comparison import SCHEMA as COMPARISON_SCHEMA
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.plain import to_plain
from driftscope.records.showing import Shown
from driftscope.records.verdict import Verdict, worst

MATRIX_SCHEMA = "driftscope/matrix/1"

# Relative difference of two errors below which neither program is called closer.
_ALIKE = 0.05


@dataclass(frozen=True, slots=True, repr=False)
class DriftMatrix(Shown):
    """Every pair of several programs on the same inputs.

    Parameters
    ----------
    names : tuple of str
        The programs, in the order given.
    pairs : mapping of (str, str) to Comparison
        One comparison for each pair, the earlier name as the reference.
    classes : tuple of tuple of str
        Groups of programs whose results have the same bits.
    refused : mapping of str to str
        Programs that did not run, and what their runtime said.
    """

    names: tuple[str, ...]
    pairs: Mapping[tuple[str, str], Comparison]
    classes: tuple[tuple[str, ...], ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    schema: str = MATRIX_SCHEMA

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all pairs."""
        return worst(c.verdict for c in self.pairs.values())

    @property
    def errors(self) -> dict[str, float | None]:
        """How far each program is from its own float64 evaluation: root mean square over all outputs, absolute.

        None where a program did not run or cannot be evaluated in float64.
        """
        return {name: self._error(name) for name in self.names}

    def _error(self, name: str) -> float | None:
        for pair, comparison in self.pairs.items():
            if name not in pair or not comparison.outputs:
                continue
            sides = [o.a if pair[0] == name else o.b for o in comparison.outputs]
            squares = [s.error**2 for s in sides if s is not None and s.error is not None]
            if squares:
                return math.sqrt(sum(squares) / len(squares))
        return None

    @property
    def closest(self) -> tuple[str, ...]:
        """The programs closest to exact arithmetic: those whose error is the smallest, within five hundredths.

        Empty where the programs are not one function: then each is close to something else.
        """
        known = {name: error for name, error in self.errors.items() if error is not None}
        if not known or self.verdict is Verdict.DIFFERENT:
            return ()
        least = min(known.values())
        return tuple(name for name, error in known.items() if error <= least * (1 + _ALIKE))

    def __getitem__(self, pair: tuple[str, str]) -> Comparison:
        one, other = pair
        return self.pairs[one, other] if (one, other) in self.pairs else self.pairs[other, one]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return {
            "schema": self.schema,
            "names": list(self.names),
            "classes": [list(c) for c in self.classes],
            "refused": dict(self.refused),
            "pairs": [{"a": a, "b": b, "comparison": to_plain(c)} for (a, b), c in self.pairs.items()],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DriftMatrix:
        """Read a matrix back.

        Raises
        ------
        RecordError
            If ``data`` is not a matrix of a known schema.
        """
        if data.get("schema") != MATRIX_SCHEMA:
            raise RecordError(f"this is not a record of schema {MATRIX_SCHEMA!r} (found {data.get('schema')!r})")
        try:
            pairs = {(str(p["a"]), str(p["b"])): Comparison.from_dict(p["comparison"]) for p in data["pairs"]}
            names, classes = tuple(map(str, data["names"])), tuple(tuple(map(str, c)) for c in data["classes"])
            return cls(names, pairs, classes, {str(k): str(v) for k, v in data["refused"].items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"the record is damaged: {error!r}") from error

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of :meth:`to_dict`."""
        whole = schema_of(Comparison, COMPARISON_SCHEMA)
        names = {"type": "array", "items": {"type": "string"}}
        pair = {
            "type": "object",
            "properties": {
                "a": {"type": "string"},
                "b": {"type": "string"},
                "comparison": {"$ref": "#/$defs/Comparison"},
            },
            "required": ["a", "b", "comparison"],
        }
        fields = {
            "schema": {"const": MATRIX_SCHEMA},
            "names": names,
            "classes": {"type": "array", "items": names},
            "refused": {"type": "object", "additionalProperties": {"type": "string"}},
            "pairs": {"type": "array", "items": pair},
        }
        comparison = {k: v for k, v in whole.items() if k not in ("$schema", "$id", "$defs")}
        return {
            "$schema": whole["$schema"], "$id": MATRIX_SCHEMA, "title": cls.__name__, "type": "object",
            "properties": fields, "required": list(fields), "$defs": whole["$defs"] | {"Comparison": comparison},
        }  # fmt: skip

    def to_pandas(self) -> Any:
        """Return the verdicts as a square pandas table (needs ``driftscope[frames]``)."""

        running = [n for n in self.names if n not in self.refused]
        rows = [["IDENTICAL" if a == b else str(self[a, b].verdict) for b in running] for a in running]
        return frame(rows, index=running, columns=running)

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        rows = [f"{a:<{width}}  {b:<{width}}  {c.verdict}: {c.answer}" for (a, b), c in self.pairs.items()]
        return "\n".join(rows)

"""The record of one comparison: everything that was measured, decided and found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.errors import RecordError
from driftscope.records.finding import Finding
from driftscope.records.frames import frame
from driftscope.records.kinds.answer import answer_of
from driftscope.records.kinds.nodes import NodeRecord
from driftscope.records.kinds.output import Outputs, Tolerance, widest_tolerance
from driftscope.records.plain import from_plain, to_plain
from driftscope.records.showing import Shown
from driftscope.records.verdict import Verdict

SCHEMA = "driftscope/comparison/1"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Whether two programs are the same program, with the evidence.

    ``findings`` come most important first; ``first`` is the one to read. ``outputs`` are found by path too:
    ``outputs["out['logits']"]``; ``tolerance`` fits them all. ``programs`` describes both sides,
    ``inputs`` lets the same inputs be made anywhere, ``thresholds`` are the ones that were used, ``evidence``
    holds what the lift and the floor measured, ``times`` seconds per step (the only part of a record that
    differs between two equal runs).
    """

    verdict: Verdict
    reason: str
    outputs: Outputs
    findings: tuple[Finding, ...] = ()
    programs: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    nodes: tuple[NodeRecord, ...] = ()
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", Outputs(self.outputs))

    @property
    def first(self) -> Finding | None:
        """The most important finding, or None."""
        return self.findings[0] if self.findings else None

    @property
    def functions_differ(self) -> bool:
        """Whether some output has the same bits on these inputs although its function is another one."""
        return any(f.code == "N016" for f in self.findings)

    @property
    def tolerance(self) -> Tolerance:
        """A tolerance that fits every output: the widest of theirs.

        Raises
        ------
        RecordError
            If no output has one: none is of floating point, or nothing was decided.
        """
        found = widest_tolerance(self.outputs)
        if found is None or found.tolerance is None:
            raise RecordError(f"no output of this {self.verdict} comparison has a tolerance: {self.reason}")
        return found.tolerance

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data (NaN and infinities as the strings "nan", "inf", "-inf")."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Read a record back; refuses a schema it does not know.

        Raises
        ------
        RecordError
            If ``data`` is not a comparison record of a known schema.
        """
        return from_plain(cls, data, SCHEMA)

    def to_pandas(self) -> Any:
        """Return one row per output as a pandas DataFrame (needs ``driftscope[frames]``)."""
        columns = [
            "path",
            "kind",
            "count",
            "mismatched",
            "max_ulp",
            "max_abs",
            "max_rel",
            "rms",
            "floors",
            "lifted",
            "closer",
            "reason",
        ]
        return frame([{"verdict": str(o.verdict), **{c: getattr(o, c) for c in columns}} for o in self.outputs])

    @property
    def answer(self) -> str:
        """The answer in plain words: place, cause and size; ``reason`` is the judge's own sentence."""
        return answer_of(self.verdict, self.reason, self.findings, self.outputs)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.answer}"

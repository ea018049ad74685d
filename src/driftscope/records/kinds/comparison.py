"""The record of one comparison: everything that was measured, decided and found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.errors import RecordError
from driftscope.records.finding import Finding
from driftscope.records.first_line import answer_of
from driftscope.records.frames import frame
from driftscope.records.kinds.output import Outputs, Tolerance, widest_tolerance
from driftscope.records.showing import Record
from driftscope.records.verdict import Verdict

SCHEMA = "driftscope/comparison/1"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One value along the way through B, beside A's.

    Parameters
    ----------
    name, operator : str
        B's node.
    value : str
        Name of B's value.
    shape : tuple of int
    module, file, expression : str or None
        As far as either graph knows them.
    line : int or None
    counterpart : str
        A's node that does the same; empty when none was found.
    lifted : float or None
        rms(B64 - A64) / rms(A64) of the two values in float64, each program on its own values; elements are compared
        in order of size where the shapes differ. None without a counterpart.
    fed : float or None
        The same with B given A's values wherever A has them: what this node, and those before it without a
        counterpart, add themselves. None where that was not measured.
    error_a, error_b : float or None
        Distance of the native value from the side's own float64 value, in floors of that value: 1 is ordinary
        rounding of everything before it. None where the native value cannot be read.
    reads : tuple of str
        Nodes of B whose values this one reads.
    counterpart_reads : tuple of str
        Nodes of A, among the counterparts, whose values the counterpart reads, directly or through others.
    """

    name: str
    operator: str
    value: str
    shape: tuple[int, ...] = ()
    module: str | None = None
    file: str | None = None
    line: int | None = None
    expression: str | None = None
    counterpart: str = ""
    lifted: float | None = None
    error_a: float | None = None
    error_b: float | None = None
    fed: float | None = None
    reads: tuple[str, ...] = ()
    counterpart_reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Record):
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
        """Whether results agree on these inputs although the functions are not the same: other inputs part them."""
        return any(f.code == "N016" or "unreached" in f.evidence for f in self.findings)

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
        rows = [{"verdict": str(o.verdict), **{c: getattr(o, c) for c in columns}} for o in self.outputs]
        # Of the output as a whole, as every sentence says it; one slice alone may be further off.
        return frame([{**row, "lifted": o.lifted_size} for row, o in zip(rows, self.outputs, strict=True)])

    @property
    def answer(self) -> str:
        """The answer in plain words: place, cause and size; ``reason`` is the judge's own sentence."""
        return answer_of(self.verdict, self.reason, self.findings, self.outputs)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.answer}"

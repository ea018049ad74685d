"""The record of one comparison: everything that was measured, decided and found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.nodes import NodeRecord
from driftscope.records.plain import from_plain, to_plain
from driftscope.records.showing import Shown
from driftscope.records.verdict import Verdict

SCHEMA = "driftscope/comparison/1"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A tolerance that fits one output in its dtype, and the reason for it.

    ``rtol`` and ``atol`` are what ``torch.testing.assert_close`` expects: ``|b - a| <= atol + rtol * |a|``.
    """

    rtol: float
    atol: float
    reason: str


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one side at one output.

    Parameters
    ----------
    dtype, shape
        Of the native value.
    floor : float or None
        Root-mean-square error that ordinary rounding of this program causes here, absolute.
    error : float or None
        rms of (native - its own lift), absolute.
    error_floors : float or None
        The same in units of ``floor``.
    """

    dtype: str
    shape: tuple[int, ...] | None
    floor: float | None = None
    error: float | None = None
    error_floors: float | None = None


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """How one output differs.

    Parameters
    ----------
    path : str
        Place in the output tree, as ``out['logits']``.
    verdict, reason
        The verdict for this output and one sentence of reason.
    kind : str
        ``"same"``, ``"value"``, ``"nan"``, ``"dtype"``, ``"shape"``, ``"structure"`` or ``"kind"``: the most
        serious way in which the native values differ.
    count, mismatched : int
        Elements, and those whose bits differ.
    max_ulp, max_abs, max_rel, rms : float or None
        Native drift, b - a.
    worst_index : tuple of int or None
        Where ``max_abs`` is.
    worst_values : tuple of two str or None
        The two values there.
    floors : float or None
        rho, the native drift in floors (DESIGN section 1): tensor, slices and tail, the largest.
    lifted : float or None
        delta64, the lifted drift, relative.
    lifted_threshold : float or None
        The tau it was judged against.
    closer : str or None
        ``"a"``, ``"b"`` or ``"equal"``: which side is closer to float64.
    a, b : Side or None
        Each side's own numbers; None when the output is missing there.
    tolerance : Tolerance or None
        A suggestion with its reason.
    """

    path: str
    verdict: Verdict
    reason: str
    kind: str
    count: int = 0
    mismatched: int = 0
    max_ulp: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    rms: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_values: tuple[str, str] | None = None
    floors: float | None = None
    lifted: float | None = None
    lifted_threshold: float | None = None
    closer: str | None = None
    a: Side | None = None
    b: Side | None = None
    tolerance: Tolerance | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Whether two programs are the same program, with the evidence.

    ``findings`` come most important first; ``first`` is the one to read. ``programs`` describes both sides,
    ``inputs`` lets the same inputs be made anywhere, ``thresholds`` are the ones that were used, ``evidence``
    holds what the lift and the floor measured, ``times`` seconds per step (the only part of a record that
    differs between two equal runs).
    """

    verdict: Verdict
    reason: str
    outputs: tuple[OutputRecord, ...]
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

    @property
    def first(self) -> Finding | None:
        """The most important finding, or None."""
        return self.findings[0] if self.findings else None

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
        from driftscope.records.frames import outputs_frame

        return outputs_frame(self)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"

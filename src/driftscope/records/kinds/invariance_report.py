"""The record of one check of invariance: on which circumstances of a run a program's result depends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.showing import Record

INVARIANCE_SCHEMA = "driftscope/invariance/1"

#: From harmless to serious; the worst of an axis's trials is the outcome of the axis.
OUTCOMES: dict[str, str] = {
    "not-applicable": "nothing to vary here",
    "same": "the same bits",
    "rounding": "the same values up to rounding",
    "refused": "refused, although the program runs on the inputs as given",
    "different": "other values than rounding explains, or another row's values",
}

#: What is varied along each axis, in the order in which axes are tried and shown.
AXES: dict[str, str] = {
    "repeat": "the same call again",
    "batch": "the same row alone, in batches of other sizes, and beside other rows",
    "order": "rows in another order",
    "padding": "padding after and before a sequence, and what stands in it",
    "chunking": "a sequence in pieces, each with the state that the last one left",
    "threads": "the number of threads",
    "layout": "strides and alignment of the inputs in memory",
    "denormals": "denormal numbers taken as zero",
    "processes": "loaded and run in fresh processes, with other hash seeds",
}


@dataclass(frozen=True, slots=True)
class InvarianceFinding(Finding):
    """One circumstance on which a result depends.

    Parameters
    ----------
    axis : str
        A key of :data:`AXES`.
    trial : str
        The trial that shows it most clearly.
    meeting : str
        For rows that are not computed independently: the value through which one reaches another.
    """

    axis: str = ""
    trial: str = ""
    meeting: str = ""


@dataclass(frozen=True, slots=True)
class InvarianceTrial:
    """One way of running the program, compared with another.

    Parameters
    ----------
    axis : str
    trial : str
        What was varied: ``"row 0 repeated to a batch of 32"``.
    outcome : str
        A key of :data:`OUTCOMES`.
    reason : str
        One sentence.
    floors : float or None
        The difference in noise floors (rms over sqrt(2) times the floor), where the floor was measured.
    max_abs : float or None
        Largest difference.
    path : str or None
        Output with the worst difference.
    worst : tuple of two str or None
        The two values there.
    """

    axis: str
    trial: str
    outcome: str
    reason: str = ""
    floors: float | None = None
    max_abs: float | None = None
    path: str | None = None
    worst: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class InvarianceReport(Record):
    """What a program's result depends on beside its inputs' values.

    Parameters
    ----------
    program : str
        Its name and runtime.
    outcomes : mapping of str to str
        Axis to a key of :data:`OUTCOMES`.
    reasons : mapping of str to str
        Axis to one sentence.
    findings : tuple of InvarianceFinding
        Most important first; notes last.
    trials : tuple of InvarianceTrial
        In the order they were made.
    axes : mapping of str to str
        Which axes of inputs and outputs were taken for the batch: ``{"batch": "x=0, out=0"}``.
    choices : mapping of str to JSON values
        For outputs that are scores (two or more along the last axis), by axis: ``choices``, how often the largest one
        changed (``flips``) and the set of five (``top``), ``smallest_margin`` in changes, ``margin_floors``, and after
        how many choices in a row one is expected to be another (``expected_steps``).
    runs : int
        Times the program was run, tracing and lifting not counted.
    inputs, environment, thresholds, times, command
        As in :class:`~driftscope.records.kinds.comparison.Comparison`.
    """

    program: str
    outcomes: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[InvarianceFinding, ...] = ()
    trials: tuple[InvarianceTrial, ...] = ()
    axes: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Any] = field(default_factory=dict)
    runs: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    schema: str = INVARIANCE_SCHEMA

    @property
    def first(self) -> InvarianceFinding | None:
        """The most important finding, or None."""
        return self.findings[0] if self.findings else None

    @property
    def worst(self) -> str:
        """The most serious outcome of all axes."""
        order = list(OUTCOMES)
        return max(self.outcomes.values(), key=order.index, default="not-applicable")

    def of_axis(self, axis: str) -> tuple[InvarianceTrial, ...]:
        """Return the trials along one axis."""
        return tuple(trial for trial in self.trials if trial.axis == axis)

    def __str__(self) -> str:
        return f"{self.program}: {', '.join(f'{axis} {outcome}' for axis, outcome in self.outcomes.items())}"

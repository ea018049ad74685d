"""The record of one check of shapes: what was assumed of sizes, the spec to write, what happens at which shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.showing import Record

SHAPES_SCHEMA = "driftscope/shapes/1"


@dataclass(frozen=True, slots=True)
class ShapeRelation:
    """One condition on sizes that the program was traced under.

    Parameters
    ----------
    text : str
        ``z.shape[1] in {2*x.shape[1] - 1, 2*x.shape[1]}``.
    kind : str
        ``"equal"``, ``"static"``, ``"range"``, ``"derived"``, ``"guard"``, ``"decided"`` or ``"assert"``.
    enforced : bool
        Whether the exported program checks it when it is called.
    place : str
        Where torch recorded it: ``"placeholder"``, ``"range"``, ``"guard"``, ``"assert"``, or ``"decision"`` for an
        answer that torch gave the model's Python and recorded nowhere.
    file, line, function : str, int, str or None
        The line of the model that was running.
    expression : str or None
        The text of that line.
    asked_by : str
        The line of torch that asked; empty where the model itself did.
    """

    text: str
    kind: str
    enforced: bool
    place: str = "guard"
    file: str | None = None
    line: int | None = None
    function: str | None = None
    expression: str | None = None
    asked_by: str = ""


@dataclass(frozen=True, slots=True)
class ShapeCandidate:
    """One way of exporting that was tried.

    Parameters
    ----------
    name : str
        Where the spec came from: ``"yours"``, ``"from the inputs"``, ``"from the relations"``, or the mode.
    mode : str
    accepted : bool
    words : str
        What torch said to a refusal (the first one, if the spec was repaired).
    changes : tuple of str
        What was changed until it was accepted.
    right, lost, wrong : int
        Probed points at which the original runs, by what this program does there; all 0 if it was not measured.
    chosen : bool
    spec_code : str
        Python to paste.
    """

    name: str
    mode: str
    accepted: bool
    words: str = ""
    changes: tuple[str, ...] = ()
    right: int = 0
    lost: int = 0
    wrong: int = 0
    chosen: bool = False
    spec_code: str = ""


@dataclass(frozen=True, slots=True)
class ShapePoint:
    """What happens at one point.

    Parameters
    ----------
    sizes : tuple of int
        One per axis, in the order of ``ShapeRecord.axes``.
    valid : bool
        Whether the original runs.
    outcomes : mapping of str to str
        By target: ``"right"``, ``"lost"``, ``"wrong"``, ``"crash"``, ``"accepts-more"``, ``"invalid"`` or
        ``"not asked"``.
    """

    sizes: tuple[int, ...]
    valid: bool
    outcomes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShapeBroadcast:
    """One way of broadcasting in which the original runs.

    Parameters
    ----------
    axes : tuple of str
        Sizes that go together with others.
    ones : tuple of bool
        Which of them are 1; none in the example's own configuration.
    outcomes : mapping of str to str
        By mode of export or target: ``"right"``, ``"lost"``, ``"wrong"``, ...
    """

    axes: tuple[str, ...]
    ones: tuple[bool, ...]
    outcomes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class ShapeRecord(Record):
    """At which shapes a program exported with dynamic shapes is right, lost or wrong, and why.

    Parameters
    ----------
    headline : str
        The answer in one sentence.
    program : str
        The model's name.
    axes, example : tuples
        Names of all sizes and what they are in the example.
    free : tuple of bool
        Which may vary.
    relations : tuple of ShapeRelation
    mode : str
        Of the chosen capture; empty if nothing was accepted.
    spec_code : str
        Python to paste that exports it.
    candidates : tuple of ShapeCandidate
        Best first.
    points : tuple of ShapePoint
        What was probed; the example first.
    targets : tuple of str
        Names in ``ShapePoint.outcomes``.
    findings : tuple of Finding
        Wrong, then lost, then latent, then notes.
    broadcasts : tuple of ShapeBroadcast
        Ways of broadcasting and which export keeps which; empty where no sizes go together.
    """

    headline: str
    program: str
    axes: tuple[str, ...] = ()
    example: tuple[int, ...] = ()
    free: tuple[bool, ...] = ()
    relations: tuple[ShapeRelation, ...] = ()
    mode: str = ""
    spec_code: str = ""
    candidates: tuple[ShapeCandidate, ...] = ()
    points: tuple[ShapePoint, ...] = ()
    targets: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    broadcasts: tuple[ShapeBroadcast, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    schema: str = SHAPES_SCHEMA

    @property
    def first(self) -> Finding | None:
        """The most important finding, or None."""
        return self.findings[0] if self.findings else None

    def count(self, target: str, outcome: str) -> int:
        """At how many probed points a target had this outcome."""
        return sum(point.outcomes.get(target) == outcome for point in self.points)

    def __str__(self) -> str:
        return self.headline

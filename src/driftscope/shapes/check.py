"""One check of shapes while it is being made: what its steps found so far, and what later steps need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftscope.records.finding import Finding
from driftscope.shapes.broadcasting import Configuration
from driftscope.shapes.capture.candidates import Candidate
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.capture.export_costs import ExportCosts
from driftscope.shapes.capture.inference import WantedAxes
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.covering.bounding import Bounding, Bounds
from driftscope.shapes.probe.axes import Arguments
from driftscope.shapes.probe.directions import Direction
from driftscope.shapes.probe.domain import Domain
from driftscope.shapes.probe.exploration import ProbePlan
from driftscope.shapes.probe.judging_runs import silence
from driftscope.shapes.probe.original import Original, Point
from driftscope.shapes.probe.runners import ExportTarget


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a check may cost.

    Parameters
    ----------
    plan : ProbePlan
        For asking the original.
    valid, invalid : int
        Most points at which the chosen program is asked, by whether the original runs there.
    ranked : int
        Most points at which candidates are compared.
    """

    plan: ProbePlan = field(default_factory=ProbePlan)
    valid: int = 240
    invalid: int = 80
    ranked: int = 160


@dataclass
class Check:
    """One check while it is being made: everything later steps need.

    ``arguments``, ``wanted`` and ``original`` are None where the inputs could not be used; ``chosen`` is None where
    torch refused every way of exporting.
    """

    model: Callable[..., Any]
    effort: Effort
    arguments: Arguments | None = None
    wanted: WantedAxes | None = None
    original: Original | None = None
    candidates: list[Candidate] = field(default_factory=list)
    running: list[Point] = field(default_factory=list)
    refused: list[Point] = field(default_factory=list)
    domain: Domain = field(default_factory=Domain)
    findings: list[Finding] = field(default_factory=list)
    targets: tuple[str, ...] = ()
    #: Targets that the user named: they are asked whatever it takes.
    ordered: bool = False
    onnx_path: Path | None = None
    times: dict[str, float] = field(default_factory=dict)
    broadcasts: list[Configuration] = field(default_factory=list)
    #: How sizes may move.
    directions: list[Direction] = field(default_factory=list)
    #: What each target was made under, where converting it assumed more than the trace did.
    made_under: dict[str, Relations] = field(default_factory=dict)
    runners: dict[str, ExportTarget] = field(default_factory=dict)
    #: What exports took; further ones are left out where they take long.
    exports: ExportCosts = field(default_factory=ExportCosts)
    _bounds: dict[str, Bounds | None] = field(default_factory=dict)

    @property
    def chosen(self) -> Candidate | None:
        """The best candidate that torch accepted."""
        return next((c for c in self.candidates if c.capture is not None), None)

    @property
    def capture(self) -> Capture | None:
        """Its program."""
        return self.chosen.capture if self.chosen is not None else None

    def relations(self, target: str) -> Relations | None:
        """What a target was made under."""
        if self.capture is None:
            return None
        return self.made_under.get(target, self.capture.relations)

    def bounds(self, target: str) -> Bounds | None:
        """Conditions that keep a target from being wrong, held against new points; None where none do."""
        relations, runner = self.relations(target), self.runners.get(target)
        if relations is None or runner is None or self.original is None:
            return None
        if target not in self._bounds:
            with silence():
                bounding = Bounding(self.original, runner, relations, self.directions)
                self._bounds[target] = bounding.find(self.domain)
        return self._bounds[target]

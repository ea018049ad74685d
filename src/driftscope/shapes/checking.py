"""``ds.check_shapes``: relations, the spec to write, and what the exported program does at which shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from driftscope.errors import InputError, ProgramError
from driftscope.programs.feeds import Inputs
from driftscope.records.finding import Finding
from driftscope.records.shape_report import ShapeRecord
from driftscope.shapes.asked_model import repeats_itself
from driftscope.shapes.axes import Arguments, arguments_of, sets_of
from driftscope.shapes.broadcasting import Configuration, configurations, tied_axes
from driftscope.shapes.building import InputBuilder
from driftscope.shapes.candidates import Candidate, CandidateSearch, Coverage
from driftscope.shapes.capture import Capture
from driftscope.shapes.containers import register_containers
from driftscope.shapes.cover_files import outline_of
from driftscope.shapes.dispatching import Form
from driftscope.shapes.domain import LOST, RIGHT, WRONG, Domain, choose, probe
from driftscope.shapes.exploration import Plan, explore
from driftscope.shapes.expressions import Term
from driftscope.shapes.guarding import GuardedFile, guarded, needed_conditions
from driftscope.shapes.inference import Wanted, infer
from driftscope.shapes.judging_runs import Ran, Refused, silence
from driftscope.shapes.original import Original, Point
from driftscope.shapes.prediction import Predictor
from driftscope.shapes.relations import Relations
from driftscope.shapes.runners import OnnxFeeder, TorchRunner
from driftscope.shapes.serving_members import OnnxMember
from driftscope.shapes.targets import EXPORTED, ONNX, ask_targets, wanted_targets


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a check may cost.

    Parameters
    ----------
    plan : Plan
        For asking the original.
    valid, invalid : int
        Most points at which the chosen program is asked, by whether the original runs there.
    ranked : int
        Most points at which candidates are compared.
    """

    plan: Plan = field(default_factory=Plan)
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
    wanted: Wanted | None = None
    original: Original | None = None
    candidates: list[Candidate] = field(default_factory=list)
    running: list[Point] = field(default_factory=list)
    refused: list[Point] = field(default_factory=list)
    domain: Domain = field(default_factory=Domain)
    findings: list[Finding] = field(default_factory=list)
    targets: tuple[str, ...] = ()
    onnx_path: Path | None = None
    times: dict[str, float] = field(default_factory=dict)
    broadcasts: list[Configuration] = field(default_factory=list)
    _conditions: dict[str, list[Term] | None] = field(default_factory=dict)

    @property
    def chosen(self) -> Candidate | None:
        """The best candidate that torch accepted."""
        return next((c for c in self.candidates if c.capture is not None), None)

    @property
    def capture(self) -> Capture | None:
        """Its program."""
        return self.chosen.capture if self.chosen is not None else None

    def conditions(self, target: str) -> list[Term] | None:
        """Conditions that keep a target away from where it was seen to be wrong; None where none do."""
        if self.capture is None:
            return None
        if target not in self._conditions:
            self._conditions[target] = needed_conditions(self.capture.relations, self.domain, target)
        return self._conditions[target]


class ShapeReport:
    """What a check of shapes found; :attr:`record` is the part that is kept.

    Parameters
    ----------
    check : Check
    record : ShapeRecord
    """

    def __init__(self, check: Check, record: ShapeRecord):
        self._check = check
        self.record = record
        self._predictor: Predictor | None = None

    @property
    def program(self) -> ExportedProgram | None:
        """The exported program of the best capture; None if torch refused every way."""
        return self._check.capture.exported if self._check.capture is not None else None

    @property
    def capture(self) -> Capture | None:
        """The best capture: program, mode, spec, relations."""
        return self._check.capture

    @property
    def spec(self) -> dict[str, Any] | None:
        """``dynamic_shapes`` for ``torch.export.export``."""
        return self._check.capture.spec if self._check.capture is not None else None

    @property
    def spec_code(self) -> str:
        """Python to paste: ``dynamic_shapes``, and ``export(model, args)`` that makes this very program."""
        return self._check.capture.spec_code if self._check.capture is not None else ""

    @property
    def relations(self) -> Relations | None:
        """What the program was traced under."""
        return self._check.capture.relations if self._check.capture is not None else None

    @property
    def domain(self) -> Domain:
        """Every probed point and what each target does there."""
        return self._check.domain

    @property
    def lost(self) -> tuple[dict[str, int], ...]:
        """Sizes, by name, at which the model runs and the exported program refuses."""
        return self._sizes(LOST)

    @property
    def wrong(self) -> tuple[dict[str, int], ...]:
        """Sizes, by name, at which the exported program silently gives something else."""
        return self._sizes(WRONG)

    def _sizes(self, outcome: str) -> tuple[dict[str, int], ...]:
        names = self.record.axes
        return tuple(dict(zip(names, point, strict=True)) for point in self.domain.of(EXPORTED, outcome))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Most important first."""
        return self.record.findings

    @property
    def first(self) -> Finding | None:
        """The most important finding, or None."""
        return self.record.first

    def status(self, *inputs: Any) -> str:
        """Say what the exported program does at these inputs, without running it.

        Parameters
        ----------
        *inputs
            One set as :func:`check_shapes` takes it (a tuple, a dict, ``ds.Inputs``), or the positional arguments.

        Returns
        -------
        str
            ``"right"``, ``"lost"`` (the model runs, the program refuses), ``"wrong"``, or ``"invalid"`` (the model
            refuses).

        Raises
        ------
        InputError
            If there is no exported program.
        """
        check = self._check
        if check.capture is None or check.original is None:
            raise InputError("no way of exporting this model was accepted, so there is no program to speak of")
        one = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list, Mapping, Inputs)) else inputs
        try:
            arguments = arguments_of(check.model, one)
        except InputError:
            return "invalid"
        if self._predictor is None:
            self._predictor = Predictor(check.original, check.capture, check.domain, EXPORTED)
        return self._predictor.status(*arguments.with_leaves([leaf for _, leaf in arguments.leaves]))

    @property
    def onnx_path(self) -> Path | None:
        """The ONNX file that was probed; temporary unless a path was given to :func:`check_shapes`."""
        return self._check.onnx_path

    def guard(self, path: str | Path | None = None) -> GuardedFile:
        """Put the checks that the exporter dropped back in front of an ONNX file made from :attr:`program`.

        Parameters
        ----------
        path : path, optional
            The file; the one that was probed if left out.

        Returns
        -------
        GuardedFile
            Called like the model; refuses the shapes at which the file was seen to be wrong or to crash, and those
            that break a condition of the trace which probing did not show to be needless.

        Raises
        ------
        ProgramError
            If there is no such file, or no conditions are known that keep it from being wrong.
        InputError
            If there is no program, or ONNX was not among the targets.
        """
        check = self._check
        if check.capture is None or check.arguments is None or check.original is None:
            raise InputError("no way of exporting this model was accepted, so there is nothing to guard")
        if ONNX not in check.domain.seen:
            raise InputError('no ONNX file was probed; check_shapes(..., targets=("onnx",)) does')
        file = Path(path) if path is not None else check.onnx_path
        if file is None or not file.is_file():
            raise ProgramError(f"{file}: no such file")
        member = OnnxMember(file, ())
        places = OnnxFeeder(check.capture.exported, member.names).places
        answer = check.original.answer(check.original.example)
        outline = outline_of(answer.value) if isinstance(answer, Ran) else None
        return guarded(file, Form.of(check.arguments), outline, places, check.conditions(ONNX))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return self.record.to_dict()

    def save(self, path: Any) -> Any:
        """Write the record: JSON for ``.json``, a page for ``.html``."""
        return self.record.save(path)

    def _repr_html_(self) -> str:
        return self.record._repr_html_()

    def _repr_markdown_(self) -> str:
        return self.record._repr_markdown_()

    def __str__(self) -> str:
        return str(self.record)

    def __repr__(self) -> str:
        return f"<ShapeReport: {self.record}>"


def check_shapes(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    *,
    dynamic: Any = "all",
    targets: Sequence[str] | None = None,
    onnx: str | Path | None = None,
    effort: Effort | None = None,
) -> ShapeReport:
    """Find which shapes a model keeps when it is exported with dynamic shapes, and why it loses the others.

    Parameters
    ----------
    model : torch.nn.Module or callable
    inputs : object
        One set of inputs (a tuple, a dict by name, a tensor, ``ds.Inputs``), or a list of sets, which show what varies.
    dynamic : "all", torch spec or None
        ``"all"``: every size may vary (with several sets: those that do). A spec as for ``torch.export.export``. None:
        what several sets show, nothing otherwise.
    targets : sequence of str, optional
        What to probe beside the exported program: ``"onnx"`` (run by onnxruntime in a worker process), ``"aoti"``
        (AOTInductor; needs a C++ compiler, and minutes). Left out: ONNX where it is installed. ``()``: nothing else.
    onnx : path, optional
        Where to write the ONNX file.
    effort : Effort, optional
        How much to ask.

    Returns
    -------
    ShapeReport
        Always: a model that fails on its own example, or inputs that do not bind, are findings.

    Raises
    ------
    InputError
        If ``model`` cannot be called, ``dynamic`` is no spec for these inputs, or a target is not known.
    """
    if not callable(model):
        raise InputError(f"a {type(model).__name__} cannot be called; give a module or a function")
    if isinstance(model, ExportedProgram):
        raise InputError("an ExportedProgram is no longer the model it was made of; give the module that was exported")
    names = wanted_targets(targets) if onnx is None or targets is not None else (ONNX,)
    check = Check(model, effort or Effort(), targets=names, onnx_path=None if onnx is None else Path(onnx))
    for name, step in _STEPS:
        started = time.perf_counter()
        going_on = step(check, inputs, dynamic)
        check.times[name] = time.perf_counter() - started
        if not going_on:
            break
    return finished(check)


# --- steps: each returns whether there is reason to go on -----------------------------------------------------


def _bind(check: Check, inputs: Any, dynamic: Any) -> bool:
    """Take the inputs apart, and run the model on them once."""
    from driftscope.shapes.domain_findings import values_are_random
    from driftscope.shapes.explaining import example_fails, inputs_do_not_bind

    try:
        sets = sets_of(check.model, inputs)
    except InputError as error:
        check.findings.append(inputs_do_not_bind(error))
        return False
    register_containers(sets[0])
    check.arguments = sets[0]
    check.wanted = infer(sets, dynamic)
    check.original = Original(check.model, InputBuilder(sets[0]))
    with silence():
        answer = check.original.ask(check.model, *sets[0].call())
    if isinstance(answer, Refused):
        check.findings.append(example_fails(check.model, answer))
        return False
    if not repeats_itself(check.model, sets[0]):
        check.original.random = True
        check.findings.append(values_are_random())
    return True


def _export(check: Check, *_: Any) -> bool:
    """Try ways of exporting until one is right everywhere; rank them."""
    if check.arguments is None or check.wanted is None or check.original is None:
        return False
    search = CandidateSearch(check.model, check.arguments, check.wanted)
    for made in search.plain():
        _consider(check, made)
    for mode in search.further():
        if _is_full(check):
            break
        _consider(check, mode())
    return check.chosen is not None


def _consider(check: Check, made: Candidate) -> None:
    """Measure a candidate and rank it among the others."""
    relations = made.capture.relations if made.capture is not None else None
    if not check.running:
        _find_points(check, [relations] if relations is not None else [])
    if made.capture is not None:
        made = Candidate(made.name, made.repair, measured(check, made.capture))
    check.candidates.append(made)
    check.candidates.sort(key=lambda c: c.worth, reverse=True)


def _is_full(check: Check) -> bool:
    return check.chosen is not None and check.chosen.coverage is not None and check.chosen.coverage.full


def _find_points(check: Check, relations: list[Relations]) -> None:
    original = check.original
    if original is None or check.wanted is None:
        return
    with silence():
        explore(original, check.wanted.places, relations, check.effort.plan)
    check.running, check.refused = choose(original, check.effort.valid, check.effort.invalid)


def measured(check: Check, capture: Capture) -> Coverage:
    """Count what a capture does at the points at which the model runs."""
    if check.original is None:
        return Coverage()
    points = check.running[: check.effort.ranked]
    seen = probe(check.original, [TorchRunner(EXPORTED, capture.module, check.original)], points, Domain())
    return Coverage(seen.count(EXPORTED, RIGHT), seen.count(EXPORTED, LOST), seen.count(EXPORTED, WRONG))


def _broadcasts(check: Check, *_: Any) -> bool:
    """Find the ways of broadcasting; their points are probed with the others."""
    if check.original is None or check.wanted is None:
        return False
    relations = [c.capture.relations for c in check.candidates if c.capture is not None]
    with silence():
        check.broadcasts = configurations(check.original, tied_axes(relations, check.wanted.places))
    check.running = list(dict.fromkeys([*check.running, *(one.point for one in check.broadcasts)]))
    return True


def _probe(check: Check, *_: Any) -> bool:
    """Ask the chosen program everywhere."""
    if check.capture is None or check.original is None:
        return False
    runner = TorchRunner(EXPORTED, check.capture.module, check.original)
    probe(check.original, [runner], [*check.running, *check.refused], check.domain)
    return True


def _targets(check: Check, *_: Any) -> bool:
    """Ask whatever else the program becomes."""
    return ask_targets(check, check.targets)


_STEPS: tuple[tuple[str, Callable[..., bool]], ...] = (
    ("bind", _bind),
    ("export", _export),
    ("broadcasts", _broadcasts),
    ("probe", _probe),
    ("targets", _targets),
)


def finished(check: Check) -> ShapeReport:
    """Explain what was found and make the record."""
    from driftscope.shapes.recording import record_of

    return ShapeReport(check, record_of(check))

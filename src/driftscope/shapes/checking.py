"""``ds.check_shapes``: relations, the spec to write, and what the exported program does at which shapes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from driftscope.errors import InputError
from driftscope.programs.state.process import state_kept
from driftscope.records.files import check_place
from driftscope.shapes.answer import ShapeReport
from driftscope.shapes.broadcasting import configurations, tied_axes
from driftscope.shapes.capture.candidates import Candidate, CandidateSearch, Coverage
from driftscope.shapes.capture.containers import register, register_containers
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.capture.inference import infer
from driftscope.shapes.check import Check, Effort
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.findings.domain import model_changes_itself, values_are_random
from driftscope.shapes.findings.exporting import example_fails, inputs_do_not_bind
from driftscope.shapes.probe.axes import sets_of
from driftscope.shapes.probe.building import InputBuilder
from driftscope.shapes.probe.domain import LOST, RIGHT, WRONG, Domain, choose, probe
from driftscope.shapes.probe.exploration import explore
from driftscope.shapes.probe.judging_runs import Ran, Refused, silence
from driftscope.shapes.probe.original import Original
from driftscope.shapes.probe.runners import TorchRunner
from driftscope.shapes.recording import record_of
from driftscope.shapes.targets import EXPORTED, ONNX, ask_targets, wanted_targets

#: Seconds of the original's own time that comparing one way of exporting may take, and the fewest points.
_RANKING, _FEWEST_RANKED = 1.0, 32


@state_kept()
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
        If ``model`` cannot be called, ``dynamic`` is no spec for these inputs, a target is not known, or no file can
        be written to ``onnx``.
    """
    if not callable(model):
        raise InputError(f"a {type(model).__name__} cannot be called; give a module or a function")
    if isinstance(model, ExportedProgram):
        raise InputError("an ExportedProgram is no longer the model it was made of; give the module that was exported")
    names = wanted_targets(targets) if onnx is None or targets is not None else (ONNX,)
    path = None if onnx is None else check_place(onnx)
    ordered = targets is not None or path is not None
    check = Check(model, effort or Effort(), targets=names, onnx_path=path, ordered=ordered)
    for name, step in _STEPS:
        started = time.perf_counter()
        going_on = step(check, inputs, dynamic)
        check.times[name] = time.perf_counter() - started
        if not going_on:
            break
    if check.original is not None:
        check.original.state.put_back(thoroughly=True)
        check.findings += model_changes_itself(check.original)
    return ShapeReport(check, record_of(check))


# --- steps: each returns whether there is reason to go on -----------------------------------------------------


def _bind(check: Check, inputs: Any, dynamic: Any) -> bool:
    """Take the inputs apart, and run the model on them once."""
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
    if isinstance(answer, Ran):
        register([answer.value])
    if not check.original.repeats_itself():
        check.original.random = True
        check.findings.append(values_are_random())
    return True


def _export(check: Check, *_: Any) -> bool:
    """Try ways of exporting until none can be right anywhere else; rank them."""
    if check.arguments is None or check.wanted is None or check.original is None:
        return False
    search = CandidateSearch(check.model, check.arguments, check.wanted, check.exports)
    for made in search.plain():
        _consider(check, made)
    further = search.further()
    while _could_gain(check) and (one := next(further, None)) is not None:
        _consider(check, one)
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


def _could_gain(check: Check) -> bool:
    """Whether another way of tracing may be right where the best one is not: every way finds the same equalities."""
    return check.chosen is None or check.chosen.coverage is None or bool(check.chosen.coverage.untied)


def _find_points(check: Check, relations: list[Relations]) -> None:
    original = check.original
    if original is None or check.wanted is None:
        return
    with silence():
        check.directions = explore(original, check.wanted.places, relations, check.effort.plan)
    check.running, check.refused = choose(original, check.effort.valid, check.effort.invalid)


def measured(check: Check, capture: Capture) -> Coverage:
    """Count what a capture does at the points at which the model runs."""
    if check.original is None:
        return Coverage()
    affordable = max(_FEWEST_RANKED, int(_RANKING / check.original.cost))
    points = check.running[: min(check.effort.ranked, affordable)]
    seen = probe(check.original, [TorchRunner(EXPORTED, capture.module, check.original)], points, Domain())
    missed = seen.of(EXPORTED, LOST, WRONG)
    untied = int(capture.relations.ties(np.asarray(missed, np.int64)).sum()) if missed else 0
    return Coverage(seen.count(EXPORTED, RIGHT), seen.count(EXPORTED, LOST), seen.count(EXPORTED, WRONG), untied)


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

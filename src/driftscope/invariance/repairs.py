"""What takes a dependence away: tried on the trial that showed it, and named only if that trial then has equal bits."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import DriftscopeError
from driftscope.invariance.examination import InvarianceCheck
from driftscope.invariance.trials.trial import AxisTrial
from driftscope.invariance.wrapping import called_by
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Program


@dataclass(frozen=True, slots=True)
class TriedChange:
    """A change after which a trial has equal bits.

    Parameters
    ----------
    words : str
        What to do.
    evidence : mapping
        The outcome before and after.
    """

    words: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


def repair_of(examination: InvarianceCheck, trial: AxisTrial, outcome: str) -> TriedChange | None:
    """Try what is known to help, cheapest first, and return the first that does.

    Parameters
    ----------
    examination : InvarianceCheck
    trial : AxisTrial
        One that differed.
    outcome : str
        How: a change must take away all of it, but may leave rounding where the trial was different.
    """
    for words, make in _CANDIDATES:
        program = make(examination.runner.program)
        if program is None or (words == _COUNTED and (trial.axis != "padding" or trial.kept is None)):
            continue
        try:
            after = examination.again(trial, program).outcome
        except (DriftscopeError, RuntimeError, ValueError, TypeError):
            continue
        enough = ("same",) if outcome == "rounding" or trial.strict else ("same", "rounding")
        if after in enough:
            return TriedChange(words, {"before": outcome, "after": after})
    return None


def _evaluating(program: Program) -> Program | None:
    """The same module in evaluation mode, as a copy."""
    module = getattr(program, "module", None)
    if program.kind != "torch" or not isinstance(module, torch.nn.Module) or not module.training:
        return None
    with contextlib.suppress(RuntimeError, TypeError):
        return load_program(copy.deepcopy(module).eval(), name=program.name)
    return None


def _reproducible(program: Program) -> Program | None:
    """The same function with torch's sums in a fixed order."""
    from driftscope.accumulation.exact.mode import reproducible

    def fixed(function: Any, *args: Any, **kwargs: Any) -> Any:
        with reproducible():
            return function(*args, **kwargs)

    return called_by(program, fixed)


def _with_position_ids(program: Program) -> Program | None:
    """The same function, told positions that do not count the padding."""
    parameters = getattr(getattr(program, "signature", None), "parameters", {})
    if not {"position_ids", "attention_mask"} <= set(parameters):
        return None
    names = list(parameters)

    def counted(function: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        mask = given.get("attention_mask")
        if given.get("position_ids") is None and isinstance(mask, torch.Tensor) and mask.dim() == 2:
            given["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return function(**given)

    return called_by(program, counted)


def _one_thread(program: Program) -> Program | None:
    return program.variant(threads=1) if "threads" in program.settings else None


def _without_optimisation(program: Program) -> Program | None:
    return program.unoptimised() if "level" in program.settings else None


_COUNTED = "give position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0)"
_CANDIDATES: tuple[tuple[str, Callable[[Program], Program | None]], ...] = (
    ("call .eval() on the module first", _evaluating),
    (_COUNTED, _with_position_ids),
    ("run it inside `with ds.reproducible():`", _reproducible),
    ("give the session one thread: ds.onnx(model, threads=1)", _one_thread),
    ("switch graph optimisation off: ds.onnx(model, level='disable')", _without_optimisation),
)

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
from driftscope.invariance.substitutes import rows_quantised_alone, rows_reduced_alone, statically_quantised
from driftscope.invariance.trials.trial import AxisTrial
from driftscope.invariance.wrapping import called_by
from driftscope.programs.loading.load import load_program, torch_program
from driftscope.programs.protocol import Program

#: Other trials a change is tried on, and further runs of what does not repeat itself.
_MORE, _REPEATED = 3, 3


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


@dataclass(frozen=True, slots=True)
class RepairContext:
    """What is known of a dependence when changes are tried.

    Parameters
    ----------
    examination : InvarianceCheck
    trial : AxisTrial
        One that differed.
    operator : str
        The first operator that differs; empty where it is not known.
    shared : str
        The value through which rows meet; empty where there is none.
    """

    examination: InvarianceCheck
    trial: AxisTrial
    operator: str = ""
    shared: str = ""

    @property
    def program(self) -> Program:
        """The program as given."""
        return self.examination.runner.program


def repair_of(found: RepairContext, outcome: str) -> TriedChange | None:
    """Try what is known to help, cheapest first, and return the first that does.

    Parameters
    ----------
    found : RepairContext
    outcome : str
        How the trial differed: a change must take away all of it, but may leave rounding where it was different.

    Notes
    -----
    Of a leak a change must help on the trials of the axis that differ most too: another order of addition takes away
    the last bits of one of them, and leaves the leak in the next.
    """
    trial = found.trial
    enough = ("same",) if outcome == "rounding" or trial.strict else ("same", "rounding")
    for candidate in _CANDIDATES:
        try:
            change = candidate(found)
            if change is None:
                continue
            tried = [(t, found.examination.again(t, change[1]).outcome) for t in (trial, *_others(found, outcome))]
        except (DriftscopeError, RuntimeError, ValueError, TypeError, LookupError):
            continue
        # NaN may be refused where it was taken before.
        after = [a for t, a in tried if not (t.optional and a == "refused" and t is not trial)]
        if all(a in enough for a in after):
            return TriedChange(change[0], {"before": outcome, "after": after[0], "trials": len(after)})
    return None


def _others(found: RepairContext, outcome: str) -> list[AxisTrial]:
    """Other trials that must not differ either: those that differ most, and more runs of what does not repeat."""
    trial = found.trial
    if trial.axis == "repeat":
        return [trial] * _REPEATED
    tried = found.examination.answers.get(trial.axis, [])
    alike = [(t, a) for t, a in tried if a.outcome == outcome and t is not trial and t.strict and not t.aside]
    alike.sort(key=lambda pair: pair[1].max_abs or 0.0, reverse=True)
    return [t for t, _ in alike[:_MORE]]


Change = tuple[str, Program]


def _evaluating(found: RepairContext) -> Change | None:
    """The same module in evaluation mode, as a copy."""
    program = found.program
    module = getattr(program, "module", None)
    if program.kind != "torch" or not isinstance(module, torch.nn.Module) or not module.training:
        return None
    with contextlib.suppress(RuntimeError, TypeError):
        return "call .eval() on the module first", load_program(copy.deepcopy(module).eval(), name=program.name)
    return None


def _reproducible(found: RepairContext) -> Change | None:
    """The same function with torch's sums in a fixed order: that changes last bits, and nothing that is random."""
    answers = found.examination.answers.get(found.trial.axis, [])
    answer = next((a for t, a in answers if t is found.trial), None)
    if found.trial.axis == "repeat" and answer is not None and answer.outcome == "different":
        return None
    from driftscope.accumulation.exact.mode import reproducible

    def fixed(function: Any, *args: Any, **kwargs: Any) -> Any:
        with reproducible():
            return function(*args, **kwargs)

    return _named("run it inside `with ds.reproducible():`", called_by(found.program, fixed))


def _named(words: str, program: Program | None) -> Change | None:
    return None if program is None else (words, program)


def _with_position_ids(found: RepairContext) -> Change | None:
    """The same function, told positions that do not count the padding."""
    if found.trial.axis != "padding" or found.trial.kept is None:
        return None
    program = found.program
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

    words = "give position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0)"
    return _named(words, called_by(program, counted))


def _rows_quantised_alone(found: RepairContext) -> Change | None:
    if found.trial.axis != "batch" or "quantized" not in found.operator:
        return None
    words = "call the dynamically quantised layers one row at a time: torch.cat([layer(row) for row in x.split(1)])"
    return _named(words, rows_quantised_alone(found.program))


def _statically_quantised(found: RepairContext) -> Change | None:
    if found.trial.axis != "batch" or found.operator != "DynamicQuantizeLinear":
        return None
    words = "quantise with measured ranges (QuantizeLinear, as onnxruntime.quantization.quantize_static writes it)"
    return _named(words, statically_quantised(found.program, found.examination.runner))


def _rows_reduced_alone(found: RepairContext) -> Change | None:
    rows = found.trial.rows
    if found.trial.axis != "batch" or not found.shared or rows is None or not rows.axes:
        return None
    return rows_reduced_alone(found.program, found.operator, rows.axes[0][1])


def _wider(found: RepairContext) -> Change | None:
    """A copy in float64, whose smallest normal number is 2e-308."""
    program = found.program
    function = getattr(program, "function", None)
    different = any(a.outcome == "different" for t, a in found.examination.answers["denormals"] if t is found.trial)
    if program.kind != "torch" or not callable(function) or not different:
        return None
    given = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
    words = "compute it in float64: model.double(), inputs too; its smallest normal number is 2e-308"
    return words, torch_program(given, dtype="float64", name=program.name)


def _flushed_everywhere(found: RepairContext) -> Change | None:
    """The same program with denormals taken as zero from the start."""
    program = found.program
    how = "torch.set_flush_denormal(True), in each thread"
    if program.kind == "onnx":
        how = "'session.set_denormal_as_zero' in the first session of each process"
    return _named(f"take denormal numbers as zero wherever it runs: {how}", program.flushing_denormals())


def _only(axis: str, candidate: Candidate) -> Candidate:
    return lambda found: candidate(found) if found.trial.axis == axis else None


def _one_thread(found: RepairContext) -> Change | None:
    if "threads" not in found.program.settings:
        return None
    return "give the session one thread: ds.onnx(model, threads=1)", found.program.variant(threads=1)


def _without_optimisation(found: RepairContext) -> Change | None:
    if "level" not in found.program.settings:
        return None
    return "switch graph optimisation off: ds.onnx(model, level='disable')", found.program.unoptimised()


Candidate = Callable[[RepairContext], Change | None]

_CANDIDATES: tuple[Candidate, ...] = (
    _evaluating, _with_position_ids, _rows_quantised_alone, _statically_quantised, _rows_reduced_alone,
    _only("denormals", _wider), _only("denormals", _flushed_everywhere),
    _reproducible, _one_thread, _without_optimisation,
)  # fmt: skip

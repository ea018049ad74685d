"""The trials of a check, run and judged: each variant once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Any

import torch

from driftscope.invariance.judging import HowAlike, Judge, with_lifted, worst_of
from driftscope.invariance.pieces.states import HandedStates, find_states, handed_outputs
from driftscope.invariance.pieces.streams import Step, Stream, find_stream
from driftscope.invariance.rows import BatchRows, find_rows
from driftscope.invariance.running import Leaves, Runner, RunResult
from driftscope.invariance.sequences import Sequence, find_sequence
from driftscope.invariance.trials.batch import batch, order
from driftscope.invariance.trials.chunking import chunking
from driftscope.invariance.trials.circumstances import denormals, layout, repeat, threads
from driftscope.invariance.trials.padding import padding
from driftscope.invariance.trials.processes import processes
from driftscope.invariance.trials.trial import AxisPlan, AxisTrial, RunVariant
from driftscope.programs.protocol import Program
from driftscope.records.kinds.invariance_report import OUTCOMES
from driftscope.records.words import counted

_OF_PROCESSES = "take out what differs from process to process: the order of a set, hash() and id(), the time, a seed"


@dataclass(frozen=True, slots=True)
class AskedAxes:
    """What a check was asked to look at.

    Parameters
    ----------
    axes : tuple of str
    batch, sequence : str, mapping or None
        Axes named by the user.
    mask : str or None
        The input that marks padding.
    pad : int or None
        What integers are padded with.
    step : callable or None
        Runs one piece of a sequence.
    seed : int
    """

    axes: tuple[str, ...]
    batch: Any = None
    sequence: Any = None
    mask: str | None = None
    pad: int | None = None
    step: Step | None = None
    seed: int = 0


class InvarianceCheck:
    """One program under every trial that was asked for.

    Parameters
    ----------
    program : Program
    inputs : anything ``ds.inputs`` accepts
    asked : AskedAxes

    Attributes
    ----------
    answers : dict of str to list of (Trial, Answer)
        By axis.
    plans : dict of str to AxisPlan
    repeatable : bool
        Whether the same call, of a module in the same state, gave the same bits each time.
    """

    def __init__(self, program: Program, inputs: Any, asked: AskedAxes):
        self.runner, self.asked = Runner(program, inputs), asked
        self.judge = Judge(self.runner, asked.seed)
        self.base = RunVariant()
        self.answers: dict[str, list[tuple[AxisTrial, HowAlike]]] = {}
        self.plans: dict[str, AxisPlan] = {}
        self.repeatable = True
        self._rows: BatchRows | str | None = None
        self._sequence: Sequence | str | None = None
        self._handed: frozenset[int] | None = None
        self._results: dict[tuple[int, ...], RunResult] = {}
        self._kept: list[RunVariant] = []  # the keys of _results are their ids

    @property
    def rows(self) -> BatchRows | str:
        """The batch, or why there is none."""
        if self._rows is None:
            self._rows = find_rows(self.runner, self.asked.batch)
        return self._rows

    @property
    def sequence(self) -> Sequence | str:
        """The sequence axis and what marks padding, or why there is none."""
        if self._sequence is None:
            self._sequence = find_sequence(self.runner, self.rows, self.asked.sequence, self.asked.mask)
        return self._sequence

    @property
    def handed(self) -> frozenset[int]:
        """Outputs that the program takes again as inputs."""
        if self._handed is None:
            self._handed = handed_outputs(self.runner)
        return self._handed

    def _stream(self) -> Stream | HandedStates | str:
        if self.asked.step is None:
            states = find_states(self.runner, self.rows, self.asked.sequence)
            if isinstance(states, HandedStates) or (states is not None and self.runner.program.kind != "torch"):
                return states
        return find_stream(self.runner, self.rows, self.asked.sequence, self.asked.mask, self.asked.step)

    def _pad_token(self) -> int | None:
        """What the caller, or the model's own configuration, says that integers are padded with."""
        if self.asked.pad is not None:
            return self.asked.pad
        module = getattr(self.runner.program, "module", None)
        # A model is often a part of the module that calls it; two that disagree say nothing.
        parts = module.modules() if isinstance(module, torch.nn.Module) else ()
        tokens = {getattr(getattr(part, "config", None), "pad_token_id", None) for part in parts}
        known = [token for token in tokens if isinstance(token, int)]
        return known[0] if len(known) == 1 else None

    def plan(self, axis: str) -> AxisPlan:
        """Return the trials of an axis."""
        makers: dict[str, Callable[[], AxisPlan]] = {
            "repeat": lambda: repeat(self.runner, self.base),
            "batch": lambda: batch(self.rows, self.base),
            "order": lambda: order(self.rows, self.base),
            "padding": lambda: padding(self.sequence, self.rows, self.base, self._pad_token(), self.handed),
            "chunking": lambda: chunking(self._stream(), self.base),
            "threads": lambda: threads(self.runner, self.base),
            "layout": lambda: layout(self.runner, self.base),
            "denormals": lambda: denormals(self.runner, self.base),
            "processes": lambda: processes(self.runner),
        }
        return makers[axis]()

    def examine(self, axis: str) -> HowAlike:
        """Run the trials of one axis and return the worst answer."""
        plan = self.plans[axis] = self.plan(axis)
        found = [(trial, self.attempt(trial)) for trial in plan.trials]
        found = [(t, a) for t, a in found if not (t.optional and a.outcome == "refused")]
        if axis == "repeat":
            self.repeatable = all(a.outcome == "same" for t, a in found if t.ways != "state")
            # What a module keeps can be told only where the same call in the same state repeats itself.
            found = [(t, a) for t, a in found if self.repeatable or t.ways != "state"]
        self.answers[axis] = found = self._with_lifted(found)
        answers = [a for t, a in found if not t.aside]
        answers += [HowAlike("refused", f"{name}: {words}") for name, words in plan.refusals]
        if not answers:
            return HowAlike("not-applicable", plan.reason)
        return worst_of(answers)

    def attempt(self, trial: AxisTrial) -> HowAlike:
        """Run a trial and judge it by what the native runs gave."""
        one, other = self.result(trial.one), self.result(trial.other)
        for result in (one, other):
            if not result.ran:
                return HowAlike("refused", result.refusal)
        expected, actual = (
            _selected(result.leaves, trial.positions, variant)
            for result, variant in ((one, trial.one), (other, trial.other))
        )
        if expected is None or actual is None:
            return HowAlike(
                "different", f"{counted(len(one.leaves), 'output')}, and {len(other.leaves)}, or of other shapes"
            )
        if trial.strict and self.repeatable:
            return self.judge.bits(expected, actual)
        return self.judge.values(expected, actual, positions=trial.positions, select=trial.based)

    def result(self, variant: RunVariant) -> RunResult:
        """Run a variant, or return what it gave before."""
        if variant.again:
            return variant.run(self.runner)
        key = _key(variant)
        if key not in self._results:
            self._results[key] = self.runner.base if key == () else variant.run(self.runner)
            self._kept.append(variant)
        return self._results[key]

    def _with_lifted(self, found: list[tuple[AxisTrial, HowAlike]]) -> list[tuple[AxisTrial, HowAlike]]:
        """Ask float64 about the trial that differs most, of those between different shapes."""
        if any(t.strict and not t.aside and a.outcome == "different" for t, a in found):
            return found  # known by its bits
        rank = list(OUTCOMES).index
        asked = [k for k, (t, a) in enumerate(found) if t.resized and a.outcome in ("rounding", "different")]
        asked.sort(key=lambda k: (rank(found[k][1].outcome), found[k][1].floors or 0.0), reverse=True)
        different = [k for k in asked if found[k][1].outcome == "different"]
        found = list(found)
        for k in different or asked[:1]:
            trial, answer = found[k]
            one, other = trial.one, trial.other
            first = one.select if one.changed else trial.based
            changed = one.changed or {}, other.changed or {}
            share = self.judge.lifted(changed, trial.positions, first, other.select, other.calling, other.lifted)
            found[k] = trial, with_lifted(answer, share)
            if found[k][1].outcome == "different":
                break
        return found

    def compared(self, trial: AxisTrial) -> list[tuple[object, torch.Tensor, torch.Tensor]]:
        """Return path and two tensors for each position that a trial compared, from results already at hand."""
        if trial.one.again or trial.other.again:
            return []
        one, other = self.result(trial.one), self.result(trial.other)
        left = _selected(one.leaves, trial.positions, trial.one) or []
        right = _selected(other.leaves, trial.positions, trial.other) or []
        none = torch.empty(0)  # what is no tensor is no score
        return [
            (path, x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else (path, none, none)
            for (path, x), (_, y) in zip(left, right, strict=False)
        ]

    def advice(self, trial: AxisTrial) -> str:
        """Say which guess a finding rests on and how to state it instead, or what usually helps."""
        if trial.axis == "processes":
            return _OF_PROCESSES
        if trial.axis == "padding" and trial.aside:
            return "fill the padding with zeros, or take it out with torch.where: 0 x NaN is NaN"
        if trial.axis == "padding" and trial.ways == "joining" and trial.kept is not None and trial.kept.left:
            others = [a for t, a in self.answers["padding"] if t.kept is not None and not t.kept.left and not t.aside]
            if worst_of(others).outcome in ("same", "rounding"):
                fine = "pad on the right, which changes nothing but last bits"
                return f"{fine}, or give the program position ids that do not count the padding"
        if trial.axis == "padding":
            return "leave the padding out where positions first mix: mask it before that operator"
        if (
            trial.axis not in ("batch", "order")
            or self.asked.batch is not None
            or not isinstance(self._rows, BatchRows)
        ):
            return ""
        first, dim = next(iter(self._rows.inputs.items()))
        name, other = self.runner.names[first], 1 - min(dim, 1)
        if self.runner.tensors[first].dim() < 2:
            return f"axis {dim} of {name} was taken for the batch; if it is none, leave out the axes batch and order"
        return f"axis {dim} of {name} was taken for the batch; if another one is, say batch='{name}={other}'"

    def axes_words(self) -> dict[str, str]:
        """Return which axes were taken for what, as far as that was looked at."""
        found = {"batch": self._rows.words} if isinstance(self._rows, BatchRows) else {}
        return found | ({"sequence": self._sequence.words} if isinstance(self._sequence, Sequence) else {})

    def again(self, trial: AxisTrial, program: Program) -> HowAlike:
        """Attempt a trial with another program in place of this one, on the same inputs."""
        other = InvarianceCheck(program, self.runner.inputs, replace(self.asked))
        other.repeatable = self.repeatable
        return other.attempt(trial)


def _key(variant: RunVariant) -> tuple[int, ...]:
    """Variants that run alike share one run, whatever of it they compare; ``()`` is the run on the inputs as given."""
    ways = tuple(id(way) for way in (variant.setting, variant.laid, variant.calling, variant.fresh) if way is not None)
    return ways + tuple(number for k, x in sorted((variant.changed or {}).items()) for number in (k, id(x)))


def _selected(leaves: Leaves, positions: Many[int], variant: RunVariant) -> Leaves | None:
    found = []
    for k in positions:
        if k >= len(leaves):
            return None
        path, leaf = leaves[k]
        try:
            found.append((path, variant.select(k, leaf) if isinstance(leaf, torch.Tensor) else leaf))
        except (IndexError, RuntimeError):  # fewer rows than were put in
            return None
    return found

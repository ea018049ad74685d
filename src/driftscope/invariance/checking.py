"""``check_invariance``: the same program, run in ways that should not matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from driftscope.comparison.thresholds import AGREEMENT, THRESHOLDS
from driftscope.errors import InputError, RuntimeRefused
from driftscope.invariance.choices import choices_of
from driftscope.invariance.examination import AskedAxes, InvarianceCheck
from driftscope.invariance.judging import HowAlike
from driftscope.invariance.pieces.streams import Step
from driftscope.invariance.places import Meeting, meeting_of
from driftscope.invariance.repairs import RepairContext, repair_of
from driftscope.invariance.trials.chunking import parting
from driftscope.invariance.trials.trial import AxisTrial
from driftscope.invariance.wording import finding_of, refused
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import InputsLike, ProgramLike
from driftscope.programs.state.process import state_kept
from driftscope.records.environment import capture
from driftscope.records.finding import Where
from driftscope.records.kinds.invariance_report import AXES, OUTCOMES, InvarianceFinding, InvarianceReport

#: What is looked at unless told otherwise: loading a program again may take much longer than running it.
DEFAULT_AXES = tuple(axis for axis in AXES if axis != "processes")

Progress = Callable[[str], None]


@state_kept()
def check_invariance(
    model: ProgramLike,
    inputs: InputsLike | None = None,
    *,
    axes: Sequence[str] | str = DEFAULT_AXES,
    batch: Any = None,
    sequence: Any = None,
    mask: str | None = None,
    pad: int | None = None,
    step: Step | None = None,
    explain: bool = True,
    seed: int = 0,
    progress: Progress = lambda _text: None,
) -> InvarianceReport:
    """Say on what a result depends beside its inputs' values: batch, order, threads, run, layout.

    Parameters
    ----------
    model : anything ``ds.program`` accepts
        A module or function, an exported program, an ONNX file with its session options, a compiled module.
    inputs : anything ``ds.inputs`` accepts
        None for the program's own. Two rows or more show more than one.
    axes : sequence of str, or str
        Any of ``repeat``, ``batch``, ``order``, ``padding``, ``chunking``, ``threads``, ``layout``, ``denormals`` and
        ``processes``; by default all but the last, which loads a program named by a path or as ``"file.py:name"``
        again in two fresh processes, with generators at one seed and other hash seeds. ``"all"`` is all of them.
    batch : str, mapping or None
        The batch axis of each input that has one: ``"x=0,mask=0"``. None takes axis 0 of the inputs of the commonest
        length there; outputs are found by running on another number of rows.
    sequence : str, mapping or None
        The sequence axis of each input that has one: ``"x=1"``. None takes the axes that are as long as the mask.
    mask : str or None
        The input that marks padding, and with which value: ``"mask"``, ``"mask=0"``, ``"ignore=True"``; or the one
        that holds the lengths of the rows. None looks for an input named like a mask or like lengths. What marks
        padding is 0 or False, in a ``padding_mask`` of booleans True, in a mask that is added its smallest number.
    pad : int or None
        What integers are padded with; None for the ``pad_token_id`` of the model's configuration. Where neither is
        known, 0 and values of the inputs themselves.
    step : callable or None
        Runs one piece of a sequence: called like the model, with its inputs cut along the sequence axis and ``state=``
        (None at first), it returns the outputs of the piece and the state for the next. None hands what the model
        returns as ``past_key_values``, or last of several outputs, to its parameter ``past_key_values``, ``cache``,
        ``cache_params``, ``state``, ``states``, ``hx`` or ``hidden``. Of states that are among the inputs, as in an
        ONNX file (``past_key_values.0.key``, ``past_0``, ``state``, ``h0``), each is given the output that continues
        it: of the same name (``present.0.key``), or else in order, of its shape or longer along one axis.
    explain : bool
        Look for the first operator whose bits change, and try what takes the dependence away.
    seed : int
        Names the noise of the floors.
    progress : callable
        Told what happens next.

    Returns
    -------
    InvarianceReport
        ``outcomes`` by axis (``same``, ``rounding``, ``different``, ``refused``, ``not-applicable``) and ``findings``.
        The process and the model are as they were before.

    Raises
    ------
    InputError
        If an axis, an input or an axis of an input does not exist.
    ProgramError
        If the model cannot be loaded.
    RuntimeRefused
        If the program does not run on the inputs as given.

    Notes
    -----
    Two laws, with two right answers. At equal shapes the content of other rows must not change one bit of a row: one
    bit is a leak, and no rounding excuses it. Joining a batch may cost rounding, because another size may take another
    kernel: it is measured in noise floors, and where float64 shows the same difference it is not rounding.
    """
    start = time.perf_counter()
    wanted = _wanted(axes)
    program = load_program(model)
    progress("Running the program as given")
    examination = InvarianceCheck(program, inputs, AskedAxes(wanted, batch, sequence, mask, pad, step, seed))
    if not examination.runner.base.ran:
        raise RuntimeRefused(program.runtime, "run", examination.runner.base.refusal)
    answers: dict[str, HowAlike] = {}
    for axis in wanted:
        progress(f"Varying {axis}: {AXES[axis]}")
        answers[axis] = examination.examine(axis)
        if axis == "repeat" and answers[axis].outcome == "different" and not examination.repeatable:
            others = HowAlike("not-applicable", "the same call gives another result, so nothing else can be found out")
            answers |= {name: others for name in wanted if name != "repeat"}
            break
    progress("Looking for where it begins")
    findings = _findings(examination, answers, explain)
    return _record(examination, answers, findings, time.perf_counter() - start)


def _wanted(axes: Sequence[str] | str) -> tuple[str, ...]:
    names = [a.strip() for a in axes.split(",")] if isinstance(axes, str) else list(axes)
    names = list(AXES) if names == ["all"] else names
    unknown = [name for name in names if name not in AXES]
    if unknown or not names:
        raise InputError(f"axes: {unknown[0]!r} is not one of {', '.join(AXES)}" if unknown else "axes: none was named")
    # Whether the same call repeats itself decides what equal bits mean for all others.
    return tuple(axis for axis in AXES if axis in {*names, "repeat"})


def _findings(
    examination: InvarianceCheck, answers: dict[str, HowAlike], explain: bool
) -> tuple[InvarianceFinding, ...]:  # fmt: skip
    found = []
    for axis, answer in answers.items():
        tried = [(t, a) for t, a in examination.answers.get(axis, []) if not t.aside]
        if answer.outcome in ("rounding", "different"):
            trial, worst = _shown(tried, answer)
            rounding = answer.outcome == "rounding"
            meeting = meeting_of(examination.runner, trial, rounding=rounding) if explain else None
            repair = repair_of(_dependence(examination, trial, meeting), worst.outcome) if explain else None
            if trial.pieces and not rounding:
                words = parting(trial, examination.result(trial.one).leaves, examination.result(trial.other).leaves)
                meeting = _of_pieces(meeting, words, worst.path)
            found.append(finding_of(trial, worst, meeting, repair, examination.advice(trial)))
        elif answer.outcome == "refused":
            found.append(refused(axis, answer))
        if answer.outcome != "different":
            beside = [(t, a) for t, a in examination.answers.get(axis, []) if t.aside and a.outcome == "different"]
            for trial, own in beside[:1]:
                meeting = meeting_of(examination.runner, trial) if explain else None
                found.append(finding_of(trial, own, meeting, None, examination.advice(trial)))
    return tuple(sorted(found, key=lambda f: (f.note, f.code == "I008")))


def _of_pieces(meeting: Meeting | None, words: str, path: str | None) -> Meeting:
    """Say from which position pieces give something else, and which operator of the last piece does first."""
    if meeting is None:
        return Meeting(Where(output=path), words)
    return replace(
        meeting, words=f"{words}; in the last piece {meeting.where.operator} is the first to give another value"
    )


def _dependence(examination: InvarianceCheck, trial: AxisTrial, meeting: Meeting | None) -> RepairContext:
    if meeting is None:
        return RepairContext(examination, trial)
    return RepairContext(examination, trial, str(meeting.where.operator or ""), meeting.value)


def _shown(tried: Sequence[tuple[AxisTrial, HowAlike]], answer: HowAlike) -> tuple[AxisTrial, HowAlike]:
    """Return the trial that explains an axis best: of those as bad as the worst, one at equal shapes if any is."""
    worst = [(t, a) for t, a in tried if a.outcome == answer.outcome]
    strict = [(t, a) for t, a in worst if t.strict and "NaN" not in t.name] or [(t, a) for t, a in worst if t.strict]
    if strict:
        return max(strict, key=lambda pair: pair[1].max_abs or 0.0)
    return ([(t, a) for t, a in worst if a is answer] or worst)[0]


def _record(
    examination: InvarianceCheck,
    answers: dict[str, HowAlike],
    findings: tuple[InvarianceFinding, ...],
    seconds: float,
) -> InvarianceReport:
    runner = examination.runner
    program = runner.program
    trials = [a.trial(axis, t.name) for axis, tried in examination.answers.items() for t, a in tried]
    order = [axis for axis in AXES if axis in answers]
    return InvarianceReport(
        program=f"{program.name} on {program.runtime}",
        outcomes={axis: answers[axis].outcome for axis in order},
        reasons={axis: answers[axis].reason or OUTCOMES[answers[axis].outcome] for axis in order},
        findings=findings,
        trials=tuple(trials),
        axes=examination.axes_words(),
        choices=choices_of(examination),
        runs=runner.runs,
        inputs=runner.inputs.recipe,
        environment=capture(),
        thresholds=THRESHOLDS.to_dict() | {name: [a.relative, a.of_scale] for name, a in AGREEMENT.items()},
        times={"check": seconds},
    )

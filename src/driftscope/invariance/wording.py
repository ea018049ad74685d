"""Findings in plain words: what the result depends on, through which value, and what takes it away."""

from __future__ import annotations

from driftscope.invariance.judging import HowAlike
from driftscope.invariance.places import Meeting
from driftscope.invariance.repairs import TriedChange
from driftscope.invariance.trials.trial import AxisTrial
from driftscope.records.finding import Where
from driftscope.records.kinds.invariance_report import AXES, InvarianceFinding

#: Codes of a difference, by axis; ``("batch", "content")`` where another row's content is seen.
_CODES = {"batch": "I002", "repeat": "I006", "padding": "I003", "chunking": "I004"}


def finding_of(
    trial: AxisTrial, answer: HowAlike, meeting: Meeting | None, repair: TriedChange | None, advice: str = ""
) -> InvarianceFinding:
    """Write the finding of an axis: the trial that differs most, where it begins, and what was tried.

    ``advice`` stands where no change that was tried helps.
    """
    where = meeting.where if meeting is not None else Where(output=answer.path)
    why = meeting.words if meeting is not None else ""
    return InvarianceFinding(
        code=_code(trial, answer),
        what=_what(trial, answer),
        why=why,
        fix=repair.words if repair is not None else advice if answer.outcome == "different" else "",
        where=where,
        evidence={
            "trial": trial.name, "floors": answer.floors, "max_abs": answer.max_abs, "worst": list(answer.worst or ()),
            **(meeting.evidence if meeting is not None else {}),
            **({"repair": dict(repair.evidence)} if repair is not None else {}),
        },
        note=answer.outcome == "rounding" or trial.aside,
        verified=True if repair is not None else None,
        axis=trial.axis,
        trial=trial.name,
        meeting=meeting.value if meeting is not None else "",
    )  # fmt: skip


def refused(axis: str, answer: HowAlike) -> InvarianceFinding:
    """Write that a variant was refused which the axis is about."""
    return InvarianceFinding(
        "I008", f"{axis}: {answer.reason}", "the program, or the shapes it was exported with, exclude it", axis=axis
    )


def _code(trial: AxisTrial, answer: HowAlike) -> str:
    if answer.outcome == "rounding":
        return "I007"
    if trial.axis == "batch" and trial.ways == "content":
        return "I001"
    return _CODES.get(trial.axis, "I005")


def _what(trial: AxisTrial, answer: HowAlike) -> str:
    if answer.outcome == "rounding":
        return f"{_LEADS.get(trial.axis, AXES[trial.axis])} changes the last bits ({trial.name}): {answer.reason}"
    if trial.aside:
        return f"NaN in the padding reaches the results at other positions: {answer.reason}"
    if trial.axis == "padding" and trial.ways == "content":
        return f"what stands in the padding changes the results at other positions: with {trial.name}, {answer.reason}"
    if trial.ways == "content":
        return f"a row depends on the other rows of its batch: with {trial.name}, {answer.reason}"
    if trial.ways == "state":
        return f"a second call gives another result: the module keeps something of the first; {answer.reason}"
    if trial.axis == "repeat":
        return f"the same call gives another result: {answer.reason}"
    return f"{_LEADS.get(trial.axis, AXES[trial.axis])} changes the result ({trial.name}): {answer.reason}"


_LEADS = {
    "batch": "the size of the batch",
    "order": "the order of the rows",
    "padding": "padding",
    "chunking": "giving the sequence in pieces",
    "threads": "the number of threads",
    "layout": "the layout of the inputs in memory",
    "denormals": "taking denormal numbers as zero",
    "repeat": "calling again",
    "processes": "the process it runs in",
}

"""A check of invariance as a sheet: one line per axis, the findings, every trial."""

from __future__ import annotations

import math
from dataclasses import replace

from driftscope.records.first_line import place_of
from driftscope.records.kinds.invariance_report import AXES, OUTCOMES, InvarianceFinding, InvarianceReport
from driftscope.records.verdict import FailOn
from driftscope.report import wording
from driftscope.report.sheet import Mark, Points, Section, Sheet, Table
from driftscope.report.terminal import sheet as terminal

TONE = {"not-applicable": "", "same": "good", "rounding": "good", "refused": "fair", "different": "bad"}
WORDS = {"same": "same bits", "not-applicable": "not applicable"}


def sheet_of(record: InvarianceReport) -> Sheet:
    """Draw a check."""
    asked = [o for o in record.outcomes.values() if o != "not-applicable"]
    sections: list[Section] = [_axes(record)]
    sections += [_choices(record)] if record.choices else []
    sections += [_rounding(record)] if any(_why(f) for f in record.findings) else []
    sections += [_trials(record)]
    return Sheet(
        title=record.program,
        tone=TONE[record.worst] or "unsure",
        headline=WORDS.get(record.worst, record.worst),
        reason=_reason(record),
        figures=(
            ("Same bits", f"{asked.count('same')} of {len(asked)}", "axes that could be varied"),
            ("Runs", str(record.runs), "of the program"),
        ),
        findings=record.findings,
        sections=tuple(sections),
        command=record.command,
        panels={"axes": dict(record.axes), "inputs": record.inputs, "environment": record.environment},
    )


def record_fails(record: InvarianceReport, limit: FailOn) -> bool:
    """Whether a check ends with exit code 1."""
    bad = {
        FailOn.DIFFERENT: {"different"},
        FailOn.PRECISION: {"different", "refused"},
        FailOn.FUNCTION: {"different", "refused"},
        FailOn.ROUNDING: {"different", "refused", "rounding"},
        FailOn.NEVER: set[str](),
    }
    return any(outcome in bad[limit] for outcome in record.outcomes.values())


def _reason(record: InvarianceReport) -> str:
    acting = [f for f in record.findings if not f.note]
    # Several axes have findings; the headline is the outcome of the worst.
    first = next((f for f in acting if record.outcomes.get(f.axis) == record.worst), None)
    if first is not None:
        place = place_of(first.where)
        return f"at {place}, {first.what}" if place else first.what
    if record.worst in ("different", "refused"):
        worst = [axis for axis, outcome in record.outcomes.items() if outcome == record.worst]
        return "; ".join(f"{axis}: {record.reasons[axis]}" if record.reasons.get(axis) else axis for axis in worst)
    by_rounding = [axis for axis, outcome in record.outcomes.items() if outcome == "rounding"]
    if by_rounding:
        return f"the result depends on {', '.join(by_rounding)} by rounding alone"
    same = [axis for axis, outcome in record.outcomes.items() if outcome == "same"]
    return f"the same bits whatever the {', '.join(same)}" if same else "nothing could be varied"


def _axes(record: InvarianceReport) -> Table:
    order = list(OUTCOMES)
    rows = tuple(
        (axis, Mark(WORDS.get(outcome, outcome), TONE[outcome], tip=OUTCOMES[outcome], sort=order.index(outcome)),
         wording.one_line(record.reasons.get(axis, "")))
        for axis, outcome in record.outcomes.items()
    )  # fmt: skip
    varied = "; ".join(f"{axis}, {AXES[axis]}" for axis in record.outcomes if axis in AXES)
    return Table("What the result depends on", ("axis", "outcome", "why"), rows, f"Varied: {varied}.")


def _steps(expected: float) -> str:
    """Write a number of steps as roughly as it is known."""
    return "never" if math.isinf(expected) else f"about {float(f'{expected:.2g}'):g}"


def _rounding(record: InvarianceReport) -> Points:
    """Say of each axis where the last bits begin to change, and what was seen to take that away."""
    return Points("Where last bits change", tuple(_why(f) for f in record.findings if _why(f)))


def _why(finding: InvarianceFinding) -> str:
    if not finding.note or not finding.why:
        return ""
    fix = f". To have equal bits: {finding.fix} (tried: it works)" if finding.fix and finding.verified else ""
    return f"{finding.axis}: {wording.one_line(finding.why)}{fix}"


def _trials(record: InvarianceReport) -> Table:
    rows = tuple(
        (t.axis, t.trial, Mark(WORDS.get(t.outcome, t.outcome), TONE[t.outcome]), t.floors, t.max_abs, t.reason)
        for t in record.trials
    )
    note = "Floors: the difference over sqrt(2) times the rms error that ordinary rounding causes there."
    return Table("Every trial", ("axis", "trial", "outcome", "floors", "max abs", "why"), rows, note)


def _choices(record: InvarianceReport) -> Table:
    rows = tuple(
        (axis, *(told.get(key) for key in ("choices", "flips", "top", "smallest_margin", "margin_floors")),
         _steps(told["expected_steps"]))
        for axis, told in record.choices.items()
    )  # fmt: skip
    note = (
        "The largest score along the last axis: how often it is another one, or another set of five. Margin: between"
        " the two largest, the smallest seen, over the largest change of any score there, and in noise floors; steps:"
        " such choices in a row, as in greedy decoding, until one is expected to be another."
    )
    columns = ("axis", "choices", "changed", "top 5 changed", "smallest margin", "in floors", "expected steps")
    return Table("Does it matter", columns, rows, note)


def render(record: InvarianceReport, *, width: int, color: bool) -> str:
    """Write a check for a terminal: the sheet without its table of trials."""
    drawn = sheet_of(record)
    kept = tuple(s for s in drawn.sections if s.title != "Every trial")
    return terminal.render(replace(drawn, sections=kept, figures=()), width=width, color=color)

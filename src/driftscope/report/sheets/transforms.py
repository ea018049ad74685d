"""A check of function transforms as a sheet: outcomes, findings, the edits to apply."""

from __future__ import annotations

from driftscope.records.kinds.transform_report import OUTCOMES, TransformReport, TransformRun
from driftscope.report import wording
from driftscope.report.sheet import Listing, Mark, Section, Sheet, Table
from driftscope.report.terminal.transforms import TONE, actions, fix_words, told_once, verdict_of


def sheet_of(record: TransformReport) -> Sheet:
    """Draw a check."""
    tone, headline, reason = verdict_of(record)
    agreeing = sum(outcome in ("same", "rounding", "random") for outcome in record.outcomes.values())
    repaired = [f for f in record.findings if f.verified]
    sections: list[Section] = [_outcomes(record)]
    if record.findings:
        sections.append(_edits(record))
    patch = "\n".join(dict.fromkeys(f.patch for f in record.findings if f.patch))
    if patch:
        note = "Each edit was made on a copy and gave the plain program's values on the examples, and its derivative."
        sections.append(Listing("Edits that were tried and work", patch, note))
    return Sheet(
        title=record.function,
        tone=tone,
        headline=headline,
        sign="⊘" if headline == "refused" else "",
        reason=reason,
        figures=(
            ("Transforms", f"{agreeing} of {len(record.outcomes)}", "give the plain program's values"),
            ("Findings", str(len(told_once(actions(record)))), "to act on"),
            ("Repairs", str(len(repaired)), "tried on the examples and their derivative"),
        ),
        findings=told_once(record.findings),
        sections=tuple(sections),
        command=record.command,
        panels={"inputs": record.inputs, "environment": record.environment},
    )


def _outcomes(record: TransformReport) -> Table:
    order = list(OUTCOMES)
    rows = tuple(
        (
            run.transform,
            Mark(run.outcome, TONE[run.outcome], tip=OUTCOMES[run.outcome], sort=float(order.index(run.outcome))),
            run.reason,
            run.max_abs,
            run.max_rel,
            _values(run),
        )
        for run in record.runs
    )
    note = "Compared with the loop over examples, plain autograd, or the plain call."
    return Table(
        "What each transform does",
        ("transform", "outcome", "why", "max abs", "max rel", "plain and transform"),
        rows,
        note,
    )


def _values(run: TransformRun) -> str:
    if run.worst is not None:
        return f"{run.path or 'out'}: {run.worst[0]} and {run.worst[1]}"
    return run.message


def _edits(record: TransformReport) -> Table:
    rows = tuple(
        (
            f.code,
            ", ".join(f.transforms or (f.transform,)),
            wording.place(f.where),
            f.where.expression or "",
            f.what,
            Mark(fix_words(f), "good" if f.verified else ""),
        )
        for f in told_once(record.findings)
    )
    return Table("Where, and what to change", ("code", "transforms", "place", "expression", "what", "fix"), rows)

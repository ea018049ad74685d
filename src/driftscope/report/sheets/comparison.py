"""A comparison as a sheet: for Markdown summaries; on the page and the terminal it has a drawing of its own."""

from __future__ import annotations

from driftscope.records.kinds.comparison import Comparison
from driftscope.report import wording
from driftscope.report.sheet import Mark, Sheet, Table
from driftscope.report.sheets.matrix import TONE


def sheet_of(record: Comparison) -> Sheet:
    """Draw a comparison."""
    names = [str((record.programs.get(side) or {}).get("name") or "?") for side in ("a", "b")]
    rows = tuple(
        (
            o.path,
            Mark(str(o.verdict), TONE[o.verdict], sort=float(o.verdict.rank)),
            o.floors,
            o.lifted,
            Mark(wording.steps(o.max_ulp), sort=o.max_ulp),
            o.max_abs,
            o.reason,
        )
        for o in record.outputs
    )
    return Sheet(
        title=" vs ".join(names),
        tone=TONE[record.verdict],
        headline=str(record.verdict),
        reason=record.answer,
        findings=record.findings,
        sections=(Table("Outputs", ("output", "verdict", "floors", "in float64", "ulp", "max abs", "reason"), rows),),
        command=record.command,
    )

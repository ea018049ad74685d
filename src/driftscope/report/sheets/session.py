"""The comparisons of a run of tests as a sheet: what failed first, each with its page."""

from __future__ import annotations

from driftscope.records.kinds.session import Session, SessionEntry
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.sheet import Mark, Sheet, Table
from driftscope.report.sheets.comparison import TONE


def sheet_of(session: Session) -> Sheet:
    """Draw a session."""
    ordered = sorted(session.entries, key=lambda e: (not e.failed, -e.verdict.rank))
    verdict = session.verdict if session.entries else Verdict.IDENTICAL
    failed = sum(e.failed for e in session.entries)
    return Sheet(
        title=f"{wording.counted(len(session.entries), 'comparison')} in tests",
        tone="bad" if failed else TONE[verdict],
        headline=str(verdict),
        reason=tally(session) + (f"; {failed} failed" if failed else ""),
        findings=tuple(f for e in ordered if e.failed for f in e.findings),
        sections=(Table("Comparisons", ("test", "verdict", "reason"), tuple(map(_row, ordered))),),
    )


def tally(session: Session) -> str:
    """Count the verdicts of a session in words, the worst first."""
    counts = {v: sum(e.verdict is v for e in session.entries) for v in reversed(Verdict)}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing was compared"


def _row(entry: SessionEntry) -> tuple[Mark, Mark, str]:
    shown = Mark(str(entry.verdict), TONE[entry.verdict], sort=float(entry.verdict.rank))
    return Mark(entry.test, link=entry.page), shown, entry.reason

"""A command that gave no answer, as a sheet: what ended it, and what to do."""

from __future__ import annotations

from driftscope.records.kinds.unanswered import Unanswered
from driftscope.report.sheet import Sheet


def sheet_of(record: Unanswered) -> Sheet:
    """Draw what is known instead of an answer."""
    return Sheet(
        title=record.command,
        tone="unsure",
        headline="NO ANSWER",
        reason=record.reason,
        findings=record.findings,
        command=record.command,
        panels={"Environment": record.environment},
    )

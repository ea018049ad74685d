"""What GitHub Actions reads: annotations on lines of source, and the summary of a job."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from driftscope.records.finding import Finding
from driftscope.records.kinds.session import Session, SessionEntry
from driftscope.report import kinds, wording
from driftscope.report.exchange.sarif import at_users_line, relative
from driftscope.report.pages import sheet_view


def commands(session: Session, root: Path) -> list[str]:
    """Write one workflow command for each finding of a failed comparison.

    A finding without a line of source is shown at the test; a failed comparison without findings too.
    """
    lines = []
    for entry in session.entries:
        if entry.failed:
            lines += [_command(f, entry, root) for f in entry.findings] or [_bare(entry, root)]
    return lines


def summary(session: Session) -> str:
    """Write the summary of a job in Markdown."""
    return sheet_view.markdown(kinds.sheet_of(session))


def _command(finding: Finding, entry: SessionEntry, root: Path) -> str:
    call = (entry.file, entry.line) if entry.file and entry.line else None
    where = at_users_line(finding, call).where
    file, line = (where.file, where.line) if where.file and where.line else (entry.file, entry.line)
    return _write(file, line, f"driftscope {finding.code}", (wording.message(finding),), root)


def _bare(entry: SessionEntry, root: Path) -> str:
    return _write(entry.file, entry.line, f"driftscope {entry.verdict}", (entry.reason,), root)


def _write(file: str | None, line: int | None, title: str, said: Iterable[str], root: Path) -> str:
    properties = {"file": relative(file, root) if file else None, "line": line, "title": title}
    spelled = ",".join(f"{name}={_property(wording.one_line(value))}" for name, value in properties.items() if value)
    return f"::error {spelled}::{_data(' '.join(map(wording.one_line, said)))}"


def _data(text: str) -> str:
    # A percent sign or a line break in a name would otherwise end the command or start another.
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

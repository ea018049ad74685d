"""What a run of tests compared: one entry per comparison, small enough to travel between processes."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.records.finding import Finding
from driftscope.records.showing import Record
from driftscope.records.verdict import Verdict, worst

SESSION_SCHEMA = "driftscope/session/1"


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One comparison made in a test.

    Parameters
    ----------
    test : str
        Node id of the test, as pytest prints it.
    verdict, reason
        Of the comparison; the reason in plain words: place, cause and size.
    findings : tuple of Finding
        Without the notes.
    failed : bool
        Whether the verdict failed the test.
    page : str
        File name of the page, relative to the report; empty when none was written.
    file, line : str, int or None
        The line of the user's that made the comparison; where none is known, the test's.
    """

    test: str
    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...] = ()
    failed: bool = False
    page: str = ""
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Session(Record):
    """Every comparison of a run of tests, in the order of the tests."""

    entries: tuple[SessionEntry, ...]
    schema: str = SESSION_SCHEMA

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict."""
        return worst(e.verdict for e in self.entries)

"""What a run of tests compared: one entry per comparison, small enough to travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.plain import from_plain, to_plain
from driftscope.records.showing import Shown
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
class Session(Shown):
    """Every comparison of a run of tests, in the order of the tests."""

    entries: tuple[SessionEntry, ...]
    schema: str = SESSION_SCHEMA

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict."""
        return worst(e.verdict for e in self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return the session as plain JSON data."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Session:
        """Read a session back.

        Raises
        ------
        RecordError
            If ``data`` is not a session of a known schema.
        """
        return from_plain(cls, data, SESSION_SCHEMA)

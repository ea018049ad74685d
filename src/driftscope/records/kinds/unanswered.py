"""The record of a command whose process did not live to answer: it crashed, was killed, or passed a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from driftscope.errors import RecordError
from driftscope.records.finding import Finding
from driftscope.records.plain import from_plain
from driftscope.records.showing import Record

UNANSWERED_SCHEMA = "driftscope/unanswered/1"


@dataclass(frozen=True, slots=True, repr=False)
class Unanswered(Record):
    """What is known instead of an answer.

    Parameters
    ----------
    findings : tuple of Finding
        What ended the process, R006 to R009; at least one.
    command : str
        The command that was typed.
    environment : mapping
        As captured by the process that watched.
    """

    findings: tuple[Finding, ...]
    command: str
    environment: Mapping[str, Any]
    schema: str = UNANSWERED_SCHEMA

    @property
    def reason(self) -> str:
        """What ended the process, in one sentence."""
        return self.findings[0].what

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a record back.

        Raises
        ------
        RecordError
            If ``data`` is not such a record.
        """
        found = from_plain(cls, data, UNANSWERED_SCHEMA)
        if not found.findings:
            raise RecordError("a record without an answer must hold the finding that says why")
        return found

    def __str__(self) -> str:
        return f"NO ANSWER: {self.reason}"

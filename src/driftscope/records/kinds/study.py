"""The record of a study: its rows, what they say in words, and the environment they were made in."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from driftscope.errors import RecordError
from driftscope.records.plain import from_plain
from driftscope.records.runs.rows import OK, Row, restored, spelled, sql_type, wider
from driftscope.records.showing import Record
from driftscope.records.words import counted

STUDY_SCHEMA = "driftscope/study/1"


@dataclass(frozen=True, slots=True)
class Statement:
    """One thing a study shows.

    Parameters
    ----------
    text : str
        One sentence with its numbers.
    evidence : mapping of str to plain values
        What it rests on.
    """

    text: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShownTable:
    """A small table that answers at a glance.

    Parameters
    ----------
    title : str
    columns : tuple of str
    rows : tuple of tuple of str
        As they are printed.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, repr=False)
class StudyRecord(Record):
    """The rows of a study in grid order.

    Parameters
    ----------
    name : str
        Of the study.
    run : str
        Id of the run; ``""`` when it was not kept.
    axes : mapping of name to tuple
    fixed : mapping
        What was the same for every cell.
    seed : int
    rows : tuple of mapping
        Plain values: axes first, then results, then ``outcome``, ``code`` and ``words``.
    statements : tuple of Statement
        The conclusion.
    environment : mapping
    times : mapping of str to float
        Seconds inside each cell's function, by cell: the only part that differs between two equal runs.
    command : str
    columns : mapping of name to str
        SQL type of each column.
    pictures : mapping of title to str
        SVG drawings for the page.
    tables : tuple of ShownTable
        What answers at a glance, shown before the sentences.
    missing : int
        Cells of the grid that have no row yet: the run was stopped, or goes on.
    """

    name: str
    axes: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]
    run: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    statements: tuple[Statement, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[ShownTable, ...] = ()
    missing: int = 0
    schema: str = STUDY_SCHEMA

    @property
    def failures(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of cells that did not end well."""
        return tuple(row for row in self.rows if row.get("outcome") != OK)

    @property
    def conclusion(self) -> str:
        """The statements, one to a line."""
        return "\n".join(statement.text for statement in self.statements)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a record back.

        Raises
        ------
        RecordError
            If ``data`` is not a study of a known schema.
        """
        record = from_plain(cls, data, STUDY_SCHEMA)
        if not all(isinstance(row, Mapping) for row in record.rows):
            raise RecordError("the record is damaged: a row is not a mapping")
        # JSON has no NaN: numbers that were written as words become numbers again.
        return replace(record, rows=tuple(own_row(row, record.columns) for row in record.rows))

    def __str__(self) -> str:
        wrapped = [textwrap.fill(s.text, 100, break_long_words=False, subsequent_indent="  ") for s in self.statements]
        return "\n".join(wrapped) or f"{self.name}: {counted(len(self.rows), 'row')}"


def rows_text(rows: tuple[Mapping[str, Any], ...]) -> str:
    """Write rows as JSON lines, one canonical text for equal rows."""
    import json

    return "".join(json.dumps({k: spelled(v) for k, v in row.items()}, sort_keys=True) + "\n" for row in rows)


def columns_of(rows: tuple[Mapping[str, Any], ...]) -> list[str]:
    """Return all column names in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def own_row(row: Mapping[str, Any], kinds: Mapping[str, str]) -> Row:
    """Return a row with numbers that JSON cannot hold put back."""
    return {name: restored(value, kinds.get(name, "")) for name, value in row.items()}


def types_of(rows: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    """Return the SQL type of every column; text for a column of nothing but None."""
    found: dict[str, str] = {}
    for name in columns_of(rows):
        values = [row.get(name) for row in rows]
        kinds = set(map(type, values)) - {type(None)}
        # Text and floats are most columns, and need no look at every value.
        plain = {str: "VARCHAR", float: "DOUBLE", bool: "BOOLEAN"}.get(next(iter(kinds)), "") if len(kinds) == 1 else ""
        found[name] = plain or wider(*map(sql_type, values)) or "VARCHAR"
    return found

"""A study as a sheet: what it shows in words, its picture, its rows, the cells that gave none."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from driftscope.records.environment import made_elsewhere
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.study import StudyRecord, columns_of
from driftscope.records.runs.rows import OK
from driftscope.records.runs.store import RUNS_FOLDER
from driftscope.report import wording
from driftscope.report.sheet import Cell, Mark, Picture, Points, Section, Sheet, Table
from driftscope.report.terminal.lines import MIN_WIDTH, Lines, wrap
from driftscope.report.terminal.runs import table

_TONES = {
    "same bits": "good", "identical": "good", "rounding": "good", "precision": "fair", "more than rounding": "fair",
    "different": "bad", "inconclusive": "unsure", "not finite": "unsure", "not available": "unsure",
}  # fmt: skip
_STYLES = {"good": "bold green", "fair": "bold yellow", "bad": "bold red", "unsure": "bold magenta"}
_HIDDEN = ("code", "words")
_FIRST = 2  # tables that a narrow screen begins with
_TABLES = 3  # tables that a terminal shows; a page has all of them


def sheet_of(record: StudyRecord) -> Sheet:
    """Draw a study."""
    finished = [row for row in record.rows if row.get("outcome") == OK]
    classes = Counter(str(row["verdict"]).lower() for row in finished if row.get("verdict"))
    sections: list[Section] = [
        *(Table(t.title, t.columns, t.rows, aside=k >= _FIRST) for k, t in enumerate(record.tables)),
        Points("What it shows", tuple(statement.text for statement in record.statements)),
        *(Picture(f"The study {title}", svg, note=_caption(record)) for title, svg in record.pictures.items()),
        _rows(record),
    ]
    return Sheet(
        title=f"study {record.name}" + (f", run {record.run}" if record.run else ""),
        tone=tone_of(record),
        headline=headline_of(record),
        reason=record.statements[0].text if record.statements else wording.counted(len(record.rows), "row"),
        figures=(
            ("Rows", str(len(record.rows)), _extent(record)),
            ("Failed cells", str(len(record.failures)), "each is a row that says how"),
            *((("Missing cells", str(record.missing), "not made yet"),) if record.missing else ()),
            *((f"Rows called {name}", str(count), "") for name, count in classes.most_common(3)),
        ),
        findings=tuple(_finding(row, record) for row in record.failures if row.get("code")),
        sections=tuple(sections),
        command=record.command,
        panels={"environment": record.environment, "fixed": {**record.fixed, "seed": record.seed}},
        sign="✓" if headline_of(record) == "FINISHED" else "…" if record.missing else "✗",
    )


def headline_of(record: StudyRecord) -> str:
    """Return the answer in a few words."""
    if record.missing:
        return "UNFINISHED"
    if not record.rows:
        return "NO ROWS"
    if record.failures:
        return wording.counted(len(record.failures), "cell").upper() + " FAILED"
    return "FINISHED"


def tone_of(record: StudyRecord) -> str:
    """Return the tone of the answer: a study is not right or wrong, but its cells may fail."""
    return "unsure" if record.missing or not record.rows else "fair" if record.failures else "good"


def render(record: StudyRecord, *, width: int = 100, color: bool = False, store: str = RUNS_FOLDER) -> str:
    """Write a study for a terminal: the headline, the conclusion, how to see the rows that are kept in ``store``."""
    page = Lines(max(width, MIN_WIDTH), color)
    rows = f"{wording.counted(len(record.rows), 'row')} of {_extent(record)}"
    page.add(Text.assemble((f"{headline_of(record)}: ", _STYLES[tone_of(record)]), f"study {record.name}, {rows}"))
    for shown in record.tables[:_TABLES]:
        page.blank()
        page.lines += [
            *wrap(shown.title, page.width),
            *table(shown.columns, shown.rows, width=page.width, wrapped=True).splitlines(),
        ]
    if record.tables:
        more = len(record.tables) - _TABLES
        page.lines += [f"and {wording.counted(more, 'more table')}: -o page.html"] if more > 0 else []
        page.blank()
    for statement in record.statements:
        for index, line in enumerate(wrap(wording.one_line(statement.text), page.width - 4)):
            page.add(Text(("  · " if index == 0 else "    ") + line))
    elsewhere = made_elsewhere(record.environment)
    if elsewhere:
        page.add(Text(elsewhere, "dim"))
    if record.run:
        show = ["driftscope", "runs", "show", record.run, *(["--store", store] if store != RUNS_FOLDER else [])]
        page.add(Text(f"rows: {shlex.join(show)}   (-o rows.csv, page.html, picture.png)", "dim"))
    return "\n".join(page.lines)


def _rows(record: StudyRecord) -> Table:
    columns = tuple(c for c in columns_of(record.rows) if c not in _HIDDEN and not _is_list(record, c))
    rows = tuple(tuple(_cell(column, row) for column in columns) for row in record.rows)
    return Table("Rows", columns, rows, note="Columns that hold lists are in the record alone.")


def _is_list(record: StudyRecord, column: str) -> bool:
    return any(isinstance(row.get(column), (list, tuple)) for row in record.rows)


def _cell(column: str, row: Mapping[str, Any]) -> Cell:
    value = row.get(column)
    if column == "verdict" and value:
        return Mark(str(value), _TONES.get(str(value).lower(), ""), 0.5)
    if column == "outcome":
        return Mark(str(value), "" if value == OK else "bad", tip=str(row.get("words", "")))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return Mark(wording.number(value), sort=value if math.isfinite(value) else None)
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _finding(row: Mapping[str, Any], record: StudyRecord) -> Finding:
    where = " ".join(f"{axis}={row.get(axis)}" for axis in record.axes)
    return Finding(str(row["code"]), what=f"{row['words']}", where=Where(node=where))


def _extent(record: StudyRecord) -> str:
    """Write how many values each axis has: ``3 laws x 1 size``."""
    # "data" is a plural already.
    return " x ".join(
        f"{len(v)} {axis}" if len(v) == 1 or axis.endswith(("s", "data")) else f"{len(v)} {axis}s"
        for axis, v in record.axes.items()
    )


def _caption(record: StudyRecord) -> str:
    return f"Drawn from the {wording.counted(len(record.rows), 'row')} below; what it shows is said above."

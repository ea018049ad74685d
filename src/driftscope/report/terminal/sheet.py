"""Any sheet on a terminal: the answer in the first line, then the findings and the beginning of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table as Columns
from rich.text import Text

from driftscope.records.finding import Finding
from driftscope.report import wording
from driftscope.report.pages import sheet_view
from driftscope.report.sheet import HeatMap, Listing, Mark, Picture, Points, Section, Sheet, Table
from driftscope.report.terminal.lines import MAX_LINES, MIN_WIDTH, Lines, joined, room, shorten, wrap

STYLES = {"good": "bold green", "fair": "bold yellow", "bad": "bold red", "unsure": "bold magenta", "": ""}
_LONGEST_NAME = 18  # of a cell that is kept on one line
_LEAST, _LEAST_NAME = 4, 8  # columns of a cell, and of the first one of a row
_LONGEST_CELL = 240
_MOST_REMARK = 3  # lines of a title, a figure, or what is said to be elsewhere
_FEWEST_ROWS = 3  # of a section; where fewer fit it is left to the page


def render(sheet: Sheet, *, width: int = 100, color: bool = False, lines: int = MAX_LINES) -> str:
    """Write a sheet for a terminal.

    Parameters
    ----------
    sheet : Sheet
    width : int
        Columns to fit, at least 40.
    color : bool
        Whether to use ANSI colours.
    lines : int
        At most about this many at 100 columns and more where it is narrower, because lines are wrapped and not cut;
        without a final newline. What does not fit is on the page and in the record.
    """
    lines = room(lines, width)
    page = Lines(max(width, MIN_WIDTH), color)
    _answer(page, sheet)
    left = _findings(page, sheet.findings, lines, sheet.reason)
    hidden, begun = [], ""
    for section in sheet.sections:
        before = len(page.lines)
        if not _section(page, section, lines):
            hidden.append(section.title)
        begun = section.title if len(page.lines) > before else begun
    if len(page.lines) >= lines and begun not in hidden:
        hidden.insert(0, begun)  # its end is cut below: wrapped cells take more lines than rows
    more = [wording.counted(left, "finding")] if left else []
    more += [f"\u201c{wording.one_line(title)}\u201d" for title in hidden]
    tail = Lines(page.width, color)
    if more:
        tail.paragraph(f"more: {', '.join(more)}: see --json or -o page.html", "dim", limit=_MOST_REMARK)
    return "\n".join([*page.lines[: lines - len(tail.lines)], *tail.lines])


def _answer(page: Lines, sheet: Sheet) -> None:
    headline = wording.one_line(sheet.headline)
    reason = shorten(wording.one_line(sheet.reason), page.width - 14, room(5, page.width))
    for index, line in enumerate(wrap(reason, max(page.width - len(headline) - 2, 20))):
        head = f"{headline}: " if index == 0 else " " * (len(headline) + 2)
        page.add(Text.assemble((head, STYLES[sheet.tone]), line))
    page.paragraph(wording.one_line(sheet.title), "dim", indent=2, limit=_MOST_REMARK)
    for label, value, remark in sheet.figures[:4]:
        told = f"{wording.one_line(label)}: {wording.one_line(value)}{_remark(wording.one_line(remark))}"
        page.paragraph(told, "", indent=2, limit=_MOST_REMARK)


def _remark(text: str) -> str:
    """Set a remark off from its number, so that "3" and "programs in one class ..." are not read as one phrase."""
    return f" ({text})" if text else ""


def _findings(page: Lines, findings: Sequence[Finding], lines: int, said: str) -> int:
    """Append as many findings as two thirds of the room hold, and return how many are left."""
    waiting = sorted(findings, key=lambda f: f.note)
    if waiting:
        page.blank()
    while waiting:
        one = Lines(page.width, page.color)
        one.finding(waiting[0], said)
        if len(page.lines) + len(one.lines) > max(lines * 2 // 3, 8) and len(waiting) < len(findings):
            break
        page.lines.extend(one.lines)
        waiting.pop(0)
    return len(waiting)


def _section(page: Lines, section: Section, lines: int) -> bool:
    """Append a section if at least its beginning fits, and say whether it stands there whole."""
    free = lines - len(page.lines) - 3  # a blank line, its title, and the line that says what is left out
    if isinstance(section, Picture) or free < min(_FEWEST_ROWS, _height(section)):
        return False
    page.blank()
    page.add(Text(wording.one_line(section.title), "bold"), limit=1)
    if isinstance(section, Listing):
        drawn = wording.clean(section.text).split("\n")
        # Code is pasted and drawings are looked at: a terminal that is too narrow breaks their lines itself.
        page.lines.extend(f"  {line}".rstrip() for line in drawn[:free])
        return len(drawn) <= free
    if isinstance(section, Points):
        return _points(page, section, free)
    heads, rows = _cells(section)
    widths = [max((len(row[index][0]) for row in rows), default=0) for index in range(len(heads))]
    heads, parts = _fitting(heads, widths, page.width)
    shown = rows[: max(free // len(parts) - 1, 1)]
    for part in parts:
        columns = Columns(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for index in part:
            # Sentences are wrapped; a number or a name is not.
            prose = widths[index] > _LONGEST_NAME
            columns.add_column(
                heads[index], no_wrap=not prose, overflow="fold", min_width=_LEAST if index else _LEAST_NAME
            )
        for row in shown:
            cells = [row[index] for index in part]
            columns.add_row(*(Text(joined(wording.elide(text, _LONGEST_CELL)), STYLES[tone]) for text, tone in cells))
        page.add(columns, limit=None)
    if isinstance(section, HeatMap) and section.note:
        # The colours of a legend are seen on a page; what the signs and numbers mean is said everywhere.
        page.paragraph(wording.one_line(section.note), "dim", indent=2)
    return len(shown) == len(rows)


def _fitting(heads: Sequence[str], cells: Sequence[int], width: int) -> tuple[list[str], list[list[int]]]:
    """Break titles at words and set a table as several, one below the other, until no number or name is cut.

    Returns
    -------
    titles, parts
        The titles with line breaks, and the columns of each part; the first column, which names the row, is in all.
    """
    least = [_LEAST if index else _LEAST_NAME for index in range(len(heads))]
    needed = [min(cell, _LONGEST_NAME) if cell > _LONGEST_NAME else max(cell, len(head), floor)
              for head, cell, floor in zip(heads, cells, least, strict=True)]  # fmt: skip
    if sum(needed) + 2 * (len(needed) - 1) <= width:
        return list(heads), [list(range(len(heads)))]
    titles = []
    for index, (head, cell) in enumerate(zip(heads, cells, strict=True)):
        narrow = max([least[index], min(cell, _LONGEST_NAME), *map(len, head.split())])
        titles.append("\n".join(wrap(head, narrow)))
        needed[index] = narrow
    parts = [[0]]
    for index in range(1, len(heads)):
        taken = sum(needed[i] + 2 for i in parts[-1])
        if len(parts[-1]) > 1 and taken + needed[index] > width:
            parts.append([0])
        parts[-1].append(index)
    return titles, parts


def _points(page: Lines, section: Points, free: int) -> bool:
    """Append as many sentences as ``free`` lines hold whole."""
    for item in section.items:
        drawn = wrap(wording.one_line(item), page.width - 4)
        if len(drawn) > free:
            return False
        free -= len(drawn)
        page.lines += [f"  {'·' if index == 0 else ' '} {line}" for index, line in enumerate(drawn)]
    return True


def _height(section: Section) -> int:
    match section:
        case Table():
            return len(section.rows) + 1
        case HeatMap():
            return len(section.rows) + 1
        case Listing():
            return section.text.count("\n") + 1
        case Points():
            return len(section.items)
    return 0


def _cells(section: Table | HeatMap) -> tuple[list[str], list[list[tuple[str, str]]]]:
    """Return heads and rows of a section; each cell with its tone."""
    if isinstance(section, Table):
        return list(map(wording.one_line, section.columns)), [
            _marks(map(sheet_view.marked, row)) for row in section.rows
        ]
    heads = ["", *map(wording.one_line, section.columns)]
    rows = zip(section.rows, section.squares, strict=True)
    return heads, [[(wording.one_line(name), ""), *_marks(squares)] for name, squares in rows]


def _marks(marks: Iterable[Mark]) -> list[tuple[str, str]]:
    return [(wording.one_line(mark.text), mark.tone) for mark in marks]

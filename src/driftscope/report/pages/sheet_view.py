"""What is drawn of a sheet: words and positions, decided here so that the templates only draw."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.words import escaped
from driftscope.report import wording
from driftscope.report.pages import details, shell
from driftscope.report.sheet import Cell, HeatMap, Listing, Mark, Picture, Points, Section, Sheet, Table

GLYPHS = {"good": "=", "fair": "≈", "bad": "≠", "unsure": "?", "": ""}
DRAWN_AT_ONCE = 300  # rows; of a longer table the rest is drawn by the script as one scrolls
_SHOWN_FINDINGS = 5  # the others are folded away
_NARROW = 5  # columns that a narrow screen shows one below the other
_FEW, _SENTENCE = 8, 60  # rows, and characters of a cell, of a table that is read rather than looked over
_EXCERPT_FINDINGS, _EXCERPT_ROWS = 5, 12


def document(sheet: Sheet, anchor: str = "entry-1") -> dict[str, Any]:
    """Return everything the page template draws of a sheet; ``anchor`` is its id on the page."""
    findings = [_finding(f) for f in sheet.findings]
    return {
        "id": anchor,
        "first": "section-1" if sheet.sections else "end",
        "title": wording.one_line(sheet.title),
        "above": "",
        "comment": "",
        "tone": sheet.tone,
        "css": f"t-{sheet.tone}",
        "glyph": sheet.sign or GLYPHS[sheet.tone],
        "headline": wording.one_line(sheet.headline),
        "meaning": sheet.meaning,
        "reason": wording.one_line(sheet.reason),
        "sides": [tuple(map(wording.one_line, side)) for side in sheet.sides],
        "figures": [tuple(map(wording.one_line, figure)) for figure in sheet.figures],
        "findings": [f for f in findings if not f["note"]],
        "notes": [f for f in findings if f["note"]],
        "sections": [section(content, f"section-{i}") for i, content in enumerate(sheet.sections, start=1)],
        "command": wording.clean(sheet.command),
        "panels": [
            (wording.one_line(name), tree) for name, data in sheet.panels.items() if (tree := details.tree(data))
        ],
        "shown": _SHOWN_FINDINGS,
        "outputs": [],
        "way": None,
    }


def excerpt(sheet: Sheet) -> dict[str, Any]:
    """Return what the notebook version draws: the beginning of everything."""
    drawn = document(sheet)
    more = (len(drawn["findings"]) - _EXCERPT_FINDINGS, "finding"), (len(drawn["notes"]), "note")
    remainder = " and ".join(wording.counted(count, noun) for count, noun in more if count > 0)
    return drawn | {"few": _EXCERPT_FINDINGS, "few_rows": _EXCERPT_ROWS, "remainder": remainder}


def _finding(record: Finding) -> dict[str, Any]:
    drawn = details.finding(record)
    transform, cause = getattr(record, "transform", ""), getattr(record, "cause", "")
    first = [(label, wording.one_line(text)) for label, text in (("transform", transform), ("cause", cause)) if text]
    return drawn | {"place": first + drawn["place"]}


def section(content: Section, anchor: str) -> dict[str, Any]:
    """Return what is drawn of one section; ``anchor`` is its id on the page."""
    drawn: dict[str, Any] = {
        "id": anchor,
        "kind": type(content).__name__,
        "title": wording.one_line(content.title),
        "note": wording.one_line(content.note),
        "aside": isinstance(content, (Table, HeatMap)) and content.aside,
    }
    match content:
        case Table():
            return drawn | _table(content)
        case HeatMap():
            return drawn | _heat_map(content)
        case Picture():
            return drawn | {"source": shell.picture_source(content.svg)}
        case Listing():
            return drawn | {"text": wording.clean(content.text)}
        case Points():
            return drawn | {"items": [wording.one_line(item) for item in content.items]}


def _table(table: Table) -> dict[str, Any]:
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    numeric = [i > 0 and _is_numeric([row[i] for row in rows]) for i in range(len(table.columns))]
    return {
        "columns": [(wording.one_line(c), is_number) for c, is_number in zip(table.columns, numeric, strict=True)],
        "rows": rows[:DRAWN_AT_ONCE],
        "count": len(rows),
        # Many columns, or a matrix with letters for heads, stay a grid on a narrow screen and are moved sideways.
        # A few rows of sentences are lists there: in a column out of sight a sentence would make its row very high.
        "grid": (len(table.columns) > _NARROW and not _wordy(rows)) or all(len(c) == 1 for c in table.columns[1:]),
        # Cells of a long table as short lists, read by the script: text, sort key, tone.
        "all_rows": shell.embedded([[_packed(c) for c in row] for row in rows]) if len(rows) > DRAWN_AT_ONCE else None,
    }


def _wordy(rows: list[list[dict[str, Any]]]) -> bool:
    return len(rows) <= _FEW and any(len(cell["text"]) > _SENTENCE for row in rows for cell in row)


def _is_numeric(cells: list[dict[str, Any]]) -> bool:
    """Whether a column reads as numbers: those stand to the right, so that their sizes can be seen."""
    filled = [cell["text"] for cell in cells if cell["text"]]
    return (
        bool(filled)
        and all(text[0].isdigit() or text[0] in "-+.∞–" or text == "nan" for text in filled)
        and all(cell["sort"] is not None for cell in cells if cell["text"] not in ("", wording.NOTHING))
    )


def marked(cell: Cell) -> Mark:
    """Return a cell as it is written: numbers spelled, and what they are sorted by."""
    return cell if isinstance(cell, Mark) else Mark(_spelled(cell), sort=_sort_key(cell))


def _cell(cell: Cell) -> dict[str, Any]:
    mark = marked(cell)
    return {
        "text": wording.one_line(mark.text),
        "tone": mark.tone,
        "tip": wording.one_line(mark.tip),
        "sort": mark.sort,
        # A name beside the page and nothing else: no scheme, no host, no way up.
        "link": mark.link if re.fullmatch(r"[\w-][\w.-]*", mark.link) else "",
    }


def _packed(cell: Mapping[str, Any]) -> Any:
    if cell["tone"]:
        return [cell["text"], cell["sort"], cell["tone"]]
    return cell["text"] if cell["sort"] is None else [cell["text"], cell["sort"]]


def _spelled(value: str | int | float | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return wording.number(value, 3)
    return value or ""


def _sort_key(value: str | int | float | None) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value else None


def _heat_map(grid: HeatMap) -> dict[str, Any]:
    squares = [
        [_cell(square) | {"depth": 10 if square.level is None else round(10 * min(max(square.level, 0.0), 1.0))}
         for square in row]
        for row in grid.squares
    ]  # fmt: skip
    return {
        "columns": [wording.one_line(c) for c in grid.columns],
        "lines": list(zip(map(wording.one_line, grid.rows), squares, strict=True)),
        "legend": [(tone, wording.one_line(words)) for tone, words in grid.legend],
    }


def markdown(sheet: Sheet) -> str:
    """Write a sheet as GitHub-flavoured Markdown: the answer, the findings, the beginning of each table."""
    drawn = document(sheet)
    blocks = [f"### {drawn['glyph']} {drawn['headline']}", escaped(drawn["reason"])]
    if drawn["findings"]:
        blocks.append("\n".join(_finding_line(f) for f in drawn["findings"][:_EXCERPT_FINDINGS]))
    for part in drawn["sections"]:
        if part["kind"] == "Table" and part["rows"]:
            heads, rows = [name for name, _ in part["columns"]], part["rows"][:_EXCERPT_ROWS]
            blocks += [f"**{escaped(part['title'])}**", _grid(heads, [[c["text"] for c in row] for row in rows])]
            if part["count"] > _EXCERPT_ROWS:
                blocks.append("and " + wording.counted(part["count"] - _EXCERPT_ROWS, "more row"))
        elif part["kind"] == "HeatMap":
            rows = [[name, *(s["text"] for s in squares)] for name, squares in part["lines"]]
            blocks += [f"**{escaped(part['title'])}**", _grid(["", *part["columns"]], rows)]
        elif part["kind"] == "Points":
            blocks += [f"**{escaped(part['title'])}**", "\n".join(f"- {escaped(item)}" for item in part["items"])]
        elif part["kind"] == "Listing":
            blocks += [f"**{escaped(part['title'])}**", _fenced(part["text"])]
    return "\n\n".join(blocks) + "\n"


def _finding_line(finding: Mapping[str, Any]) -> str:
    place = ", ".join(f"{label} {_code(text)}" for label, text in finding["place"])
    parts = [f"- **{finding['code']}** {escaped(finding['what'])}", f"({place})" if place else ""]
    for label in ("why", "fix"):
        if finding[label]:
            tried = f" ({finding['tried']})" if label == "fix" and finding["tried"] else ""
            parts.append(f"{label.capitalize()}: {escaped(wording.one_line(finding[label]))}{tried}")
    return " ".join(part for part in parts if part)


def _grid(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(escaped(text).replace("|", "\\|") for text in line) + " |" for line in lines)


def _code(text: str) -> str:
    """Write a code span that no backtick in ``text`` can end."""
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"

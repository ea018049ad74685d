"""A check of shapes on a terminal: the answer, what happens in each target, what to fix, the domain drawn small."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from driftscope.records.kinds.shape_report import ShapeRecord
from driftscope.report import wording
from driftscope.report.sheet import Mark
from driftscope.report.sheets import shapes
from driftscope.report.terminal.lines import MAX_LINES, MIN_WIDTH, Lines, room, wrap
from driftscope.report.terminal.sheet import STYLES

#: outcome -> what stands for it in the small picture
_LETTERS = {
    "right": "✓", "lost": "L", "wrong": "W", "crash": "C", "more": "+", "–": "·", "?": "?", "": " ", "✓": "✓",
}  # fmt: skip
#: what a square says -> what that means
_MEANINGS = {
    "✓": "right", "lost": "the model runs, the target refuses", "wrong": "wrong without an error",
    "crash": "takes its process down", "more": "only the target answers", "–": "neither runs", "?": "not tried",
    "": "blank: no such shape tried",
}  # fmt: skip
_ROWS = 9  # of the picture
_FEWEST = 3  # of them; where fewer fit the picture is left to the page
_RELATIONS = 5


def render(record: ShapeRecord, *, width: int = 100, color: bool = False, lines: int = MAX_LINES) -> str:
    """Write a check for a person who has ten seconds.

    Parameters
    ----------
    record : ShapeRecord
    width : int
        Columns to fit, at least 40.
    color : bool
        Whether to use ANSI colours.
    lines : int
        At most this many, without a final newline.
    """
    lines = room(lines, width)
    page = Lines(max(width, MIN_WIDTH), color)
    tone = shapes.tone_of(record)
    headline = shapes.headline_of(record)
    page.add(Text.assemble((f"{headline}: ", STYLES[tone]), wording.one_line(record.headline)))
    _targets(page, record)
    _relations(page, record)
    _spec(page, record, lines)
    left = _findings(page, record, lines)
    drawn = _picture(page, record, lines - len(_more(page, record, left, False)))
    page.lines += _more(page, record, left, drawn)
    return "\n".join(page.lines)


def _more(page: Lines, record: ShapeRecord, left: int, drawn: bool) -> list[str]:
    """Return the lines that say what else there is."""
    more = [wording.counted(left, "finding")] if left else []
    more += [] if drawn else ["the map of shapes"]
    more += [_tried(record)] if record.points else []
    last = Lines(page.width, page.color)
    if more:
        last.add(Text(f"more: {', '.join(more)}: see --json or -o page.html", "dim"))
    return last.lines


def _tried(record: ShapeRecord) -> str:
    """Count the shapes tried, and explain why the headline counts fewer: there it is those at which the model runs."""
    refused = sum(not point.valid for point in record.points)
    beyond = f" ({wording.counted(refused, 'shape')} of them the model itself refuses)" if refused else ""
    return f"every shape tried, {len(record.points):,}{beyond}"


def _targets(page: Lines, record: ShapeRecord) -> None:
    for label, right, rest in shapes.figures_of(record)[1:]:
        page.paragraph(f"{label}: {right}, {rest}", "", indent=2)


def _findings(page: Lines, record: ShapeRecord, lines: int) -> int:
    """Append findings that need action, as many as half of the room holds; return how many are left."""
    waiting = sorted(record.findings, key=lambda f: f.note)
    if waiting:
        page.blank()
    while waiting:
        one = Lines(page.width, page.color)
        one.finding(waiting[0], record.headline)
        if len(page.lines) + len(one.lines) > max(lines * 3 // 5, 8) and len(waiting) < len(record.findings):
            break
        page.lines.extend(one.lines)
        waiting.pop(0)
    return len(waiting)


def _picture(page: Lines, record: ShapeRecord, lines: int) -> bool:
    """Draw the worst target's domain, one letter for each pair of sizes; False where there is no room for it."""
    pair = shapes.chosen_axes(record)
    targets = [name for name in record.targets if name not in shapes.ASIDE]
    if pair is None or not targets:
        return True
    target = max(targets, key=lambda name: (record.count(name, "wrong"), record.count(name, "lost")))
    grid = shapes.domain_picture(record, target, pair)
    title = wrap(wording.one_line(grid.title), page.width)
    drawn_rows = list(zip(grid.rows, grid.squares, strict=True))
    # A blank line, the names of the columns, and the legend with the number of rows that are left out.
    legend = wrap(f"and {wording.counted(len(drawn_rows), 'more row')}; {_legend(grid.squares)}", page.width - 2)
    height = min(lines - len(page.lines) - len(title) - 2 - len(legend), _ROWS)
    if height < min(_FEWEST, len(drawn_rows)):
        return False
    page.blank()
    for line in title:
        page.add(Text(line, "bold"), limit=1)
    if len(grid.columns) > 1:
        page.add(Text("".join([" " * 6, *(f"{name:>4}" for name in grid.columns)]), "dim"), limit=1)
    for name, squares in drawn_rows[:height]:
        drawn = Text(f"{name:>6}")
        for mark in squares:
            drawn.append(f"{_LETTERS.get(mark.text, mark.text[:1]):>4}", STYLES[mark.tone])
        page.add(drawn, limit=1)
    left = len(drawn_rows) - height
    rows = f"and {wording.counted(left, 'more row')}; " if left > 0 else ""
    page.paragraph(f"{rows}{_legend(grid.squares[:height])}", "dim", indent=2)
    return True


def _legend(squares: Sequence[Sequence[Mark]]) -> str:
    """Say what the signs that are drawn mean."""
    shown = {mark.text for row in squares for mark in row}
    return "; ".join(f"{_LETTERS[text]} {words}".strip() for text, words in _MEANINGS.items() if text in shown)


def _relations(page: Lines, record: ShapeRecord) -> None:
    """What the program assumes of sizes, in one or two lines; what only holds for sizes from 2 on is said once."""
    shown = [wording.one_line(relation.text) for relation in record.relations if relation.enforced][:_RELATIONS]
    unchecked = [r for r in record.relations if not r.enforced and r.kind != "range"][: _RELATIONS - len(shown)]
    shown += [wording.one_line(relation.text) for relation in unchecked]
    if shown:
        page.labelled("  relations", "; ".join(shown), indent=13, limit=room(3, page.width))


def _spec(page: Lines, record: ShapeRecord, lines: int) -> None:
    """What to paste: the spec, and what else its own export needs."""
    code = shapes.spec_of(record)
    if code and len(code) + len(page.lines) < lines - 6:
        page.blank()
        for line in code:
            page.lines.append(wording.clean(line))  # whole, however narrow the terminal: it is there to be pasted

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
_LABEL, _SQUARE = 6, 4  # columns of a row's name, and of a square
_PICTURE = 6  # lines that a picture may have beyond what the answer has: it says at a glance where the answer holds
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
    page.add(Text.assemble((f"{headline}: ", STYLES[tone]), wording.one_line(shapes.reason_of(record))))
    _targets(page, record)
    _relations(page, record)
    _spec(page, record, lines)
    left = _findings(page, record, lines)
    drawn = _picture(page, record, lines + _PICTURE - len(_more(page, record, left, False)))
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
    # A blank line, the names of the columns, and the legend with the number of rows that are left out.
    legend = wrap(f"and {wording.counted(len(grid.rows), 'more row')}; {_legend(grid.squares)}", page.width - 2)
    height = min(lines - len(page.lines) - len(title) - 2 - len(legend), _ROWS)
    if height < min(_FEWEST, len(grid.rows)):
        return False
    down = _telling([[mark.tone for mark in squares] for squares in grid.squares], height)
    tones = [[grid.squares[row][column].tone for row in down] for column in range(len(grid.columns))]
    across = _telling(tones, (page.width - _LABEL) // _SQUARE)
    page.blank()
    for line in title:
        page.add(Text(line, "bold"), limit=1)
    if len(grid.columns) > 1:
        names = (f"{grid.columns[column]:>{_SQUARE}}" for column in across)
        page.add(Text(" " * _LABEL + "".join(names), "dim"), limit=1)
    for row in down:
        drawn = Text(f"{grid.rows[row]:>{_LABEL}}")
        for mark in (grid.squares[row][column] for column in across):
            drawn.append(f"{_LETTERS.get(mark.text, mark.text[:1]):>{_SQUARE}}", STYLES[mark.tone])
        page.add(drawn, limit=1)
    missing = [(len(grid.rows) - len(down), "more row"), (len(grid.columns) - len(across), "more column")]
    left = " and ".join(wording.counted(count, noun) for count, noun in missing if count)
    seen = [[grid.squares[row][column] for column in across] for row in down]
    page.paragraph(f"{f'and {left}; ' if left else ''}{_legend(seen)}", "dim", indent=2)
    return True


def _telling(lines: Sequence[Sequence[str]], room_for: int) -> list[int]:
    """Choose rows (or columns) to draw by the tones of their squares: those that show what is wrong first, in order."""
    bad = [any(tone == "bad" for tone in line) for line in lines]
    fair = [any(tone == "fair" for tone in line) for line in lines]
    chosen = sorted(range(len(lines)), key=lambda i: (not bad[i], not fair[i], i))[: max(room_for, 1)]
    if chosen and room_for > 2 and not any(not bad[i] and not fair[i] for i in chosen):
        sound = next((i for i in range(len(lines)) if not bad[i] and not fair[i]), None)
        chosen = chosen if sound is None else [sound, *chosen[:-1]]  # what is right stands beside it
    return sorted(chosen)


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

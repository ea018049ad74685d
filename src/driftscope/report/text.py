"""A comparison on a terminal: the verdict in the first line, the next step in the last, at most 25 lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from driftscope.records.collection import Collection
from driftscope.records.comparison import Comparison, OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.lines import MAX_LINES, MIN_WIDTH, Lines, shorten, wrap

_MAX_ROWS = 6
_GAP = 2  # between two columns of the table

STYLES = {
    Verdict.IDENTICAL: "bold cyan",
    Verdict.ROUNDING: "bold green",
    Verdict.PRECISION: "bold yellow",
    Verdict.INCONCLUSIVE: "bold magenta",
    Verdict.DIFFERENT: "bold red",
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the outputs table. ``keep``: when width runs short, the lowest goes first."""

    title: str
    cell: Callable[[OutputRecord], str]
    keep: int


_COLUMNS = (
    _Column("verdict", lambda o: str(o.verdict), 9),
    _Column("floors", lambda o: wording.number(o.floors), 8),
    _Column("lifted", lambda o: wording.number(o.lifted), 7),
    _Column("ulp", lambda o: wording.steps(o.max_ulp), 4),
    _Column("max abs", lambda o: wording.number(o.max_abs), 6),
    _Column("error A", lambda o: wording.number(wording.error_floors(o.a)), 3),
    _Column("error B", lambda o: wording.number(wording.error_floors(o.b)), 3),
    _Column("closer", wording.closer, 2),
)


def render(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """Write a comparison for a terminal.

    Parameters
    ----------
    comparison : Comparison
    width : int
        Columns to fit, at least 40.
    color : bool
        Whether to use ANSI colours.

    Returns
    -------
    str
        At most 25 lines without a final newline.
    """
    page = _Lines(max(width, MIN_WIDTH), color)
    page.verdict(comparison)
    head = len(page.lines)
    page.programs(comparison)
    page.outputs(comparison.outputs)
    tail = _Lines(page.width, color)
    tail.conclusions(comparison)
    tail.labelled("next", wording.next_step(comparison), "bold", limit=2)
    room = MAX_LINES - len(tail.lines)
    if len(page.lines) > room:
        # Only absurdly narrow terminals come here: what is cut is on the page and in the record.
        del page.lines[max(head, room) :]
    page.findings(comparison, room - len(page.lines))
    return "\n".join([*page.lines, *tail.lines])


def render_collection(collection: Collection, *, width: int = 100, color: bool = False) -> str:
    """Write every comparison of a collection under its title, each with its comment."""
    blocks = []
    for index, entry in enumerate(collection.entries, start=1):
        head = _Lines(max(width, MIN_WIDTH), color)
        head.add(Text(f"{index}. {wording.one_line(entry.title)}", "bold underline"))
        foot = _Lines(head.width, color)
        foot.paragraph(wording.one_line(entry.comment), "")
        blocks.append("\n".join([*head.lines, render(entry.comparison, width=width, color=color), *foot.lines]))
    return "\n\n".join(blocks)


class _Lines(Lines):
    """Finished lines of one width, kept apart so that they can be counted before they are printed."""

    def verdict(self, comparison: Comparison) -> None:
        """Append the verdict and its reason."""
        name = str(comparison.verdict)
        reason = wording.one_line(comparison.reason) or comparison.verdict.meaning
        for index, line in enumerate(wrap(shorten(reason, self.width - 14, 3), self.width - len(name) - 2)):
            head = f"{name}: " if index == 0 else " " * (len(name) + 2)
            self.add(Text.assemble((head, STYLES[comparison.verdict]), line))

    def programs(self, comparison: Comparison) -> None:
        """Append one line for each side."""
        for side in ("a", "b"):
            if side in comparison.programs:
                line = wording.elide(wording.program_line(comparison.programs[side]), self.width - 4)
                self.add(Text.assemble(("  ", ""), (side.upper(), "bold"), " ", line))

    def outputs(self, outputs: tuple[OutputRecord, ...]) -> None:
        """Append the table of outputs, the worst ones when there are many."""
        if not outputs:
            return
        shown = outputs
        if len(outputs) > _MAX_ROWS:
            # sorted() is stable: equally bad outputs stay in the program's own order.
            shown = tuple(sorted(outputs, key=lambda o: (-o.verdict.rank, -(o.floors or 0.0)))[:_MAX_ROWS])
        columns, room = _fitting(shown, self.width)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        table.add_column("output", no_wrap=True, max_width=room)
        for column in columns:
            table.add_column(column.title, no_wrap=True, justify="left" if column.title == "verdict" else "right")
        for output in shown:
            cells = [Text(c.cell(output), STYLES[output.verdict] if c.title == "verdict" else "") for c in columns]
            table.add_row(Text(wording.elide(wording.one_line(output.path), room)), *cells)
        self.blank()
        self.add(table)
        if len(outputs) > len(shown):
            self.add(Text(f"and {wording.counted(len(outputs) - len(shown), 'output')} no worse than these", "dim"))

    def findings(self, comparison: Comparison, room: int) -> None:
        """Append as many findings as ``room`` lines hold, the most important first."""
        ordered = sorted(comparison.findings, key=wording.seriousness)
        left = list(ordered)
        block = _Lines(self.width, self.color)
        for finding in ordered:
            one = _Lines(self.width, self.color)
            one.finding(finding, comparison.reason)
            free = room - 1 - len(block.lines) - (1 if len(left) > 1 else 0)
            if len(one.lines) > free and (block.lines or free < 2):
                break
            # The first finding is shown even where only its beginning fits.
            block.lines.extend(one.lines[:free])
            left.pop(0)
        if not ordered or room < 2:
            return
        if left:
            notes = sum(f.note for f in left)
            words = [wording.counted(n, w) for n, w in ((len(left) - notes, "finding"), (notes, "note")) if n]
            opening = "and " if block.lines else ""
            block.add(Text(f"{opening}{' and '.join(words)} more: see --json or -o page.html", "dim"))
        self.blank()
        self.lines.extend(block.lines[: room - 1])

    def conclusions(self, comparison: Comparison) -> None:
        """Append the tolerance, which side is closer, and the limits used."""
        if self.lines or comparison.outputs or comparison.findings:
            self.blank()
        best = _tolerance(comparison.outputs)
        if best is not None and best.tolerance is not None:
            t = best.tolerance
            where = f" for {wording.one_line(best.path)}" if len(comparison.outputs) > 1 else ""
            text = f"rtol={t.rtol:.2g}, atol={t.atol:.2g}{where}: {wording.one_line(t.reason)}"
            self.labelled("tolerance", text, limit=2)
        nearer = wording.closer_sentence(comparison.outputs)
        if nearer:
            self.labelled("exactness", nearer, limit=2)
        limits = wording.thresholds_line(comparison.thresholds, comparison.outputs)
        if limits and comparison.outputs:
            self.labelled("limits", limits, "dim", limit=2)


def _tolerance(outputs: tuple[OutputRecord, ...]) -> OutputRecord | None:
    """Return the output whose tolerance must be the widest: the one to use when one is used for all."""
    known = [o for o in outputs if wording.usable_tolerance(o) is not None]
    return max(known, key=lambda o: (o.tolerance.rtol, o.tolerance.atol) if o.tolerance else (0.0, 0.0), default=None)


def _fitting(outputs: tuple[OutputRecord, ...], width: int) -> tuple[list[_Column], int]:
    """Return the columns that fit beside the paths, and the columns left for the paths."""
    columns = [c for c in _COLUMNS if any(c.cell(o) != wording.NOTHING for o in outputs)]
    longest = max(len("output"), *(len(wording.one_line(o.path)) for o in outputs))

    def room() -> int:
        return width - sum(_GAP + max(len(c.title), *(len(c.cell(o)) for o in outputs)) for c in columns)

    while columns and room() < min(longest, 16):
        columns.remove(min(columns, key=lambda c: c.keep))
    return columns, max(6, min(longest, room()))

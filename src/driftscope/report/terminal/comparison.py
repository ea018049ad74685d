"""A comparison on a terminal: the verdict in the first line, the next step in the last, the first finding whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from driftscope.records.finding import Finding
from driftscope.records.kinds.collection import Collection
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord, widest_tolerance
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.terminal.lines import MAX_LINES, MIN_WIDTH, Lines, wrap

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
    """A column of the outputs table, and what its numbers mean."""

    title: str
    cell: Callable[[OutputRecord], str]
    meaning: str = ""


_COLUMNS = (
    _Column("verdict", lambda o: str(o.verdict)),
    _Column("max abs", lambda o: wording.number(o.max_abs), "the largest difference of two elements"),
    _Column("ulp", lambda o: wording.steps(o.max_ulp), "the same in steps of the format"),
    _Column(
        "in float64", lambda o: wording.number(o.lifted_size), "what is left, relative, when both compute in float64"
    ),
)
# With -v: in floors, the error that ordinary rounding of this very program makes.
_DETAILS = (
    _Column("floors", lambda o: wording.number(o.floors), "the difference in units of ordinary rounding"),
    _Column("error A", lambda o: wording.number(wording.error_floors(o.a)), "A's own error in that unit"),
    _Column("error B", lambda o: wording.number(wording.error_floors(o.b)), "B's own error in that unit"),
    _Column("closer", wording.closer, "the side closer to float64"),
)


def render(comparison: Comparison, *, width: int = 100, color: bool = False, details: bool = False) -> str:
    """Write a comparison for a terminal.

    Parameters
    ----------
    comparison : Comparison
    width : int
        Columns to fit, at least 40.
    color : bool
        Whether to use ANSI colours.
    details : bool
        Whether to say how it was judged: floors, errors of each side, limits.

    Returns
    -------
    str
        Without a final newline. The fix of the first finding stands below the answer, the finding itself whole
        below the table; others as far as 25 lines in all hold them.
    """
    page = _Lines(max(width, MIN_WIDTH), color)
    page.verdict(comparison, details)
    page.first_fix(comparison)
    page.programs(comparison)
    page.outputs(comparison.outputs, (*_COLUMNS, *_DETAILS) if details else _COLUMNS)
    tail = _Lines(page.width, color)
    tail.conclusions(comparison, details)
    tail.labelled("next", wording.next_step(comparison), "bold")
    page.findings(comparison, MAX_LINES - len(tail.lines) - len(page.lines), details)
    return "\n".join([*page.lines, *tail.lines])


def render_collection(collection: Collection, *, width: int = 100, color: bool = False, details: bool = False) -> str:
    """Write every comparison of a collection under its title, each with its comment."""
    blocks = []
    for index, entry in enumerate(collection.entries, start=1):
        head = _Lines(max(width, MIN_WIDTH), color)
        head.add(Text(f"{index}. {wording.one_line(entry.title)}", "bold underline"))
        foot = _Lines(head.width, color)
        foot.paragraph(wording.one_line(entry.comment), "")
        blocks.append(
            "\n".join([*head.lines, render(entry.comparison, width=width, color=color, details=details), *foot.lines])
        )
    return "\n\n".join(blocks)


class _Lines(Lines):
    """Finished lines of one width, kept apart so that they can be counted before they are printed."""

    def verdict(self, comparison: Comparison, details: bool) -> None:
        """Append the verdict and the answer; with details the judge's own sentence too, where it is another one."""
        name = str(comparison.verdict)
        answer = wording.one_line(comparison.answer) or comparison.verdict.meaning
        for index, line in enumerate(wrap(answer, self.width - len(name) - 2)):
            head = f"{name}: " if index == 0 else " " * (len(name) + 2)
            self.add(Text.assemble((head, STYLES[comparison.verdict]), line))
        if details and comparison.reason != comparison.answer:
            self.labelled("", wording.one_line(comparison.reason), "dim", indent=len(name) + 2)

    def first_fix(self, comparison: Comparison) -> None:
        """Append what to change, right below what is wrong; the finding further down does not say it again."""
        leading = _leading(comparison)
        if leading is not None:
            self.labelled("  fix", wording.one_line(wording.fix_of(leading)), "bold", indent=7)

    def programs(self, comparison: Comparison) -> None:
        """Append one line for each side."""
        for side in ("a", "b"):
            if side in comparison.programs:
                for index, line in enumerate(wrap(wording.program_line(comparison.programs[side]), self.width - 4)):
                    self.add(Text.assemble("  ", (side.upper() if index == 0 else " ", "bold"), " ", line))

    def outputs(self, outputs: tuple[OutputRecord, ...], wanted: tuple[_Column, ...]) -> None:
        """Append the table of outputs, the worst ones when there are many, and what its columns mean."""
        if not outputs:
            return
        shown = outputs
        if len(outputs) > _MAX_ROWS:
            # sorted() is stable: equally bad outputs stay in the program's own order.
            shown = tuple(sorted(outputs, key=lambda o: (-o.verdict.rank, -(o.floors or 0.0)))[:_MAX_ROWS])
        columns = [c for c in wanted if any(c.cell(o) != wording.NOTHING for o in outputs)]
        for part, room in _fitting(shown, columns, self.width):
            table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
            table.add_column("output", no_wrap=True, max_width=room)
            for column in part:
                table.add_column(column.title, no_wrap=True, justify="left" if column.title == "verdict" else "right")
            for output in shown:
                cells = [Text(c.cell(output), STYLES[output.verdict] if c.title == "verdict" else "") for c in part]
                table.add_row(Text(wording.elide(wording.one_line(output.path), room)), *cells)
            self.blank()
            self.add(table)
        if len(outputs) > len(shown):
            self.add(Text(f"and {wording.counted(len(outputs) - len(shown), 'output')} no worse than these", "dim"))
        legend = "; ".join(f"{c.title}: {c.meaning}" for c in columns if c.meaning)
        if legend:
            self.paragraph(legend, "dim")

    def findings(self, comparison: Comparison, room: int, details: bool = False) -> None:
        """Append as many findings as ``room`` lines hold, the most important first; all of them with details."""
        ordered = sorted(comparison.findings, key=wording.seriousness)
        left = list(ordered)
        block = _Lines(self.width, self.color)
        for finding in ordered:
            one = _Lines(self.width, self.color)
            one.finding(finding, comparison.reason, fix=finding is not _leading(comparison))
            free = room - 1 - len(block.lines) - (1 if len(left) > 1 else 0)
            # The first finding is what the answer rests on: it stands there whole, however narrow the terminal is.
            if not details and len(one.lines) > free and (block.lines or finding.note):
                break
            block.lines.extend(one.lines)
            left.pop(0)
        if not ordered:
            return
        if left:
            notes = sum(f.note for f in left)
            words = [wording.counted(n, w) for n, w in ((len(left) - notes, "finding"), (notes, "note")) if n]
            opening = "and " if block.lines else ""
            block.add(Text(f"{opening}{' and '.join(words)} more: see -v or -o page.html", "dim"))
        self.blank()
        self.lines.extend(block.lines)

    def conclusions(self, comparison: Comparison, details: bool) -> None:
        """Append the tolerance; with details also which side is closer, and the limits used."""
        if self.lines or comparison.outputs or comparison.findings:
            self.blank()
        best = widest_tolerance(comparison.outputs)
        if best is not None and best.tolerance is not None:
            t = best.tolerance
            where = f" for {wording.one_line(best.path)}" if len(comparison.outputs) > 1 else ""
            text = f"rtol={t.rtol:.2g}, atol={t.atol:.2g}{where}: {wording.one_line(t.reason)}"
            self.labelled("tolerance", text)
        if not details:
            return
        nearer = wording.closer_sentence(comparison.outputs)
        if nearer:
            self.labelled("exactness", nearer)
        limits = wording.thresholds_line(comparison.thresholds, comparison.outputs)
        if limits and comparison.outputs:
            self.labelled("limits", limits, "dim")


def _leading(comparison: Comparison) -> Finding | None:
    """The finding that the answer rests on, if it says what to change."""
    first = min(comparison.findings, key=wording.seriousness, default=None)
    return None if first is None or first.note or not wording.fix_of(first) else first


def _fitting(outputs: tuple[OutputRecord, ...], columns: list[_Column], width: int) -> list[tuple[list[_Column], int]]:
    """Return tables that fit one below the other: the columns of each, and the room left for the paths."""
    longest = max(len("output"), *(len(wording.one_line(o.path)) for o in outputs))
    widths = [_GAP + max(len(c.title), *(len(c.cell(o)) for o in outputs)) for c in columns]
    parts: list[list[int]] = [[]]
    for index, wide in enumerate(widths):
        taken = sum(widths[i] for i in parts[-1])
        # A name of up to half the width stands whole.
        if parts[-1] and width - taken - wide < min(longest, max(16, width // 2)):
            parts.append([])
        parts[-1].append(index)
    return [([columns[i] for i in part], max(6, min(longest, width - sum(widths[i] for i in part)))) for part in parts]

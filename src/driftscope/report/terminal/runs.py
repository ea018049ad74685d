"""Stored runs on a terminal: the list, what differs between two, the answer to a query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from driftscope.records.runs.listing import Change, RunDifference
from driftscope.records.words import agreeing, all_of, counted
from driftscope.report import wording
from driftscope.report.terminal.lines import wrap

_MOST = 12  # changes and environment entries shown
_COLUMNS = 4  # of a change, named
_NARROWEST = 8  # columns of a cell that is shortened


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, width: int = 100, wrapped: bool = False,
    whole: bool = False,
) -> str:  # fmt: skip
    """Write rows under their column names, numbers on the right.

    Parameters
    ----------
    columns : sequence of str
    rows : sequence of sequence
    width : int
        Columns to fit.
    wrapped : bool
        Break cells that are too wide, the first too, over several lines. Otherwise a row is one line: its first cell
        stays whole, because it names the row for the next command, and so do numbers; other texts are shortened.
    whole : bool
        Shorten nothing. Where a row does not fit one line, each stands as lines ``column  cell`` of its own.
    """
    if not rows:
        return "no rows"
    texts = [[_text(value) for value in row] for row in rows]
    right = [all(isinstance(row[i], (int, float, type(None))) for row in rows) for i in range(len(columns))]
    widths = [max(len(name), *(len(row[i]) for row in texts)) for i, name in enumerate(columns)]
    free = range(len(columns)) if wrapped else [i for i in range(1, len(columns)) if not right[i]]
    if _together(widths) > width and not whole:
        _shrink(widths, free, width)
    if _together(widths) > width and not wrapped:
        return "\n\n".join(_standing(columns, row, width) for row in texts)

    def lines(cells: Sequence[str]) -> list[str]:
        sized = zip(cells, widths, strict=True)
        parts = [wrap(cell, size) if wrapped else [wording.elide(cell, size)] for cell, size in sized]
        return ["  ".join(map(_placed, row, widths, right)).rstrip() for row in zip_longest(*parts, fillvalue="")]

    drawn = [lines(list(columns)), lines(["-" * size for size in widths]), *map(lines, texts)]
    return "\n".join(line for row in drawn for line in row)


def _together(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _shrink(widths: list[int], free: Sequence[int], width: int) -> None:
    """Take columns that may be narrower down to eight, the widest first, until all fit."""
    while _together(widths) > width:
        widest = max(free, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def _standing(columns: Sequence[str], row: Sequence[str], width: int) -> str:
    """Write a row as lines, each a column's name and its cell, wrapped."""
    margin = 2 + max(map(len, columns))
    cells = [(name, wrap(cell, max(width - margin, _NARROWEST))) for name, cell in zip(columns, row, strict=True)]
    return "\n".join(
        f"{name if k == 0 else '':{margin}}{part}".rstrip() for name, parts in cells for k, part in enumerate(parts)
    )


def _placed(cell: str, size: int, number: bool) -> str:
    return cell.rjust(size) if number else cell.ljust(size)


def listing(listed: Sequence[Mapping[str, Any]], store: str, *, width: int = 100) -> str:
    """Write the list of runs, and below it what is wrong with their files."""
    if not listed:
        return f"no runs in {store}; `driftscope study` makes one"
    names = ["run", "study", "state", "cells", "finished", "failed", "started", "place"]
    lines = [table(names, [[line[name] for name in names] for line in listed], width=width, whole=True)]
    for line in listed:
        for problem in line["problems"]:
            lines += ["", *wrap(wording.one_line(f"{line['run']}: {problem}"), width)]
    return "\n".join(lines)


def difference(found: RunDifference, *, width: int = 100) -> str:
    """Write what differs between two runs: the answer, the cells, the environment."""
    rows = len(found.changed) + len(found.moved) + found.same
    if not found.any:
        head = f"SAME: {all_of(rows, 'row')} of {found.a} and {found.b} {agreeing(rows, 'is', 'are')} equal"
    else:
        parts = [
            f"{len(found.changed)} of {counted(rows, 'row')} changed class",
            f"{len(found.moved)} {agreeing(len(found.moved), 'has', 'have')} other numbers",
        ]
        missing = len(found.only_a) + len(found.only_b)
        parts += [f"{missing} {agreeing(missing, 'is', 'are')} in one run only"] if missing else []
        head = f"CHANGED: {', '.join(parts)} from {found.a} to {found.b}"
    lines = wrap(head, width)
    if found.processor_alone:
        before, after = found.processors
        lines += wrap(
            f"The processor is the cause, or nothing that is recorded: only it differs, {before} -> {after}. Kernels "
            "group sums by the width of its vectors.", width,
        )  # fmt: skip
    for title, changes in (("changed class", found.changed), ("other numbers", found.moved)):
        if changes:
            lines += ["", title]
            lines += [f"  {line}" for c in changes[:_MOST] for line in wrap(_change(c), width - 2)]
            lines += [f"  and {len(changes) - _MOST} more: --json has all"] if len(changes) > _MOST else []
    for title, places in ((f"only in {found.a}", found.only_a), (f"only in {found.b}", found.only_b)):
        if places:
            lines += ["", f"{title}: {counted(len(places), 'row')}, as {places[0]}"]
    for what, entries in (("settings", found.settings), ("environment", found.environment)):
        lines += ["", *_entries(what, entries, width)]
    return "\n".join(lines)


def _change(change: Change) -> str:
    moved = change.moved
    # A change of one floor is read as +1: it is what is printed that decides.
    floors = "" if not moved else f"  ({_signed(moved)} {agreeing(float(_signed(abs(moved))), 'floor', 'floors')})"
    if change.before != change.after:
        return f"{change.place}: {change.before} -> {change.after}{floors}"
    more = f" and {len(change.columns) - _COLUMNS} more" if len(change.columns) > _COLUMNS else ""
    columns = f"{', '.join(change.columns[:_COLUMNS])}{more} {agreeing(len(change.columns), 'differs', 'differ')}"
    return f"{change.place}: {change.before} in both; {columns}{floors}"


def _entries(what: str, entries: Mapping[str, tuple[str, str]], width: int) -> list[str]:
    if not entries:
        return [f"{what}: the same"]
    lines = [f"{what}: {counted(len(entries), 'entry', 'entries')} {agreeing(len(entries), 'differs', 'differ')}"]
    for name, (before, after) in list(entries.items())[:_MOST]:
        lines += [f"  {part}" for part in wrap(f"{name}: {before or 'absent'} -> {after or 'absent'}", width - 2)]
    if len(entries) > _MOST:
        lines.append(f"  and {len(entries) - _MOST} more: --json has all")
    return lines


def _signed(value: float) -> str:
    return f"{value:+.3g}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return wording.one_line(str(value))

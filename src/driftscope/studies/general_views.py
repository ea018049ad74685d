"""Reading the rows of any study: a table, a picture and a conclusion that need no knowledge of the subject."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driftscope.errors import InputError
from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.records.runs.rows import BOOKKEEPING, OK
from driftscope.records.words import agreeing, all_of, counted

if TYPE_CHECKING:
    from pathlib import Path


def matrix(record: StudyRecord, value: str | None = None) -> Any:
    """Return one result over the grid: all axes but the last as rows, the last as columns.

    Parameters
    ----------
    value : str or None
        Column to show; the first numeric result by default.
    """
    from driftscope.records.runs.tables import frame_of

    shown = value or _first_number(record)
    axes = [a for a in record.axes if len({str(r.get(a)) for r in record.rows}) > 1] or list(record.axes)
    table = frame_of(tuple(row for row in record.rows if row.get("outcome") == OK))
    if len(axes) < 2:
        return table.groupby(axes, sort=False, dropna=False)[[shown]].max() if axes else table[[shown]]
    return table.pivot_table(index=axes[:-1], columns=axes[-1], values=shown, aggfunc="max", sort=False, dropna=False)


def plot(record: StudyRecord, path: Path) -> Path:
    """Draw the first numeric result over the grid: the last axis as groups of bars."""
    from driftscope.studies.figures import bars, saved

    shown = _first_number(record)
    table = matrix(record)
    names = [" ".join(map(str, key)) if isinstance(key, tuple) else str(key) for key in table.index]
    series = {str(column): [float(v) for v in table[column]] for column in table.columns}
    figure = bars(names, series, title=f"{record.name}: {shown}", label=shown)
    return saved(figure, path)


def conclude(record: StudyRecord) -> tuple[Statement, ...]:
    """Say how many cells there were and between which values their results lie."""
    fine = [row for row in record.rows if row.get("outcome") == OK]
    said = [Statement(f"{record.name}: {counted(len(fine), 'row')} from {_product(record.axes)}.", {"rows": len(fine)})]
    numbers = [name for name in _results(record) if any(_is_number(r.get(name)) for r in fine)]
    return (*said, *(_range(name, [(float(r[name]), r) for r in fine if _is_number(r.get(name))], record.axes)
                     for name in numbers[:3]))  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _range(name: str, values: Sequence[tuple[float, Mapping[str, Any]]], axes: Mapping[str, Any]) -> Statement:
    """Say between which values a result lies; NaN has no place between others, and equals have no largest one."""
    known = [v for v in values if not math.isnan(v[0])]
    lost = len(values) - len(known)
    also = f"; {counted(lost, 'row')} {agreeing(lost, 'has', 'have')} NaN" if lost else ""
    if not known:
        return Statement(f"{name} is NaN in {all_of(lost, 'row')}.", {"column": name})
    low, high = min(known, key=lambda v: v[0]), max(known, key=lambda v: v[0])
    evidence = {"column": name, "smallest": low[0], "largest": high[0]}
    if f"{low[0]:.4g}" == f"{high[0]:.4g}":
        return Statement(f"{name} is {high[0]:.4g} in {all_of(len(known), 'row')}{also}.", evidence)
    where = " ".join(f"{axis}={high[1].get(axis)}" for axis in axes)
    at = f", the largest at {where}" if where else ""
    return Statement(f"{name} lies between {low[0]:.4g} and {high[0]:.4g}{at}{also}.", evidence)


def unfinished(record: StudyRecord) -> tuple[Statement, ...]:
    """Say that cells are missing, and how they are made."""
    if not record.missing:
        return ()
    cells = len(record.times) + record.missing
    are = agreeing(record.missing, "is", "are")
    text = (
        f"{record.missing} of {counted(cells, 'cell')} {are} not made yet: the run was stopped or is still running, "
        "and what is said here rests on the others. The same command makes the rest."
    )
    return (Statement(text, {"missing": record.missing, "cells": cells}),)


def failures(record: StudyRecord) -> tuple[Statement, ...]:
    """Say which cells did not end well, and how."""
    failed = [row for row in record.rows if row.get("outcome") != OK]
    if not failed:
        return ()
    outcomes = Counter(str(row["outcome"]) for row in failed)
    kinds = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    first = failed[0]
    where = " ".join(f"{axis}={first.get(axis)}" for axis in record.axes)
    text = f"{counted(len(failed), 'cell')} gave no result ({kinds}); the first is {where}: {first['words']}."
    return (Statement(text, dict(outcomes)),)


def _product(axes: Mapping[str, Any]) -> str:
    # "data" is a plural already.
    plural = {name: name if name.endswith(("s", "data")) else f"{name}s" for name in axes}
    return " x ".join(counted(len(values), name, plural[name]) for name, values in axes.items()) or "one cell"


def _results(record: StudyRecord) -> list[str]:
    names = dict.fromkeys(name for row in record.rows for name in row)
    return [name for name in names if name not in record.axes and name not in BOOKKEEPING]


def _first_number(record: StudyRecord) -> str:
    for name in _results(record):
        if any(isinstance(row.get(name), (int, float)) and not isinstance(row.get(name), bool) for row in record.rows):
            return name
    raise InputError(f"study {record.name!r} has no numeric result to show")

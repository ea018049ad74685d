"""Which runs there are, how far each is, and what differs between two of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.records.plain import to_plain
from driftscope.records.run_store import RunFolder
from driftscope.records.study_rows import BOOKKEEPING, OK, Row


def summary_of(run: RunFolder) -> dict[str, str | int]:
    """Return one line about a run: id, study, state, cells, finished, failed, started, place, command."""
    finished, failed = _count(run)
    cells = int(run.header.get("cells", 0))
    state = "finished" if finished >= cells else "running" if run.is_live() else "unfinished"
    return {
        "run": run.name,
        "study": str(run.header["study"]),
        "state": state,
        "cells": cells,
        "finished": finished,
        "failed": failed,
        "started": str(run.header.get("started", "")),
        "place": str(run.header.get("place", "")),
        "command": str(run.header.get("command", "")),
    }


def flattened(environment: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested data as one level: ``{"versions.torch": "2.13.0"}``."""
    found: dict[str, str] = {}
    for key, value in environment.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flattened(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for index, inner in enumerate(value):
                found |= flattened(inner, f"{name}[{index}].")
        elif isinstance(value, list):
            found[name] = " ".join(map(str, value))
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value)
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """One row that is not the same in two runs.

    Parameters
    ----------
    place : str
        Axes and keys, as ``"dtype=float16 variant=Gemm"``.
    before, after : str
        The class of the row in A and B; ``""`` where it is missing.
    floors_before, floors_after : float or None
    columns : tuple of str
        The result columns whose values differ.
    """

    place: str
    before: str
    after: str
    floors_before: float | None = None
    floors_after: float | None = None
    columns: tuple[str, ...] = ()

    @property
    def moved(self) -> float | None:
        """By how many floors, None where either side has none."""
        if self.floors_before is None or self.floors_after is None:
            return None
        return self.floors_after - self.floors_before


@dataclass(frozen=True, slots=True)
class RunDifference:
    """Two runs side by side.

    Parameters
    ----------
    a, b : str
        Ids; A is the reference.
    changed : tuple of Change
        Rows of another class, the farthest moved first.
    moved : tuple of Change
        Rows of the same class with other numbers.
    only_a, only_b : tuple of str
        Places that the other run does not have.
    same : int
        Rows that are equal in every column.
    environment : mapping of name to (str, str)
        Entries that differ; ``""`` where one is missing.
    """

    a: str
    b: str
    changed: tuple[Change, ...]
    moved: tuple[Change, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    same: int
    environment: Mapping[str, tuple[str, str]]
    schema: str = "driftscope/run-difference/1"

    @property
    def any(self) -> bool:
        """Whether a row differs."""
        return bool(self.changed or self.moved or self.only_a or self.only_b)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def difference(a: RunFolder, b: RunFolder) -> RunDifference:
    """Lay two runs side by side, row by row, by axes and keys."""
    rows_a, rows_b = _placed(a), _placed(b)
    reading = b.header.get("reading") or a.header.get("reading") or {}
    changed: list[Change] = []
    moved: list[Change] = []
    same = 0
    for place, row in rows_a.items():
        if place not in rows_b:
            continue
        change = _change(place, row, rows_b[place], reading)
        if change is None:
            same += 1
        else:
            (moved if change.before == change.after else changed).append(change)
    environment_a, environment_b = (flattened(r.header.get("environment", {})) for r in (a, b))
    differing = {
        name: (environment_a.get(name, ""), environment_b.get(name, ""))
        for name in sorted(environment_a.keys() | environment_b.keys())
        if environment_a.get(name) != environment_b.get(name)
    }
    return RunDifference(
        a.name, b.name, _farthest_first(changed), _farthest_first(moved),
        tuple(p for p in rows_a if p not in rows_b), tuple(p for p in rows_b if p not in rows_a), same, differing,
    )  # fmt: skip


def _placed(run: RunFolder) -> dict[str, Row]:
    keys = [*run.header.get("axes", {}), *(run.header.get("reading") or {}).get("keys", ())]
    found: dict[str, Row] = {}
    for entry in run.entries().values():
        for row in entry.rows:
            place = " ".join(f"{key}={row[key]}" for key in keys if row.get(key) is not None)
            number = 2
            while place in found:  # a cell with several rows and nothing to tell them apart: by their order
                place, number = f"{place.partition(' #')[0]} #{number}", number + 1
            found[place] = row
    return found


def _change(place: str, a: Row, b: Row, reading: Mapping[str, Any]) -> Change | None:
    columns = tuple(
        name for name in dict.fromkeys((*a, *b)) if name not in BOOKKEEPING and not _equal(a.get(name), b.get(name))
    )
    before, after = (_class(row, str(reading.get("verdict", "verdict"))) for row in (a, b))
    if before == after and not columns:
        return None
    floors = str(reading.get("floors", "floors"))
    return Change(place, before, after, _number(a.get(floors)), _number(b.get(floors)), columns)


def _class(row: Row, column: str) -> str:
    return str(row.get(column) or OK) if row.get("outcome") == OK else str(row.get("outcome"))


def _equal(a: Any, b: Any) -> bool:
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return both_nan or (type(a) is type(b) and bool(a == b)) or (_number(a) is not None and _number(a) == _number(b))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _farthest_first(changes: Sequence[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda c: -abs(c.moved or 0.0)))


def _count(run: RunFolder) -> tuple[int, int]:
    """Count finished and failed cells without reading every value: a run may have a million rows."""
    finished: dict[bytes, bool] = {}
    run.seal()
    for path in run.row_files():
        for cell, good in _cells_at_line_ends(path.read_bytes().splitlines()):
            finished[cell] = good
    return len(finished), sum(not good for good in finished.values())


def _cells_at_line_ends(lines: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    for line in lines:
        at = line.rfind(b',"cell":"')
        if at >= 0 and line.endswith(b'"}'):
            yield line[at + 9 : -2], b'"outcome":"ok"' in line

"""Which runs there are, how far each is, and what differs between two of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftscope.records.environment import is_another_processor, processor_words
from driftscope.records.plain import to_plain
from driftscope.records.runs.lines import Damage
from driftscope.records.runs.rows import BOOKKEEPING, OK, Row
from driftscope.records.runs.store import RunFolder, runs_in, unreadable_in
from driftscope.records.words import counted

_COUNTS = ("cells", "finished", "failed", "damaged")


@dataclass(frozen=True, slots=True)
class Survey:
    """How far a run is.

    Parameters
    ----------
    state : str
        ``"finished"``, ``"running"`` or ``"unfinished"``.
    cells, finished, failed : int
        Cells of the grid, those with rows, and those of them that gave no result.
    damage : tuple of Damage
        Lines of its files that are no rows of a finished cell.
    """

    state: str
    cells: int
    finished: int
    failed: int
    damage: tuple[Damage, ...]


def survey(run: RunFolder) -> Survey:
    """Read how far a run is, every line of it."""
    live = run.is_live()
    good: dict[str, tuple[int, bool]] = {}
    damage: list[Damage] = []
    for found in run.cells():
        if isinstance(found, Damage):
            damage.append(found)
            continue
        attempt, name = found[0]["attempt"], found[0]["cell"]
        if name not in good or good[name][0] < attempt:
            good[name] = attempt, found[0]["outcome"] == OK
    cells = int(run.header.get("cells", 0))
    state = "finished" if len(good) >= cells else "running" if live else "unfinished"
    return Survey(state, cells, len(good), sum(not fine for _, fine in good.values()), tuple(damage))


def summary_of(run: RunFolder, seen: Survey | None = None) -> dict[str, str | int]:
    """Return one line about a run: id, study, state, cells, finished, failed, damaged lines, when, where, command."""
    seen = seen or survey(run)
    return {
        "run": run.name,
        "study": str(run.header["study"]),
        "state": seen.state,
        "cells": seen.cells,
        "finished": seen.finished,
        "failed": seen.failed,
        "damaged": len(seen.damage),
        "started": str(run.header.get("started", "")),
        "place": str(run.header.get("place", "")),
        "command": str(run.header.get("command", "")),
    }


def listing_of(root: str | Path) -> list[dict[str, Any]]:
    """Return one line about every run below a folder, each with the sentences about what is wrong with its files."""
    listed: list[dict[str, Any]] = []
    for run in runs_in(root):
        seen = survey(run)
        listed.append({**summary_of(run, seen), "problems": _problems(seen.damage)})
    for run_like in unreadable_in(root):
        blank = dict.fromkeys(("study", "started", "place", "command"), "") | dict.fromkeys(_COUNTS, 0)
        listed.append({"run": run_like.name, **blank, "state": "unreadable", "problems": [run_like.reason]})
    return sorted(listed, key=lambda line: str(line["run"]))


def _problems(damage: Sequence[Damage]) -> list[str]:
    """Name the first lines of each kind; a foreign file has thousands of one kind."""
    kinds: dict[tuple[str, str], list[Damage]] = {}
    for found in damage:
        kinds.setdefault((found.file, re.sub(r"\d+|'.*'", "", found.what)), []).append(found)
    return [
        str(several[0]) + (f"; {counted(len(several) - 1, 'more line')} like it" if len(several) > 1 else "")
        for several in kinds.values()
    ]


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
    processors : pair of str
        On which A and B were made.
    settings : mapping of name to (str, str)
        What the study was given, and its code, where they differ; ``""`` where one is missing.
    """

    a: str
    b: str
    changed: tuple[Change, ...]
    moved: tuple[Change, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    same: int
    environment: Mapping[str, tuple[str, str]]
    processors: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    schema: str = "driftscope/run-difference/1"

    @property
    def any(self) -> bool:
        """Whether a row differs."""
        return bool(self.changed or self.moved or self.only_a or self.only_b)

    @property
    def processor_alone(self) -> bool:
        """Whether rows differ and nothing that is recorded does but the processor and what follows from it."""
        return self.any and not self.settings and is_another_processor(self.environment)

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
    environment = _differing(*(r.header.get("environment", {}) for r in (a, b)))
    settings = _differing(*(_settings(r.header) for r in (a, b)))
    return RunDifference(
        a.name, b.name, _farthest_first(changed), _farthest_first(moved),
        tuple(p for p in rows_a if p not in rows_b), tuple(p for p in rows_b if p not in rows_a), same, environment,
        tuple(processor_words(r.header.get("environment", {})) for r in (a, b)), settings,
    )  # fmt: skip


def _settings(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides a cell's rows besides its place in the grid and the environment."""
    named = {name: header[name] for name in ("function", "seed", "threads", "code") if name in header}
    return {**header.get("fixed", {}), **named}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    before, after = flattened(a), flattened(b)
    return {
        name: (before.get(name, ""), after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }


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

"""Runs of studies on disk: one folder each, rows appended as they come.

``runs/<id>/run.json`` says what was asked and in which environment; it is written once. Every process that adds rows
has a file of its own, ``rows-<writer>.jsonl``, which it holds locked while it lives, so two processes never write to
the same place and a reader can tell a writer that is at work from one that was killed. All rows of a cell are handed
to the system in one call. A reader changes nothing: it passes over what is no row of a finished cell, and says so.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.errors import InputError, RecordError
from driftscope.records.files import bounded_text
from driftscope.records.json_text import parse_json
from driftscope.records.plain import to_plain
from driftscope.records.runs import locks
from driftscope.records.runs.lines import Damage, Line, complete_cells, json_lines, sound_lines
from driftscope.records.runs.rows import FATE_COLUMNS, CellRows, Row, is_sql_type, restored, wider
from driftscope.records.runs.writers import RowWriter

RUN_SCHEMA = "driftscope/run/1"
RUNS_FOLDER = "runs"
_FIXED_TYPES = {
    **dict.fromkeys(FATE_COLUMNS, "VARCHAR"), "last_words": "VARCHAR", "seconds": "DOUBLE", "attempt": "BIGINT",
    "part": "BIGINT", "parts": "BIGINT", "cell": "VARCHAR",
}  # fmt: skip


# What a header may leave out, and what it is where it is there.
_HEADER: Mapping[str, type] = {
    "cells": int, "seed": int, "environment": dict, "reading": dict, "fixed": dict, "started": str, "place": str,
}  # fmt: skip


class RunFolder:
    """One run.

    Parameters
    ----------
    path : Path
        Its folder.

    Raises
    ------
    RecordError
        If there is no readable ``run.json``.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self.header: Mapping[str, Any] = parse_json(bounded_text(path / "run.json"))
        except (OSError, ValueError) as error:
            raise RecordError(f"{str(path)!r} is not a run: its run.json cannot be read ({error})") from error
        if not isinstance(self.header, dict) or self.header.get("schema") != RUN_SCHEMA:
            raise RecordError(f"{str(path / 'run.json')!r} is not of schema {RUN_SCHEMA!r}")
        axes = self.header.get("axes")
        if not isinstance(self.header.get("study"), str) or not isinstance(axes, dict):
            raise RecordError(f"{str(path / 'run.json')!r} is damaged: it names no study or no axes")
        if not all(isinstance(values, list) for values in axes.values()):
            raise RecordError(f"{str(path / 'run.json')!r} is damaged: an axis has no list of values")
        for name, kind in _HEADER.items():
            value = self.header.get(name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise RecordError(f"{str(path / 'run.json')!r} is damaged: its {name!r} is a {type(value).__name__}")

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    def row_files(self) -> list[Path]:
        """Return the files of all writers, the earliest first."""
        return self._files("rows-*.jsonl")

    def _files(self, pattern: str) -> list[Path]:
        # A pipe or a device of such a name would be read for ever.
        return sorted(path for path in self.path.glob(pattern) if path.is_file())

    def is_live(self) -> bool:
        """Whether a process is writing at this moment."""
        return any(locks.is_held(path) for path in self.row_files())

    def repair(self) -> list[Path]:
        """Take out of the files of dead writers what is not even JSON, before the run goes on; keep copies.

        Returns
        -------
        list of Path
            The copies, ``rows-<writer>.jsonl.damaged``, each byte for byte what was found.
        """
        return [copy for path in self.row_files() if (copy := _repaired(path)) is not None]

    def columns(self) -> dict[str, str]:
        """Return the SQL type of every column, bookkeeping included, in order of appearance."""
        found: dict[str, str] = {}
        for path in self._files("columns-*.jsonl"):
            for line in json_lines(path):
                if isinstance(line, dict) and isinstance(line.get("name"), str) and is_sql_type(line.get("type")):
                    found[line["name"]] = wider(found.get(line["name"]), line["type"]) or "VARCHAR"
        return found | _FIXED_TYPES

    def cells(self) -> Iterator[Sequence[Line] | Damage]:
        """Walk over the finished cells as they were written, writer by writer, and over lines that belong to none.

        An unfinished end of a file whose writer is at work is neither.
        """
        for path in self.row_files():
            live = locks.is_held(path)  # before it is read: a writer may finish meanwhile, but none comes back
            end: list[Damage] = []
            for found in complete_cells(path):
                if live and isinstance(found, Damage):
                    end.append(found)  # the end, unless something whole comes after it
                    continue
                yield from end
                end.clear()
                yield found

    def entries(self) -> dict[str, CellRows]:
        """Return every finished cell: the latest attempt, and of equal ones the earliest writer's.

        Two processes may have made the same cell; a cell function is pure, so either row will do.
        """
        kinds = self.columns()
        found: dict[str, CellRows] = {}
        for lines in self.cells():
            if isinstance(lines, Damage):
                continue
            first = lines[0]
            known = found.get(first["cell"])
            if known is not None and known.attempt >= first["attempt"]:
                continue
            rows = tuple({k: restored(v, kinds.get(k, "")) for k, v in _own(line).items()} for line in lines)
            found[first["cell"]] = CellRows(
                first["cell"], rows, first["seconds"], first["attempt"], str(first.get("last_words", ""))
            )
        return found

    def writer(self) -> RowWriter:
        """Open a file of one's own to append to."""
        return RowWriter(self.path)


def create_run(root: str | Path, study: str, header: Mapping[str, Any], name: str = "") -> RunFolder:
    """Make the folder of a new run.

    Parameters
    ----------
    root : path
        Folder of all runs; made if it is missing.
    study : str
        The study's name, the beginning of the id.
    header : mapping
        What goes into ``run.json`` beside schema and id.
    name : str
        An id of the user's choice; ``""`` takes the next free number.

    Raises
    ------
    InputError
        If it cannot be written there, or the id cannot be a folder's name or is taken.
    """
    parent = Path(root)
    if name and not re.fullmatch(r"[A-Za-z0-9][\w.\-]*", name):
        raise InputError(f"a run cannot be called {name!r}; use letters, digits, '-', '_' and '.'")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = parent / name if name else _next_folder(parent, study)
        if name:
            path.mkdir()
        text = json.dumps(to_plain({"schema": RUN_SCHEMA, "id": path.name, **header}), indent=2) + "\n"
        draft = path / ".run.json.part"
        draft.write_text(text, encoding="utf-8")
        draft.replace(path / "run.json")  # complete or not there: a folder without it is not a run
    except FileExistsError as error:
        if parent.is_file():
            raise _is_a_file(parent) from error
        raise InputError(f"there is a run {name!r} in {str(parent)!r} already") from error
    except OSError as error:
        raise InputError(f"cannot write runs to {str(parent)!r}: {error.strerror or error}") from error
    return RunFolder(path)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A folder that looks like a run and cannot be read as one.

    Parameters
    ----------
    name : str
        Of the folder.
    reason : str
        One sentence.
    """

    name: str
    reason: str


def _is_a_file(store: Path) -> InputError:
    return InputError(f"{str(store)!r} is a file; runs are kept in a folder")


def runs_in(root: str | Path) -> list[RunFolder]:
    """Return all runs below a folder in the order of their ids; none if there is no such folder."""
    return [run for run in _found_in(root) if isinstance(run, RunFolder)]


def unreadable_in(root: str | Path) -> list[Unreadable]:
    """Return the folders that hold a ``run.json`` or rows and are not readable as a run, each with its reason."""
    return [run for run in _found_in(root) if isinstance(run, Unreadable)]


def _found_in(root: str | Path) -> Iterator[RunFolder | Unreadable]:
    if Path(root).is_file():
        raise _is_a_file(Path(root))
    paths = {path.parent for pattern in ("*/run.json", "*/rows-*.jsonl") for path in Path(root).glob(pattern)}
    for path in sorted(paths):
        try:
            yield RunFolder(path)
        except RecordError as error:
            yield Unreadable(path.name, str(error))


def open_run(root: str | Path, name: str) -> RunFolder:
    """Open a run by its id, by a beginning that only one id has, or by its folder.

    Raises
    ------
    RecordError
        If there is none, or several begin so; the ids are named.
    """
    direct = Path(name)
    if (direct / "run.json").is_file() and (direct.is_absolute() or len(direct.parts) > 1):
        return RunFolder(direct)
    if name and (Path(root) / name / "run.json").is_file():
        return RunFolder(Path(root) / name)
    names = [run.name for run in runs_in(root)]
    matching = [n for n in names if name and n.startswith(name)]
    if len(matching) == 1:
        return RunFolder(Path(root) / matching[0])
    if matching:
        raise RecordError(f"several runs begin with {name!r}: {', '.join(matching)}")
    have = f"it has {', '.join(names[-8:])}" if names else "it has none; `driftscope study` makes one"
    raise RecordError(f"there is no run {name!r} in {str(root)!r}; {have}")


def _next_folder(parent: Path, study: str) -> Path:
    numbers = [int(m[1]) for p in parent.iterdir() if (m := re.fullmatch(rf"{re.escape(study)}-(\d+)", p.name))]
    number = max(numbers, default=0)
    while True:
        number += 1
        path = parent / f"{study}-{number:04d}"
        with contextlib.suppress(FileExistsError):  # another process took this number just now
            path.mkdir()
            return path


def _own(line: Mapping[str, Any]) -> Row:
    return {k: v for k, v in line.items() if k in FATE_COLUMNS or k not in _FIXED_TYPES}


def _repaired(path: Path) -> Path | None:
    """Repair one file; None if there was nothing to do, or its writer is alive, or nobody can know that."""
    if not any(isinstance(found, Damage) and not found.readable for found in complete_cells(path)):
        return None
    with locks.held_if_free(path) as free:
        if not free:
            return None
        number = 1
        while (copy := path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))).exists():
            number += 1
        import shutil

        try:
            shutil.copy2(path, copy)
            draft = path.with_name(f".{path.name}.part")
            draft.write_bytes(sound_lines(path))
            draft.replace(path)
        except OSError as error:
            raise InputError(f"cannot repair {str(path)!r}: {error.strerror or error}") from error
        return copy

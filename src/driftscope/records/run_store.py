"""Runs of studies on disk: one folder each, rows appended as they come, nothing ever rewritten.

``runs/<id>/run.json`` says what was asked and in which environment; it is written once. Every process that adds rows
has a file of its own, ``rows-<writer>.jsonl``, which it holds locked while it lives, so two processes never write to
the same place and a reader can tell a writer that is at work from one that was killed. All rows of a cell are handed
to the system in one call; what a killed writer left unfinished at its end is cut off by whoever reads next.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from driftscope.errors import InputError, RecordError
from driftscope.records.plain import to_plain
from driftscope.records.study_rows import FATE_COLUMNS, Row, restored, spelled, sql_type, wider

RUN_SCHEMA = "driftscope/run/1"
RUNS_FOLDER = "runs"
_TAIL = 1 << 16  # bytes looked at first for an unfinished end
_FIXED_TYPES = {
    **dict.fromkeys(FATE_COLUMNS, "VARCHAR"), "last_words": "VARCHAR", "seconds": "DOUBLE", "attempt": "BIGINT",
    "part": "BIGINT", "parts": "BIGINT", "cell": "VARCHAR",
}  # fmt: skip
_NEEDED = {"cell", "part", "parts", "attempt", "seconds", "outcome"}


@dataclass(frozen=True, slots=True)
class Entry:
    """The rows of one finished cell, with what the store knows beside them."""

    cell: str
    rows: tuple[Row, ...]
    seconds: float
    attempt: int = 0
    last_words: str = ""


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
            self.header: Mapping[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(f"{str(path)!r} is not a run: its run.json cannot be read ({error})") from error
        if not isinstance(self.header, dict) or self.header.get("schema") != RUN_SCHEMA:
            raise RecordError(f"{str(path / 'run.json')!r} is not of schema {RUN_SCHEMA!r}")
        axes = self.header.get("axes")
        if not isinstance(self.header.get("study"), str) or not isinstance(axes, dict):
            raise RecordError(f"{str(path / 'run.json')!r} is damaged: it names no study or no axes")

    @property
    def name(self) -> str:
        """The run's id."""
        return self.path.name

    def row_files(self) -> list[Path]:
        """Return the files of all writers, the earliest first."""
        return sorted(self.path.glob("rows-*.jsonl"))

    def is_live(self) -> bool:
        """Whether a process is writing at this moment."""
        return any(_locked_elsewhere(path) for path in self.row_files())

    def seal(self) -> None:
        """Cut off what killed writers left unfinished."""
        for path in self.row_files():
            with contextlib.suppress(OSError), _lock(path) as descriptor:
                if descriptor is not None:
                    _cut_unfinished(descriptor)

    def columns(self) -> dict[str, str]:
        """Return the SQL type of every column, bookkeeping included, in order of appearance."""
        found: dict[str, str] = {}
        for path in sorted(self.path.glob("columns-*.jsonl")):
            for line in _lines(path):
                found[line["name"]] = wider(found.get(line["name"]), line["type"]) or "VARCHAR"
        return found | _FIXED_TYPES

    def entries(self) -> dict[str, Entry]:
        """Return every finished cell: the latest attempt, and of equal ones the earliest writer's.

        Two processes may have made the same cell; a cell function is pure, so either row will do.
        """
        self.seal()
        kinds = self.columns()
        found: dict[str, Entry] = {}
        for path in self.row_files():
            for lines in _by_cell(path):
                first = lines[0]
                known = found.get(first["cell"])
                if known is not None and known.attempt >= first["attempt"]:
                    continue
                rows = tuple({k: restored(v, kinds.get(k, "")) for k, v in _own(line).items()} for line in lines)
                found[first["cell"]] = Entry(
                    first["cell"], rows, first["seconds"], first["attempt"], first.get("last_words", "")
                )
        return found

    def writer(self) -> RowWriter:
        """Open a file of one's own to append to."""
        return RowWriter(self.path)


class RowWriter:
    """Appends finished cells to a file that no other process writes to."""

    def __init__(self, folder: Path):
        # Time first, so that names sort in the order of opening.
        name = f"{time.time_ns():016x}-{secrets.token_hex(3)}"
        self._types: dict[str, str] = {}
        self._columns = folder / f"columns-{name}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(folder / f"rows-{name}.jsonl", flags, 0o644)
        _try_lock(self._descriptor)

    def append(self, entry: Entry) -> None:
        """Keep the rows of a cell; they survive the end of this process from here on."""
        lines, new = [], {}
        for part, row in enumerate(entry.rows):
            for name, value in row.items():
                known = self._types.get(name)
                kind = wider(known, sql_type(value))
                if kind is not None and kind != known:
                    self._types[name] = new[name] = kind
            words = {k: spelled(v) for k, v in row.items()} | {
                "last_words": entry.last_words, "seconds": round(entry.seconds, 6), "attempt": entry.attempt,
                "part": part, "parts": len(entry.rows),
                "cell": entry.cell,  # last: a line that was cut has none
            }  # fmt: skip
            lines.append(json.dumps(words, ensure_ascii=False, separators=(",", ":")) + "\n")
        if new:  # before the rows, so that no row is ever read without its types
            text = "".join(json.dumps({"name": name, "type": kind}) + "\n" for name, kind in new.items())
            with open(self._columns, "a", encoding="utf-8") as file:
                file.write(text)
        _write_all(self._descriptor, "".join(lines).encode())

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


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
        raise InputError(f"there is a run {name!r} in {str(parent)!r} already") from error
    except OSError as error:
        raise InputError(f"cannot write runs to {str(parent)!r}: {error.strerror or error}") from error
    return RunFolder(path)


def runs_in(root: str | Path) -> list[RunFolder]:
    """Return all runs below a folder in the order of their ids; none if there is no such folder."""
    found = []
    for path in sorted(Path(root).glob("*/run.json")):
        with contextlib.suppress(RecordError):
            found.append(RunFolder(path.parent))
    return found


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


def _by_cell(path: Path) -> Iterator[Sequence[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    for line in _lines(path):
        if not isinstance(line, dict) or not line.keys() >= _NEEDED:
            continue
        lines.append(line)
        if line["part"] == line["parts"] - 1:
            yield lines
            lines = []


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            if not text.endswith("\n"):
                return  # being written, or cut: not a row yet
            with contextlib.suppress(ValueError):
                yield json.loads(text)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _cut_unfinished(descriptor: int) -> None:
    """Shorten a dead writer's file to its last complete cell."""
    size = os.fstat(descriptor).st_size
    look = _TAIL
    while True:
        start = max(0, size - look)
        keep = _end_of_last_cell(os.pread(descriptor, size - start, start))
        if keep or not start:
            break
        look *= 8  # the last cell is longer than that
    if start + keep < size:
        os.ftruncate(descriptor, start + keep)


def _end_of_last_cell(tail: bytes) -> int:
    """Return where the last complete cell of some lines ends, 0 if none does."""
    end = tail.rfind(b"\n") + 1
    while end > 0:
        begin = tail.rfind(b"\n", 0, end - 1) + 1
        with contextlib.suppress(ValueError, TypeError, KeyError):
            line = json.loads(tail[begin:end])
            if line["part"] == line["parts"] - 1:
                return end
        end = begin
    return 0


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # no locks on this system: every writer counts as gone
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[int | None]:
    """Hold a writer's file; None when its writer is alive."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        yield descriptor if _try_lock(descriptor) else None
    finally:
        os.close(descriptor)


def _locked_elsewhere(path: Path) -> bool:
    try:
        with _lock(path) as descriptor:
            return descriptor is None
    except OSError:
        return False

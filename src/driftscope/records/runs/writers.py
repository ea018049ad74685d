"""Adding rows to a run: a file for each writer, and who of several writers makes which cell."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from pathlib import Path
from types import TracebackType

from driftscope.errors import RecordError
from driftscope.records.json_text import parse_json
from driftscope.records.runs import locks
from driftscope.records.runs.rows import CellRows, Row, spelled, sql_type, wider


class RowWriter:
    """Appends finished cells to a file that no other process writes to; several threads may."""

    def __init__(self, folder: Path):
        # Time first, so that names sort in the order of opening.
        self.name = f"{time.time_ns():016x}-{secrets.token_hex(3)}"
        self._folder = folder
        self._types: dict[str, str] = {}
        self._threads = threading.Lock()
        self._columns = folder / f"columns-{self.name}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._descriptor = os.open(rows_file(folder, self.name), flags, 0o644)
        locks.hold(self._descriptor)

    def append(self, entry: CellRows) -> None:
        """Keep the rows of a cell; they survive the end of this process from here on.

        Raises
        ------
        RecordError
            If they cannot be written, as on a full disk.
        """
        try:
            self._append(entry)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def _append(self, entry: CellRows) -> None:
        with self._threads:
            lines, new = [], {}
            for part, row in enumerate(entry.rows):
                for name, value in row.items():
                    known = self._types.get(name)
                    kind = wider(known, sql_type(value))
                    if kind is not None and kind != known:
                        self._types[name] = new[name] = kind
                lines.append(_line(entry, part, row))
            if new:  # before the rows, so that no row is ever read without its types
                text = "".join(json.dumps({"name": name, "type": kind}) + "\n" for name, kind in new.items())
                with open(self._columns, "a", encoding="utf-8") as file:
                    file.write(text)
            _write_all(self._descriptor, "".join(lines).encode())

    def close(self) -> None:
        """Let go of the file."""
        with self._threads:
            if self._descriptor >= 0:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Claims:
    """Which writer makes which cell, so that two processes that write to one run share its cells.

    A claim counts while its writer lives. Of a writer that is gone, each cell is either finished or free; which of the
    two, a reader knows that looked (:meth:`look`) before it read the rows.
    """

    def __init__(self, folder: Path):
        self._folder, self._path = folder, folder / "claims.jsonl"
        self._read_to, self._rest = 0, b""
        self._writer_of: dict[str, str] = {}
        self._gone: set[str] = set()

    def look(self) -> None:
        """Note which writers are gone; rows read from now on are all that these have written."""
        self._read()
        self._gone |= {name for name in set(self._writer_of.values()) if not self._lives(name)}

    def take(self, cell: str, writer: str) -> bool:
        """Claim a cell for a writer; False if another has it, or had it and may have finished it since the look."""
        try:
            return self._take(cell, writer)
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def _take(self, cell: str, writer: str) -> bool:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            with locks.held(descriptor):
                self._read()
                owner = self._writer_of.get(cell, writer)
                if owner != writer and owner not in self._gone:
                    return False
                begin = b"\n" if self._rest else b""  # a killed process left half a line
                line = json.dumps({"cell": cell, "writer": writer}, ensure_ascii=False).encode()
                _write_all(descriptor, begin + line + b"\n")
                return True
        finally:
            os.close(descriptor)

    def _lives(self, writer: str) -> bool:
        return locks.is_held(rows_file(self._folder, writer))

    def _read(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read_to)
                fresh = file.read()
        except FileNotFoundError:
            return
        self._read_to += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        for raw in lines:
            try:
                line = parse_json(raw)
                self._writer_of[str(line["cell"])] = str(line["writer"])
            except (ValueError, TypeError, KeyError):
                continue  # half a claim: its writer was killed before it began with the cell


def _unwritable(folder: Path, error: OSError) -> RecordError:
    return RecordError(
        f"cannot write rows to {str(folder)!r} ({error.strerror or error}); those before are kept, and the same "
        "command makes the rest"
    )


def rows_file(folder: Path, writer: str) -> Path:
    """Return where a writer keeps its rows."""
    return folder / f"rows-{writer}.jsonl"


def _line(entry: CellRows, part: int, row: Row) -> str:
    words = {k: spelled(v) for k, v in row.items()} | {
        "last_words": entry.last_words, "seconds": round(entry.seconds, 6), "attempt": entry.attempt,
        "part": part, "parts": len(entry.rows),
        "cell": entry.cell,  # last: a line that was cut has none
    }  # fmt: skip
    return json.dumps(words, ensure_ascii=False, separators=(",", ":")) + "\n"


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]

"""Reading row files: which cells are complete, and which lines are no rows. Nothing is changed by reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.records.json_text import parse_json

Line = dict[str, Any]
_NEEDED: Mapping[str, type | tuple[type, ...]] = {
    "cell": str, "part": int, "parts": int, "attempt": int, "seconds": (int, float), "outcome": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Damage:
    """A line of a row file that is no part of a finished cell.

    Parameters
    ----------
    file : str
        Name of the file.
    line : int
        From 1.
    what : str
        What is wrong with it, the rest of a sentence.
    readable : bool
        Whether it is JSON: a row of another version, or of a cell whose other rows are missing.
    """

    file: str
    line: int
    what: str
    readable: bool = False

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}: {self.what}"


def complete_cells(path: Path) -> Iterator[Sequence[Line] | Damage]:
    """Walk over a row file: the rows of each finished cell together, and each line that belongs to none."""
    open_cell: list[Line] = []
    begun = 0
    for number, found in _lines(path):
        if isinstance(found, Damage):
            yield found
            continue
        if open_cell and not _continues(open_cell[-1], found):
            yield from _unfinished(path, begun, open_cell)
            open_cell = []
        if not open_cell:
            begun = number
        open_cell.append(found)
        if found["part"] == found["parts"] - 1:
            if len(open_cell) == found["parts"]:
                yield open_cell
            else:
                yield from _unfinished(path, begun, open_cell)
            open_cell = []
    yield from _unfinished(path, begun, open_cell)


def json_lines(path: Path) -> Iterator[Any]:
    """Walk over the lines of a file that are JSON and complete."""
    for raw in path.read_bytes().split(b"\n")[:-1]:
        parsed = _parsed(raw)
        if parsed is not None:
            yield parsed


def sound_lines(path: Path) -> bytes:
    """Return the content of a file without the lines that are not JSON, and without an unfinished last one."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return b"".join(raw + b"\n" for raw in lines if _parsed(raw) is not None)


def _lines(path: Path) -> Iterator[tuple[int, Line | Damage]]:
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                what = f"its end is missing ({len(raw)} bytes are there): the writer was stopped in the middle of it"
                yield number, Damage(path.name, number, what)
                return
            parsed = _parsed(raw)
            if parsed is None:
                yield number, Damage(path.name, number, "it is not JSON")
            elif (wrong := _wrong(parsed)) is not None:
                yield number, Damage(path.name, number, f"it is not a row of this version ({wrong})", readable=True)
            else:
                yield number, parsed


def _parsed(raw: bytes) -> Any:
    """Return what a line says, None if it is not JSON."""
    try:
        return parse_json(raw)
    except (ValueError, RecursionError):
        return None


def _wrong(line: Any) -> str | None:
    if not isinstance(line, dict):
        return f"it holds {type(line).__name__}, not an object"
    for name, kind in _NEEDED.items():
        if name not in line:
            return f"it has no {name!r}"
        if not isinstance(line[name], kind) or isinstance(line[name], bool):
            return f"its {name!r} is {line[name]!r:.40}"
    if not 0 <= line["part"] < line["parts"]:
        return f"its part {line['part']} is not one of {line['parts']}"
    return None


def _continues(before: Line, line: Line) -> bool:
    same = all(before[name] == line[name] for name in ("cell", "parts", "attempt"))
    return same and bool(line["part"] == before["part"] + 1)


def _unfinished(path: Path, begun: int, lines: Sequence[Line]) -> Iterator[Damage]:
    for offset, line in enumerate(lines):
        what = f"it is row {line['part'] + 1} of {line['parts']} of cell {line['cell']!r}, whose other rows are missing"
        yield Damage(path.name, begun + offset, what, readable=True)

"""Several tried edits as one unified diff that ``git apply`` takes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Hunk:
    """Lines ``start`` (from 0) to ``end`` of a file and what they become, without context."""

    start: int
    end: int
    lines: tuple[str, ...]


def patched_path(file: str) -> str:
    """Write a file's path as a patch names it: from the nearest folder above the current one that holds the file.

    A path that a nearer folder has as well is written from a farther one, so that :func:`applied_in` finds the file.
    """
    whole, here = Path(file).resolve(), Path.cwd()
    nearer: list[Path] = []
    for folder in (here, *here.parents):
        if whole.is_relative_to(folder):
            path = whole.relative_to(folder)
            if not any((other / path).exists() for other in nearer):
                return path.as_posix()
        nearer.append(folder)
    return whole.as_posix().lstrip("/")


def applied_in(path: str) -> Path:
    """Return the folder from which a patch names that path: the current one or one above it."""
    here = Path.cwd()
    return next(folder for folder in (here, *here.parents) if (folder / path).exists())


def one_patch(patches: Iterable[str]) -> tuple[str, int]:
    """Join unified diffs of the same or of different files.

    Two edits of the same lines cannot both be made: the first one given stays.

    Returns
    -------
    tuple of str and int
        The diff, and how many of the patches are in it.
    """
    files: dict[str, list[Hunk]] = {}
    taken = 0
    for patch in dict.fromkeys(patches):
        path, hunks = _read(patch)
        have = files.setdefault(path, [])
        if all(hunk.start >= other.end or hunk.end <= other.start for hunk in hunks for other in have):
            have += hunks
            taken += 1
    return "".join(_diff(path, hunks) for path, hunks in files.items()), taken


def _read(patch: str) -> tuple[str, list[Hunk]]:
    lines = patch.splitlines(keepends=True)
    path = lines[0].removeprefix("--- a/").strip()
    found: list[Hunk] = []
    at = 0
    changing: list[str] | None = None
    start = 0
    for line in [*lines[2:], "@@ -1 +1 @@"]:
        match = _HUNK.match(line)
        if match is None and line[0] in "-+":
            if changing is None:
                changing, start = [], at
            if line[0] == "+":
                changing.append(line[1:])
            else:
                at += 1
            continue
        if changing is not None:
            found.append(Hunk(start, max(at, start), tuple(changing)))
            changing = None
        if match is not None:
            at = int(match[1]) - 1
        else:
            at += 1
    return path, found


def _diff(path: str, hunks: list[Hunk]) -> str:
    text = (applied_in(path) / path).read_text(encoding="utf-8")
    before = text.splitlines(keepends=True)
    after = list(before)
    for hunk in sorted(hunks, key=lambda h: h.start, reverse=True):
        after[hunk.start : hunk.end] = hunk.lines
    ended = ["".join((line, "" if line.endswith("\n") else "\n")) for line in before]
    return "".join(difflib.unified_diff(ended, after, f"a/{path}", f"b/{path}"))

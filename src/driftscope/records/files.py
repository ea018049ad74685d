"""Writing and reading the files of a record, whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from driftscope.errors import InputError, RecordError
from driftscope.records.json_text import TooMuch

PAGE_SUFFIXES = (".html", ".htm")
SUFFIXES = (".json", *PAGE_SUFFIXES, ".md", ".sarif")
_MOST_BYTES = 512 << 20


def stamp(path: str | os.PathLike[str] | int) -> tuple[int, int, int]:
    """What tells the file at a path (or an open one) from another that is put there later; its size is the second."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def in_place(path: str | Path, found: tuple[int, int, int]) -> bool:
    """Whether the file at a path is still the one of this stamp."""
    return Path(path).is_file() and stamp(path) == found


def check_target(path: str | Path) -> Path:
    """Return ``path`` if a record can be written there.

    Asked before the work as well as at its end, so that a typing mistake costs no run.

    Raises
    ------
    InputError
        For an unknown suffix, a folder, or a parent folder that is missing or not writable.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        kinds = ".html (a page), .json (the record), .md (a summary) or .sarif (findings on their lines)"
        raise InputError(f"cannot write {str(target)!r}: the name must end in {kinds}")
    return check_place(target)


def check_place(path: str | Path) -> Path:
    """Return ``path`` if some file can be written there.

    Raises
    ------
    InputError
        For a folder, or a parent folder that is missing or not writable.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"cannot write {str(target)!r}: it is a folder; name a file in it")
    parent = target.parent
    if not parent.is_dir():
        raise InputError(f"cannot write {str(target)!r}: there is no folder {str(parent)!r}; create it first")
    if not os.access(parent, os.W_OK):
        raise InputError(f"cannot write {str(target)!r}: the folder {str(parent)!r} is not writable")
    return target


def write_whole(path: str | Path, text: str) -> Path:
    """Write ``text`` to ``path``: the file appears complete, or what was there stays.

    Raises
    ------
    InputError
        As :func:`check_target`, and when the disk refuses.
    """
    target = check_target(path)
    # In the same folder, because a rename is atomic only inside one file system.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return target


def read_text(path: str | Path) -> str:
    """Return the text of a record or page.

    Raises
    ------
    RecordError
        If the file is missing, not a file, or not UTF-8 text.
    """
    source = Path(path)
    if not source.exists():
        raise RecordError(f"there is no file {str(source)!r}")
    try:
        return bounded_text(source)
    except UnicodeDecodeError as error:
        raise RecordError(f"{str(source)!r} is not text; a record is a .json file or a .html page") from error
    except (OSError, TooMuch) as error:
        raise RecordError(f"cannot read {str(source)!r}: {getattr(error, 'strerror', None) or error}") from error


def bounded_text(source: Path, most: int = _MOST_BYTES) -> str:
    """Return the text of a file of somebody, which may be a link to a device that never ends.

    Raises
    ------
    OSError
        If it cannot be opened, or is a pipe or a device by another name than one under ``/dev``.
    ValueError
        If it is larger than ``most`` bytes (:class:`TooMuch`), or not UTF-8; the text is one clause.
    """
    # /dev/stdin and <(command) are pipes that the user typed; a pipe in a folder waits for ever.
    found = source.stat()
    if not (stat.S_ISREG(found.st_mode) or source.is_dir() or str(source).startswith("/dev/")):
        raise OSError("it is a pipe or a device, not a file")
    with source.open("rb") as file:
        data = file.read(most + 1) if found.st_size <= most else b""
    if max(len(data), found.st_size) > most:
        raise TooMuch(f"it has more than {most >> 20} MiB")
    return data.decode("utf-8")

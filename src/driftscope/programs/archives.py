"""Zip archives that somebody else made: looked at, bounded, and only then inflated."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import IO

from driftscope.errors import DriftscopeError

MOST_MEMBERS = 100_000
# What an archive may inflate to: a plain allowance, for sparse masks and zeros, and a multiple of its own size.
ALLOWANCE = 512 << 20
RATIO = 20
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
_ENCRYPTED = 0x1 | 0x40 | 0x2000


class Archive:
    """The members of a checked archive, by name.

    Parameters
    ----------
    source : zipfile.ZipFile
    what : str
        The file's name, for messages.
    error : type of DriftscopeError
    """

    def __init__(self, source: zipfile.ZipFile, what: str, error: type[DriftscopeError]):
        self._source = source
        self._what = what
        self._error = error
        self._entries = {entry.filename: entry for entry in source.infolist()}

    @property
    def names(self) -> list[str]:
        """Names of the members, in the archive's order, folders left out."""
        return [name for name in self._entries if not name.endswith("/")]

    def size(self, name: str) -> int:
        """Bytes of a member once inflated, as it declares; reading stops there."""
        return self._entries[name].file_size

    def read(self, name: str) -> bytes:
        """Inflate one member.

        Raises
        ------
        DriftscopeError
            Of the class given, if the member is damaged.
        """
        with self.stream(name) as stream:
            return stream.read()

    @contextmanager
    def stream(self, name: str) -> Iterator[IO[bytes]]:
        """Inflate a member as far as it is read; what goes wrong inside is damage to the member."""
        try:
            with self._source.open(self._entries[name]) as stream:
                yield stream
        # A ValueError is a name that is no text.
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as reason:
            raise self._error(f"{self._what} is damaged: its member {name!r} cannot be read ({reason})") from reason


@contextmanager
def opened(source: FilePath | bytes, what: str, error: type[DriftscopeError]) -> Iterator[Archive]:
    """Open an archive whose members are within bounds.

    Parameters
    ----------
    source : path or bytes
    what : str
        Its name, for messages.
    error : type of DriftscopeError
        What is raised if it is no archive, damaged, encrypted, compressed by an unusual method, names a member twice
        (upper and lower case are one name to some readers), or inflates to far more than its own size.
    """
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    try:
        file = zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError) as reason:
        raise error(f"{what} is not a whole zip archive ({reason}); is it truncated?") from reason
    with file:
        for complaint in _complaints(file.infolist(), size):
            raise error(f"{what} {complaint}; it is not read")
        yield Archive(file, what, error)


def _complaints(entries: list[zipfile.ZipInfo], size: int) -> Iterator[str]:
    if len(entries) > MOST_MEMBERS:
        yield f"has {len(entries):,} members, and {MOST_MEMBERS:,} are read at most"
    seen: set[str] = set()
    total = 0
    for entry in entries:
        if entry.flag_bits & _ENCRYPTED:
            yield f"has an encrypted member, {entry.filename[:80]!r}"
        if entry.compress_type not in _METHODS:
            yield f"has a member compressed by method {entry.compress_type}, {entry.filename[:80]!r}"
        if not 0 <= entry.header_offset < size:
            yield f"has a member that would begin outside of the file, {entry.filename[:80]!r}"
        if entry.filename.casefold() in seen:
            yield f"has two members called {entry.filename[:80]!r}, perhaps in upper and lower case"
        seen.add(entry.filename.casefold())
        total += entry.file_size
    if total > ALLOWANCE + RATIO * size:
        yield (
            f"has {size:,} bytes and would inflate to {total:,}, more than {RATIO} times its size"
            f" and {ALLOWANCE >> 20} MiB"
        )

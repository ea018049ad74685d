"""Locks on files, by which a writer shows that it is at work; the system lets go of them when a process ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def hold(descriptor: int) -> None:
    """Lock an open file until it is closed, waiting for whoever has it."""
    with contextlib.suppress(ImportError, OSError):  # a system or a file system without locks
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextlib.contextmanager
def held(descriptor: int) -> Iterator[None]:
    """Lock an open file for the length of a block."""
    hold(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Lock a file that nobody holds; False where somebody does, or where nothing can be locked."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield _taken(descriptor, exclusive=True) is False
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether another opening of this file holds it, in this process or another; False where nothing can be locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return _taken(descriptor, exclusive=False) is True
    finally:
        os.close(descriptor)


def _taken(descriptor: int, *, exclusive: bool) -> bool | None:
    """Whether a file is locked by others, None where that cannot be known; if it is not, it is locked now."""
    try:
        import fcntl

        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return None
    return False

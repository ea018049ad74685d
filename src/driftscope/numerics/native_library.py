"""Plain shared libraries that setup.py builds beside the code that calls them, opened with ctypes.

A call releases the interpreter's lock. Without a compiler a library is not there, and its caller computes the same
another way.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Signatures = Mapping[str, tuple[Sequence[Any], Any]]


def library_at(folder: Path, name: str) -> Path | None:
    """Return where a library was built to, or None when it was not."""
    candidates = (folder / f"{name}{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((c for c in candidates if c.is_file()), None)


def opened(path: Path | None, signatures: Signatures) -> ctypes.CDLL | None:
    """Open a library that has these functions; None for one built for another machine, or left over from before."""
    if path is None:
        return None
    try:
        library = ctypes.CDLL(str(path))
        declare(library, signatures)
    except (OSError, AttributeError):
        return None
    return library


def declare(library: ctypes.CDLL, signatures: Signatures) -> None:
    """Say what functions of a library take and give; AttributeError where one is missing."""
    for name, (arguments, result) in signatures.items():
        function = getattr(library, name)
        function.argtypes = list(arguments)
        function.restype = result

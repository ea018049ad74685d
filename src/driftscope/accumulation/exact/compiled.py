"""The compiled library of exact and fixed-order reductions, when there is one.

It is a plain shared library next to this file, built by setup.py and opened with ctypes, which releases the
interpreter's lock during a call. Without a compiler it is not there, and the same bits come from
:mod:`driftscope.accumulation.exact.integers`, slower.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import importlib.machinery
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Instructions(enum.IntEnum):
    """The instruction sets that the library has code for; the bits are the same."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p

_SIGNATURES = {
    "driftscope_use": ([_INT], _INT),
    "driftscope_state_size": ([], _LONG),
    "driftscope_rows": ([_INT, _INT, _INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER], None),
    "driftscope_total": ([_INT, _POINTER, _LONG, _POINTER], None),
    "driftscope_part": ([_INT, _INT, _POINTER, _POINTER, _LONG, _POINTER], None),
    "driftscope_join": ([_INT, _INT, _POINTER, _LONG, _LONG, _LONG, _POINTER], None),
    "driftscope_layer_norm": ([_INT, _POINTER, _POINTER, _POINTER, ctypes.c_double, _LONG, _LONG, _POINTER], None),
    "driftscope_matmul": ([_INT, _POINTER, _POINTER, _POINTER, *[_LONG] * 6], _INT),
    "driftscope_replay": ([_INT, _LONG, *[_POINTER] * 4, _LONG, _POINTER, _POINTER], _INT),
    "driftscope_dots": ([_INT, _INT, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER], None),
}

#: What came later. A library built before it still serves for the rest; these layers then take the way without one.
_LAYERS = {
    "driftscope_products": ([_INT, *[_POINTER] * 4, *[_LONG] * 9], _INT),
    "driftscope_elements": ([_INT, _POINTER, _LONG, _POINTER], None),
    "driftscope_softmax": ([_POINTER, _LONG, _LONG, _INT, _POINTER], None),
    "driftscope_norm_rows": ([_POINTER, _LONG, _LONG, _POINTER, _POINTER, ctypes.c_double, *[_POINTER] * 3], None),
    "driftscope_attention": ([*[_POINTER] * 4, *[_LONG] * 6, _POINTER, _POINTER], _INT),
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None when it was not built.

    None also when ``DRIFTSCOPE_NO_NATIVE=1`` is set at the first call; ``library.cache_clear()`` asks again.
    """
    return None if os.environ.get("DRIFTSCOPE_NO_NATIVE") == "1" else _opened()


def layers() -> ctypes.CDLL | None:
    """Return the compiled library if it has the layers of a fixed order, else None."""
    native = library()
    return native if native is not None and _declared(native) else None


@functools.cache
def _declared(native: ctypes.CDLL) -> bool:
    try:
        _declare(native, _LAYERS)
    except AttributeError:
        return False
    return True


def library_file() -> Path | None:
    """Return where the compiled library lies, or None when it was not built."""
    here = Path(__file__).parents[1]
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        candidate = here / f"_exact{suffix}"
        if candidate.is_file():
            return candidate
    return None


def use(instructions: Instructions) -> Instructions:
    """Choose an instruction set for the whole process.

    Parameters
    ----------
    instructions : Instructions
        The best that the processor has is taken when it lacks this one.

    Returns
    -------
    Instructions
        The one now in use; PLAIN when there is no library.
    """
    native = library()
    return Instructions.PLAIN if native is None else Instructions(native.driftscope_use(int(instructions)))


@functools.cache
def _opened() -> ctypes.CDLL | None:
    path = library_file()
    if path is None:
        return None
    try:
        opened = ctypes.CDLL(str(path))
        _declare(opened, _SIGNATURES)
    except (OSError, AttributeError):
        # Built for another machine, or left over from an older version: as good as not built.
        return None
    opened.driftscope_use(int(Instructions.AVX512))
    return opened


def _declare(native: ctypes.CDLL, signatures: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (arguments, result) in signatures.items():
        function = getattr(native, name)
        function.argtypes = arguments
        function.restype = result

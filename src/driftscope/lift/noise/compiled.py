"""The compiled library that adds noise in one pass, when there is one; without it torch does, in several."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from driftscope.numerics import native_library

_LONG, _DOUBLE, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p

_SIGNATURES: native_library.Signatures = {
    "driftscope_perturb": (
        [_POINTER, _POINTER, _LONG, _LONG, _POINTER, _DOUBLE, _POINTER, _POINTER, _LONG, _POINTER, _DOUBLE, _POINTER,
         _POINTER, _DOUBLE, _POINTER], None),
    "driftscope_row_sizes": ([_POINTER, _POINTER, _LONG, _LONG, _DOUBLE, _DOUBLE, _DOUBLE, _POINTER], None),
    "driftscope_move_rows": ([_POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER, _POINTER], ctypes.c_int),
}  # fmt: skip


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None when it was not built or ``DRIFTSCOPE_NO_NATIVE=1`` is set."""
    if os.environ.get("DRIFTSCOPE_NO_NATIVE") == "1":
        return None
    return native_library.opened(native_library.library_at(Path(__file__).parent, "_noise"), _SIGNATURES)

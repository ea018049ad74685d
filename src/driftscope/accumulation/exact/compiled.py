"""The compiled library of exact and fixed-order reductions, when there is one.

Without a compiler it is not there, and the same bits come from :mod:`driftscope.accumulation.exact.integers`, slower.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from pathlib import Path

from driftscope.numerics import native_library


class Instructions(enum.IntEnum):
    """The instruction sets that the library has code for; the bits are the same."""

    PLAIN = 0
    AVX2 = 1
    AVX512 = 2


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p

_SIGNATURES: native_library.Signatures = {
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
_LAYERS: native_library.Signatures = {
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
        native_library.declare(native, _LAYERS)
    except AttributeError:
        return False
    return True


def library_file() -> Path | None:
    """Return where the compiled library lies, or None when it was not built."""
    return native_library.library_at(Path(__file__).parents[1], "_exact")


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
    library = native_library.opened(library_file(), _SIGNATURES)
    if library is not None:
        library.driftscope_use(int(Instructions.AVX512))
    return library

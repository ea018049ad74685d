"""numpy's functions that make arrays, while a call is followed: what they make can be written into and followed.

They do not dispatch on what they are given, so they are replaced in the module ``numpy`` for the duration of the call;
other threads, and libraries between, get what they had.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from driftscope.lift.arrays.traced import TracedArray
from driftscope.lift.arrays.tracing import Tracer, torch_dtype

FILLED = ("zeros", "ones", "empty", "full")
_COUNTED = ("arange", "linspace", "eye", "identity", "tri")
_FLOATS = "fcV"
TAKING = ("array", "asarray", "asanyarray", "ascontiguousarray")

# Whose own arrays are none of the program's.
_NOT_USERS = frozenset({"driftscope", "torch", "numpy", "scipy", "ml_dtypes"})


@contextlib.contextmanager
def followed(tracer: Tracer, counted: str = "") -> Iterator[None]:
    """Let numpy make arrays that are followed, in this thread; ``counted``: tables too, of formats of these kinds."""
    thread = threading.get_ident()
    made = (*FILLED, *(_COUNTED if counted else ()))
    before = {name: getattr(np, name) for name in (*made, *TAKING)}

    def replaced(name: str) -> Callable[..., Any]:
        original = before[name]
        own = made_of if name in made else taken

        def call(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            caller = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if threading.get_ident() != thread or caller in _NOT_USERS or not _calls(frame.f_code, frame.f_lasti, name):
                return original(*args, **kwargs)
            if own is taken:
                return taken(tracer, original, args, kwargs)
            return made_of(tracer, original, args, kwargs, counted if name in _COUNTED else _FLOATS)

        return call

    for name in before:
        setattr(np, name, replaced(name))
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(np, name, original)


@functools.cache
def _calls(code: types.CodeType, at: int, name: str) -> bool:
    """Whether the call in progress at an instruction is one of that name, by the caller itself.

    Compiled code has no frame: numpy.random, called there, takes memory by ``numpy.empty`` and writes as C does.
    """
    steps = list(dis.get_instructions(code))
    call = next((s for s in steps if s.offset == at), None)
    place = call.positions if call is not None else None
    if place is None or place.col_offset is None:
        return name in code.co_names
    begin = (place.lineno, place.col_offset)
    return any(
        s.argval == name and s.positions is not None and (s.positions.lineno, s.positions.col_offset) == begin
        for s in steps
    )


def made_of(tracer: Tracer, original: Callable[..., Any], args: Any, kwargs: Any, kinds: str = _FLOATS) -> Any:
    """An array of no other, to be written into or computed with, if its format is of one of these kinds."""
    if any(type(a) is TracedArray for a in (*args, *kwargs.values())):
        array = np.broadcast_to(next(a for a in args if type(a) is TracedArray), args[0])
        return array.astype(kwargs["dtype"]) if "dtype" in kwargs else array.copy()
    array = original(*args, **kwargs)
    if array.dtype.kind not in kinds or array.ndim == 0:
        return array
    if original.__name__ == "empty":
        array[...] = 0  # its content is nobody's
    one_value = array.size and (array == array.flat[0]).all()
    dtype = torch_dtype(array.dtype)
    if one_value:
        return TracedArray(array, torch.full(array.shape, array.flat[0].item(), dtype=dtype), tracer)
    wide = _wide(original, args, kwargs, array)
    return TracedArray(
        array, tracer.constant(array).clone() if wide is None else tracer.constant(wide).to(dtype), tracer
    )


def _wide(original: Callable[..., Any], args: Any, kwargs: Any, array: Any) -> Any:
    """The numbers in float64 that were counted and rounded to a narrower format; None where there are none."""
    if array.dtype.kind != "f" or array.dtype.itemsize >= 8 or "dtype" not in kwargs:
        return None
    wide = original(*args, **{**kwargs, "dtype": np.float64})
    return wide if np.array_equal(wide.astype(array.dtype), array) else None


def taken(tracer: Tracer, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """An array of what is given, which may be followed or hold what is."""
    given = args[0] if args else kwargs.get("object", kwargs.get("a"))
    if not _holds(given):
        return tracer.table(original(*args, **kwargs))
    dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
    array = _stacked(given)
    if dtype is not None:
        array = array.astype(dtype, copy=False)
    return array.copy() if original.__name__ == "array" and array is given and kwargs.get("copy", True) else array


def _holds(tree: Any) -> bool:
    return type(tree) is TracedArray or (type(tree) in (list, tuple) and any(map(_holds, tree)))


def _stacked(tree: Any) -> Any:
    if type(tree) in (list, tuple):
        return np.stack([_stacked(t) for t in tree])
    return tree

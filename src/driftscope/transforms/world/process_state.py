"""The process, put back whatever happens: random generators, torch's flags, default dtype, functorch's levels."""

from __future__ import annotations

import random
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from driftscope.errors import Interruption
from driftscope.programs.state import process
from driftscope.transforms import torch_internals as internals


def reading() -> dict[str, Any]:
    """Read every setting; two readings are equal exactly when the process was put back."""
    found: dict[str, Any] = {setting.name: value for setting, value in process.readings()}
    found["vmap fallback"] = internals.fallback_enabled()
    found["functorch levels"] = internals.stack_depth()
    found["forward mode"] = internals.forward_mode_open()
    found["modes"] = internals.mode_depths()
    found["warning filters"] = tuple(map(str, warnings.filters))
    return found


def same_reading(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Name the settings in which two readings differ."""
    return [name for name in left if not _equal(left[name], right[name])]


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return bool(np.array_equal(left, right))
    if isinstance(left, (tuple, list)) and isinstance(right, type(left)) and len(left) == len(right):
        return all(_equal(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)


@contextmanager
def process_kept(*, generators: bool = True) -> Iterator[None]:
    """Put the process back on the way out, whatever happened inside; the generators unless each run seeds them."""
    depth, modes, forward = internals.stack_depth(), internals.mode_depths(), internals.forward_mode_open()
    fallback = internals.fallback_enabled()
    with process.state_kept(generators=generators):
        try:
            yield
        finally:
            internals.unwind(depth)
            internals.pop_modes(modes)
            if internals.forward_mode_open() and not forward:
                internals.close_forward_mode()
            internals.set_fallback_enabled(fallback)


def reseed(seed: int = 0) -> None:
    """Start every process-wide generator anew, so that two runs draw the same numbers."""
    random.seed(seed)
    np.random.seed(seed)
    if internals.accelerated():
        torch.manual_seed(seed)
    else:
        # torch.manual_seed visits every kind of device and keeps the stack of each visit: 100 times as slow.
        torch.default_generator.manual_seed(seed)


class TimeLimit(Interruption):
    """A run did not return in time. Not an ``Exception``: a user's ``except Exception`` must not swallow it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimeLimit` in the block once ``seconds`` have passed.

    In the main thread an alarm interrupts also calls that wait; elsewhere it comes between two Python instructions.
    """
    if not seconds:
        yield
    elif threading.current_thread() is threading.main_thread() and _alarm_is_free():
        yield from _by_alarm(seconds)
    else:
        yield from _by_thread(seconds)


def _alarm_is_free() -> bool:
    return hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def _by_alarm(seconds: float) -> Iterator[None]:
    silent = threading.Event()

    def ring(number: int, frame: types.FrameType | None) -> None:
        if not silent.is_set():
            raise TimeLimit(seconds)

    kept = signal.signal(signal.SIGALRM, ring)
    # Again and again: an exception raised inside a destructor or a weak reference's callback is swallowed.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.25)
    try:
        with _swallowed_limits(silent):
            yield
    finally:
        silent.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


@contextmanager
def _swallowed_limits(silent: threading.Event) -> Iterator[None]:
    """Report no swallowed limit as a fault of the program, and let no limit interrupt the report of another exception.

    Somebody's ``sys.unraisablehook`` (pytest installs one) would tell of the first as an error, and fail by the second.
    """
    kept = sys.unraisablehook

    def report(unraisable: Any) -> None:
        silent.set()
        try:
            if not issubclass(unraisable.exc_type, TimeLimit):
                kept(unraisable)
        finally:
            silent.clear()

    sys.unraisablehook = report
    try:
        yield
    finally:
        if sys.unraisablehook is report:
            sys.unraisablehook = kept


def _by_thread(seconds: float) -> Iterator[None]:
    import ctypes

    here = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    done, silent = threading.Event(), threading.Event()

    def ring() -> None:
        wait = seconds
        while not done.wait(wait):
            if not silent.is_set():
                raise_in(here, ctypes.py_object(TimeLimit))
            wait = 0.25

    threading.Thread(target=ring, daemon=True).start()
    try:
        with _swallowed_limits(silent):
            yield
    finally:
        done.set()

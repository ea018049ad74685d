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

from driftscope.transforms import torch_internals as internals

# How to read and write back each setting of the process that a user's function, or a transform, may change.
_SETTINGS: tuple[tuple[str, Any, Any], ...] = (
    ("python random", random.getstate, random.setstate),
    ("numpy random", np.random.get_state, np.random.set_state),
    ("torch random", torch.get_rng_state, torch.set_rng_state),
    ("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("grad mode", torch.is_grad_enabled, lambda on: torch._C._set_grad_enabled(on)),
    (
        "anomaly mode",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda kept: torch.set_anomaly_enabled(*kept),
    ),
    ("autocast", lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    ("matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("deterministic", torch.are_deterministic_algorithms_enabled, lambda on: torch.use_deterministic_algorithms(on)),
    ("vmap fallback", internals.fallback_enabled, internals.set_fallback_enabled),
    ("threads", torch.get_num_threads, torch.set_num_threads),
    ("print options", lambda: dict(vars(torch._tensor_str.PRINT_OPTS)), lambda kept: _set_print_options(kept)),
    ("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    ("trace function", sys.gettrace, sys.settrace),
)


def _set_print_options(kept: dict[str, Any]) -> None:
    for name, value in kept.items():
        setattr(torch._tensor_str.PRINT_OPTS, name, value)


def reading() -> dict[str, Any]:
    """Read every setting; two readings are equal exactly when the process was put back."""
    found = {name: read() for name, read, _ in _SETTINGS}
    found["functorch levels"] = internals.stack_depth()
    found["forward mode"] = internals.forward_mode_open()
    found["modes"] = internals.mode_depths()
    found["standard streams"] = (id(sys.stdout), id(sys.stderr))
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
def process_kept() -> Iterator[None]:
    """Put the process back on the way out, whatever happened inside."""
    kept = [(read, read(), write) for _, read, write in _SETTINGS]
    depth, modes, forward = internals.stack_depth(), internals.mode_depths(), internals.forward_mode_open()
    out, err = sys.stdout, sys.stderr
    try:
        with warnings.catch_warnings():
            yield
    finally:
        internals.unwind(depth)
        internals.pop_modes(modes)
        if internals.forward_mode_open() and not forward:
            internals.close_forward_mode()
        sys.stdout, sys.stderr = out, err
        for read, value, write in kept:
            if not _equal(read(), value):
                write(value)


def reseed(seed: int = 0) -> None:
    """Start every process-wide generator anew, so that two runs draw the same numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class TimeLimit(BaseException):
    """A run did not return in time. Not an ``Exception``: a user's ``except Exception`` must not swallow it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimeLimit` in the block once ``seconds`` have passed.

    In the main thread an alarm interrupts also calls that wait; elsewhere it comes between two Python instructions.
    """
    if not seconds:
        yield
    elif threading.current_thread() is threading.main_thread() and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        yield from _by_alarm(seconds)
    else:
        yield from _by_thread(seconds)


def _by_alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: types.FrameType | None) -> None:
        raise TimeLimit(seconds)

    kept = signal.signal(signal.SIGALRM, ring)
    # Again and again: an exception raised inside a destructor or a weak reference's callback is swallowed.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.25)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def _by_thread(seconds: float) -> Iterator[None]:
    import ctypes

    here = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    done = threading.Event()

    def ring() -> None:
        wait = seconds
        while not done.wait(wait):
            raise_in(here, ctypes.py_object(TimeLimit))
            wait = 0.25

    threading.Thread(target=ring, daemon=True).start()
    try:
        yield
    finally:
        done.set()

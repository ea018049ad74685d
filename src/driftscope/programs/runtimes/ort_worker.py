"""The inside of the worker process in which onnxruntime runs: sessions by number, tensors in shared memory.

Imports onnxruntime and nothing heavier: the first run waits for this import. What is called here is called by
:mod:`driftscope.programs.runtimes.ort_remote` through a worker process, with plain values.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnxruntime

from driftscope.programs.runtimes.ort_log import listening
from driftscope.programs.runtimes.ort_options import SessionSetup
from driftscope.programs.runtimes.ort_refusals import refusals

#: Kernels load whole vectors; torch aligns what it allocates to this too.
ALIGNED = 64

_SESSIONS: dict[int, Any] = {}
_MAPPED: dict[int, mmap.mmap] = {}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a session is made.

    Parameters
    ----------
    model : str or bytes
    setup : SessionSetup
    save_to, beside : str or None
        Where the optimised graph is written, and the name of a file beside it for its weights.
    severity : int
        Of onnxruntime's log.
    """

    model: str | bytes
    setup: SessionSetup
    save_to: str | None = None
    beside: str | None = None
    severity: int = 4


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in shared memory.

    Parameters
    ----------
    name : str
    element : int
        ONNX's number of the element type.
    shape : tuple of int
    start, size : int
        Bytes.
    """

    name: str
    element: int
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Job:
    """One run.

    Parameters
    ----------
    session : int
    arena : int or bytes
        File descriptor of the shared memory; its contents where none can be shared.
    length : int
        Bytes of it that are in use.
    feeds : tuple of Placed
    outputs : tuple of str
    """

    session: int
    arena: int | bytes
    length: int
    feeds: tuple[Placed, ...]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class Made:
    """What making a session said."""

    text: str = ""
    audible: bool = field(default=True)


def new_session(recipe: Recipe) -> Any:
    """Make a session.

    Raises
    ------
    RuntimeRefused
        If onnxruntime does not load the model.
    """
    from driftscope.errors import RuntimeRefused

    options = recipe.setup.session_options(recipe.severity)
    if recipe.save_to is not None:
        options.optimized_model_filepath = recipe.save_to
    if recipe.beside is not None:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", recipe.beside)
    providers = recipe.setup.providers()
    with refusals("load"):
        session = onnxruntime.InferenceSession(
            recipe.model, options, providers=providers, disabled_optimizers=list(recipe.setup.disabled) or None
        )
    if session.get_providers()[:1] != providers[:1]:
        # The provider is in the build but its libraries did not load; onnxruntime went on without it.
        raise RuntimeRefused("onnxruntime", "load", f"{providers[0]} could not be started on this machine")
    return session


def make(number: int, recipe: Recipe, dropped: Sequence[int], listen: bool = False) -> Made:
    """Make a session and keep it under a number; forget those that nobody holds any more."""
    for old in dropped:
        _SESSIONS.pop(old, None)
    if not listen:
        _SESSIONS[number] = new_session(recipe)
        return Made()
    with listening() as heard:
        _SESSIONS[number] = new_session(recipe)
    return Made(heard.text, heard.audible)


def run(job: Job) -> tuple[int | bytes, tuple[Placed, ...]] | None:
    """Run a session on tensors in shared memory and put its outputs behind them.

    Returns
    -------
    tuple or None
        Length of the shared memory now, or its contents where none is shared, and the outputs; None where this
        process has no such session.

    Raises
    ------
    RuntimeRefused
        In onnxruntime's own words.
    """
    session = _SESSIONS.get(job.session)
    if session is None:
        return None
    memory = _memory(job.arena, job.length)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with refusals("run"):
        binding = session.io_binding()
        for feed in job.feeds:
            binding.bind_input(feed.name, "cpu", 0, feed.element, list(feed.shape), base + feed.start)
        for name in job.outputs:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        values = binding.get_outputs()
    del base
    return _given_back(job, values)


def run_objects(number: int, feeds: dict[str, Any]) -> list[Any] | None:
    """Run a session on numpy values: strings, sequences, optionals and maps; None where it is not here."""
    session = _SESSIONS.get(number)
    if session is None:
        return None
    with refusals("run"):
        found: list[Any] = session.run(None, feeds)
        return found


def _given_back(job: Job, values: Sequence[Any]) -> tuple[int | bytes, tuple[Placed, ...]]:
    end = max((feed.start + feed.size for feed in job.feeds), default=0)
    placed = []
    for name, value in zip(job.outputs, values, strict=True):
        start, size = aligned(end), bytes_of(value.element_type(), value.shape())
        placed.append(Placed(name, value.element_type(), tuple(value.shape()), start, size))
        end = start + size
    length = max(job.length, end)
    if isinstance(job.arena, bytes):
        memory = mmap.mmap(-1, max(length, 1))
    else:
        if length > job.length:
            os.ftruncate(job.arena, length)
        memory = _memory(job.arena, length)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for place, value in zip(placed, values, strict=True):
        if place.size:
            ctypes.memmove(base + place.start, value.data_ptr(), place.size)
    return memory[:length] if isinstance(job.arena, bytes) else length, tuple(placed)


# ONNX's number of an element type -> bits; OrtValue itself knows its size only since 1.21.
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128,
         16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8}  # fmt: skip


def bytes_of(element: int, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor; 0 for what is no plain tensor."""
    return (math.prod(shape) * _BITS.get(element, 0) + 7) // 8


def _memory(arena: int | bytes, length: int) -> mmap.mmap:
    if isinstance(arena, bytes):  # into whole pages, as shared memory is: kernels see the same alignment
        found = mmap.mmap(-1, length)
        found[: len(arena)] = arena
        return found
    known = _MAPPED.get(arena)
    if known is None or len(known) != length:
        _MAPPED[arena] = known = mmap.mmap(arena, length)
    return known


def aligned(end: int) -> int:
    """Return the next place for a tensor."""
    return -(-end // ALIGNED) * ALIGNED

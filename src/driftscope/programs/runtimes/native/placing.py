"""Tensors in the memory that a worker shares with who asks it, seen from the worker. Imports no tensor library."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

#: Kernels load whole vectors; torch aligns what it allocates to this too.
ALIGNED = 64

_MAPPED: dict[int, mmap.mmap] = {}
# ONNX's number of an element type -> bits; OrtValue itself knows its size only since 1.21.
_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128,
         16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8}  # fmt: skip


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


Given = tuple[int | bytes, tuple[Placed, ...]]
"""Length of the shared memory, or its contents where none is shared, and what lies in it."""


class Shared:
    """The memory of one job.

    Parameters
    ----------
    job : Job
    """

    def __init__(self, job: Job):
        self._arena, self._length = job.arena, job.length
        self._end = max((feed.start + feed.size for feed in job.feeds), default=0)
        self._memory = _memory(job.arena, job.length)
        self._before = self._memory  # a runtime may hand an input on as an output, where it lies

    def address(self, place: Placed) -> int:
        """Where a tensor lies in this process, until there is :meth:`room` for more."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + place.start

    def room(self, kinds: Sequence[tuple[str, int, Sequence[int]]]) -> tuple[Placed, ...]:
        """Make room behind the inputs for tensors of these names, element types and shapes."""
        placed, end = [], self._end
        for name, element, shape in kinds:
            start, size = aligned(end), bytes_of(element, shape)
            placed.append(Placed(name, element, tuple(shape), start, size))
            end = start + size
        length = max(self._length, end)
        if isinstance(self._arena, bytes):
            kept = self._memory[: self._end]
            self._memory = mmap.mmap(-1, max(length, 1))
            self._memory[: self._end] = kept
        else:
            if length > self._length:
                os.ftruncate(self._arena, length)
            self._memory = _memory(self._arena, length)
        self._length = length
        return tuple(placed)

    def given(self, placed: tuple[Placed, ...]) -> Given:
        """What who asked is told."""
        return self._memory[: self._length] if isinstance(self._arena, bytes) else self._length, placed


def bytes_of(element: int, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor; 0 for what is no plain tensor."""
    return (math.prod(shape) * _BITS.get(element, 0) + 7) // 8


def whole_bytes(place: Placed) -> bool:
    """Whether every element of a tensor has bytes of its own."""
    return _BITS.get(place.element, 0) >= 8


def aligned(end: int) -> int:
    """Return the next place for a tensor."""
    return -(-end // ALIGNED) * ALIGNED


def _memory(arena: int | bytes, length: int) -> mmap.mmap:
    if isinstance(arena, bytes):  # into whole pages, as shared memory is: kernels see the same alignment
        found = mmap.mmap(-1, max(length, 1))
        found[: len(arena)] = arena
        return found
    known = _MAPPED.get(arena)
    if known is None or len(known) != length:
        _MAPPED[arena] = known = mmap.mmap(arena, length)
    return known

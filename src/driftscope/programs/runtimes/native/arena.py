"""Memory that this process and the worker both see: a file without a name, so that nothing stays behind."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Mapping

import numpy as np
import torch

from driftscope.programs.runtimes.native.placing import Placed, aligned
from driftscope.programs.runtimes.native.worker_process import worker
from driftscope.programs.runtimes.ort_values import ELEMENTS, tensor_of_bytes

_SMALLEST = 1 << 20
#: Shared memory beyond this is given back to the system after a run that needs much less.
KEPT = 64 << 20
_MUCH = 4


class Arena:
    """Tensors of one run, one behind the other.

    Parameters
    ----------
    file : int or None
        Descriptor of the file; None where the worker can inherit none: its contents are then sent to and fro.
    """

    def __init__(self, file: int | None) -> None:
        self.file, self.length = file, 0
        # numpy copies on one thread: torch would start its own, which then spin on the cores the runtime works on.
        self._bytes = np.empty(0, np.uint8)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Placed, ...]:
        """Copy dense CPU tensors in and return where they lie."""
        placed, end = [], 0
        for name, tensor in tensors.items():
            start, size = aligned(end), tensor.numel() * tensor.element_size()
            placed.append(Placed(name, ELEMENTS[tensor.dtype], tuple(tensor.shape), start, size))
            end = start + size
        if end > self.length or not self.length:
            self._resize(max(end, _SMALLEST))
        for place, tensor in zip(placed, tensors.values(), strict=True):
            if place.size:
                self._bytes[place.start : place.start + place.size] = tensor.reshape(-1).view(torch.uint8).numpy()
        return tuple(placed)

    def shared(self, placed: tuple[Placed, ...]) -> int | bytes:
        """What the worker finds the tensors by."""
        return self.file if self.file is not None else self._bytes[: _end(placed)].tobytes()

    def take(self, whole: int | bytes, outputs: tuple[Placed, ...]) -> dict[str, torch.Tensor]:
        """Copy out what the worker put behind; ``whole`` is the length of the memory now, or its contents."""
        if isinstance(whole, int) and whole != self.length:
            self._map(whole)
        held = self._bytes if isinstance(whole, int) else np.frombuffer(whole, np.uint8)
        found = {
            place.name: tensor_of_bytes(
                place.element,
                place.shape,
                torch.from_numpy(held[place.start : place.start + place.size].copy()),
            )
            for place in outputs
        }
        # Pages that are given back must be cleared when they are asked for again, which costs more than the copies.
        if self.length > KEPT and _MUCH * _end(outputs) < self.length:
            self._resize(_SMALLEST)
        return found

    def _resize(self, length: int) -> None:
        if self.file is None:
            self._bytes, self.length = np.empty(length, np.uint8), length
            return
        # What is cut off must not be mapped any more, and what is mapped must be there.
        if length < self.length:
            self._map(length)
        os.ftruncate(self.file, length)
        if length > self.length:
            self._map(length)

    def _map(self, length: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(self.file or 0, length), np.uint8)
        self.length = length


def _end(placed: tuple[Placed, ...]) -> int:
    return max((place.start + place.size for place in placed), default=0)


def arena() -> Arena:
    """Return the memory that is shared with the worker of this process; to be used under the worker's lock."""
    return _arena_of(os.getpid())


@functools.cache
def _arena_of(pid: int) -> Arena:
    return Arena(worker().file)

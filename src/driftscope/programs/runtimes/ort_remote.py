"""onnxruntime in a worker process: whatever a model does to it, this process lives on.

One worker serves all sessions of this process, one run at a time; it starts when the first session is made and stays.
Tensors go through shared memory, so that a large one costs two copies and nothing else. When the worker dies, what it
was doing becomes :class:`RuntimeCrashed`, and the next request finds another worker, in which its session is made anew.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from driftscope.errors import RuntimeCrashed
from driftscope.programs.isolation.failures import CODES, WorkerDied
from driftscope.programs.isolation.starting import can_inherit
from driftscope.programs.isolation.supervision import Limits
from driftscope.programs.isolation.workers import WorkerPool
from driftscope.programs.runtimes import ort_worker
from driftscope.programs.runtimes.ort_values import ELEMENTS, bindable, tensor_of_bytes
from driftscope.programs.runtimes.ort_worker import Job, Made, Placed, Recipe, aligned

_SMALLEST = 1 << 20
#: Shared memory beyond this is given back to the system after a run.
_KEPT = 64 << 20

_NUMBERS = itertools.count(1)
_DROPPED: deque[int] = deque()


class RemoteSession:
    """A session in the worker.

    Parameters
    ----------
    recipe : callable
        Returns the :class:`Recipe`; asked again when the worker was started anew.
    """

    def __init__(self, recipe: Callable[[], Recipe]):
        self._number = next(_NUMBERS)
        self._recipe = recipe
        weakref.finalize(self, _DROPPED.append, self._number)

    def make(self, recipe: Recipe | None = None, *, listen: bool = False) -> Made:
        """Make the session now.

        Raises
        ------
        RuntimeRefused
            If onnxruntime does not load the model.
        RuntimeCrashed
            If the process did not survive it.
        """
        found: Made = _asked("load", ort_worker.make, self._number, recipe or self._recipe(), _dropped(), listen)
        return found

    def run(self, feeds: Mapping[str, torch.Tensor], outputs: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Run on tensors.

        Raises
        ------
        RuntimeRefused
            In onnxruntime's own words.
        RuntimeCrashed
            If the process did not survive it.
        """
        with _WORKER.lock:
            placed = _WORKER.arena.put({name: bindable(tensor, on_cuda=False) for name, tensor in feeds.items()})
            job = Job(self._number, _WORKER.arena.shared(placed), _WORKER.arena.length, placed, outputs)
            found = self._again(ort_worker.run, job)
            outputs_by_name: dict[str, torch.Tensor] = _WORKER.arena.take(*found)
            return outputs_by_name

    def run_objects(self, feeds: dict[str, Any]) -> list[Any]:
        """Run on numpy values; otherwise as :meth:`run`."""
        found: list[Any] = self._again(ort_worker.run_objects, self._number, feeds)
        return found

    def _again(self, function: Callable[..., Any], *arguments: Any) -> Any:
        found = _asked("run", function, *arguments)
        if found is None:
            self.make()
            found = _asked("run", function, *arguments)
        return found


class _Arena:
    """Memory that this process and the worker both see: a file without a name, so that nothing stays behind.

    Where the worker can inherit no file, its contents are sent to and fro.
    """

    def __init__(self) -> None:
        self.file, self.length = _nameless_file() if can_inherit() else None, 0
        # numpy copies on one thread: torch would start its own, which then spin on the cores the runtime works on.
        self._bytes = np.empty(0, np.uint8)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> tuple[Placed, ...]:
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
        if self.file is not None:
            return self.file
        return self._bytes[: max((place.start + place.size for place in placed), default=0)].tobytes()

    def take(self, whole: int | bytes, outputs: tuple[Placed, ...]) -> dict[str, torch.Tensor]:
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
        if self.length > _KEPT:
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


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("driftscope")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Worker:
    """The one worker of this process, started when it is needed."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.arena = _Arena()
        self._pool: WorkerPool | None = None

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self.lock:
            if self._pool is None:
                self._pool = WorkerPool(
                    1, limits=Limits(), preload=("driftscope.programs.runtimes.ort_worker",),
                    descriptors=() if self.arena.file is None else (self.arena.file,),
                )  # fmt: skip
            try:
                return self._pool.submit(function, *arguments).result()
            except (KeyboardInterrupt, SystemExit):
                # Nobody waits for the answer any more, and the next request must not wait for it either.
                self._pool.stop()
                self._pool = None
                raise


class _Lazily:
    """The worker of this process; a forked child gets one of its own."""

    def __init__(self) -> None:
        self._by_process: dict[int, _Worker] = {}

    def __getattr__(self, name: str) -> Any:
        worker = self._by_process.get(os.getpid())
        # Two threads that come here at once agree on one.
        return getattr(worker or self._by_process.setdefault(os.getpid(), _Worker()), name)


_WORKER: Any = _Lazily()


def _dropped() -> tuple[int, ...]:
    found = []
    while _DROPPED:
        found.append(_DROPPED.popleft())
    return tuple(found)


def _asked(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return _WORKER.ask(function, *arguments)
    except WorkerDied as died:
        raise RuntimeCrashed("onnxruntime", stage, died.words, CODES[died.fate]) from died

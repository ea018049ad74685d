"""onnxruntime in a worker process: whatever a model does to it, this process lives on.

One worker serves all sessions of this process, one run at a time; it stays once it was started. Tensors go through
shared memory, so that a large input or output costs one copy and nothing else. When the worker dies, what it was doing
becomes :class:`RuntimeCrashed`, and the next request finds another worker, in which its session is made anew.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from driftscope.errors import RuntimeCrashed
from driftscope.programs.runtimes import ort_worker
from driftscope.programs.runtimes.native.arena import arena
from driftscope.programs.runtimes.native.placing import Job
from driftscope.programs.runtimes.native.worker_process import asked, worker
from driftscope.programs.runtimes.ort_values import bindable
from driftscope.programs.runtimes.ort_worker import Made, Recipe

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
        with worker().lock:
            memory = arena()
            placed = memory.put({name: bindable(tensor, on_cuda=False) for name, tensor in feeds.items()})
            job = Job(self._number, memory.shared(placed), memory.length, placed, outputs)
            return memory.take(*self._again(ort_worker.run, job))

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


def _dropped() -> tuple[int, ...]:
    found = []
    while _DROPPED:
        found.append(_DROPPED.popleft())
    return tuple(found)


def forget_dropped() -> None:
    """Let the worker give back the memory of sessions that nobody holds any more, now and not with the next one."""
    if _DROPPED:
        with contextlib.suppress(RuntimeCrashed):
            _asked("load", ort_worker.forget, _dropped())


def _asked(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    return asked("onnxruntime", stage, function, *arguments)

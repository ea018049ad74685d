"""onnxruntime in a worker process: whatever a model does to it, this process lives on.

One worker serves all sessions of this process, one run at a time; it stays once it was started. Tensors go through
shared memory, so that a large input or output costs one copy and nothing else. When the worker dies, what it was doing
becomes :class:`RuntimeCrashed`, and the next request finds another worker, in which its session is made anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from driftscope.errors import RuntimeCrashed
from driftscope.programs.runtimes import ort_worker
from driftscope.programs.runtimes.native.arena import arena
from driftscope.programs.runtimes.native.kept import KeptThere, asked_again
from driftscope.programs.runtimes.native.placing import Job
from driftscope.programs.runtimes.native.worker_process import asked, worker
from driftscope.programs.runtimes.ort_values import bindable
from driftscope.programs.runtimes.ort_worker import Made, Recipe

_KEPT = KeptThere()


class RemoteSession:
    """A session in the worker.

    Parameters
    ----------
    recipe : callable
        Returns the :class:`Recipe`; asked again when the worker was started anew.
    """

    def __init__(self, recipe: Callable[[], Recipe]):
        self._number = _KEPT.number_for(self)
        self._recipe = recipe

    def make(self, recipe: Recipe | None = None, *, listen: bool = False) -> Made:
        """Make the session now.

        Raises
        ------
        RuntimeRefused
            If onnxruntime does not load the model.
        RuntimeCrashed
            If the process did not survive it.
        """
        found: Made = _asked("load", ort_worker.make, self._number, recipe or self._recipe(), _KEPT.dropped(), listen)
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
        return asked_again(partial(_asked, "run", function, *arguments), self.make)


def forget_dropped() -> None:
    """Let the worker give back the memory of sessions that nobody holds any more, now and not with the next one."""
    if dropped := _KEPT.dropped():
        with contextlib.suppress(RuntimeCrashed):
            _asked("load", ort_worker.forget, dropped)


def _asked(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    return asked("onnxruntime", stage, function, *arguments)

"""Worker processes that a crash cannot take along: an ``Executor`` in which every task has its own fate.

``concurrent.futures.ProcessPoolExecutor`` shares one queue between its processes; when one of them dies, the queue
may be left locked, so it gives up and fails every task it holds. Here each worker has a socket and a thread of its own
in this process. The thread sends one task, waits for the answer, the end of the process, the time limit or the memory
limit, whichever comes first, names what happened, and starts another process for the next task.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import pickletools
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from driftscope.errors import InputError
from driftscope.programs.isolation.choice import MARK
from driftscope.programs.isolation.limits import NO_LIMITS, Limits, available_cores
from driftscope.programs.isolation.starting import Launch, start
from driftscope.programs.isolation.supervision import Start, Supervised
from driftscope.programs.isolation.template import Template, can_share
from driftscope.records.user_code import file_of

T = TypeVar("T")


class WorkerPool(Executor):
    """Run tasks in supervised processes; a task that dies fails alone.

    Parameters
    ----------
    workers : int or None
        Processes at once; None for one per available core.
    limits : Limits
        For each task.
    preload : sequence of str
        Modules that a worker imports before its first task.
    environment : mapping of str to str
        Variables for the workers, such as ``OMP_NUM_THREADS``, beside those of this process.
    descriptors : tuple of int
        Open files that the workers share with this process, where files can be inherited.

    Notes
    -----
    A future holds the task's own exception when the task raised one, and :class:`WorkerDied` when the process
    crashed, was killed, filled the memory or passed its time; :func:`driftscope.programs.isolation.failures.failure_of`
    names all of them alike. Functions and arguments are pickled. Processes start when there is work for them, and
    those that preload modules share one import where :mod:`driftscope.programs.isolation.forking` finds it safe.

    Raises
    ------
    InputError
        When it is made inside a worker.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        limits: Limits = NO_LIMITS,
        preload: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        descriptors: tuple[int, ...] = (),
    ):
        if MARK in os.environ:
            raise InputError(
                'worker processes cannot start workers: put what starts them under `if __name__ == "__main__":`'
            )
        count = available_cores() if workers is None else workers
        if count < 1:
            raise InputError(f"at least one worker is needed, not {count}")
        self._limits, self._preload, self._environment = limits, tuple(preload), dict(environment or {})
        self._descriptors = descriptors
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._count, self._idle, self._closed, self._lock = count, 0, False, threading.Lock()
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._starts: contextlib.AbstractContextManager[Start] = contextlib.nullcontext(start)
        if can_share(count, self._preload, self._environment):
            self._starts = Template(self._preload, self._environment, descriptors, self._stop)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run ``fn(*args, **kwargs)`` in a worker.

        Raises
        ------
        RuntimeError
            After :meth:`shutdown`.
        InputError
            If the function or an argument cannot be sent to another process.
        """
        message = _packed(fn, args, kwargs)
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot submit to a pool that was shut down")
            self._tasks.put(_Task(future, message))
            if self._idle < self._tasks.qsize() and len(self._threads) < self._count:
                thread = threading.Thread(target=self._supervise, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; finish those there are, or cancel what has not started."""
        with self._lock:
            self._closed = True
            while cancel_futures and not self._tasks.empty():
                with contextlib.suppress(queue.Empty):
                    task = self._tasks.get_nowait()
                    if task is not None:
                        task.future.cancel()
            for _ in self._threads:
                self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def stop(self) -> None:
        """End everything at once, running tasks included; they are named killed."""
        self._stop.set()
        self.shutdown(wait=True, cancel_futures=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.shutdown(wait=True)
        else:  # an error or Ctrl-C is leaving the block: nobody waits for the results any more
            self.stop()

    def _supervise(self) -> None:
        """Serve tasks with one process; the body of each thread."""
        # Opened for appending: a worker that is started anew goes on where the file was cut.
        with tempfile.TemporaryFile("a+b", prefix="driftscope-") as log, self._starts as start_one:
            launch = Launch(log.fileno(), _main_path(), self._preload, self._environment, self._descriptors)
            self._serve(Supervised(launch, self._limits, self._stop, start_one))

    def _serve(self, worker: Supervised) -> None:
        try:
            while True:
                with self._lock:
                    self._idle += 1
                task = self._tasks.get()
                with self._lock:
                    self._idle -= 1
                if task is None:
                    return
                if task.future.set_running_or_notify_cancel():
                    _settle(task, worker)
        finally:
            worker.end()


@dataclass(slots=True)
class _Task:
    future: Future[Any]
    message: bytes


def _packed(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    try:
        message = pickle.dumps((fn, args, dict(kwargs)), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickling runs the objects' own code and may raise anything
        raise InputError(
            f"{getattr(fn, '__qualname__', fn)!s} or one of its arguments cannot be sent to another process ({error}); "
            "define the function at the top level of a module and give it plain values"
        ) from error
    if b"__main__" in message and not _main_path() and _names_main(message):
        raise InputError(
            f"{getattr(fn, '__qualname__', fn)!s} was typed into a prompt or notebook, where a worker process cannot "
            "find it; put it into a file and import it"
        )
    return message


def _names_main(message: bytes) -> bool:
    """Whether a pickle refers to the main module: the word inside a model's own bytes is only data."""
    return any(argument == "__main__" for _, argument, _ in pickletools.genops(message))


def _main_path() -> str:
    path = file_of(sys.modules.get("__main__"))
    return str(Path(path).resolve()) if path and Path(path).is_file() else ""


def _settle(task: _Task, worker: Supervised) -> None:
    try:
        result = worker.run(task.message)
    except BaseException as error:  # whatever a task raises belongs to its future, as in every executor
        task.future.set_exception(error)
    else:
        task.future.set_result(result)

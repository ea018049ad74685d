"""The one worker process of this process in which native runtimes work: started early, asked one thing at a time.

Imports no tensor library, so that the worker can begin to import its own while this process still imports torch.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from driftscope.errors import RuntimeCrashed
from driftscope.programs.isolation.choice import isolates
from driftscope.programs.isolation.failures import CODES, RemoteTrace, WorkerDied
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.starting import Launch, can_inherit, start
from driftscope.programs.isolation.supervision import Supervised


class _Worker:
    """A worker, asked by whichever thread has work for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        #: The memory it shares with this process; None where it can inherit none.
        self.file = _nameless_file() if can_inherit() else None
        self._process: Supervised | None = None
        # On Linux a worker ends with the thread that started it: this one lives as long as the process.
        self._starter = ThreadPoolExecutor(1, "driftscope")
        # Opened for appending: a worker that is started anew goes on where the file was cut.
        self._log = tempfile.TemporaryFile("a+b", prefix="driftscope-")  # noqa: SIM115  (as long as the process)

    def begin(self, module: str) -> None:
        """Start the process, which imports a module, without waiting for it."""
        if self._process is None:
            with self.lock:
                self._supervised(module).begin()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function there; what interrupts the wait ends the process, whose answer nobody would take."""
        message = pickle.dumps((function, arguments, {}), protocol=pickle.HIGHEST_PROTOCOL)
        with self.lock:
            process = self._supervised(function.__module__)
            try:
                return process.run(message)
            except BaseException as error:
                if not isinstance(error, WorkerDied) and not isinstance(error.__cause__, RemoteTrace):
                    process.end()
                raise

    def _supervised(self, module: str) -> Supervised:
        if self._process is None:
            shared = () if self.file is None else (self.file,)
            preload = (module,) if module.startswith(__name__.partition(".")[0]) else ()
            launch = Launch(self._log.fileno(), "", preload, {}, shared)
            self._process = Supervised(launch, Limits(), threading.Event(), self._started_to_stay)
        return self._process

    def _started_to_stay(self, launch: Launch) -> tuple[subprocess.Popen[bytes], Connection]:
        return self._starter.submit(start, launch).result()


_WORKERS: dict[int, _Worker] = {}


def worker() -> _Worker:
    """Return the worker of this process; a forked child gets one of its own."""
    # Two threads that come here at once agree on one.
    return _WORKERS.get(os.getpid()) or _WORKERS.setdefault(os.getpid(), _Worker())


def begin_early(module: str) -> None:
    """Start the worker where one will be asked: it imports a module beside what comes before the first request."""
    if isolates():
        worker().begin(module)


def asked(runtime: str, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in the worker.

    Parameters
    ----------
    runtime, stage : str
        For the message: whose work it is, ``"load"`` or ``"run"``.
    function : callable
        Of a module that the worker can import.

    Raises
    ------
    RuntimeCrashed
        If the process did not survive it.
    """
    try:
        return worker().ask(function, *arguments)
    except WorkerDied as died:
        raise RuntimeCrashed(runtime, stage, died.words, CODES[died.fate]) from died


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("driftscope")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

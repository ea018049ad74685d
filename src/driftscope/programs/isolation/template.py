"""One process that imports what the workers of a pool need, once, and forks each of them; it serves no task itself.

It is a supervised worker whose tasks are to fork another one, and to say of what that one ended, whose parent it is.
Sockets and logs of the workers reach it through a channel of its own. Where it may not be forked
(``forking.py``), or is no more, workers are fresh interpreters.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from driftscope.programs.isolation.failures import WorkerDied
from driftscope.programs.isolation.forking import fork, reap
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.starting import Launch, Process, can_inherit, environment_of, start
from driftscope.programs.isolation.supervision import Start, Supervised

# Modules that start a thread when they are imported, as onnxruntime 1.31 does for its telemetry: after the fork.
_WITH_THREADS = ("onnxruntime",)
# Its import failed or it was killed; there is no room for another process or thread, or for a file that it is sent.
_EXPECTED = (WorkerDied, OSError, MemoryError, RuntimeError, ValueError)
_REQUEST_LIMIT = 60.0  # seconds for what takes milliseconds


def can_share(workers: int, preload: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    """Whether workers may share one import; not where numpy's OpenBLAS starts several threads with it."""
    seen = {**os.environ, **environment}
    threads = seen.get("OPENBLAS_NUM_THREADS") or seen.get("OMP_NUM_THREADS")
    able = sys.platform == "linux" and can_inherit() and hasattr(os, "pidfd_open")
    return able and workers > 1 and bool(preload) and threads == "1"


class Template:
    """The template of a pool, there while a thread of the pool uses it; its process starts with the first worker.

    Entered, it gives the function that starts a worker.

    Parameters
    ----------
    preload, environment, descriptors
        Of its workers, as in :class:`driftscope.programs.isolation.starting.Launch`.
    stop : threading.Event
        When set, nobody waits for it.
    """

    _process: Process

    def __init__(
        self,
        preload: tuple[str, ...],
        environment: Mapping[str, str],
        descriptors: tuple[int, ...],
        stop: threading.Event,
    ):
        self._preload = tuple(name for name in preload if name not in _WITH_THREADS)
        self._environment, self._descriptors, self._stop = environment, descriptors, stop
        self._lock, self._users, self._useful = threading.Lock(), 0, True
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Start:
        with self._lock:
            if self._users == 0:
                self._make()
            self._users += 1
        return self._worker

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._open.close()

    def _make(self) -> None:
        log = self._open.enter_context(tempfile.TemporaryFile("a+b", prefix="driftscope-"))  # noqa: SIM115
        self._channel, theirs = (self._open.enter_context(end) for end in socket.socketpair())
        self._their_channel = theirs.fileno()
        # A process ends with the thread that started it: this one lives as long as there are workers.
        starter = self._open.enter_context(ThreadPoolExecutor(1, "driftscope"))
        self._begun_in: object = None

        def started(launch: Launch) -> tuple[Process, Connection]:
            self._begun_in = _surroundings(launch)
            self._process, link = starter.submit(start, launch).result()
            return self._process, link

        shared = (*self._descriptors, self._their_channel)
        launch = Launch(log.fileno(), "", self._preload, self._environment, shared)
        self._supervised = Supervised(launch, Limits(_REQUEST_LIMIT), self._stop, started)
        self._open.callback(self._supervised.end)

    def _worker(self, launch: Launch) -> tuple[Process, Connection]:
        """Start a worker: a fork, or where none can be had a fresh interpreter, which says itself what is wrong."""
        forked = None
        with self._lock:
            if self._useful:
                try:
                    forked = self._forked(launch)
                except _EXPECTED:
                    self._useful = False
        return forked or start(launch)

    def _forked(self, launch: Launch) -> tuple[Process, Connection] | None:
        if self._begun_in not in (None, _surroundings(launch)):
            return None  # a worker that starts now is in another folder, or has another path or variables
        os.ftruncate(launch.log, 0)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._channel, [b" "], [theirs.fileno(), launch.log])
            pid = self._supervised.run(_packed(fork, self._their_channel))
            if not pid:
                self._useful = False
                self._supervised.end()
                return None
            ended_with = functools.partial(self._ended_with, pid, self._process)
            return _Forked(pid, ended_with), Connection(ours.detach())

    def _ended_with(self, pid: int, parent: Process) -> int:
        """Return the exit status of a worker that has ended; one whose template has ended was killed with it."""
        with self._lock, contextlib.suppress(*_EXPECTED):
            if parent.poll() is None:
                return int(self._supervised.run(_packed(reap, pid)))
        return -signal.SIGKILL


class _Forked:
    """A worker that is the template's child: its end is seen here, and the template knows of what it was."""

    def __init__(self, pid: int, ended_with: Callable[[], int]):
        self.pid = pid
        self._ended_with = ended_with
        self._end = os.pidfd_open(pid)  # the number is not given to another process before the template was asked
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._seen(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._seen(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _seen(self, seconds: float | None) -> int | None:
        if self._status is None:
            end = select.poll()
            end.register(self._end, select.POLLIN)
            if end.poll(None if seconds is None else 1000 * seconds):
                os.close(self._end)
                self._status = self._ended_with()
        return self._status


def _packed(function: Callable[..., Any], argument: int) -> bytes:
    return pickle.dumps((function, (argument,), {}))


def _surroundings(launch: Launch) -> object:
    return os.getcwd(), tuple(sys.path), environment_of(launch)

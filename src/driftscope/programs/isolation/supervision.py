"""One supervised worker process: started, asked, watched, named when it ends, started again."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from driftscope.programs.isolation import memory
from driftscope.programs.isolation.breadcrumbs import SIGN
from driftscope.programs.isolation.failures import (
    Fate,
    RemoteTrace,
    WorkerDied,
    before_a_task,
    death_of,
    ran_out_of_memory,
)
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.process import DONE, STARTED, WorkerSetting
from driftscope.programs.isolation.starting import Launch, Process, end_with_children, start

_TICK = 0.02  # seconds between two looks at memory and clock; at 10 GB/s a task gains 0.2 GB meanwhile
_START_LIMIT = 300.0  # seconds to import what was asked to be preloaded, or what a task's function needs
_LAST_WORDS = 4000  # characters kept of what a dying process printed
_READ = 1 << 20  # bytes in which what it was doing is looked for


@dataclass(slots=True)
class _Running:
    process: Process
    link: Connection
    memory: int  # resident bytes it may have
    kernel_kills: int  # processes killed for lack of memory when it started
    ready: bool = False


Start = Callable[[Launch], tuple[Process, Connection]]


class Supervised:
    """A worker process that is there whenever a task needs it.

    Parameters
    ----------
    launch : Launch
    limits : Limits
        For each task.
    stop : threading.Event
        When set, whatever runs is ended.
    start : callable
        Starts the process; on Linux it ends with the thread that started it.
    """

    def __init__(self, launch: Launch, limits: Limits, stop: threading.Event, start: Start = start):
        self._launch, self._limits, self._stop, self._start = launch, limits, stop, start
        self._running: _Running | None = None

    def begin(self) -> None:
        """Start the process and do not wait for it."""
        if self._running is not None and self._running.process.poll() is None:
            return
        self.end()
        process, link = self._start(self._launch)
        allowed = self._limits.memory or int(0.8 * memory.available_bytes()) or sys.maxsize
        self._running = _Running(process, link, allowed, memory.kernel_kills())
        setting = WorkerSetting(self._launch.main, os.getpid(), self._launch.preload)
        with contextlib.suppress(BrokenPipeError):  # it died already: waiting for its answer says of what
            link.send_bytes(pickle.dumps(setting))

    def run(self, message: bytes) -> Any:
        """Run a pickled task and return its result.

        Raises
        ------
        WorkerDied
            When the process ended or had to be ended.
        BaseException
            What the task raised.
        """
        try:
            return self._ask(message)
        except BaseException as error:
            # After an allocation failed, what is left of the process's memory is anybody's guess.
            if isinstance(error, WorkerDied) or ran_out_of_memory(error):
                self.end()
            raise

    def end(self) -> None:
        """End the process and whatever it started."""
        running, self._running = self._running, None
        if running is None:
            return
        running.link.close()
        end_with_children(running.process)

    def _ask(self, message: bytes) -> Any:
        running, (kind, value) = self._handed_over(message)
        if kind == STARTED:
            kind, value = self._answer(running, self._limits.seconds, "its time limit")
        if kind == DONE:
            return value
        error, text = value
        raise error from RemoteTrace(text)

    def _handed_over(self, message: bytes) -> tuple[_Running, tuple[str, Any]]:
        """Send a task, to a second process if the first was killed before it had seen it."""
        for attempt in (1, 2):
            running = self._started()
            os.ftruncate(self._launch.log, 0)  # what earlier tasks printed is not this one's last words
            try:
                running.link.send_bytes(message)
                return running, self._answer(running, _START_LIMIT, "the limit for imports")
            except BrokenPipeError as error:
                died = self._death(running)
                if attempt == 2:
                    raise died from error
            except WorkerDied as error:
                if attempt == 2 or error.fate is not Fate.KILLED or self._stop.is_set():
                    raise
            self.end()
        raise RuntimeError("a worker process was started twice and answered neither time")

    def _started(self) -> _Running:
        # One that ended before it was ready is not started again: what it printed says why.
        if self._running is None or self._running.ready:
            self.begin()
        running = self._running
        assert running is not None
        if not running.ready:
            try:
                self._answer(running, _START_LIMIT, "the limit for starting")
            except WorkerDied as died:
                raise before_a_task(died) from None
            running.ready = True
        return running

    def _answer(self, running: _Running, seconds: float | None, limit: str) -> tuple[str, Any]:
        """Wait for a message, the end of the process, or a limit, whichever comes first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                if running.link.poll(_TICK):
                    answer: tuple[str, Any] = pickle.loads(running.link.recv_bytes())  # noqa: S301  (our own worker)
                    return answer
            except (EOFError, ConnectionError):
                raise self._death(running) from None
            if running.process.poll() is not None and not running.link.poll(0):
                raise self._death(running)
            if self._stop.is_set():
                raise WorkerDied(Fate.KILLED, "the task was stopped together with its pool")
            used = memory.resident_bytes(running.process.pid)
            if used > running.memory:
                words = f"the task held {gib(used)}, more than its memory limit of {gib(running.memory)}"
                raise WorkerDied(Fate.OUT_OF_MEMORY, words, self._last_words())
            if deadline is not None and time.monotonic() > deadline:
                raise WorkerDied(Fate.TIMED_OUT, f"the task ran past {limit} of {seconds:g} s", self._where(running))

    def _death(self, running: _Running) -> WorkerDied:
        """Name the end of a process whose socket is closed."""
        try:
            status = running.process.wait(timeout=60.0)  # a crash is visible on the socket before it is over
        except subprocess.TimeoutExpired:
            return WorkerDied(Fate.ABORTED, "the process closed its connection and stayed", self._last_words())
        killed = memory.kernel_kills() > running.kernel_kills
        return death_of(status, out_of_memory=killed, last_words=self._last_words())

    def _where(self, running: _Running) -> str:
        """Have a hanging process write down the Python lines it is in, which needs no co-operation of its code."""
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                running.process.send_signal(signal.SIGUSR1)
            time.sleep(0.1)
        return self._last_words()

    def _last_words(self) -> str:
        said = end_of(self._launch.log, _READ)
        told = [line for line in said[:-_LAST_WORDS].splitlines() if line.startswith(SIGN)]
        return "\n".join([*told[-1:], said[-_LAST_WORDS:].strip()])


def end_of(file: int, size: int) -> str:
    """Return the last ``size`` bytes of an open file that another process writes to."""
    begin = max(os.fstat(file).st_size - size, 0)
    if hasattr(os, "pread"):
        data = os.pread(file, size, begin)
    else:
        os.lseek(file, begin, os.SEEK_SET)
        data = os.read(file, size)
        os.lseek(file, 0, os.SEEK_END)  # the position is shared with who writes
    return data.decode("utf-8", errors="replace")


def gib(count: int) -> str:
    """Write a number of bytes in GiB."""
    return f"{count / 2**30:.2f} GiB"

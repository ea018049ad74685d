"""A command's work in a child process: this one owns standard output, watches, and answers whatever the child does.

The child is forked before any tensor library is loaded, which costs milliseconds and copies no threads. What it prints
as its answer comes back through a pipe; its file descriptor 1 is standard error, so that native code which writes there
cannot come between the lines of ``--json``. A third process, which does nothing but wait, ends the child and removes
its folder when this one is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from driftscope.programs.isolation import memory
from driftscope.programs.isolation.breadcrumbs import heard_by
from driftscope.programs.isolation.choice import WATCHED, waiting
from driftscope.programs.isolation.failures import Fate, WorkerDied, death_of, where_it_was
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.process import die_with, guard_machine
from driftscope.programs.isolation.supervision import gib

_TICK = 0.05  # seconds between two looks at memory and clock
_GRACE = 5.0  # seconds to clean up after the answer is given
_LAST_WORDS = 1.5  # seconds to say what is known after Ctrl-C
_TENSOR_LIBRARIES = ("numpy", "torch", "onnxruntime", "jax", "tensorflow")


def can_fork() -> bool:
    """Whether this process can be forked: nothing is loaded whose threads and locks a fork would break."""
    return (
        hasattr(os, "fork") and threading.active_count() == 1 and not any(n in sys.modules for n in _TENSOR_LIBRARIES)
    )


@dataclass(slots=True)
class Ended:
    """How the child ended.

    Parameters
    ----------
    text : str
        Its answer.
    code : int or None
        Its exit code; None when it did not live to answer.
    died : WorkerDied or None
    told : dict
        What it was doing last.
    interrupted : bool
        Whether Ctrl-C ended it; ``text`` is what it knew by then.
    """

    text: str = ""
    code: int | None = None
    died: WorkerDied | None = None
    told: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False


def watched(work: Callable[[], None], limits: Limits) -> Ended:
    """Run ``work`` in a child process.

    Parameters
    ----------
    work : callable
        Prints its answer to ``sys.stdout`` and raises SystemExit with its code.
    limits : Limits
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    folder = tempfile.mkdtemp(prefix="driftscope-")
    channel, theirs = os.pipe()
    with tempfile.TemporaryFile("a+b", dir=folder) as log, _Terminal():
        child = os.fork()
        if child == 0:
            os.close(channel)
            _be_child(work, theirs, log.fileno(), folder)
        os.close(theirs)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # here too: whoever is first
        with _janitor(child, folder):
            watch = _Watch(child, channel, log.fileno(), limits)
            try:
                return watch.wait()
            except KeyboardInterrupt:
                return watch.last_words()
            finally:
                _end(child)
                os.close(channel)


# --- the child ---------------------------------------------------------------------------------------------------


class _Answer(io.StringIO):
    """Standard output of the child: kept until it is whole, and said to be what the real one is."""

    def __init__(self, real: Any):
        super().__init__()
        self._real = real

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._real, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return bool(self._real.isatty())


def _be_child(work: Callable[[], None], channel: int, log: int, folder: str) -> NoReturn:
    code = 3
    try:
        parent = os.getppid()
        os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which ends this group
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's own way to end would look like the program's
        _forget_exit_functions()
        guard_machine()
        die_with(parent)
        answer = _redirected(folder)
        faulthandler.enable(log)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, file=log)
        heard_by(lambda facts: _send(channel, {"told": facts}))
        code = code_of(work)
        _send(channel, {"answer": answer.getvalue(), "code": code})
        _run_exit_functions()
    finally:
        os._exit(code)  # past the destructors of native libraries, which may crash after the answer


def _redirected(folder: str) -> _Answer:
    real = sys.stdout
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # nobody sits behind it: a program that asks a question gets no answer rather than the terminal
    shown = os.dup(1)
    os.dup2(2, 1)
    sys.__stdout__ = os.fdopen(shown, "w", closefd=False)  # type: ignore[misc]  # the width of the terminal is asked of it
    os.environ[WATCHED] = str(os.getpid())
    os.environ.update(waiting(os.environ))  # before anything is loaded that reads it
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    answer = _Answer(real)
    sys.stdout = answer
    return answer


def code_of(work: Callable[[], None]) -> int:
    """Run a command and return its exit code."""
    import click

    try:
        work()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def _forget_exit_functions() -> None:
    """Leave to the parent what it registered: its temporary folders would be removed under it."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit._clear()
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def _run_exit_functions() -> None:
    sys.stderr.flush()
    with contextlib.suppress(Exception):  # the answer is given: what fails now is nobody's business
        atexit._run_exitfuncs()


def _send(channel: int, message: dict[str, Any]) -> None:
    data = json.dumps(message, default=str).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


# --- the parent --------------------------------------------------------------------------------------------------


class _Watch:
    """Reads what the child says, and looks at its memory and the clock meanwhile."""

    def __init__(self, child: int, channel: int, log: int, limits: Limits):
        self._child, self._channel, self._log = child, channel, log
        self._seconds = limits.seconds
        self._memory = limits.memory or int(0.8 * memory.available_bytes()) or sys.maxsize
        self._kills = memory.kernel_kills()
        self._begun = time.monotonic()
        self._rest = b""
        self._ended = Ended()

    def wait(self) -> Ended:
        """Return when there is an answer, or none will come."""
        while self._goes_on():
            if not self._said_something(_TICK):
                self._look()
        if self._ended.code is not None:
            _wait_for(self._child, _GRACE)
        return self._ended

    def last_words(self) -> Ended:
        """Interrupt the child and give what it knows; it has little time, and none after a second Ctrl-C."""
        told = dict(self._ended.told)
        with contextlib.suppress(OSError):
            os.kill(self._child, signal.SIGINT)
        self._seconds = time.monotonic() - self._begun + _LAST_WORDS
        with contextlib.suppress(KeyboardInterrupt):
            self.wait()
        answered = self._ended.code is not None
        return Ended(self._ended.text if answered else "", told=told, interrupted=True)

    def _goes_on(self) -> bool:
        return self._ended.code is None and self._ended.died is None

    def _said_something(self, seconds: float) -> bool:
        """Wait so long for words of the child, or for their end."""
        ready, _, _ = select.select([self._channel], [], [], seconds)
        if ready:
            data = os.read(self._channel, 1 << 16)
            if not data:
                self._ended.died = self._death()
            self._hear(data)
        return bool(ready)

    def _hear(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self._ended.told = message.get("told", self._ended.told)
            if "answer" in message:
                self._ended.text, self._ended.code = message["answer"], int(message["code"])

    def _look(self) -> None:
        pid, status = os.waitpid(self._child, os.WNOHANG)
        if pid:  # something it started may hold the pipe open, and it may have answered since it was last listened to
            while self._goes_on() and self._said_something(0):
                pass
            if self._ended.code is None:
                self._ended.died = self._named(os.waitstatus_to_exitcode(status))
            return
        used = memory.held_bytes(self._child)
        if used > self._memory:
            words = f"it held {gib(used)}, more than its memory limit of {gib(self._memory)}"
            self._ended.died = WorkerDied(Fate.OUT_OF_MEMORY, words)
        elif self._seconds is not None and time.monotonic() - self._begun > self._seconds:
            os.kill(self._child, signal.SIGUSR1)  # have it write down where it is
            time.sleep(0.1)
            words = f"it ran past its time limit of {self._seconds:g} s{where_it_was(self._printed())}"
            self._ended.died = WorkerDied(Fate.TIMED_OUT, words)

    def _death(self) -> WorkerDied:
        status = _wait_for(self._child, _GRACE)
        if status is None:
            return WorkerDied(Fate.ABORTED, "the process closed its connection and stayed")
        return self._named(status)

    def _named(self, status: int) -> WorkerDied:
        killed = memory.kernel_kills() > self._kills
        return death_of(status, out_of_memory=killed, last_words=self._printed())

    def _printed(self) -> str:
        return os.pread(self._log, 1 << 16, 0).decode("utf-8", "replace")


def _wait_for(child: int, seconds: float) -> int | None:
    """Return the exit status of a child that is ending; None when it does not end, or was waited for before."""
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while True:
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _end(child: int) -> None:
    """End the child and everything that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


@contextlib.contextmanager
def _janitor(child: int, folder: str) -> Iterator[None]:
    """Have a process that outlives this one clean up, and clean up here where this one ends as it should."""
    waits, holds = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_janitor(waits, child, folder)
    os.close(waits)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.write(holds, b"x")
        os.close(holds)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _be_janitor(waits: int, child: int, folder: str) -> NoReturn:
    try:
        os.setsid()
        os.closerange(0, waits)
        os.closerange(waits + 1, 1024)
        if not os.read(waits, 1):  # nobody holds the other end any more, and nobody said goodbye
            with contextlib.suppress(OSError):
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.1)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


class _Terminal:
    """Leaves the terminal usable: a child that died in the middle of a progress line has hidden the cursor."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K\x1b[?25h")
            sys.stderr.flush()

"""Starting a worker process and reaching it: by a socket it inherits, or by an address where nothing is inherited."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Protocol

from driftscope.programs.isolation.choice import MARK, waiting
from driftscope.programs.isolation.process import KEY

_TICK = 0.02  # seconds between two looks at a process that has not called back yet

# The path comes first: driftscope itself may be importable only through what the caller added to it.
_ENTRY = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from driftscope.programs.isolation.process import reached, serve; serve(reached(sys.argv[1]))"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the process.

    Parameters
    ----------
    log : int
        File descriptor of where it prints: a file without a name, so that nothing stays behind.
    main : str
        Path of the caller's script, or ``""``.
    preload : tuple of str
        Modules to import first.
    environment : mapping of str to str
        Variables beside those of this process.
    descriptors : tuple of int
        Files that it shares with this process, under the same numbers; only where :func:`can_inherit`.
    """

    log: int
    main: str
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...] = ()


class Process(Protocol):
    """What is asked of a process that was started, as :class:`subprocess.Popen` answers it."""

    pid: int

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status when it has ended."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal."""

    def kill(self) -> None:
        """End it."""


def can_inherit() -> bool:
    """Whether a process that is started here can be given open files; not on Windows."""
    return os.name == "posix" and hasattr(os, "fork")


def start(launch: Launch) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start a process that serves tasks; of one that ended before it could be reached, the connection is closed."""
    if not can_inherit():
        return _by_address(launch)
    ours, theirs = socket.socketpair()
    with theirs:
        process = _popen(launch, str(theirs.fileno()), {}, pass_fds=[theirs.fileno(), *launch.descriptors])
    return process, Connection(ours.detach())


def environment_of(launch: Launch) -> dict[str, str]:
    """Return the variables of a process that is started now."""
    return {**waiting(os.environ), **os.environ, **launch.environment, MARK: "1"}


def end_with_children(process: Process) -> None:
    """End a process, and where groups of processes are known, whatever it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _by_address(launch: Launch) -> tuple[subprocess.Popen[bytes], Connection]:
    key = secrets.token_bytes(32)
    # A pipe on Windows; elsewhere no socket of a file, whose path the folder for temporary files may make too long.
    with Listener(None if os.name == "nt" else ("127.0.0.1", 0), authkey=key) as listener:
        address = listener.address
        where = address if isinstance(address, str) else ":".join(map(str, address))
        process = _popen(launch, where, {KEY: key.hex()})
        found: list[Connection] = []
        waiting = threading.Thread(target=lambda: found.append(listener.accept()), daemon=True)
        waiting.start()
        while waiting.is_alive():
            waiting.join(_TICK)
            if process.poll() is not None and waiting.is_alive():
                # Nobody will call: calling oneself ends the wait, with a connection whose other end is closed.
                with contextlib.suppress(OSError, EOFError):
                    Client(address, authkey=key).close()
                waiting.join()
    return process, found[0]


def _popen(launch: Launch, where: str, more: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    os.ftruncate(launch.log, 0)
    return subprocess.Popen(
        [sys.executable, "-c", _ENTRY, where, json.dumps(sys.path)],
        env={**environment_of(launch), **more}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=launch.log, stderr=launch.log, **options,
    )  # fmt: skip

"""The inside of one worker process: receives a task, runs it, answers. Imports nothing that a task does not ask for.

The process is a fresh interpreter, never a fork of the user's process: a fork copies the locks and threads of OpenMP
and CUDA in whatever state they are, and then a child hangs. The one process that is forked is itself a fresh
interpreter, with one thread and nothing computed (``forking.py``). A worker does not import the caller's main script
either, unless a task was defined there, so a plain script may start workers without an
``if __name__ == "__main__"`` guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import pickle
import runpy
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

# By which a worker that inherits no socket shows that it is the one that was started.
KEY = "DRIFTSCOPE_WORKER_KEY"

READY, STARTED, DONE, RAISED = "ready", "started", "done", "raised"


@dataclass(frozen=True, slots=True)
class WorkerSetting:
    """What a worker must know before its first task.

    Parameters
    ----------
    main : str
        Path of the caller's script, ``""`` when there is none; run only for a task that was defined in it.
    parent : int
        Process id of the supervisor.
    preload : tuple of str
        Modules to import before the worker calls itself ready.
    """

    main: str
    parent: int
    preload: tuple[str, ...]


def reached(where: str) -> Connection:
    """Return the connection to the supervisor: an inherited descriptor, or an address to call."""
    if where.isdecimal():
        return Connection(int(where))
    host, _, port = where.rpartition(":")
    found: Any = Client((host, int(port)) if port.isdecimal() else where, authkey=bytes.fromhex(os.environ.pop(KEY)))
    return found  # type: ignore[no-any-return]


def serve(link: Connection, parent: int | None = None) -> None:
    """Answer tasks that arrive on a connection until it closes, or the parent ends: the supervisor if none is named."""
    setting: WorkerSetting = pickle.loads(link.recv_bytes())  # noqa: S301  (from the process that started this one)
    faulthandler.enable()  # names the Python line that was running when native code crashes
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1)  # and when the supervisor asks a hanging task where it is
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which then ends its workers
    guard_machine()
    die_with(setting.parent if parent is None else parent)
    for name in setting.preload:
        importlib.import_module(name)
    link.send_bytes(pickle.dumps((READY, None)))
    with contextlib.suppress(EOFError, OSError):
        while True:
            _answer(link, link.recv_bytes(), setting)


def _answer(link: Connection, message: bytes, setting: WorkerSetting) -> None:
    try:
        function, arguments, keywords = _load(message, setting)
        link.send_bytes(pickle.dumps((STARTED, time.perf_counter())))
        answer = (DONE, function(*arguments, **keywords))
        words = pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException as error:  # a task may call sys.exit(): that is its failure, not the worker's end
        words = _raised(error)
    link.send_bytes(words)


def _load(message: bytes, setting: WorkerSetting) -> Any:
    """Unpickle a task; import the caller's script first if the task was defined there."""
    if b"__main__" in message and setting.main and not hasattr(sys.modules["__main__"], "__driftscope_names__"):
        main = sys.modules["__main__"]
        main.__dict__["__driftscope_names__"] = True
        # Another run name, so that what the script guards by `if __name__ == "__main__"` stays undone.
        names = runpy.run_path(setting.main, run_name="__mp_main__")
        main.__dict__.update({k: v for k, v in names.items() if not k.startswith("__")})
    return pickle.loads(message)  # noqa: S301  (from the process that started this one)


def _raised(error: BaseException) -> bytes:
    """Pickle an error with the text of its traceback, or a plain stand-in when it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        words = pickle.dumps((RAISED, (error, text)))
        pickle.loads(words)  # noqa: S301  (some errors can be written but not read: their __init__ takes more)
    except Exception:
        named = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps((RAISED, (named, text)))
    return words


def guard_machine() -> None:
    """Crash without a core dump, and before the supervisor when memory runs out."""
    with contextlib.suppress(ImportError):  # Windows writes no core dumps
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a thousand crashing cells must not fill the disk
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel ends the largest score first: a worker, never its supervisor.
        Path("/proc/self/oom_score_adj").write_text("800")


def die_with(parent: int) -> None:
    """Do not outlive the supervisor, even one that was killed while a task hangs."""
    if sys.platform == "linux":
        kill_me_too, by_kill = 1, 9  # PR_SET_PDEATHSIG, SIGKILL
        ctypes.CDLL(None).prctl(kill_me_too, by_kill)
    else:
        watch = _watch_handle if sys.platform == "win32" else _watch
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before it could be watched
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _watch_handle(parent: int) -> None:
    # The parent's number stays when the parent is gone, so its handle is waited for.
    import _winapi

    synchronize, infinite = 0x00100000, 0xFFFFFFFF
    handle = _winapi.OpenProcess(synchronize, False, parent)  # type: ignore[attr-defined]
    _winapi.WaitForSingleObject(handle, infinite)  # type: ignore[attr-defined]
    os._exit(1)

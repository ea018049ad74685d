"""Tasks that end in every way a task can end."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time


def square(x: int) -> int:
    return x * x


def abort() -> None:
    os.abort()


def read_address_zero() -> None:
    ctypes.string_at(0)


def hang() -> None:
    while True:
        time.sleep(0.05)


def fill_memory() -> None:
    held = []
    while True:
        held.append(b"x" * 10_000_000)


def hold(megabytes: int) -> int:
    return len(b"x" * (megabytes << 20))


_KEPT: list[object] = []


def keep(megabytes: int) -> None:
    _KEPT.append(b"x" * (megabytes << 20))


def keep_shared(megabytes: int) -> None:
    memory = mmap.mmap(-1, megabytes << 20)  # anonymous and shared, as tensors handed from process to process are
    memory.write(b"x" * (megabytes << 20))
    _KEPT.append(memory)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


def exit_politely() -> None:
    sys.exit(4)


def complain() -> None:
    raise ValueError("a wrong value")


def refuse_memory() -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")


class Unreadable(Exception):
    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")


def raise_unreadable() -> None:
    raise Unreadable(1, 2)


def return_a_function() -> object:
    return lambda: None


def process_id() -> int:
    return os.getpid()


def variable(name: str) -> str:
    return os.environ.get(name, "")


def loaded(name: str) -> bool:
    return name in sys.modules


def chatter() -> str:
    print("on stdout")
    print("on stderr", file=sys.stderr)
    return "done"


def start_a_hanging_child(marker: str) -> None:
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(marker, "w") as file:
        file.write(str(child.pid))
    hang()

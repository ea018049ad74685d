"""How much memory a process holds, and how much this machine (or its container) still has."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 when it is gone."""
    try:
        if sys.platform == "linux":
            return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
        if sys.platform == "win32":
            return _working_set(pid)
        said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(said.stdout or 0) * 1024
    except (OSError, ValueError, IndexError):
        return 0


def held_bytes(pid: int) -> int:
    """Return the memory in bytes that a process and those it started hold together; on Linux, else its own alone.

    Of what it started only pages that are not shared count: libraries and tensors in shared memory are there once.
    """
    total = resident_bytes(pid)
    for child in _started_by(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, resident, shared, *_ = Path(f"/proc/{child}/statm").read_bytes().split()
            total += (int(resident) - int(shared)) * _PAGE
    return total


def _started_by(pid: int) -> Iterator[int]:
    """Yield the processes below a process."""
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            for child in map(int, thread.read_bytes().split()):
                yield child
                yield from _started_by(child)


def available_bytes() -> int:
    """Return the memory that can still be used here, in bytes; 0 when the system does not say."""
    free = _machine_available()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        # The page cache counts as used but is given back when memory is short.
        used -= _statistic("/sys/fs/cgroup/memory.stat", "inactive_file")
        free = min(free or limit, max(limit - used, 0))
    return free


def kernel_kills() -> int:
    """Return how many processes the kernel killed for lack of memory since this machine started."""
    return _statistic("/proc/vmstat", "oom_kill") + _statistic("/sys/fs/cgroup/memory.events", "oom_kill")


def _machine_available() -> int:
    found = _statistic("/proc/meminfo", "MemAvailable:") * 1024
    if not found and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found = os.sysconf("SC_PHYS_PAGES") * _PAGE // 2
    return found


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # absent, or "max": no limit
        return None


def _statistic(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _working_set(pid: int) -> int:
    """Resident bytes of a process on Windows, after PROCESS_MEMORY_COUNTERS of psapi.h."""
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined]
    kernel.OpenProcess.restype = ctypes.c_void_p
    query_limited_information = 0x1000
    handle = ctypes.c_void_p(kernel.OpenProcess(query_limited_information, False, pid))
    counters = (ctypes.c_size_t * 10)()  # two 32-bit fields, then nine of the size of a pointer
    kernel.K32GetProcessMemoryInfo(handle, ctypes.byref(counters), ctypes.sizeof(counters))
    kernel.CloseHandle(handle)
    return int(counters[2])

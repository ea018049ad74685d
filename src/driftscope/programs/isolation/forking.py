"""The inside of a template: it has imported what workers need, and forks one when it is asked to.

A fork copies the locks of OpenMP, CUDA and the like in whatever state they are, without the threads that would free
them. This one is sound because the template has neither: it is a fresh interpreter that imported modules and computed
nothing, so it has one thread and has opened no driver of an accelerator. It looks before every fork, and otherwise
makes none. A worker differs from a fresh interpreter in nothing that a task could see but the seed of string hashes,
which is the template's: what is buffered is written before, the generators of numpy and torch are seeded anew (Python's
own is anyway), and nothing that is registered for the template's end is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import io
import os
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from driftscope.programs.isolation.process import serve

_DRIVERS = ("libcuda.so", "libamdhip64.so")  # of accelerators, which no fork can use once one is open


def fork(channel: int) -> int:
    """Fork a worker with the socket and the log that wait in a channel; return its process id, 0 where none is safe."""
    with socket.fromfd(channel, socket.AF_UNIX, socket.SOCK_STREAM) as received:
        _, (link, log), *_ = socket.recv_fds(received, 1, 2)
    pid, template = 0, os.getpid()
    if _is_forkable():
        _flush()
        pid = os.fork()
        if pid == 0:
            # The template's own line to the supervisor is the descriptor that it was started with.
            _be_worker(link, log, template, (channel, int(sys.argv[1])))
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too: whoever is first
    os.close(link)
    os.close(log)
    return pid


def reap(pid: int) -> int:
    """Return the exit status of a worker that has ended; ``-n`` when signal ``n`` ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _is_forkable() -> bool:
    mapped = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/task")) == 1 and not any(driver in mapped for driver in _DRIVERS)


@functools.cache  # once: from the first fork on, the template writes nothing more
def _flush() -> None:
    """Write what files hold back, which would be written again by each worker."""
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase):
            with contextlib.suppress(Exception):
                found.flush()
    ctypes.CDLL(None).fflush(None)


def _seed_anew() -> None:
    """Begin the random numbers of a process where chance wants it, as each fresh one does."""
    if "numpy.random" in sys.modules:  # it may be imported later than numpy, by who draws first
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _be_worker(link: int, log: int, template: int, others: tuple[int, ...]) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for descriptor in (log, *others):
            os.close(descriptor)
        _seed_anew()
        serve(Connection(link), template)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what is registered for the end is the template's, not the worker's

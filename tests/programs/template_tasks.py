"""Tasks that tell workers of one pool apart."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def call_when_all_are_here(folder: str, count: int, function: Callable[[], Any]) -> Any:
    """Call a function when so many processes have come to a folder."""
    (Path(folder) / str(os.getpid())).touch()
    while len(os.listdir(folder)) < count:
        time.sleep(0.01)
    return function()


def process_ids() -> tuple[int, int]:
    return os.getpid(), os.getppid()


def say_and_leave(folder: str, count: int, word: str) -> None:
    print(word, flush=True)
    call_when_all_are_here(folder, count, lambda: os._exit(3))


def kill_parent_unless(supervisor: int) -> None:
    if os.getppid() != supervisor:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


def drawn_by_numpy() -> float:
    return float(sys.modules["numpy"].random.random())


def drawn_by_torch() -> float:
    return float(sys.modules["torch"].rand(()))


def drawn_by_tempfile() -> str:
    return next(tempfile._get_candidate_names())


def drawn_by_python() -> float:
    return random.random()


DRAW = {
    "numpy.random": drawn_by_numpy,
    "torch": drawn_by_torch,
    "tempfile": drawn_by_tempfile,
    "random": drawn_by_python,
}


def flush_what_was_kept() -> None:
    sys.modules["counted_import"].kept.flush()
    sys.stdout.flush()

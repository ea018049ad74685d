"""What a watched process was doing: said before it does it, so that a crash has a side, a step and a program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from driftscope.programs.isolation.choice import MARK

Tell = Callable[[dict[str, Any]], None]

#: Begins a line that a worker tells its supervisor on standard error.
SIGN = "[driftscope] "
_LISTENER: list[Tell] = []


def heard_by(listener: Tell) -> None:
    """Tell this listener from now on: the process that watches this one."""
    _LISTENER[:] = [listener]


def tell(**facts: Any) -> None:
    """Say what begins now: ``stage``, and ``side``, ``program`` and ``runtime`` where they are known."""
    if _LISTENER:
        _LISTENER[0](facts)
    elif MARK in os.environ:
        # A worker's standard error is a file that its supervisor reads when the worker has died.
        os.write(2, f"{SIGN}{json.dumps(facts)}\n".encode())


def last_told(words: str) -> dict[str, Any]:
    """Return what was told last, from what a dead worker printed; {} where nothing was."""
    found = [line.removeprefix(SIGN) for line in words.splitlines() if line.startswith(SIGN)]
    told: dict[str, Any] = json.loads(found[-1]) if found else {}
    return told

"""Cell functions that do all that a cell can do."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from driftscope.studies import study


def product(a: int, b: int) -> dict[str, Any]:
    return {"product": a * b, "half": a * b / 2, "name": f"{a} by {b}"}


def process_of(a: int) -> dict[str, Any]:
    return {"process": os.getpid()}


def imported(a: int) -> dict[str, Any]:
    return {"process": os.getpid(), "imported_in": sys.modules["needed_by_cells"].IMPORTED_IN}


def drawn(a: int, seed: int) -> dict[str, Any]:
    return {"seed_seen": seed % 1000}


def several(a: int) -> list[dict[str, Any]]:
    return [{"part_of": a, "letter": letter, "value": math.nan if letter == "y" else float(a)} for letter in "xyz"]


def wayward(what: str) -> dict[str, Any]:
    if what == "abort":
        os.abort()
    if what == "hang":
        while True:
            time.sleep(0.05)
    if what == "fill":
        held = []
        while True:
            held.append(b"x" * 10_000_000)
    if what == "raise":
        raise ValueError("it was asked to")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"answer": what}


def killed_once(a: int, marker: str) -> dict[str, Any]:
    if a == 2 and not Path(marker).exists():
        Path(marker).write_text("here")
        os.kill(os.getpid(), signal.SIGKILL)
    return {"double": 2 * a}


def slow(a: int) -> list[dict[str, Any]]:
    time.sleep(0.05)
    return [{"square": a * a, "text": "é" * 50, "k": k} for k in range(3)]


def odd(kind: str) -> Any:
    return {
        "nothing": None, "text": "words", "empty": [], "object": {"x": object()}, "axis": {"kind": 1},
        "column": {"outcome": "fine"}, "unnamed": {3: 1},
    }[kind]  # fmt: skip


@study(axes={"a": [1, 2, 3], "b": [10, 20]}, seconds=30)
def decorated(a: int, b: int) -> dict[str, Any]:
    return {"sum": a + b}


def judged(a: int, shift: float) -> dict[str, Any]:
    floors = a + shift
    return {"floors": floors, "verdict": "rounding" if floors <= 2.5 else "different"}

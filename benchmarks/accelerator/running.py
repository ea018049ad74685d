"""Run the checks one after the other, each in a fresh process, and keep what came of them."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.accelerator.checks import CHECKS, Check
from benchmarks.accelerator.page import page_of
from driftscope.programs.torch_devices import ACCELERATORS, accelerator, device_words

KEPT = Path(__file__).parents[2] / "docs" / "measurements"
#: Seconds for all checks together, and for one of them.
ALL, ONE = 460.0, 120.0
NOTHING = (
    "No accelerator: torch sees no CUDA, XPU or MPS device here, so there is nothing to measure. "
    "(`python -m benchmarks.accelerator --device cpu` rehearses the checks on the processor.)"
)
_MARK = "driftscope-check: "


def command(words: list[str]) -> int:
    """Read the command line; the exit status is the number of checks that found something else than was expected.

    Where there is no device it says so; no promise is broken by that.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator")
    parser.add_argument("--device", choices=("cpu", *ACCELERATORS))
    parser.add_argument("--check", choices=[check.name for check in CHECKS], help="run one here and print it")
    given = parser.parse_args(words)
    device = given.device or accelerator()
    if device is None:
        print(NOTHING)
        return 0
    if given.check:
        check = next(check for check in CHECKS if check.name == given.check)
        print(_MARK + json.dumps(check.run(device), default=str))
        return 0
    record = measured(device, CHECKS)
    if device != "cpu":
        keep(record, KEPT)
    return sum(row["state"] in ("unexpected", "failed") for row in record["checks"])


def measured(device: str, checks: tuple[Check, ...]) -> dict[str, Any]:
    """Run checks and return the record of it.

    Parameters
    ----------
    device : str
        ``"cuda"``, ``"xpu"``, ``"mps"``; ``"cpu"`` for a rehearsal.
    checks : tuple of Check
    """
    begun = time.monotonic()
    rows = []
    for check in checks:
        left = ALL - (time.monotonic() - begun)
        row = {"name": check.name, "asks": check.asks, **_one(check, device, left)}
        print(f"{row['state']:<11} {check.name:<14} {row['seconds']:>6.1f} s  {row['words']}", flush=True)
        rows.append(row)
    return {
        "schema": "driftscope/accelerator/1", "device": device, "name": device_words(device),
        "torch": torch.__version__, "cuda": torch.version.cuda, "date": datetime.date.today().isoformat(),
        "seconds": round(time.monotonic() - begun, 1), "checks": rows,
    }  # fmt: skip


def _one(check: Check, device: str, left: float) -> dict[str, Any]:
    """Run one check in a process of its own; say what kept it from answering."""
    if device not in check.devices:
        return {"state": "skipped", "seconds": 0.0, "words": f"needs {' or '.join(check.devices)}", "found": {}}
    if left < 5.0:
        return {"state": "skipped", "seconds": 0.0, "words": f"the {ALL:.0f} s for all checks were spent", "found": {}}
    begun = time.monotonic()
    line = [sys.executable, "-m", "benchmarks.accelerator", "--device", device, "--check", check.name]
    state, words, found = "failed", "", {}
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=min(ONE, left), check=False, cwd=KEPT.parents[1],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        words = f"no answer within {min(ONE, left):.0f} s"
    else:
        answers = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
        if answers:
            answer = json.loads(answers[-1].removeprefix(_MARK))
            state = "as expected" if answer["agrees"] else "unexpected"
            words, found = answer["words"], answer["found"]
            state = "skipped" if answer["agrees"] is None else state
        else:
            told = [line for line in done.stderr.splitlines() if line.strip()]
            words = f"exit {done.returncode}: {told[-1] if told else 'nothing was said'}"
    return {"state": state, "seconds": round(time.monotonic() - begun, 1), "words": words, "found": found}


def keep(record: dict[str, Any], folder: Path) -> list[Path]:
    """Write a record and its page; return both files."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "gpu-" + re.sub(r"[^a-z0-9]+", "-", record["name"].lower()).strip("-")
    data, page = folder / f"{stem}.json", folder / f"{stem}.md"
    data.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page.write_text(page_of(record), encoding="utf-8")
    return [data, page]

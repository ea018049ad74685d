"""Whether a quick test depends on the processor, on threads or on order: measured, under switches of the libraries.

``python docs/personalities.py`` runs the quick tests under each set of ``tests/instruction_sets.py`` with 1, 2 and 4
threads, twice each with an order drawn anew, and keeps what came of it in ``docs/measurements/personalities.json``:
``make personalities``. A row is kept as soon as its run ends, and what is kept is not run again, but for what failed,
which is, in its order; without the file all of it is. Some of it: ``--only baseline --threads 2 4 --times 1``, and
``--seed 7`` for one order.
``WORKERS`` says how many processes share the tests. ``docs/compatibility.py table`` puts the rows on the page.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compatibility import ROOT, counted, running_with

from driftscope.records.files import write_whole

sys.path.insert(0, str(ROOT / "tests"))

from instruction_sets import SWITCHES

KEPT = ROOT / "docs" / "measurements" / "personalities.json"
THREADS = (1, 2, 4)


def measure(personality: str, threads: int, seed: int, tests: list[str]) -> dict[str, Any]:
    """Run the quick tests in the order of a seed with the switches of a personality and so many threads."""
    environment = {name: value for name, value in os.environ.items() if not any(name in s for s in SWITCHES.values())}
    environment |= {**SWITCHES[personality], "OMP_NUM_THREADS": str(threads), "DRIFTSCOPE_TEST_ORDER": str(seed)}
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-v", "-n", os.environ.get("WORKERS", "auto"), "--dist", "worksteal"]
        subprocess.call([*command, f"--junitxml={junit}", *tests], cwd=ROOT, env=environment)
        if not junit.is_file():
            raise SystemExit(f"{personality}, {threads} threads, order {seed}: the tests ended uncounted")
        found = counted(junit)
    row = {"personality": personality, "threads": threads, "seed": seed, "date": datetime.date.today().isoformat()}
    return {**row, **found, **running_with(sys.executable, environment)}


def kept(file: Path) -> list[dict[str, Any]]:
    """Return the rows that a file holds, none where there is no file yet."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


def keep(row: dict[str, Any], file: Path) -> None:
    """Put a row into what is kept, in place of an older one of the same combination and order."""
    same = ("personality", "threads", "seed")
    rows = [old for old in kept(file) if any(old[name] != row[name] for name in same)] + [row]
    rows.sort(key=lambda each: (list(SWITCHES).index(each["personality"]), each["threads"], each["seed"]))
    write_whole(file, json.dumps(rows, indent=1, sort_keys=True) + "\n")


def missing(rows: list[dict[str, Any]], given: argparse.Namespace) -> list[tuple[str, int, int]]:
    """Return what is asked and no row answers: instructions, threads, order; one that failed keeps its order."""
    wanted = []
    for personality, threads in itertools.product(given.only, given.threads):
        here = [row for row in rows if (row["personality"], row["threads"]) == (personality, threads)]
        if given.seed is None:
            failed = [row["seed"] for row in here if row["failed"]]
            seeds = failed + [random.randrange(10**6) for _ in range(given.times - len(here))]
        else:
            seeds = [] if any(row["seed"] == given.seed and not row["failed"] for row in here) else [given.seed]
        wanted += [(personality, threads, seed) for seed in seeds]
    return wanted


def main(arguments: list[str] | None = None) -> None:
    """Read the command line, and run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=tuple(SWITCHES), default=tuple(SWITCHES))
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument("--times", type=int, default=2, help="how many orders of each, those that are kept included")
    parser.add_argument("--seed", type=int, help="this order, not some drawn anew")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file of the rows")
    given, tests = parser.parse_known_args(arguments)
    for personality, threads, seed in missing(kept(given.kept), given):
        sys.stdout.write(f"== {personality}, {threads} threads, order {seed}\n")
        sys.stdout.flush()
        row = measure(personality, threads, seed, tests)
        keep(row, given.kept)
        told = "\n  ".join([f"{row['passed']} passed, {len(row['failed'])} failed", *row["failed"]])
        sys.stdout.write(f"{personality}, {threads} threads, order {seed}: {told}\n")


if __name__ == "__main__":
    main()

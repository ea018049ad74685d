"""A study that is killed at any instant loses no row, makes none twice, and repeats only what was running."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from driftscope.errors import RecordError
from driftscope.records.runs.store import RunFolder
from driftscope.studies.engine.grid import make_grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan
from driftscope.studies.engine.result import perform
from studies import study_cells

CELLS = 30
CELL = """
import time

def cell(a, log):
    with open(log, "a") as file:
        file.write(f"{a}\\n")
    time.sleep(0.02)
    return [{"k": k, "square": a * a} for k in range(2)]
"""
STUDY = """
import sys
import sliced
from driftscope.studies.engine.grid import make_grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan
from driftscope.studies.engine.result import perform

if __name__ == "__main__":
    plan = Plan("sliced", sliced.cell, make_grid({"a": range(30)}), fixed={"log": sys.argv[1]})
    made = perform(plan, running_of(workers=int(sys.argv[2]), store=sys.argv[3], run="killed"))
    print(len(made.rows))
"""


def start(folder: Path, workers: int) -> subprocess.Popen[str]:
    line = [sys.executable, str(folder / "study.py"), str(folder / "log"), str(workers), str(folder / "runs")]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def begun(folder: Path) -> Counter[str]:
    return Counter((folder / "log").read_text().split())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_again_and_again_it_ends_with_every_row_once(tmp_path, workers):
    (tmp_path / "sliced.py").write_text(CELL)
    (tmp_path / "study.py").write_text(STUDY)
    (tmp_path / "log").write_text("")
    instants = random.Random(workers)
    kept: set[str] = set()
    kills = 0
    for _ in range(6):
        before = begun(tmp_path).total()
        process = start(tmp_path, workers)
        while process.poll() is None and begun(tmp_path).total() == before:
            time.sleep(0.005)
        time.sleep(instants.random() * 0.1)
        os.kill(process.pid, signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
        entries = RunFolder(tmp_path / "runs" / "killed").entries()
        assert kept <= entries.keys()
        kept = set(entries)
    assert kills
    process = start(tmp_path, workers)
    assert process.communicate(timeout=60)[0].split() == [str(2 * CELLS)]
    run = RunFolder(tmp_path / "runs" / "killed")
    assert len(run.entries()) == CELLS
    lines = [json.loads(line) for path in run.row_files() for line in path.read_text().splitlines()]
    rows = Counter((line["cell"], line["part"]) for line in lines)
    assert set(rows.values()) == {1}
    assert begun(tmp_path).total() - CELLS <= kills * max(workers, 1)


def test_without_workers_a_row_is_on_disk_before_the_next_cell_begins(tmp_path):
    seen = []

    def cell(a: int) -> dict[str, int]:
        seen.append(sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("*/rows-*.jsonl")))
        return {"double": 2 * a}

    perform(Plan("counted", cell, make_grid({"a": range(9)})), running_of(workers=0, store=tmp_path))
    assert seen == list(range(9))


def test_a_row_that_cannot_be_kept_ends_the_study(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("driftscope.records.runs.writers._write_all", full)
    plan = Plan("product", study_cells.product, make_grid({"a": [1, 2], "b": [3]}))
    with pytest.raises(RecordError, match="No space left on device"):
        perform(plan, running_of(workers=1, store=tmp_path))

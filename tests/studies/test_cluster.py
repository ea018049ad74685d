"""A cluster gives the same rows, byte for byte, and a crash there is a row as well."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from driftscope.errors import InputError
from driftscope.programs.loading.references import find
from driftscope.records.kinds.study import rows_text
from driftscope.records.runs.store import RunFolder
from driftscope.studies import reduction
from driftscope.studies.engine.grid import make_grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan
from driftscope.studies.engine.pools import ClusterLost
from driftscope.studies.engine.result import perform
from studies import study_cells as cells

pytest.importorskip("distributed")
TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a scheduler with two workers."""
    with started_cluster(tmp_path_factory.mktemp("dask")) as (address, _):
        yield address


@contextlib.contextmanager
def started_cluster(folder):
    """A scheduler and two workers, started as the how-to page says."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    dask = [sys.executable, "-m", "dask"]
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, "env": environment}
    scheduler = [*dask, "scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    worker = [*dask, "worker", "--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--scheduler-file", str(file)]
    started = [subprocess.Popen(scheduler, **quiet)]
    try:
        while not file.exists():
            assert started[0].poll() is None
            time.sleep(0.05)
        started.append(subprocess.Popen(worker, **quiet))
        address = json.loads(file.read_text())["address"]
        _wait_for_workers(address)
        yield address, started[0]
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=20)


def _wait_for_workers(address):
    from distributed import Client

    with Client(address, timeout="20s") as client:
        client.wait_for_workers(2, timeout=60)


@pytest.mark.slow
def test_two_dask_workers_give_the_same_rows_byte_for_byte(cluster, tmp_path):
    settings = {"sizes": (8, 512), "permutations": 16, "dtypes": ("float32", "float16")}
    there = reduction(**settings, cluster=cluster, store=tmp_path)
    here = reduction(**settings, workers=2)
    assert rows_text(there.record.rows) == rows_text(here.record.rows)
    assert (tmp_path / there.run / "run.json").exists()


@pytest.mark.slow
def test_a_crash_on_the_cluster_is_a_row_and_takes_nothing_along(cluster):
    plan = Plan("wayward", cells.wayward, make_grid({"what": ["fine", "abort", "hang", "raise", "fill", "also fine"]}))
    study = perform(plan, running_of(cluster=cluster, seconds=2.0, memory=300 << 20))
    outcomes = [row["outcome"] for row in study.rows]
    assert outcomes == ["ok", "aborted", "timed out", "raised", "out of memory", "ok"]


@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_named_and_what_it_had_sent_is_kept(tmp_path):
    plan = Plan("slow", cells.slow, make_grid({"a": range(60)}))
    with started_cluster(tmp_path) as (address, scheduler):
        heard = []

        def kill_after_ten(text):
            heard.append(text)
            if text.startswith("10 of 60"):
                scheduler.kill()

        with pytest.raises(ClusterLost, match=f"scheduler at '{address}' went away"):
            perform(plan, running_of(cluster=address, store=tmp_path, run="lost", progress=kill_after_ten))
    kept = RunFolder(tmp_path / "lost").entries()
    assert len(kept) >= 10
    assert all(row["outcome"] == "ok" for entry in kept.values() for row in entry.rows)
    assert len(perform(plan, running_of(workers=2, store=tmp_path, run="lost")).rows) == 180
    assert sum(path.read_bytes().count(b"\n") for path in (tmp_path / "lost").glob("rows-*.jsonl")) == 180


@pytest.mark.slow
def test_a_cluster_runs_a_cell_function_as_it_is_now(cluster, tmp_path, monkeypatch):
    """Processes outlive a study there, with what they have imported."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "changing.py").write_text("import changing_numbers\ndef cell(n): return {'v': changing_numbers.v(n)}\n")
    for factor in (1, 1000, 70, 500, 1):  # of another length each time: pycs know whole seconds alone
        (tmp_path / "changing_numbers.py").write_text(f"# {'edited ' * factor}\ndef v(n): return n * {factor}\n")
        sys.modules.pop("changing_numbers", None)
        plan = Plan("changing", find(f"{tmp_path / 'changing.py'}:cell"), make_grid({"n": [1, 2, 3]}))
        study = perform(plan, running_of(cluster=cluster))
        assert [row["v"] for row in study.rows] == [factor, 2 * factor, 3 * factor]


@pytest.mark.slow
def test_no_scheduler_is_one_clear_sentence():
    with pytest.raises(InputError, match="dask scheduler"):
        reduction(sizes=4, cluster="tcp://127.0.0.1:9")

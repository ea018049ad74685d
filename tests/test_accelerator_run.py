"""``make gpu`` on a machine without one, and what it keeps where there is one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.accelerator import running
from benchmarks.accelerator.checks import ANY, Answer, Check

from driftscope.programs.torch_devices import accelerator

ROOT = Path(__file__).parents[1]


def yes(device: str) -> Answer:
    return Answer(True, f"on {device}", {"order | depth": 3})


def test_without_a_device_it_says_so_and_breaks_no_promise(monkeypatch, capsys):
    monkeypatch.setattr(running, "accelerator", lambda: None)
    assert running.command([]) == 0
    assert capsys.readouterr().out == running.NOTHING + "\n"


@pytest.mark.slow
def test_make_runs_what_says_so():
    recipe = re.search(r"^gpu: .*\n\t\$\(BIN\)/python (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    if accelerator() is not None:
        pytest.skip("there is one here")
    done = subprocess.run([sys.executable, *recipe[1].split()], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, running.NOTHING + "\n"), done.stderr


@pytest.mark.slow
def test_what_a_device_lacks_is_skipped_and_what_dies_has_failed(monkeypatch, capsys):
    checks = (Check("lacking", "?", yes, ("cuda",)), Check("unknown to the child", "?", yes, ANY))
    rows = running.measured("cpu", checks)["checks"]
    assert [row["state"] for row in rows] == ["skipped", "failed"]
    assert rows[0]["words"] == "needs cuda"
    assert "unknown to the child" in rows[1]["words"]


def test_time_that_was_spent_is_no_failure(monkeypatch):
    monkeypatch.setattr(running, "ALL", 0.0)
    (row,) = running.measured("cpu", (Check("late", "?", yes),))["checks"]
    assert row["state"] == "skipped"


@pytest.mark.parametrize("state", ["as expected", "unexpected"])
def test_a_record_and_its_page_are_kept(tmp_path, state):
    row = {
        "name": "exact",
        "asks": "the same bits?",
        "state": state,
        "seconds": 1.0,
        "words": "yes",
        "found": {"a|b": 1},
    }
    record = {
        "device": "cuda", "name": "NVIDIA H100 80GB HBM3", "torch": "2.13.0", "cuda": "13.0", "date": "2026-01-01",
        "seconds": 1.0, "checks": [row],
    }  # fmt: skip
    data, page = running.keep(record, tmp_path)
    assert data.name == "gpu-nvidia-h100-80gb-hbm3.json"
    assert json.loads(data.read_text()) == record
    assert f"| exact | the same bits? | {state} | yes |" in page.read_text()
    assert "| a\\|b | 1 |" in page.read_text()

"""``make personalities`` takes hours: what it has run is kept at once, and not run again."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# A test of this folder that is over in a second; its order and threads are those of the row all the same.
SHORT = "tests/contracts/test_plain_words.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    return importlib.import_module("personalities")


def row(seed: int, *failed: str, threads: int = 1) -> dict[str, Any]:
    return {"personality": "AVX2", "threads": threads, "seed": seed, "failed": list(failed), "passed": 5, "skipped": {}}


def measured(monkeypatch, script, *failed: str, killed_at: int = 99) -> list[tuple[str, int, int]]:
    """Let a run be a row at once, and the one of a number never end; return what was run."""
    runs: list[tuple[str, int, int]] = []

    def measure(personality: str, threads: int, seed: int, tests: list[str]) -> dict[str, Any]:
        if len(runs) == killed_at:
            raise KeyboardInterrupt
        runs.append((personality, threads, seed))
        return {**row(seed, *failed, threads=threads), "personality": personality}

    monkeypatch.setattr(script, "measure", measure)
    return runs


def test_a_run_that_is_stopped_goes_on_where_it_was(monkeypatch, script, tmp_path):
    file = tmp_path / "rows.json"
    arguments = ["--kept", str(file), "--only", "AVX2", "baseline", "--threads", "1", "2"]
    first = measured(monkeypatch, script, killed_at=3)
    with pytest.raises(KeyboardInterrupt):
        script.main(arguments)
    assert [(r["personality"], r["threads"]) for r in json.loads(file.read_text())] == sorted(r[:2] for r in first)
    second = measured(monkeypatch, script)
    script.main(arguments)
    assert (len(first), len(second)) == (3, 5)
    both = [(personality, threads) for personality in ("AVX2", "baseline") for threads in (1, 2)]
    assert sorted(run[:2] for run in first + second) == sorted(2 * both)
    assert len(json.loads(file.read_text())) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]
    third = measured(monkeypatch, script)
    script.main(arguments)
    assert third == []


def test_what_failed_is_run_again_in_its_order_and_what_passed_is_not(monkeypatch, script, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([row(11), row(12, "tests.lift::test_it")]))
    arguments = ["--kept", str(file), "--only", "AVX2", "--threads", "1"]
    runs = measured(monkeypatch, script)
    script.main(arguments)
    assert runs == [("AVX2", 1, 12)]
    assert [(r["seed"], r["failed"]) for r in json.loads(file.read_text())] == [(11, []), (12, [])]


@pytest.mark.parametrize(("seed", "again"), [(11, 0), (12, 1), (13, 1)])
def test_an_order_that_is_asked_for_is_run_unless_it_passed(monkeypatch, script, tmp_path, seed, again):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([row(11), row(12, "tests.lift::test_it")]))
    runs = measured(monkeypatch, script)
    script.main(["--kept", str(file), "--only", "AVX2", "--threads", "1", "--seed", str(seed)])
    assert runs == again * [("AVX2", 1, seed)]


def test_a_file_is_whole_when_its_writing_is_stopped(monkeypatch, script, tmp_path):
    file = tmp_path / "rows.json"
    script.keep(row(11), file)
    before = file.read_bytes()

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        script.keep(row(12), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.slow
def test_a_run_counts_the_tests_under_the_switches_it_is_asked_for(script, monkeypatch):
    monkeypatch.setenv("WORKERS", "0")
    found = script.measure("baseline", 2, 7, [SHORT])
    assert found["passed"] > 0
    assert (found["failed"], found["personality"], found["threads"], found["seed"]) == ([], "baseline", 2, 7)

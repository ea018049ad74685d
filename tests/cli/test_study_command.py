"""``driftscope study`` and ``driftscope runs``, from asking to diff."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

SMALL = ("--set", "sizes=8,64", "--set", "permutations=8", "--workers", "0")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_study_is_run_kept_listed_shown_and_asked(run, here):
    said = run("study", "reduction", *SMALL, "-o", "rows.csv", "-o", "bars.png", "-o", "page.html")
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("FINISHED: study reduction, 36 rows")
    assert "mean in float32" in said.stdout
    assert all(Path(name).stat().st_size > 1000 for name in ("rows.csv", "bars.png", "page.html"))
    listed = json.loads(run("runs", "list", "--json").stdout)
    assert [(line["run"], line["state"], line["finished"]) for line in listed] == [("reduction-0001", "finished", 36)]
    assert "reduction-0001" in run("runs", "list").stdout
    shown = run("runs", "show", "reduction-0001")
    assert shown.stdout == said.stdout
    assert run("report", "runs/reduction-0001").stdout.splitlines()[0] == shown.stdout.splitlines()[0]
    record = json.loads(run("runs", "show", "reduction-0001", "--json").stdout)
    assert record["schema"] == "driftscope/study/1"
    assert record["environment"]["versions"]["numpy"]
    assert record["command"] == "driftscope study reduction --set sizes=8,64 --set permutations=8"
    answer = run("runs", "query", "SELECT dtype, count(*) AS n FROM rows GROUP BY dtype ORDER BY dtype", "--json")
    assert json.loads(answer.stdout) == [{"dtype": d, "n": 12} for d in ("float16", "float32", "float64")]


def test_a_folder_that_is_no_run_is_refused_in_one_sentence(run, here):
    (here / "runs").mkdir()
    said = run("report", "runs")
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.count("\n") == 1
    assert "'runs' is a folder and no stored run" in said.stderr


def test_diff_says_what_changed_and_its_exit_code_too(run, here):
    run("study", "reduction", *SMALL)
    run("study", "reduction", *SMALL)
    run("study", "reduction", *SMALL, "--seed", "1")
    same = run("runs", "diff", "reduction-0001", "reduction-0002")
    assert (same.exit_code, same.stdout.split(":")[0]) == (0, "SAME")
    assert "settings: the same" in same.stdout
    other = run("runs", "diff", "reduction-0001", "reduction-0003")
    assert (other.exit_code, other.stdout.split(":")[0]) == (1, "CHANGED")
    assert "floors)" in other.stdout
    assert "  seed: 0 -> 1" in other.stdout
    assert "environment: the same" in other.stdout


CELLS = """
import os
from driftscope.studies import study

def cell(size, dtype):
    if size == 3:
        os.abort()
    return {"area": size * size, "wide": dtype == "float64"}

@study(axes={"size": [1, 2]})
def squares(size):
    return {"area": size ** 2}
"""


def test_studies_of_ones_own_from_files_and_by_name(run, here):
    (here / "cells.py").write_text(CELLS)
    (here / "sweep.toml").write_text(
        'cell = "cells.py:cell"\n[axes]\nsize = [1, 2, 3]\ndtype = ["float32", "float64"]\n'
    )
    (here / "sweep.yaml").write_text("study: mine\ncell: cells.py:cell\naxes:\n  size: [1, 2]\n  dtype: float64\n")
    toml = run("study", "sweep.toml", "--workers", "2")
    assert toml.exit_code == 1
    assert toml.stdout.startswith("2 CELLS FAILED: study sweep, 6 rows")
    assert "SIGABRT" in toml.stdout
    yaml = run("study", "sweep.yaml", "--workers", "1", "--json")
    assert yaml.exit_code == 0, yaml.output
    assert [row["area"] for row in json.loads(yaml.stdout)["rows"]] == [1, 4]
    named = run("study", "cells.py:squares", "--workers", "0")
    assert named.stdout.startswith("FINISHED: study squares, 2 rows")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("study", "reduction", "--set", "sizs=8"), "has no parameter 'sizs'; it has functions, laws"),
        (("study", "reduction", "--set", "sizes"), "NAME=VALUE"),
        (("study", "reduction", "--set", "sizes=8", "--set", "sizes=9"), "given twice"),
        (("study", "reduction", "--dtypes", "float23"), "did you mean 'float32'"),
        (("study", "nowhere.yaml"), "cannot read the study"),
        (("study", "broken.toml"), "is not TOML"),
        (("study", "partial.yaml"), "needs the keys 'axes' and 'cell'"),
        (("study", "odd.yaml"), "the key 'axis', which means nothing"),
        (("study", "json:dumps"), "decorate the function"),
        (("study", "reduction", "-o", "x.gif"), "must end in"),
        (("study", "reduction", "--seconds", "-1", *SMALL), "positive"),
        (("runs", "show", "gemm-0007"), "there is no run 'gemm-0007'"),
        (("runs", "query", "SELECT 1"), "there are no runs"),
        (("runs", "list", "--store", "broken.toml"), "'broken.toml' is a file; runs are kept in a folder"),
        (("runs", "show", "a", "--store", "broken.toml"), "'broken.toml' is a file; runs are kept in a folder"),
        (("report", "of two words"), "`driftscope runs list --store 'of two words'` lists the runs"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_exit_code_2(run, here, arguments, words):
    (here / "of two words").mkdir()
    (here / "broken.toml").write_text("axes = [")
    (here / "partial.yaml").write_text("axes: {a: [1]}\n")
    (here / "odd.yaml").write_text("axes: {a: [1]}\ncell: x.py:f\naxis: {a: [2]}\n")
    said = run(*arguments)
    assert said.exit_code == 2, said.output
    assert words in said.stderr
    assert "Traceback" not in said.output


@pytest.mark.parametrize(
    ("store", "told"), [("runs", "reduction-0001"), ("my runs", "reduction-0001 --store 'my runs'")]
)
def test_the_command_that_is_told_for_the_rows_finds_them(run, here, store, told):
    said = run("study", "reduction", *SMALL, "--store", store)
    last = said.stdout.splitlines()[-1]
    assert last == f"rows: driftscope runs show {told}   (-o rows.csv, page.html, picture.png)"
    words = shlex.split(last.removeprefix("rows: driftscope ").partition("   ")[0])
    assert run(*words).stdout == said.stdout


def test_a_folder_that_is_not_there_holds_no_runs_yet(run, here):
    said = run("runs", "list", "--store", "later")
    assert (said.exit_code, said.stdout) == (0, "no runs in later; `driftscope study` makes one\n")


def test_a_listing_names_what_cannot_be_read_and_an_unfinished_run_says_so(run, here):
    run("study", "reduction", *SMALL)
    folder = Path("runs/reduction-0001")
    (rows,) = folder.glob("rows-*.jsonl")
    lines = rows.read_bytes().splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:30]) + b"\x00\n" + lines[30][:40])
    strange = Path("runs/strange-0001")
    strange.mkdir()
    (strange / "run.json").write_text('{"schema": "driftscope/run/7"}')
    before = rows.read_bytes()
    listed = run("runs", "list")
    assert "line 31: it is not JSON" in listed.stdout
    assert "line 32: its end is missing" in " ".join(listed.stdout.split())
    assert "is not of schema 'driftscope/run/1'" in " ".join(listed.stdout.split())
    states = {
        line["run"]: (line["state"], line["damaged"]) for line in json.loads(run("runs", "list", "--json").stdout)
    }
    assert states == {"reduction-0001": ("unfinished", 2), "strange-0001": ("unreadable", 0)}
    shown = run("runs", "show", "reduction-0001")
    assert shown.stdout.startswith("UNFINISHED: study reduction, 30 rows")
    assert "6 of 36 cells are not made yet" in shown.stdout
    assert json.loads(run("runs", "show", "reduction-0001", "--json").stdout)["missing"] == 6
    assert "Left out:" in run("runs", "query", "SELECT count(*) FROM rows").stderr
    assert rows.read_bytes() == before
    again = run("study", "reduction", *SMALL)
    assert again.stdout.startswith("FINISHED: study reduction, 36 rows")
    assert [p.read_bytes() for p in folder.glob("*.damaged")] == [before]
    assert json.loads(run("runs", "list", "--json").stdout)[0]["damaged"] == 0

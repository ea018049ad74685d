"""Stored runs: asked with SQL where they lie, laid side by side, sealed when a writer died."""

from __future__ import annotations

import json
import math

import pytest

from driftscope.errors import InputError, RecordError
from driftscope.records.runs.listing import difference, flattened, summary_of, survey
from driftscope.records.runs.queries import ask
from driftscope.records.runs.rows import CellRows, sql_type, wider
from driftscope.records.runs.store import create_run, open_run, runs_in, unreadable_in
from driftscope.records.runs.writers import Claims


def make_run(root, values, *, study="sweep", environment=None, verdicts=None, cells=None, seed=0):
    header = {
        "study": study, "axes": {"size": list(range(len(values)))}, "fixed": {}, "seed": seed,
        "cells": len(values) if cells is None else cells, "reading": {"keys": [], "verdict": "verdict",
        "floors": "floors"}, "environment": environment or {"versions": {"onnxruntime": "1.22"}},
    }  # fmt: skip
    run = create_run(root, study, header)
    with run.writer() as writer:
        for size, value in enumerate(values):
            writer.append(entry(size, value, (verdicts or {}).get(size, "rounding")))
    return run


def entry(size, value, verdict="rounding", attempt=0):
    row = {"size": size, "floors": value, "verdict": verdict, "outcome": "ok", "code": "", "words": ""}
    return CellRows(f"size={size}", (row,), 0.001, attempt)


def test_ids_are_numbered_and_found_by_their_beginning(tmp_path):
    first, second = make_run(tmp_path, [1.0]), make_run(tmp_path, [1.0])
    assert [r.name for r in runs_in(tmp_path)] == ["sweep-0001", "sweep-0002"] == [first.name, second.name]
    assert open_run(tmp_path, "sweep-0002").path == second.path == open_run(tmp_path, str(second.path)).path
    with pytest.raises(RecordError, match="several runs begin"):
        open_run(tmp_path, "sweep")
    with pytest.raises(RecordError, match="it has sweep-0001, sweep-0002"):
        open_run(tmp_path, "gemm")
    assert runs_in(tmp_path / "nowhere") == []


def test_a_listing_says_how_far_a_run_is(tmp_path):
    run = make_run(tmp_path, [1.0, 2.0], cells=5)
    assert summary_of(run)["state"] == "unfinished"
    with run.writer() as writer:
        writer.append(entry(3, 1.0))
        assert summary_of(run)["state"] == "running"
    line = summary_of(run)
    assert (line["cells"], line["finished"], line["failed"], line["state"]) == (5, 3, 0, "unfinished")


def test_rows_of_all_runs_answer_a_query(tmp_path):
    make_run(tmp_path, [1.0, 2.0, math.nan])
    make_run(tmp_path, [5.0, math.inf], study="other")
    columns, rows = ask(runs_in(tmp_path), "SELECT study, count(*) AS n, max(floors) FILTER (isfinite(floors)) "
                                           "FROM rows GROUP BY study ORDER BY study")  # fmt: skip
    assert columns[:2] == ["study", "n"]
    assert rows == [("other", 2, 5.0), ("sweep", 3, 2.0)]
    assert (
        ask(runs_in(tmp_path), "SELECT value FROM environment WHERE name = 'versions.onnxruntime'")[1]
        == [("1.22",)] * 2
    )
    assert ask(runs_in(tmp_path), "SELECT run, finished FROM runs ORDER BY run")[1] == [
        ("other-0001", 2),
        ("sweep-0001", 3),
    ]
    assert ask(runs_in(tmp_path), "SELECT typeof(floors), typeof(size) FROM rows LIMIT 1")[1] == [("DOUBLE", "BIGINT")]


@pytest.mark.parametrize("large", [False, True])
def test_a_cell_made_twice_is_asked_once_and_the_latest_attempt_counts(tmp_path, monkeypatch, large):
    monkeypatch.setattr("driftscope.records.runs.queries._LARGE", 0 if large else 1 << 30)
    run = make_run(tmp_path, [1.0, 2.0])
    with run.writer() as writer:
        writer.append(entry(0, 1.0))  # by a second process at the same time
        writer.append(entry(1, 7.0, attempt=1))  # tried again
    rows = ask([run], "SELECT size, floors FROM rows ORDER BY size")[1]
    assert rows == [(0, 1.0), (1, 7.0)] == [(e.rows[0]["size"], e.rows[0]["floors"]) for e in run.entries().values()]


def test_the_parquet_copy_is_made_again_when_rows_were_added(tmp_path, monkeypatch):
    monkeypatch.setattr("driftscope.records.runs.queries._LARGE", 0)
    run = make_run(tmp_path, [1.0])
    assert ask([run], "SELECT count(*) FROM rows")[1] == [(1,)]
    with run.writer() as writer:
        writer.append(entry(1, 2.0))
    assert ask([run], "SELECT count(*) FROM rows")[1] == [(2,)]
    assert len(list(run.path.glob("*.parquet"))) == 1


@pytest.mark.parametrize("sql", ["DROP VIEW rows", "SELECT 1; SELECT 2", "SELEC 1", "SELECT nothing FROM rows",
                                 "COPY rows TO 'x.csv'"])  # fmt: skip
def test_only_one_select_is_answered(tmp_path, sql):
    make_run(tmp_path, [1.0])
    with pytest.raises(InputError, match=r"DuckDB|SELECT"):
        ask(runs_in(tmp_path), sql)


def test_no_runs_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no runs"):
        ask([], "SELECT 1")


TORN = b'{"size":1,"flo'
FOREIGN = b'{"schema":"driftscope/rows/9","cell":"size=1","values":[1,2]}\n' * 3
HALF_A_CELL = (
    b'{"size":1,"outcome":"ok","last_words":"","seconds":0.1,"attempt":0,"part":0,"parts":2,"cell":"size=1"}\n'
)


@pytest.mark.parametrize(
    ("found", "damaged", "words"),
    [
        (lambda rows: rows + TORN, 1, "line 2: its end is missing"),
        (lambda _rows: FOREIGN, 3, "line 1: it is not a row of this version"),
        (lambda rows: rows[:20] + b"\x00\xff\n" + rows, 1, "line 1: it is not JSON"),
        (lambda rows: HALF_A_CELL + rows, 1, "row 1 of 2 of cell 'size=1', whose other rows are missing"),
        (lambda rows: rows + HALF_A_CELL, 1, "row 1 of 2 of cell 'size=1', whose other rows are missing"),
        (lambda _rows: b"", 0, ""),
        (lambda rows: rows, 0, ""),
    ],
)
def test_whoever_reads_changes_nothing_and_names_what_is_no_row(tmp_path, found, damaged, words):
    run = make_run(tmp_path, [1.0], cells=2)
    (path,) = run.row_files()
    path.write_bytes(found(path.read_bytes()))
    before = {p: p.read_bytes() for p in run.path.iterdir()}
    seen = survey(run)
    cells = run.entries()
    difference(run, run)
    rows = ask([run], "SELECT count(*) FROM rows")[1]
    assert {p: p.read_bytes() for p in run.path.iterdir()} == before
    assert len(seen.damage) == damaged == summary_of(run)["damaged"]
    assert words in " ".join(map(str, seen.damage))
    assert rows == [(len(cells),)] == [(seen.finished,)]


def test_a_repair_takes_out_what_is_not_json_and_keeps_a_copy(tmp_path):
    run = make_run(tmp_path, [1.0, 2.0])
    (path,) = run.row_files()
    first, second = path.read_bytes().splitlines(keepends=True)
    found = first + b"\x00\x00\n" + second + FOREIGN + TORN
    path.write_bytes(found)
    (copy,) = run.repair()
    assert copy.read_bytes() == found
    assert path.read_bytes() == first + second + FOREIGN  # rows of another version are not ours to throw away
    assert len(run.entries()) == 2
    assert run.repair() == []
    path.write_bytes(TORN)
    assert [again.name for again in run.repair()] == [f"{path.name}.damaged-2"]


def test_what_a_live_writer_is_writing_is_neither_damage_nor_repaired(tmp_path):
    run = make_run(tmp_path, [1.0])
    with run.writer() as writer:
        writer.append(entry(1, 2.0))
        live = run.row_files()[-1]
        with open(live, "ab") as file:
            file.write(TORN)
        assert len(run.entries()) == 2
        assert survey(run).damage == ()
        assert run.repair() == []
        assert live.read_bytes().endswith(TORN)


def test_a_run_that_cannot_be_read_is_named_not_dropped(tmp_path):
    run, other, third = (make_run(tmp_path, [1.0]) for _ in range(3))
    (run.path / "run.json").write_text((run.path / "run.json").read_text().replace("run/1", "run/2"))
    (other.path / "run.json").unlink()
    assert [r.name for r in runs_in(tmp_path)] == [third.name]
    found = unreadable_in(tmp_path)
    assert [u.name for u in found] == [run.name, other.name]
    assert "is not of schema 'driftscope/run/1'" in found[0].reason
    assert "run.json cannot be read" in found[1].reason


def test_a_cell_that_a_live_writer_claimed_is_not_claimed_again(tmp_path):
    run = make_run(tmp_path, [], cells=3)
    with run.writer() as a, run.writer() as b:
        ours, theirs = Claims(run.path), Claims(run.path)
        assert ours.take("size=0", a.name)
        assert not theirs.take("size=0", b.name)
        assert theirs.take("size=1", b.name)
        assert ours.take("size=0", a.name)
        a.close()
        assert not theirs.take("size=0", b.name)  # it may have finished the cell after the rows were read
        theirs.look()
        assert theirs.take("size=0", b.name)


def test_a_difference_names_cells_floors_and_environment(tmp_path):
    a = make_run(tmp_path, [1.0, 2.0, 3.0, 1.0], verdicts={2: "different"})
    b = make_run(tmp_path, [1.0, 2.2, 0.5], environment={"versions": {"onnxruntime": "1.31", "torch": "2.13"}})
    found = difference(a, b)
    (changed,) = found.changed
    assert (changed.place, changed.before, changed.after) == ("size=2", "different", "rounding")
    assert changed.moved == pytest.approx(-2.5)
    assert [c.place for c in found.moved] == ["size=1"]
    assert (found.same, found.only_a, found.only_b) == (1, ("size=3",), ())
    assert found.environment == {"versions.onnxruntime": ("1.22", "1.31"), "versions.torch": ("", "2.13")}
    assert json.dumps(found.to_dict())


def processor_of(model, capability, numpy="2.4", threads=2, system="Linux 6.1"):
    return {
        "processor": {"model": model, "cores": threads, "flags": ["avx2", "fma"]}, "versions": {"numpy": numpy},
        "torch": {"cpu_capability": capability, "threads": threads}, "system": system,
        "blas": [{"architecture": capability, "num_threads": threads}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "values", "named"),
    [
        (processor_of("Intel Xeon", "AVX512"), [1.5], True),
        (processor_of("AMD EPYC", "AVX512"), [1.5], True),
        (processor_of("Intel Xeon", "AVX512", numpy="2.5"), [1.5], False),
        (processor_of("Intel Xeon", "AVX512"), [1.0], False),
        (processor_of("AMD EPYC", "AVX2"), [1.5], False),
        (processor_of("Intel Xeon", "AVX2", threads=4, system="Linux 6.2"), [1.5], True),
        # The same processor with other threads, or another kernel of the system, is no other processor.
        (processor_of("AMD EPYC", "AVX2", threads=4), [1.5], False),
        (processor_of("AMD EPYC", "AVX2", system="Linux 6.2"), [1.5], False),
    ],
)
def test_the_processor_is_named_when_it_alone_changed(tmp_path, environment, values, named):
    from driftscope.report.terminal.runs import difference as text_of

    a = make_run(tmp_path, [1.0], environment=processor_of("AMD EPYC", "AVX2"))
    b = make_run(tmp_path, values, environment=environment)
    found = difference(a, b)
    assert found.processor_alone is named
    text = " ".join(text_of(found).split())
    assert ("only it differs, AMD EPYC (AVX2) -> " in text) is named
    assert difference(b, a).processor_alone is named


def test_the_processor_is_not_named_where_the_seed_is_another_too(tmp_path):
    from driftscope.report.terminal.runs import difference as text_of

    a = make_run(tmp_path, [1.0], environment=processor_of("AMD EPYC", "AVX2"))
    b = make_run(tmp_path, [1.5], environment=processor_of("Intel Xeon", "AVX512"), seed=1)
    found = difference(a, b)
    assert found.settings == {"seed": ("0", "1")}
    assert not found.processor_alone
    assert "is the cause" not in text_of(found)


def test_a_record_read_on_another_processor_says_so():
    from driftscope.records.environment import capture, made_elsewhere

    assert made_elsewhere(capture()) == ""
    assert made_elsewhere({}) == ""
    assert made_elsewhere({"processor": {"model": "Odd", "flags": -1}}).startswith("made on Odd, not on this")
    assert made_elsewhere(processor_of("Ancient", "DEFAULT")).startswith("made on Ancient (no AVX2 used), not on this")


def test_equal_runs_do_not_differ(tmp_path):
    a, b = make_run(tmp_path, [1.0, math.nan]), make_run(tmp_path, [1.0, math.nan])
    assert not difference(a, b).any
    assert difference(a, b).same == 2


def test_a_damaged_run_is_not_a_run(tmp_path):
    run = make_run(tmp_path, [1.0])
    (run.path / "run.json").write_text("{")
    assert runs_in(tmp_path) == []
    with pytest.raises(RecordError, match="cannot be read"):
        open_run(tmp_path, str(run.path))


@pytest.mark.parametrize("line", ["[]", "7", '{"cell":"size=9"}', '"text"', "{", "\x00"])
def test_a_line_that_is_no_row_is_passed_over(tmp_path, line):
    run = make_run(tmp_path, [1.0])
    (path,) = run.row_files()
    path.write_text(f"{line}\n{path.read_text()}")
    assert list(run.entries()) == ["size=0"]


@pytest.mark.parametrize(
    ("more", "words"),
    [("", "names no study or no axes"), (', "axes": {"size": true}', "an axis has no list of values")],
)
def test_a_header_without_axes_is_damaged(tmp_path, more, words):
    run = make_run(tmp_path, [1.0])
    (run.path / "run.json").write_text('{"schema": "driftscope/run/1", "study": "x"' + more + "}")
    with pytest.raises(RecordError, match=words):
        open_run(tmp_path, str(run.path))


def test_an_id_that_is_no_name_of_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="letters, digits"):
        create_run(tmp_path, "s", {"study": "s"}, "../elsewhere")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1, 2), "BIGINT"), ((1, 2.5), "DOUBLE"), ((True, False), "BOOLEAN"), ((True, 1), "VARCHAR"),
        ((1, "x"), "VARCHAR"),
        (([1, 2], [2.5]), "DOUBLE[]"), ((None, 3), "BIGINT"), ((2**70,), "DOUBLE"), ((None,), None),
    ],
)  # fmt: skip
def test_types_of_columns(values, kind):
    assert wider(*map(sql_type, values)) == kind


def test_nested_data_is_flattened():
    plain = {"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "x"}, {"e": "y"}]}
    assert flattened(plain) == {"a.b": "1", "a.c": "1 2", "d[0].e": "x", "d[1].e": "y"}

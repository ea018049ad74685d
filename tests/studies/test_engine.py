"""A study runs its grid: rows in order, seeds by name, every bad end a row, killed and started again it finishes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from driftscope.errors import InputError
from driftscope.numerics.seeds import seed_of
from driftscope.records.kinds.study import StudyRecord, rows_text
from driftscope.records.runs.store import open_run, runs_in
from driftscope.studies.engine.grid import make_grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan
from driftscope.studies.engine.result import perform, stored_study
from studies import study_cells as cells

HERE = Path(__file__).parent


def plan(function, axes, **more) -> Plan:
    return Plan(function.__name__, function, make_grid(axes), **more)


def run(function, axes, *, fixed=None, seed=0, **options):
    return perform(plan(function, axes, fixed=fixed or {}, seed=seed), running_of(**options))


def test_rows_are_plain_in_grid_order_and_the_same_wherever_they_are_made():
    axes = {"a": range(12), "b": [3, 5]}
    in_processes, here = run(cells.product, axes, workers=2), run(cells.product, axes, workers=0)
    assert in_processes.rows == here.rows
    assert [(r["a"], r["b"]) for r in here.rows] == [(a, b) for a in range(12) for b in (3, 5)]
    assert here.rows[3] == {
        "a": 1, "b": 5, "product": 5, "half": 2.5, "name": "1 by 5", "outcome": "ok", "code": "", "words": "",
    }  # fmt: skip


def test_a_cell_has_a_seed_by_its_name_whatever_runs_beside_it():
    alone = {r["a"]: r["seed_seen"] for r in run(cells.drawn, {"a": [7]}, workers=0).rows}
    among = {r["a"]: r["seed_seen"] for r in run(cells.drawn, {"a": [3, 7, 9]}, workers=0).rows}
    assert alone[7] == among[7] == seed_of("drawn", 0, "a=7") % 1000
    assert len(set(among.values())) == 3
    assert run(cells.drawn, {"a": [7]}, workers=0, seed=1).rows[0]["seed_seen"] != alone[7]


@pytest.mark.parametrize(("workers", "shared"), [(2, True), (1, False)])
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every worker imports for itself")
def test_several_workers_share_one_import_of_the_modules_that_are_there(tmp_path, monkeypatch, workers, shared):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needed_by_cells.py").write_text("import os\nIMPORTED_IN = os.getpid()\n")
    study = plan(cells.imported, {"a": range(6)}, modules=("needed_by_cells", "no_such_module"))
    rows = perform(study, running_of(workers=workers)).rows
    assert {row["outcome"] for row in rows} == {"ok"}
    assert {row["process"] != row["imported_in"] for row in rows} == {shared}
    assert len({row["imported_in"] for row in rows}) == 1


@pytest.fixture(scope="module")
def wayward():
    axes = {"what": ["fine", "abort", "hang", "fill", "raise", "kill", "also fine"]}
    study = run(cells.wayward, axes, workers=2, seconds=3.0, memory=300 << 20)
    return {row["what"]: row for row in study.rows}, study


@pytest.mark.parametrize(
    ("what", "outcome", "code"),
    [("abort", "aborted", "R006"), ("hang", "timed out", "R009"), ("fill", "out of memory", "R008"),
     ("raise", "raised", ""), ("kill", "killed", "R007")],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_a_cell_that_ends_badly_is_a_row_that_says_so(wayward, what, outcome, code):
    row = wayward[0][what]
    assert (row["outcome"], row["code"]) == (outcome, code)
    assert row["words"]
    assert "answer" not in row


def test_its_neighbours_are_not_disturbed_and_the_conclusion_names_it(wayward):
    rows, study = wayward
    assert [rows[w]["answer"] for w in ("fine", "also fine")] == ["fine", "also fine"]
    assert len(study.failures) == 5
    assert "5 cells gave no result" in study.conclusion


@pytest.mark.parametrize("kind", ["nothing", "text", "empty", "object", "axis", "column", "unnamed"])
def test_what_is_no_row_is_named(kind):
    (row,) = run(cells.odd, {"kind": [kind]}, workers=0).rows
    assert row["outcome"] == "raised"
    assert row["words"].startswith("InputError: ")


def test_several_rows_of_a_cell_and_numbers_that_json_lacks_come_back(tmp_path):
    made = run(cells.several, {"a": [1, 2]}, workers=0, store=tmp_path)
    again = stored_study(open_run(tmp_path, made.run))
    assert rows_text(made.record.rows) == rows_text(again.record.rows)
    assert [r["letter"] for r in again.rows] == list("xyzxyz")
    assert math.isnan(again.rows[1]["value"])
    read = StudyRecord.from_dict(again.to_dict())
    assert rows_text(read.rows) == rows_text(made.record.rows)


def test_a_finished_run_is_not_run_again_but_an_unfinished_one_is_finished(tmp_path):
    marker = tmp_path / "marker"
    options = {"fixed": {"marker": str(marker)}, "workers": 1, "store": tmp_path / "runs"}
    first = run(cells.killed_once, {"a": [1, 2, 3]}, **options)
    assert [r["outcome"] for r in first.rows] == ["ok", "killed", "ok"]
    second = run(cells.killed_once, {"a": [1, 2, 3]}, run=first.run, **options)
    assert [r["double"] for r in second.rows] == [2, 4, 6]
    assert stored_study(open_run(tmp_path / "runs", first.run)).rows == second.rows
    third = run(cells.killed_once, {"a": [1, 2, 3]}, **options)
    assert third.run != first.run


class CtrlC:
    """Somebody who presses Ctrl-C when so many cells are done."""

    def __init__(self, done: int):
        self.done = done
        self.moves: list[tuple[int, int]] = []

    def __call__(self, text: str) -> None:
        """Steps whose length is not known."""

    def move(self, text: str, done: int, total: int) -> None:
        self.moves.append((done, total))
        if done == self.done:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
    yield
    signal.signal(signal.SIGINT, before)


def test_after_ctrl_c_who_watches_gets_the_rows_that_are_there(tmp_path, monkeypatch, ctrl_c):
    monkeypatch.setenv("DRIFTSCOPE_WATCHED", "1")
    options = {"workers": 0, "store": tmp_path}
    stopped = run(cells.product, {"a": [1, 2, 3], "b": [5]}, progress=CtrlC(2), **options)
    assert [r["product"] for r in stopped.rows] == [5, 10]
    assert stopped.record.missing == 1
    whole = run(cells.product, {"a": [1, 2, 3], "b": [5]}, **options)
    assert (whole.run, whole.record.missing, len(whole.rows)) == (stopped.run, 0, 3)


def test_after_ctrl_c_a_script_gets_the_exception(tmp_path, monkeypatch, ctrl_c):
    monkeypatch.delenv("DRIFTSCOPE_WATCHED", raising=False)
    with pytest.raises(KeyboardInterrupt):
        run(cells.product, {"a": [1, 2, 3], "b": [5]}, progress=CtrlC(2), workers=0, store=tmp_path)


def test_who_can_draw_is_told_how_many_cells_are_done(tmp_path):
    watcher, words = CtrlC(-1), []
    run(cells.product, {"a": [1, 2, 3], "b": [5]}, progress=watcher, workers=0, store=tmp_path)
    run(cells.product, {"a": [1, 2, 3], "b": [5]}, progress=words.append, workers=0, store=tmp_path)
    assert watcher.moves == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert words[-1] == "3 of 3 cells"


def test_the_id_of_another_study_is_refused(tmp_path):
    made = run(cells.several, {"a": [1]}, workers=0, store=tmp_path)
    with pytest.raises(InputError, match="another study, other axes or other files"):
        run(cells.several, {"a": [1, 2]}, workers=0, store=tmp_path, run=made.run)


SCRIPT = """
    import sys
    sys.path.insert(0, {tests!r})
    from driftscope.studies.engine.grid import make_grid
    from driftscope.studies.engine.plan import Plan
    from driftscope.studies.engine.result import perform
    from driftscope.studies.engine.options import running_of
    from studies import study_cells as cells
    study = perform(
        Plan("slow", cells.slow, make_grid({{"a": range(40)}})),
        running_of(workers=2, store={store!r}, run={run!r}),
    )
    print(study.run, len(study.rows))
"""


def start(tmp_path, run_id=""):
    script = tmp_path / f"study{run_id}.py"
    script.write_text(textwrap.dedent(SCRIPT.format(tests=str(HERE.parent), store=str(tmp_path / "runs"), run=run_id)))
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job begins with it ignored
    )  # fmt: skip


def rows_so_far(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("runs/*/rows-*.jsonl"))


@pytest.mark.slow
def test_no_row_is_lost_under_kill_9_and_the_rest_is_made_when_started_again(tmp_path):
    process = start(tmp_path)
    while rows_so_far(tmp_path) < 30:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    before = rows_so_far(tmp_path)
    (folder,) = runs_in(tmp_path / "runs")
    # What a writer that dies in the middle of a cell leaves: one whole row of three, and half a line.
    with open(folder.row_files()[0], "ab") as file:
        file.write(b'{"a":39,"square":1521,"outcome":"ok","attempt":0,"part":0,"parts":3,"cell":"a=39"}\n{"a":39,"sq')
    kept = folder.entries()
    assert len(kept) * 3 == before
    assert "a=39" not in kept

    again = start(tmp_path)
    said, _ = again.communicate(timeout=60)
    assert said.split() == [folder.name, "120"]
    rows = stored_study(folder).rows
    assert [r["a"] for r in rows] == [a for a in range(40) for _ in range(3)]
    assert all(r["square"] == r["a"] ** 2 and r["text"] == "é" * 50 for r in rows)
    finished = [json.loads(line) for path in folder.row_files() for line in path.read_text().splitlines()]
    assert len(finished) == 121  # nothing that was kept was made twice; a row of an unfinished cell stays


@pytest.mark.slow
def test_two_processes_write_to_one_run_at_once(tmp_path):
    first = start(tmp_path, "shared")
    while not (tmp_path / "runs" / "shared" / "run.json").exists():
        time.sleep(0.01)
    second = start(tmp_path, "shared")
    for process in (first, second):
        assert process.communicate(timeout=60)[0].split() == ["shared", "120"]
    folder = open_run(tmp_path / "runs", "shared")
    assert sum(path.read_bytes().count(b"\n") for path in folder.row_files()) == 120  # they shared the cells
    assert [r["a"] for r in stored_study(folder).rows] == [a for a in range(40) for _ in range(3)]


def test_a_study_calls_its_own_function_and_has_axes_that_fit():
    assert cells.decorated(1, 2) == {"sum": 3}
    assert [r["sum"] for r in cells.decorated.run(workers=2).rows] == [11, 21, 12, 22, 13, 23]


@pytest.mark.parametrize(
    ("axes", "fixed", "words"),
    [
        ({"a": [1]}, {}, "needs 'b'"),
        ({"a": [1], "b": [2], "c": [3]}, {}, "no parameter 'c'"),
        ({"a": [1], "b": [2]}, {"a": 1}, "both an axis and a fixed argument"),
        ({"a": [], "b": [2]}, {}, "no values"),
        ({"a": [1, 1], "b": [2]}, {}, "repeats a value"),
        ({"a": [object()], "b": [2]}, {}, "holds strings, finite numbers"),
        ({"a": [math.nan], "b": [2]}, {}, "finite"),
        ({"seconds": [1]}, {}, "driftscope writes itself"),
        ({"not a name": [1]}, {}, "not a Python name"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_in_one_sentence(axes, fixed, words):
    with pytest.raises(InputError, match=words):
        plan(cells.product, axes, fixed=fixed)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"workers": -1}, "counted from 0"), ({"workers": "two"}, "whole number"), ({"wrkers": 2}, "no option 'wrkers'"),
     ({"seconds": 0}, "positive"), ({"operator_threads": -3}, "at least one thread"),
     ({"operator_threads": 0}, "at least one thread")],
)  # fmt: skip
def test_running_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        run(cells.product, {"a": [1], "b": [2]}, **options)


@pytest.mark.parametrize(
    ("seconds", "options", "here"),
    [
        (0.1, {}, True), (0.1, {"workers": 0}, True), (None, {"workers": 0}, True),
        (None, {}, False), (30.0, {}, False), (0.1, {"workers": 1}, False), (0.1, {"seconds": 60.0}, False),
        (0.1, {"memory": 1 << 33}, False),
    ],
)  # fmt: skip
def test_little_and_safe_work_is_done_here_unless_workers_or_limits_are_asked_for(seconds, options, here):
    made = perform(plan(cells.process_of, {"a": [1]}, safe_seconds=seconds), running_of(**options))
    assert (made.rows[0]["process"] == os.getpid()) is here


def test_the_reduction_study_knows_which_of_its_cells_are_safe():
    from driftscope.studies.reduction_study.study import FLOATS, FUNCTIONS, SIZES, STUDIED_LAWS, safe_seconds

    default = {"law": STUDIED_LAWS, "size": SIZES, "dtype": FLOATS, "function": FUNCTIONS}
    assert safe_seconds(default, 128) < 1 < safe_seconds(default, 10_000)
    assert safe_seconds(default | {"function": ("torch.sum",)}, 128) is None
    assert safe_seconds(default | {"law": ("studies.study_cells:product",)}, 128) is None


def test_a_function_that_workers_cannot_find_is_explained():
    def inner(a: int) -> dict[str, int]:
        return {"twice": 2 * a}

    assert run(inner, {"a": [4]}, workers=0).rows[0]["twice"] == 8
    with pytest.raises(InputError, match="top level of a file"):
        run(inner, {"a": [4]}, workers=1)


def test_it_says_how_far_it_is():
    heard = []
    run(cells.product, {"a": [1, 2], "b": [3]}, workers=0, progress=heard.append)
    assert heard[-1] == "2 of 2 cells"


def test_the_supervisor_may_be_interrupted(tmp_path):
    process = start(tmp_path)
    while rows_so_far(tmp_path) < 9:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    (folder,) = runs_in(tmp_path / "runs")
    assert not folder.is_live()
    assert all(len(entry.rows) == 3 for entry in folder.entries().values())

"""What is shown on the way, and what Ctrl-C leaves."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from driftscope.cli import progress
from driftscope.cli.answers import give
from driftscope.cli.progress import StepBar
from driftscope.cli.surroundings import Journey
from driftscope.lift.counting import counted, counting
from record_examples import different


def drawn(patience: float, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(progress, "PATIENCE", patience)
    out = io.StringIO()
    with StepBar(Console(file=out, force_terminal=True, width=100, color_system=None), "Loading") as bar:
        bar.step("Lifting A to float64")
        bar.count(3, 12)
        bar._progress.refresh()
    return out.getvalue()


def test_a_bar_counts_nodes_once_a_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(0.0, monkeypatch)
    assert "Lifting A to float64" in text
    assert "3 of 12 nodes" in text


def test_the_step_alone_is_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(3600.0, monkeypatch)
    assert "Lifting A to float64" in text
    assert "nodes" not in text


def test_a_narrow_terminal_shows_the_time_left_rather_than_a_long_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    for width, shown in ((60, "Asking in which o…"), (120, "Asking in which order sums are added")):
        out = io.StringIO()
        with StepBar(Console(file=out, force_terminal=True, width=width, color_system=None), "Loading") as bar:
            bar.step("Asking in which order sums are added")
            bar.count(0, 1312)
            bar.count(1311, 1312)
            bar._progress.refresh()
        text = out.getvalue()
        assert shown in text, width
        assert "1311 of 1312 nodes" in text, width
        assert "0:00:00" in text or "-:--:--" in text, width


def test_cells_are_counted_by_the_words_of_the_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    out = io.StringIO()
    with StepBar(Console(file=out, force_terminal=True, width=80, color_system=None), "Loading") as bar:
        bar.move("3 of 40 cells", 3, 40)
        bar._progress.refresh()
    assert "3 of 40 cells" in out.getvalue()
    assert "nodes" not in out.getvalue()
    with (journey := Journey(quiet=False, verbose=True)).travelling():
        journey.move("3 of 40 cells", 3, 40)
    assert capsys.readouterr().err == "3 of 40 cells ...\n"


def test_a_pipe_gets_a_line_for_each_step_with_verbose_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose in (False, True):
        journey = Journey(quiet=False, verbose=verbose)
        with journey.travelling():
            journey("Lifting A to float64")
            journey.count(1, 2)
        assert capsys.readouterr().err == ("Lifting A to float64 ...\n" if verbose else "")


def test_nodes_are_counted_where_somebody_listens() -> None:
    told: list[tuple[int, int]] = []
    assert list(counted("abc")) == ["a", "b", "c"]
    with counting(lambda done, total: told.append((done, total))):
        assert list(counted("abc")) == ["a", "b", "c"]
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert counted("abc") == "abc"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, OSError])
def test_ctrl_c_while_a_page_is_drawn_leaves_the_answer(
    error: type[BaseException] | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = different()

    def save(_record: object, path: str) -> None:
        if path == "page.html" and error is not None:
            raise error

    monkeypatch.setattr(type(record), "save", save)
    with pytest.raises(error) if error else contextlib.nullcontext():
        give(record, as_json=False, outputs=["record.json", "page.html"], quiet=False)
    shown = capsys.readouterr()
    assert (record.verdict in shown.out) == (error is not OSError)
    assert ("Wrote record.json" in shown.err) == (error is not OSError)
    assert ("Wrote page.html" in shown.err) == (error is None)


# In a process of its own: one whose tensor libraries have threads is not forked.
INTERRUPTED_CHILD = """
import signal, sys, time
from driftscope.cli import watching
from driftscope.programs.isolation.breadcrumbs import tell
from driftscope.programs.isolation.limits import Limits

answers = sys.argv[1] == "answers"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job begins with it ignored
watching._LAST_WORDS = 60.0 if answers else 0.2
hear = watching._Watch._hear

def interrupted_once(self, data):
    hear(self, data)
    watching._Watch._hear = hear
    raise KeyboardInterrupt

watching._Watch._hear = interrupted_once
look = watching._Watch._look

def late(self):
    time.sleep(0.5 if answers else 0)  # by then the child has answered, and ended
    look(self)

watching._Watch._look = late

def work():
    try:
        tell(stage="lift", step="Lifting A to float64")
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.2 if answers else 600)
        print("known so far")

ended = watching.watched(work, Limits(None, None))
print([ended.interrupted, ended.told["step"], ended.text])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("way", "text"), [("answers", "known so far\n"), ("hangs", "")])
def test_after_ctrl_c_a_child_says_what_it_knows_or_is_ended(way: str, text: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_CHILD, way], capture_output=True, text=True, check=True, timeout=120
    )
    assert ast.literal_eval(run.stdout) == [True, "Lifting A to float64", text]

"""A run that was stopped goes on only with what it was begun with: rows of two versions are no table."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
import textwrap

import pytest

from driftscope.errors import DriftscopeError, InputError
from driftscope.records.runs.store import RunFolder
from driftscope.studies.comparison_study.pairs import listing_of
from driftscope.studies.engine.code_digest import are_apart, code_digest

BEGUN = """
    import functools
    import os
    import time
    import helping
    from helping import taken
    FACTOR = 2
    BASE = 7
    NAMES = {"a": [1, 2], "b": (3, BASE)}
    STARTED = time.time() + os.getpid()

    class Scale:
        by = 3
        def __init__(self, n):
            self.n = n
        @property
        def value(self):
            return self.n * self.by

    def doubled(n):
        return n * FACTOR if n not in {"x", "y", "z"} else 0

    @functools.lru_cache
    def tripled(n):
        return Scale(n).value

    def cell(n, more=5):
        found = [helping.moved(k) + helping.STEP + taken(k) for k in range(n)]
        found.append(__name__ in (STARTED, __file__))
        return {"value": doubled(n) + tripled(n) + more + len(NAMES), "all": sum(found)}

    def unused(n):
        return n
"""
HELPING = (
    "STEP = 1\ndef moved(k):\n    return k + 1\n\ndef other(k):\n    return k\n\ndef taken(k):\n    return k * 5\n"
)
#: What is written in place of what, and whether rows may differ by it.
EDITS = {
    "a comment": ("def doubled(n):\n", "# twice\n\n    def doubled(n):\n", False),
    "code that is not used": ("return n\n", "return n + 7\n", False),
    "a constant": ("FACTOR = 2", "FACTOR = 3", True),
    "a table": ("(3, BASE)", "(4, BASE)", True),
    "what a table is made of": ("BASE = 7", "BASE = 8", True),
    "when it started": ("time.time() + ", "time.time() - ", True),
    "another function": ("n * FACTOR if", "n + FACTOR if", True),
    "an operator in the cell": ("doubled(n) + tripled(n)", "doubled(n) - tripled(n)", True),
    "a default": ("more=5", "more=6", True),
    "a class attribute": ("by = 3", "by = 4", True),
    "a property": ("self.n * self.by", "self.n - self.by", True),
    "a number in a decorated function": ("Scale(n).value", "Scale(n).value + 1", True),
    "a set": ('{"x", "y", "z"}', '{"x", "y"}', True),
}
HELPED = {
    "the helping module": ("k + 1", "k + 2", True),
    "a function taken from it": ("k * 5", "k * 6", True),
    "a constant there": ("STEP = 1", "STEP = 2", True),
    "another function there": ("return k\n", "return -k\n", False),
}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the two modules, import them anew and return the first."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # which is not looked at again within a second
    numbers = itertools.count()

    def write(text: str = BEGUN, helping: str = HELPING):
        (tmp_path / "helping.py").write_text(helping + f"# {next(numbers)}\n")
        (tmp_path / "edited_cells.py").write_text(textwrap.dedent(text))
        for name in ("helping", "edited_cells"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("edited_cells")

    return write


@pytest.mark.parametrize("edit", [*EDITS, *HELPED])
def test_edits_that_may_change_rows_change_the_digest_and_others_do_not(written, edit):
    before = code_digest(written().cell)
    old, new, differs = (EDITS | HELPED)[edit]
    text, helping = (BEGUN, HELPING.replace(old, new)) if edit in HELPED else (BEGUN.replace(old, new), HELPING)
    assert (text, helping) != (BEGUN, HELPING)
    assert (code_digest(written(text, helping).cell) != before) is differs


def test_the_digest_is_the_same_in_every_process(written, tmp_path):
    own = code_digest(written().cell)
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; import edited_cells as e;"
    code += "from driftscope.studies.engine.code_digest import code_digest; print(code_digest(e.cell))"
    for seed in "12":
        found = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == own


def test_code_that_another_version_of_python_compiled_is_not_called_changed(written):
    own = code_digest(written().cell)
    assert own.startswith(sys.implementation.cache_tag)
    tag, _, digest = own.partition(":")
    assert not are_apart(own, own)
    assert not are_apart(own, f"{tag}0:{digest[::-1]}")
    assert are_apart(own, f"{tag}:{digest[::-1]}")


STOPPED = """
    import os
    from driftscope.studies import study

    @study(axes={{"n": [1, 2, 3]}})
    def cells(n):
        if n == 3 and os.environ.get("STOPS"):
            raise KeyboardInterrupt
        return {{"value": n * {factor}}}
"""


def test_rows_of_a_changed_function_are_not_mixed_with_older_ones(written, tmp_path, monkeypatch):
    def run(factor, **options):
        found = written(STOPPED.format(factor=factor)).cells.run(workers=0, store=tmp_path / "runs", **options)
        return found.run, [row["value"] for row in found.rows]

    monkeypatch.setenv("STOPS", "1")
    with pytest.raises(KeyboardInterrupt):
        run(1)
    monkeypatch.delenv("STOPS")
    assert run(1000) == ("cells-0002", [1000, 2000, 3000])
    with pytest.raises(InputError, match="made by edited_cells:cells as it was before it was changed; choose"):
        run(1000, run="cells-0001")
    assert run(1) == ("cells-0001", [1, 2, 3]), "the function is as it was: its run goes on"


EDITING = """
    import os
    from pathlib import Path
    from driftscope.studies import study

    @study(axes={"n": [1, 2, 3]})
    def cells(n):
        if n == 2:
            Path(__file__).write_text(Path(__file__).read_text().replace("n * 1 ", "n * 200 "))
            os._exit(1)
        return {"value": n * 1 }
"""


def test_a_worker_that_is_started_anew_with_another_version_ends_the_study(written, tmp_path):
    """The file is written while the study runs: cells of the new version are not put beside those of the old one."""
    with pytest.raises(DriftscopeError, match="edited_cells:cells is another version in a worker process"):
        written(EDITING).cells.run(workers=1, store=tmp_path / "runs")
    (entries,) = (list(RunFolder(run).entries().values()) for run in (tmp_path / "runs").iterdir())
    assert [row["value"] for entry in entries for row in entry.rows if row["outcome"] == "ok"] == [1]


def test_a_list_whose_files_were_written_anew_is_another_list(tmp_path):
    for name in ("model.pt2", "model.onnx"):
        (tmp_path / name).write_bytes(b"first")
    before = listing_of(str(tmp_path)).digest
    assert listing_of(str(tmp_path)).digest == before
    (tmp_path / "model.onnx").write_bytes(b"another")
    assert listing_of(str(tmp_path)).digest != before
    (tmp_path / "pairs.csv").write_text("a,b\nmodel.pt2,model.onnx\n")
    before = listing_of(str(tmp_path / "pairs.csv")).digest
    (tmp_path / "model.pt2").write_bytes(b"another")
    assert listing_of(str(tmp_path / "pairs.csv")).digest != before

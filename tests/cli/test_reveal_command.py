"""``driftscope reveal``: the order on stdout, exit codes, JSON, a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from driftscope.cli import main
from driftscope.report.pages import page


def run(*arguments: str):
    return CliRunner().invoke(main, ["reveal", *arguments])


def test_the_answer_is_on_stdout():
    done = run("numpy.sum", "--n", "64")
    assert done.exit_code == 0
    assert "tree8[+4,+2,+1](fold(8 × +8: x))" in done.stdout
    assert "replayed bit for bit" in done.stdout
    assert run("numpy.sum", "--n", "64", "-q").stdout == "tree8[+4,+2,+1](fold(8 × +8: x))\n"


def test_json_is_the_record():
    record = json.loads(run("torch.matmul", "--n", "12", "--shape", "4x12x3", "--json").stdout)
    assert record["schema"] == "driftscope/accumulation/1"
    assert record["shape"] == [4, 12, 3]


def test_several_thread_counts_are_contrasted():
    done = run("torch.sum", "--n", "40", "--threads", "1,2")
    assert done.exit_code == 0
    assert "1 thread (" in done.stdout
    assert "2 threads (" in done.stdout
    assert "add the 40 terms in the same order" in done.stdout
    assert len(json.loads(run("torch.sum", "--n", "40", "--threads", "1,2", "--json").stdout)) == 2


def test_a_function_of_the_users_own(tmp_path):
    (tmp_path / "own.py").write_text("import numpy as np\ndef chain(x):\n    return np.cumsum(x, -1)[..., -1]\n")
    assert "fold(33)" in run(f"{tmp_path / 'own.py'}:chain", "--n", "33").stdout


def test_the_picture_is_written(tmp_path):
    path = tmp_path / "tree.svg"
    done = run("numpy.sum", "--n", "20", "-o", str(path))
    assert done.exit_code == 0
    assert path.read_text().startswith("<svg")
    assert str(path) in done.stderr


def test_what_the_order_depends_on_is_said():
    done = run("numpy.sum", "--n", "64", "--threads", "1", "--dependence")
    assert "rows: the same with 1, 2, 8, 32, 128; threads: the same with 1" in done.stdout
    record = json.loads(run("numpy.sum", "--n", "64", "--dependence", "--json").stdout)
    assert record["dependence"]["rows"] == {"1": True, "2": True, "8": True, "32": True, "128": True}
    assert "dependence" not in json.loads(run("numpy.sum", "--n", "64", "--json").stdout)


def test_a_sketch_and_a_budget():
    record = json.loads(run("numpy.sum", "--n", "3000", "--sketch", "--json").stdout)
    assert 64 < len(record["terms"]) < 130
    spent = run("numpy.sum", "--n", "3000", "--max-calls", "1")
    assert spent.exit_code == 2
    assert "within 1 call (" in spent.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("torch.summ", "--n", "4"), "there is no kernel"),
        (("torch.sum", "--n", "0"), "nothing to add"),
        (("torch.sum",), "Missing option '--n'"),
        (("torch.matmul", "--n", "4", "--shape", "4x4"), "(M, K, N)"),
        (("torch.matmul", "--n", "4", "--shape", "fourx4"), "32x4096x32"),
        (("torch.sum", "--n", "4", "--threads", "0"), "2 or 1,2"),
        (("torch.sum", "--n", "4", "-o", "tree.pdf"), ".svg"),
        (("torch.sum", "--n", "4", "-o", "tree.svg", "--threads", "1,2"), "writes one answer"),
        (("torch.sum", "--n", "4", "--dtype", "int8"), "give float64"),
        (("torch.sum", "--n", "4000", "--max-seconds", "0"), "was not found within 0 s"),
    ],
)
def test_what_cannot_be_used_ends_with_2_and_one_sentence(arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_page_of_a_sum_comes_back_as_its_record(tmp_path: Path) -> None:
    target = tmp_path / "sum.html"
    result = CliRunner().invoke(main, ["reveal", "numpy.sum", "--n", "300", "-o", str(target), "--json"])
    assert result.exit_code == 0, result.stderr
    record = page.load(target)
    assert record.drawing.startswith("<svg")
    assert record.to_dict() | {"drawing": ""} == json.loads(result.stdout)
    assert "data:image/svg+xml;base64," in target.read_text()
    shown = CliRunner().invoke(main, ["report", str(target)])
    assert shown.stdout.startswith("Revealed: ")

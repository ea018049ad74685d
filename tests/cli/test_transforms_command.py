"""``driftscope transforms``: the answer, exit codes, the patch, and inputs that do not fit."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

MODULE = """
import math

import torch


def root(x):
    return x / math.sqrt(x.pow(2).sum())


def clean(x):
    return torch.tanh(x) * 2


def two(w, x):
    if x.sum() > 0:
        return w * x
    return w - x


KEPT = []


def keeps(x):
    KEPT.append(x.cos())
    return x * 2


def with_inputs():
    return clean, {"x": "5x3:float32"}


def raises(x):
    raise KeyError("inside")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    return tmp_path


def check(run, name, *options, spec="x=4x3:float64"):
    inputs = ("--input", spec) if spec else ()
    return run("transforms", f"mine.py:{name}", *inputs, *options)


def test_a_refusal_is_answered_in_the_first_line_with_its_expression_and_edit(module, run):
    result = check(run, "root", "--transforms", "vmap,grad")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("refused: vmap at mine.py:8 `math.sqrt(x.pow(2).sum())`. A Python number is one value")
    assert len(lines) <= 25
    words = " ".join(result.stdout.split())
    assert "mine.py:8 at math.sqrt" in words
    edit, tried = (
        "torch.sqrt(x.pow(2).sum().detach())` (tried on ",
        " examples and their derivative: it works, same bits)",
    )
    assert int(words.split(edit)[1].split(tried)[0]) >= 3


def test_a_clean_function_ends_with_zero(module, run):
    result = check(run, "clean", "--transforms", "vmap,grad")
    assert result.exit_code == 0
    assert result.stdout.startswith("same")


def test_a_finding_without_a_wrong_value_ends_with_one_and_never_with_fail_on_different(module, run):
    assert check(run, "keeps", "--transforms", "vmap").exit_code == 1
    assert check(run, "keeps", "--transforms", "vmap", "--fail-on", "different").exit_code == 0
    assert check(run, "root", "--transforms", "vmap", "--fail-on", "never").exit_code == 0


def test_json_is_the_record_and_quiet_is_one_line(module, run):
    data = json.loads(check(run, "root", "--transforms", "vmap", "--json").stdout)
    assert data["schema"] == "driftscope/transforms/1"
    assert data["outcomes"] == {"vmap": "refused"}
    assert data["findings"][0]["cause"] == "T010"
    assert data["command"].startswith("driftscope transforms mine.py:root --input x=4x3:float64")
    (quiet,) = check(run, "root", "--transforms", "vmap", "-q").stdout.splitlines()
    assert quiet.startswith("refused: vmap at mine.py:8 `math.sqrt(x.pow(2).sum())`. A Python number is one value")


def test_fix_writes_a_patch_that_git_applies_and_makes_vmap_the_loop(module, run):
    result = check(run, "root", "--transforms", "vmap", "--fix")
    assert "Wrote 1 tried edit" in result.stderr
    if shutil.which("git") is None:
        pytest.skip("git is needed to apply a patch")
    subprocess.run(["git", "apply", "driftscope.patch"], cwd=module, check=True)
    assert "torch.sqrt(x.pow(2).sum().detach())" in (module / "mine.py").read_text()
    assert check(run, "root", "--transforms", "vmap").exit_code == 0


def test_fix_writes_nothing_where_nothing_was_repaired(module, run):
    result = check(run, "clean", "--transforms", "vmap", "--fix")
    assert "No tried edit" in result.stderr
    assert not (module / "driftscope.patch").exists()


def test_shared_arguments_and_compositions(module, run):
    result = run("transforms", "mine.py:two", "--input", "x=4x3:float64", "--input", "w=3:float64",
                 "--in-dims", "None,0", "--transforms", "vmap,vmap(grad)", "--json")  # fmt: skip
    outcomes = json.loads(result.stdout)["outcomes"]
    assert outcomes == {"vmap": "refused", "vmap(grad)": "refused"}


def test_a_factory_brings_its_inputs(module, run):
    assert check(run, "with_inputs", "--transforms", "vmap", spec=None).exit_code == 0


def test_a_page_and_a_stored_record_show_the_same(module, run):
    check(run, "root", "--transforms", "vmap", "-o", "page.html")
    text = (module / "page.html").read_text()
    assert "math.sqrt(x.pow(2).sum())" in text
    assert "+    return x / torch.sqrt" in text
    check(run, "root", "--transforms", "vmap", "-o", "record.json")
    again = run("report", "record.json")
    assert again.stdout.startswith("refused: vmap at mine.py:8")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mine.py:root",), "needs example inputs"),
        (("mine.py:root", "--input", "y=4x3"), "has no argument y; it has x"),
        (("mine.py:two", "--input", "x=4x3"), "needs an input for w"),
        (("mine.py:KEPT", "--input", "x=4x3"), "is not a function or module but list"),
        (("mine.py:gone", "--input", "x=4x3"), "has no 'gone'"),
        (("mine.py:root", "--input", "x=4x3", "--transforms", "vnap"), "did you mean vmap"),
        (("mine.py:root", "--input", "x=4x3", "--in-dims", "one"), "is not of the form"),
        (("mine.py:root", "--input", "x=4x3", "--in-dims=--1"), "is not of the form"),
        (("mine.py:root", "--input", "x=4x3", "--in-dims", "7"), "axis 7"),
        (("mine.py:root", "--input", "x=4x3", "--in-dims", "None"), "no example has a mapped axis"),
        (("mine.py:root", "--input", "x=4x3", "--fix", "--patch", "nowhere/p"), "there is no folder 'nowhere'"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(module, run, arguments, sentence):
    result = run("transforms", *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_a_function_that_raises_by_itself_is_not_blamed_on_a_transform(module, run):
    result = check(run, "raises", "--transforms", "vmap")
    assert result.stdout.startswith("plain-refuses")
    assert "KeyError" in result.stdout

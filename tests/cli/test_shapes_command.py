"""``driftscope shapes``: exit codes follow --fail-on, files appear where they were asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

MODEL = """
import torch

class Center(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] == 1:
            return x
        return x - x.mean(0)

class Plain(torch.nn.Module):
    def forward(self, x):
        return x - x.mean(0)

def make():
    return Center(), (torch.randn(3, 4),)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.mark.slow
def test_a_lost_shape_fails_only_if_asked(run, model):
    assert run("shapes", f"{model}:make", "--no-onnx").exit_code == 0
    lost = run("shapes", f"{model}:make", "--no-onnx", "--fail-on", "lost")
    assert lost.exit_code == 1
    assert lost.stdout.startswith("shapes lost: Center exported by ")


def test_its_neighbour_loses_nothing(run, model):
    result = run("shapes", f"{model}:Plain", "--input", "x=3x4:float32", "--no-onnx", "--fail-on", "lost", "--json")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["schema"] == "driftscope/shapes/1"
    assert record["command"].startswith("driftscope shapes ")
    assert "is right at all" in record["headline"]


@pytest.mark.slow
def test_onnx_is_written_and_wrong_and_the_cover_is_saved(run, model, tmp_path):
    result = run(
        "shapes", f"{model}:make", "--onnx", tmp_path / "out.onnx", "--save-cover", tmp_path / "kept",
        "-o", tmp_path / "page.html",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "S021" in result.stdout
    assert (tmp_path / "out.onnx").stat().st_size
    assert (tmp_path / "kept" / "manifest.json").is_file()
    assert "Relations between sizes" in (tmp_path / "page.html").read_text()


def test_only_the_named_axes_vary(run, model):
    result = run("shapes", f"{model}:make", "--no-onnx", "--dynamic", "x=1", "--json")
    record = json.loads(result.stdout)
    assert record["free"] == [False, True]
    assert {point["sizes"][0] for point in record["points"]} == {3}


def test_a_tensor_without_axes_is_not_told_to_name_one(run, model):
    result = run("shapes", f"{model}:Plain", "--input", "x=scalar:float32", "--no-onnx", "--dynamic", "x=")
    assert result.exit_code == 2
    assert "says of x, which has 0 axes, that it varies; give None" in result.stderr


@pytest.mark.parametrize("given", [("x=0", "x=1"), ("x=-1", "x=-2"), ("x=0,1",)])
def test_axes_named_one_by_one_all_vary(run, model, given):
    words = [word for one in given for word in ("--dynamic", one)]
    result = run("shapes", f"{model}:Plain", "--input", "x=3x4:float32", "--no-onnx", *words, "--json")
    assert json.loads(result.stdout)["free"] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dynamic", "x"), "not of the form x=0,1"),
        (("--dynamic", "x=--1"), "not of the form x=0,1"),
        (("--dynamic", "x=0", "--dynamic", "x="), "'x=' says otherwise of 'x' than another --dynamic"),
        (("--dynamic", "y=0"), "the spec names y"),
        (("--dynamic", "x=7"), "names axis 7"),
        (("--dynamic", "x="), "says of x, which has 2 axes, that it varies; give a dict from axis to Dim, or None (on"),
        (("--fail-on", "sometimes"), "sometimes"),
        (("--onnx", "nowhere/out.onnx"), "there is no folder 'nowhere'"),
        (("--save-cover", __file__), "it is a file; name a folder"),
    ],
)
def test_a_misuse_is_one_sentence_and_exit_code_2(run, model, arguments, words):
    result = run("shapes", f"{model}:make", "--no-onnx", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_a_model_without_inputs_is_told_how_to_give_them(run, model):
    result = run("shapes", f"{model}:Plain")
    assert result.exit_code == 2
    assert "--input NAME=2x5:float32" in result.stderr


def test_inputs_that_the_model_does_not_take_are_no_finding(run, model):
    """They come from the command line, as those of the other commands do."""
    result = run("shapes", f"{model}:Plain", "--input", "door=3x4:float32", "--no-onnx")
    assert result.exit_code == 2
    assert result.stderr.count("do not fit") == 1
    assert "missing a required argument: 'x'" in result.stderr

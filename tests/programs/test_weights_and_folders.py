"""Weights with the class they belong to, and folders of models paired by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import unary

import driftscope as ds
from driftscope.errors import ProgramError
from driftscope.programs.loading.folders import left_alone, pairs_in

SOURCE = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3).eval(), torch.ones(2, 4)

def pair():
    return 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_are_put_into_the_class_they_belong_to(folder: Path, suffix: str) -> None:
    tensors = {"weight": torch.full((3, 4), 2.0), "bias": torch.zeros(3)}
    save_file(tensors, "w.safetensors") if suffix == "safetensors" else torch.save(tensors, "w.pt")
    program = ds.program(f"net.py:net@w.{suffix}")
    assert program.name == f"net@w.{suffix}"
    comparison = ds.compare("net.py:net", program)
    assert comparison.verdict == "DIFFERENT"
    assert comparison.first is not None
    assert comparison.first.code.startswith("W")


def test_the_same_weights_give_the_same_program(folder: Path) -> None:
    torch.manual_seed(0)
    save_file(torch.nn.Linear(4, 3).state_dict(), "w.safetensors")
    assert ds.compare("net.py:net", "net.py:net@w.safetensors").verdict == "IDENTICAL"


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"weight": torch.ones(3, 4)}, "lacks bias"),
        ({"weight": torch.ones(3, 4), "bias": torch.ones(3), "scale": torch.ones(1)}, "holds scale besides"),
        ({"weight": torch.ones(4, 3), "bias": torch.ones(3)}, "other shapes for weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder: Path, tensors: dict[str, torch.Tensor], words: str) -> None:
    save_file(tensors, "w.safetensors")
    with pytest.raises(ProgramError, match=words):
        ds.program("net.py:net@w.safetensors")


def test_what_is_no_module_and_what_is_no_file_are_said(folder: Path) -> None:
    with pytest.raises(ProgramError, match="no such file"):
        ds.program("net.py:net@missing.safetensors")
    save_file({"bias": torch.ones(1)}, "w.safetensors")
    with pytest.raises(ProgramError, match="holds no weights"):
        ds.program("net.py:pair@w.safetensors")


def test_a_pickle_of_anything_else_is_refused(folder: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), "w.pt")
    with pytest.raises(ProgramError, match="pickled Python objects"):
        ds.program("net.py:net@w.pt")


def test_folders_with_several_models_are_paired_by_name(tmp_path: Path) -> None:
    for side, names in (("a", "xyz"), ("b", "yzw"), ("c", "q"), ("d", "uv")):
        (tmp_path / side).mkdir()
        for name in names:
            (tmp_path / side / f"{name}.onnx").touch()
    a, b, c, d = (str(tmp_path / side) for side in "abcd")
    assert [name for name, _, _ in pairs_in(a, b)] == ["y.onnx", "z.onnx"]
    assert left_alone(a, b) == f"Not compared: only {a} holds x.onnx; only {b} holds w.onnx."
    assert left_alone(a, a) == ""
    assert pairs_in(a, c) == []  # one model: that is the one
    assert pairs_in(a, "model.onnx") == []
    with pytest.raises(ProgramError, match="of the same name"):
        pairs_in(a, d)


WEIGHTS = {"head.weight": torch.arange(12.0).reshape(3, 4) / 7, "head.bias": torch.ones(3)}


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_two_files_of_weights_are_compared_as_weights(folder: Path, suffix: str) -> None:
    save_file(WEIGHTS, "a.safetensors")
    changed = {**WEIGHTS, "head.weight": WEIGHTS["head.weight"].clone()}
    changed["head.weight"][1, 2] += 0.01
    for name, tensors in (("same", WEIGHTS), ("changed", changed)):
        file = f"{name}.{suffix}"
        save_file(tensors, file) if suffix == "safetensors" else torch.save(tensors, file)
    same = ds.compare("a.safetensors", f"same.{suffix}")
    assert same.verdict is ds.Verdict.IDENTICAL
    assert same.answer == "the same bits in 2 tensors"
    assert not same.findings
    other = ds.compare("a.safetensors", f"changed.{suffix}")
    assert other.verdict is ds.Verdict.DIFFERENT
    assert [f.code for f in other.findings] == ["W004"]
    assert other.answer.startswith("head.weight is A's tensor, +0.01 added in element [1, 2]")
    assert other.outputs["out['head.bias']"].verdict is ds.Verdict.IDENTICAL


@pytest.mark.parametrize(
    ("change", "verdict", "code", "words"),
    [
        (lambda t: t.half(), "PRECISION", "W003", "stored in float16, rounded"),
        (lambda t: t.double(), "ROUNDING", "W003", "every number kept"),
        (lambda t: t.half().float(), "PRECISION", "W007", "rounded to float16"),
        (lambda t: t * 2, "DIFFERENT", "W008", "multiplied by 2"),
        (torch.zeros_like, "DIFFERENT", "W009", "set to zero"),
    ],
)
def test_what_was_done_to_a_tensor_is_named(folder: Path, change: Any, verdict: str, code: str, words: str) -> None:
    save_file(WEIGHTS, "a.safetensors")
    save_file({**WEIGHTS, "head.weight": change(WEIGHTS["head.weight"])}, "b.safetensors")
    comparison = ds.compare("a.safetensors", "b.safetensors")
    assert comparison.verdict.name == verdict
    assert comparison.findings[0].code == code
    assert words in comparison.findings[0].what


def test_tensors_that_changed_places_are_named(folder: Path) -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    save_file({"one.weight": a, "two.weight": b, "three.weight": torch.ones(3, 3)}, "a.safetensors")
    save_file({"one.weight": b, "two.weight": a, "three.weight": torch.zeros(3, 3)}, "b.safetensors")
    findings = ds.compare("a.safetensors", "b.safetensors").findings
    assert [f.code for f in findings] == ["W009", "W010"]
    assert findings[1].what == "one.weight holds A's two.weight; two.weight holds A's one.weight"


@pytest.mark.parametrize(("change", "words"), [(0.0, "the numbers are the same"), (1.0, "the same numbers in 1 of 2")])
def test_names_with_something_before_each_are_recognised(folder: Path, change: float, words: str) -> None:
    w, b = torch.randn(3, 3), torch.randn(3)
    save_file({"up.weight": w, "up.bias": b}, "a.safetensors")
    save_file({"module.up.weight": w.clone(), "module.up.bias": b + change}, "b.safetensors")
    c = ds.compare("a.safetensors", "b.safetensors")
    assert c.verdict == "DIFFERENT"
    assert c.answer.startswith(f"B's names are A's with 'module.' before each; {words}")
    turned = ds.compare("b.safetensors", "a.safetensors")
    assert turned.answer.startswith(f"A's names are B's with 'module.' before each; {words}")
    save_file({"module.up.weight": w.clone(), "other.bias": b}, "b.safetensors")
    assert "before each" not in ds.compare("a.safetensors", "b.safetensors").answer


def test_numbers_that_were_lost_are_counted(folder: Path) -> None:
    w = torch.randn(3, 3)
    save_file({"up.weight": w}, "a.safetensors")
    save_file({"up.weight": w.masked_fill(w > 0.5, float("nan"))}, "b.safetensors")
    lost = int((w > 0.5).sum())
    said = ds.compare("a.safetensors", "b.safetensors").answer
    assert f"with NaN or infinity in {lost} element" in said or not lost


def test_a_tensor_that_only_one_file_has_is_a_difference(folder: Path) -> None:
    save_file(WEIGHTS, "a.safetensors")
    save_file({"head.weight": WEIGHTS["head.weight"]}, "b.safetensors")
    comparison = ds.compare("a.safetensors", "b.safetensors")
    assert comparison.verdict is ds.Verdict.DIFFERENT
    assert "head.bias" in comparison.answer


def test_weights_alone_are_no_program_and_outputs_are_no_weights(folder: Path) -> None:
    save_file(WEIGHTS, "w.safetensors")
    with pytest.raises(ProgramError, match=r"holds weights, not a program.*model\.py:Net@w\.safetensors"):
        ds.compare("net.py:net", "w.safetensors")
    save_file({"logits": torch.ones(2, 3)}, "out.safetensors")  # recorded outputs still stand for a program
    assert ds.compare("net.py:net", "out.safetensors").outputs


def test_a_program_is_found_after_a_change_of_the_working_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(unary("Relu"), "a model.onnx")
    torch.jit.trace(torch.nn.ReLU(), torch.ones(2, 3)).save("a script.pt")
    programs = [ds.program("a model.onnx"), ds.program("a script.pt")]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    x = torch.randn(2, 3)
    assert ds.compare(*programs, x, explain=False).verdict is ds.Verdict.IDENTICAL
    # No path of this machine is kept: the files are called what they were called.
    assert [p.describe()["path"] for p in programs] == ["a model.onnx", "a script.pt"]


def test_a_frozen_torchscript_module_is_compared():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1)).eval()
    x = (torch.randn(4, 8, generator=torch.Generator().manual_seed(0)),)
    frozen = torch.jit.freeze(torch.jit.trace(model, x))
    for pair in ((model, frozen), (frozen, model)):
        assert str(ds.compare(*pair, x).verdict) in ("IDENTICAL", "ROUNDING")

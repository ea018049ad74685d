"""One walk through all commands with one model: what docs/reference/compatibility.md runs in every environment."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import onnx
import pytest
import torch

import driftscope as ds

MODEL = """
import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16, eps=eps), nn.Linear(16, 32), nn.Linear(32, 16)
        random = np.random.default_rng(3)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.from_numpy(random.standard_normal(p.shape) / 4 + 0.5))

    def forward(self, x):
        q = self.norm(x)
        attended = torch.softmax(q @ q.transpose(-1, -2) / 4, -1) @ q
        return x + self.down(nn.functional.gelu(self.up(attended)))


class Center(nn.Module):
    def forward(self, x):
        if x.shape[0] == 1:
            return x
        return x - x.mean(0)


def make():
    return Block().eval(), {"x": "2x5x16:float32"}


def other():
    return Block(eps=1e-3).eval(), {"x": "2x5x16:float32"}


def branch(x):
    return x * 2 if x.sum() > 0 else -x
"""
pytestmark = pytest.mark.sweep

SPEC = ("--input", "x=2x5x16:float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model.py`` and what the installed torch exports of it: ``block.onnx``, ``block.pt2``."""
    folder = tmp_path_factory.mktemp("walk")
    (folder / "model.py").write_text(MODEL)
    names: dict[str, object] = {}
    exec(MODEL, names)  # noqa: S102
    module, _ = names["make"]()  # type: ignore[operator]
    x = torch.ones(2, 5, 16)
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    torch.onnx.export(module, (x,), dynamo=True, input_names=["x"], verbose=False).save(str(folder / "block.onnx"))
    torch.export.save(torch.export.export(module, (x,)), folder / "block.pt2")
    return folder


@pytest.mark.parametrize("exported", ["block.onnx", "block.pt2"])
def test_what_this_torch_exports_is_the_program(run, folder, exported):
    result = run("compare", f"{folder / 'model.py'}:make", folder / exported)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(("IDENTICAL", "ROUNDING"))


def test_another_epsilon_is_not_and_its_node_is_named(run, folder):
    result = run("compare", f"{folder / 'model.py'}:other", folder / "block.onnx")
    assert result.exit_code == 1
    assert result.stdout.startswith("DIFFERENT")
    assert "epsilon" in result.stdout


def test_levels_of_onnxruntime_are_one_program(run, folder):
    result = run(
        "compare",
        folder / "block.onnx",
        folder / "block.onnx",
        *SPEC,
        "--level",
        "a:disable",
        "--level",
        "b:all",
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["verdict"] in ("IDENTICAL", "ROUNDING")


def test_shapes_finds_what_an_export_loses(run, folder):
    found = run("shapes", f"{folder / 'model.py'}:Center", "--input", "x=3x4:float32", "--no-onnx", "--fail-on", "lost")
    assert found.exit_code == 1
    # Up to torch 2.8 an export loses the branch without a guard, later ones refuse the shape.
    assert found.stdout.startswith(("shapes lost: Center", "silently wrong: Center"))
    kept = run("shapes", f"{folder / 'model.py'}:make", "--no-onnx", "--fail-on", "lost", "--json")
    assert kept.exit_code == 0, kept.stdout + kept.stderr


def test_transforms_finds_a_branch(run, folder):
    result = run("transforms", f"{folder / 'model.py'}:branch", "--input", "x=4x3:float32")
    assert result.exit_code == 1
    assert "T001" in result.stdout or "vmap" in result.stdout


def test_orders_are_revealed_and_replayed(run, folder):
    for kernel, options in (("numpy.sum", ()), ("torch.sum", ()), ("torch.matmul", ("--shape", "4x24x3"))):
        result = run("reveal", kernel, "--n", "24", *options)
        assert result.exit_code == 0, result.stderr
        assert "verified" in result.stdout


def test_a_study_is_run_and_kept(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("study", "reduction", "--set", "sizes=8", "--set", "permutations=4", "--workers", "0")
    assert said.exit_code == 0, said.output
    assert run("runs", "list").stdout.count("reduction-0001") == 1


def test_files_are_listed_and_the_environment_told(run, folder):
    assert "LayerNormalization" in run("pretty", folder / "block.onnx").stdout
    versions = json.loads(run("env", "--json").stdout)["versions"]
    # The registry's builds with CUDA call themselves 2.8.0 as packages and 2.8.0+cu128 as modules.
    found = (versions["torch"].split("+")[0], versions["onnx"])
    assert found == (torch.__version__.split("+")[0], onnx.__version__)


def test_a_model_of_transformers_is_its_export():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, attn_implementation="eager", **sizes)
    model, ids = transformers.BertModel(config).eval(), {"input_ids": torch.arange(12).reshape(2, 6)}
    found = ds.compare(model, torch.export.export(model, (), ids, strict=False), ids)
    assert found.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING), found.reason

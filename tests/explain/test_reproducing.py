"""A reproducer shows the drift without driftscope, is as small as it can be, and is written only where there is one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch

import driftscope as ds

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 8), torch.nn.Softmax(-1)
    ).eval()


def broken() -> torch.nn.Module:
    other = net()
    other[1].eps = 1e-2  # type: ignore[index, union-attr]
    return other


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproducing") / "broken.onnx"
    torch.onnx.export(broken(), (X,), str(path), verbose=False)
    return path


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script where driftscope cannot be imported."""
    (folder / "driftscope.py").write_text("raise ImportError('not needed')\n")
    return subprocess.run([sys.executable, "reproduce.py"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_node_alone_shows_its_drift(exported: Path, tmp_path: Path) -> None:
    record = ds.compare(net(), str(exported), X, reproduce=tmp_path / "r")
    (written,) = [f for f in record.findings if f.code == "O020"]
    assert "alone" in written.what
    piece = onnx.load(tmp_path / "r" / "piece.onnx")
    assert [node.op_type for node in piece.graph.node] == ["LayerNormalization"]
    assert record.first is not None
    assert record.first.what in (tmp_path / "r" / "README.md").read_text()
    done = run(tmp_path / "r")
    assert done.returncode == 1
    assert "rms difference" in done.stdout
    # Mended, the same script shows nothing.
    (epsilon,) = [a for a in piece.graph.node[0].attribute if a.name == "epsilon"]
    epsilon.f = 1e-5
    onnx.save(piece, tmp_path / "r" / "piece.onnx")
    assert run(tmp_path / "r").returncode == 0


@pytest.mark.slow
def test_a_module_of_both_sides_shows_it(tmp_path: Path) -> None:
    record = ds.compare(net(), broken(), X, reproduce=tmp_path / "r")
    (written,) = [f for f in record.findings if f.code == "O020"]
    assert written.what.endswith("module 1")
    assert run(tmp_path / "r").returncode == 1


def test_where_no_piece_can_be_cut_the_whole_is_written(exported: Path, tmp_path: Path) -> None:
    nameless = onnx.load(exported)
    for node in nameless.graph.node:
        node.name = ""
    record = ds.compare(net(), nameless, X, reproduce=tmp_path / "r")
    (written,) = [f for f in record.findings if f.code == "O020"]
    assert "the whole of" in written.what
    assert run(tmp_path / "r").returncode == 1


def test_nothing_is_written_for_the_same_program(tmp_path: Path) -> None:
    record = ds.compare(net(), net(), X, reproduce=tmp_path / "r")
    assert not [f for f in record.findings if f.code == "O020"]
    assert list((tmp_path / "r").iterdir()) == []


def test_a_folder_in_use_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(ds.InputError, match="new or empty"):
        ds.compare("no/such/file.onnx", net(), X, reproduce=tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_a_function_that_cannot_be_stored_does_not_lose_the_comparison(tmp_path: Path) -> None:
    model, other = net(), broken()
    record = ds.compare(lambda x: model(x), lambda x: other(x), X, reproduce=tmp_path / "r")
    assert str(record.verdict) == "DIFFERENT"
    (told,) = [f for f in record.findings if f.code == "O020"]
    assert told.what.startswith("no reproducer was written: ")
    assert list((tmp_path / "r").iterdir()) == []

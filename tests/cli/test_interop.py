"""What other tools read: Model Explorer's node data, and a copy of the model that Netron shows with its drift."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch
from click.testing import CliRunner, Result

import driftscope as ds
from driftscope.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its export, and the page of their comparison."""
    made = tmp_path_factory.mktemp("interop")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)).eval()
    x = torch.randn(3, 8)
    torch.onnx.export(model, (x,), str(made / "model.onnx"), verbose=False, external_data=False)
    ds.compare(model, str(made / "model.onnx"), x, nodes=True).save(made / "page.html")
    ds.compare(model, str(made / "model.onnx"), x).save(made / "bare.json")
    return made


def report(*words: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["drift", "floors"])
def test_node_data_is_keyed_by_the_names_in_the_file(folder: Path, tmp_path: Path, measure: str) -> None:
    result = report(folder / "page.html", "--node-data", tmp_path / "n.json", "--measure", measure)
    assert result.exit_code == 0, result.stderr
    data = json.loads((tmp_path / "n.json").read_text())
    outputs = {name for node in onnx.load(folder / "model.onnx").graph.node for name in node.output}
    assert data["results"]
    assert set(data["results"]) <= outputs
    limits = [t["value"] for t in data["thresholds"]]
    assert limits == sorted(limits)
    assert max(r["value"] for r in data["results"].values()) <= limits[0 if measure == "drift" else 1]


def test_a_copy_carries_the_drift_and_computes_the_same(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "seen.onnx"
    assert report(folder / "page.html", "--annotate", folder / "model.onnx", target).exit_code == 0
    annotated = onnx.load(target)
    onnx.checker.check_model(annotated)
    told = [{p.key: p.value for p in node.metadata_props} for node in annotated.graph.node]
    assert any(float(entry.get("driftscope.drift_in_float64", "nan")) < 1e-11 for entry in told)
    assert {p.key for p in annotated.metadata_props} >= {"driftscope.verdict", "driftscope.reason"}
    x = {"input": torch.ones(3, 8)}
    assert str(ds.compare(str(folder / "model.onnx"), str(target), x).verdict) == "IDENTICAL"
    # Annotated once more, nothing is written twice.
    assert report(folder / "page.html", "--annotate", target, tmp_path / "again.onnx").exit_code == 0
    assert (tmp_path / "again.onnx").stat().st_size == target.stat().st_size


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bare.json", "--node-data", "n.json"), "holds no nodes; make one that does"),
        (("bare.json", "--annotate", "model.onnx", "x.onnx"), "holds no nodes; make one that does"),
        (("page.html", "--annotate", "model.onnx", "model.onnx"), "is the model itself"),
        (("page.html", "--annotate", "none.onnx", "x.onnx"), "none.onnx"),
        (("page.html", "--annotate", "other.onnx", "x.onnx"), "was this file its B?"),
        (("page.html", "--node-data", "no/such/n.json"), "cannot write"),
    ],
)
def test_what_cannot_be_written_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(folder)
    node = onnx.helper.make_node("Neg", ["a"], ["b"])
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "ab"]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", info[:1], info[1:])), "other.onnx")
    result = report(*words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not Path("x.onnx").exists()

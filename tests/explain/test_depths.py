"""Along the way: drift begins at the planted node and nowhere before, and honest rounding is one floor everywhere."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import driftscope as ds
from driftscope.explain.locate import node_chart


class Block(torch.nn.Module):
    """Attention and a perceptron, each behind a normalisation and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(32), torch.nn.LayerNorm(32)
        self.qkv, self.out = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        x = x + self.out((q @ k.transpose(-1, -2) / 32**0.5).softmax(-1) @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Encoder(torch.nn.Module):
    """Three blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    return Encoder().eval()


X = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("depths") / "encoder.onnx"
    torch.onnx.export(encoder(), (X,), str(path), verbose=False)
    return path


def test_drift_begins_at_the_planted_node() -> None:
    broken = encoder()
    broken.layers[1].norm2.eps = 1e-3  # type: ignore[index, union-attr]
    record = ds.compare(encoder(), broken, X, nodes=True)
    drifts = [node.lifted for node in record.nodes]
    first = next(i for i, drift in enumerate(drifts) if drift is not None and drift > 1e-11)
    assert record.nodes[first].module == "layers.1.norm2"
    assert record.first is not None
    assert record.first.where.node == record.nodes[first].name
    # What is added to the residual drifts from there on; both sides stay as near to their own float64 as before.
    assert drifts[-1] is not None
    assert drifts[-1] > 1e-6
    assert max(node.error_b or 0.0 for node in record.nodes) < 3
    # Given the reference's values, the planted node alone differs; and what reads what is known on both sides.
    assert [i for i, node in enumerate(record.nodes) if (node.fed or 0.0) > 1e-11] == [first]
    assert record.nodes[first].reads
    assert record.nodes[first].counterpart_reads


@pytest.mark.slow
def test_an_honest_export_is_ordinary_rounding_all_the_way(exported: Path) -> None:
    record = ds.compare(encoder(), str(exported), X, nodes=True)
    paired = [node for node in record.nodes if node.counterpart and node.lifted is not None]
    assert len(paired) > 40
    assert max(node.lifted or 0.0 for node in paired) < 1e-11
    for side in ("error_a", "error_b"):
        errors = [e for node in paired if (e := getattr(node, side)) is not None]
        assert len(errors) > 20
        assert max(errors) < 3
        assert 0.5 < torch.tensor(errors).median() < 1.5


@pytest.mark.slow
def test_shares_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ds.torch(encoder(), dtype="float16")
    whole = ds.compare(encoder(), other, X, nodes=True).nodes
    monkeypatch.setattr(node_chart, "_HELD", 500)
    shared = ds.compare(encoder(), other, X, nodes=True).nodes
    # What a node adds is measured where all values can be held at once.
    assert shared == tuple(dataclasses.replace(node, fed=None) for node in whole)
    assert any(node.fed is not None for node in whole)


def test_what_was_rounded_in_storage_does_not_count_as_drift() -> None:
    record = ds.compare(encoder(), ds.torch(encoder(), dtype="float16"), X, nodes=True)
    assert max(node.lifted or 0.0 for node in record.nodes) < 1e-11


def test_nothing_is_measured_unless_asked_or_where_a_side_has_no_graph() -> None:
    assert ds.compare(encoder(), encoder(), X).nodes == ()
    assert ds.compare(encoder(), ds.recorded({"out": encoder()(X).detach()}), X, nodes=True).nodes == ()

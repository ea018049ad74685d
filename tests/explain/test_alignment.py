"""Two runs of one function aligned without names: another library's spelling, another dtype, an optimised file."""

from __future__ import annotations

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftscope as ds
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.verdict import Verdict
from planted.architectures import ARCHITECTURES
from planted.edits import attribute, find
from planted.exports import Exports


@pytest.fixture(scope="module")
def exports(request: pytest.FixtureRequest) -> Exports:
    return Exports(request.config.cache.mkdir("planted-exports"))


def nameless(model: onnx.ModelProto) -> dict[str, str]:
    """Take every name and all metadata away from a model; return the new names of its nodes."""
    kept = {v.name for v in (*model.graph.input, *model.graph.output)}
    values: dict[str, str] = {"": ""}
    nodes = {}

    def new(name: str) -> str:
        return name if name in kept else values.setdefault(name, f"t{len(values)}")

    for k, node in enumerate(model.graph.node):
        del node.metadata_props[:]
        node.input[:] = [new(n) for n in node.input]
        node.output[:] = [new(n) for n in node.output]
        nodes[node.name] = node.name = f"op{k}" if node.name not in nodes else node.name
    for held in model.graph.initializer:
        held.name = new(held.name)
    del model.graph.value_info[:]
    return nodes


def bug(model: onnx.ModelProto) -> str:
    return attribute(find(model, "LayerNormalization", 3), "epsilon", to=1e-2)


def compared(model: onnx.ModelProto, reference: object = None) -> Comparison:
    architecture = ARCHITECTURES["encoder"]
    return ds.compare(reference or architecture.module(torch.float32), model, architecture.example(torch.float32))


def test_a_file_without_names_is_aligned_by_values(exports: Exports):
    model = exports.model("encoder", "float32")
    guilty = bug(model)
    names = nameless(model)
    first = compared(model).first
    assert first is not None
    assert first.where.node == names[guilty]
    assert first.where.module == "layers.1.norm2"
    clean = exports.model("encoder", "float32")
    nameless(clean)
    assert compared(clean).verdict is Verdict.ROUNDING


def test_two_files_are_aligned(exports: Exports):
    model = exports.model("encoder", "float32")
    guilty = bug(model)
    first = compared(model, exports.model("encoder", "float32")).first
    assert first is not None
    assert first.where.node == guilty
    assert "epsilon is 0.01 here and 1e-05 in A" in first.why


def test_a_file_against_its_optimised_self(exports: Exports, tmp_path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    clean = exports.model("encoder", "float32")
    onnxruntime.InferenceSession(clean.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimised = onnx.load(tmp_path / "optimised.onnx")
    assert compared(optimised, clean).verdict in (Verdict.ROUNDING, Verdict.IDENTICAL)
    node = next(n for n in optimised.graph.node if n.name == "node_layer_norm_4" or n.op_type.startswith("Layer"))
    guilty = attribute(node, "epsilon", to=1e-2)
    first = compared(optimised, clean).first
    assert first is not None
    assert first.where.node == guilty


class Net(nn.Module):
    def __init__(self, slope: float = 0.01):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.slope = nn.Linear(6, 6), nn.Linear(6, 6), slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.leaky_relu(self.first(x), self.slope))


class Spelled(nn.Module):
    """The same function in other words and under other names."""

    def __init__(self, net: Net):
        super().__init__()
        self.a, self.b, self.slope = net.first.weight.T, net.second.weight.T, net.slope
        self.c, self.d = net.first.bias, net.second.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.a + self.c
        return F.leaky_relu(y, self.slope) @ self.b + self.d


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_two_modules_with_nothing_in_common_but_values(dtype: torch.dtype):
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        clean, same, other = (Net().to(dtype), Spelled(Net().to(dtype)), Spelled(Net(0.02).to(dtype)))
        assert ds.compare(clean, same, (x,)).verdict in (Verdict.ROUNDING, Verdict.IDENTICAL)
        first = ds.compare(clean, other, (x,)).first
    assert first is not None
    assert "leaky_relu" in str(first.where.operator)
    assert "0.02" in first.why


def test_float32_against_float16_of_the_same_module():
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    assert not [f for f in ds.compare(Net(), ds.torch(Net(), dtype="float16"), (x,)).findings if f.code[0] == "N" and
                f.where.node and not f.note]  # fmt: skip
    first = ds.compare(Net(), ds.torch(Net(0.02), dtype="float16"), (x,)).first
    assert first is not None
    assert "leaky_relu" in str(first.where.operator)

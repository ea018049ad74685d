"""Files that onnxruntime saved itself, and graphs that it writes anew, are compared like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto
from onnx import helper as h
from torch import nn
from torch.nn import functional as F

import driftscope as ds


def saved(model: Path, path: Path) -> Path:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return path


def exported(module: nn.Module, x: torch.Tensor, path: Path) -> Path:
    torch.onnx.export(module, (x,), str(path), verbose=False, dynamo=False)
    return path


def test_a_file_saved_with_blocked_convolutions_is_compared(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.AdaptiveAvgPool2d(1)
    ).eval()
    x = torch.randn(2, 3, 12, 12)
    file = exported(module, x, tmp_path / "plain.onnx")
    optimised = saved(file, tmp_path / "all.onnx")
    assert any(node.domain == "com.microsoft.nchwc" for node in onnx.load(str(optimised)).graph.node)
    for pair in ((module, optimised), (file, optimised), (optimised, file)):
        assert ds.compare(*(str(p) if isinstance(p, Path) else p for p in pair), x).verdict in (
            ds.Verdict.IDENTICAL,
            ds.Verdict.ROUNDING,
        )


@pytest.mark.slow
@pytest.mark.parametrize("level", ["disable", "all"])
def test_a_constant_that_an_operator_implies_accuses_no_optimiser(tmp_path, level):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Hardsigmoid(), nn.Conv2d(8, 4, 3), nn.Hardswish(), nn.Conv2d(4, 4, 1)
    ).eval()
    x, path = torch.randn(2, 3, 9, 9), tmp_path / "hard.onnx"
    torch.onnx.export(module, (x,), str(path), verbose=False, dynamo=True)
    c = ds.compare(module, ds.onnx(str(path), level=level), x)
    assert c.verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)
    assert not {"O006", "O013"} & {f.code for f in c.findings}


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.sampled(1)
def test_a_layer_with_an_initial_state_against_one_without_is_compared(kind):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = kind(6, 8, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0]

    class Started(Plain):
        def forward(self, x):
            h = torch.full((1, x.shape[0], 8), 1e-2)
            return self.layer(x, (h, h) if kind is nn.LSTM else h)[0]

    torch.manual_seed(0)
    plain, started = Plain(), Started()
    started.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, 6)
    for a, b, said in ((plain, started, "0.01 where A has 0"), (started, plain, "set to zero")):
        found = ds.compare(a, b, x)
        assert found.verdict is ds.Verdict.DIFFERENT
        # What follows from the state, and runs before any input is read, is not what differs.
        assert {said in f.what for f in found.findings if not f.note} == {True}
        assert found.first.verified is True
    assert ds.compare(plain, plain, x).verdict is ds.Verdict.IDENTICAL
    assert ds.compare(started, started, x).verdict is ds.Verdict.IDENTICAL


@pytest.mark.parametrize(("sign", "wrong"), [(-1.0, True), (1.0, False)], ids=["negative", "positive"])
def test_an_optimiser_that_is_seen_in_the_outputs_is_not_said_to_be_seen_in_the_graphs_alone(sign: float, wrong: bool):
    """onnxruntime 1.31 makes a Pad of zeros a MaxPool's own padding, which is minus infinity."""
    nodes = [h.make_node("Pad", ["x", "pads"], ["p"]), h.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3])]
    values = [h.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 2, 6, 6]), ("y", [1, 2, 6, 6]))]
    pads = h.make_tensor("pads", TensorProto.INT64, [8], [0, 0, 1, 1, 0, 0, 1, 1])
    graph = h.make_graph(nodes, "padded", values[:1], values[1:], [pads])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)
    x = sign * (1.0 + torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)))
    expected = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    if wrong and np.array_equal(session.run(None, {"x": x.numpy()})[0], expected.numpy()):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} fuses this Pad rightly")
    c = ds.compare(lambda v: F.max_pool2d(F.pad(v, (1, 1, 1, 1)), 3, 1), proto, x)
    told = [f.fix for f in c.findings if f.code == "O006"]
    assert bool(told) is wrong
    assert all("the runtime's own outputs differ" in fix and "only the graphs" not in fix for fix in told)
    assert (c.verdict == "DIFFERENT") is wrong


def test_an_optimiser_that_no_output_shows_is_said_to_be_seen_between_the_graphs():
    """The border is so small that the matrix behind it rounds more than the wrong padding changes."""
    nodes = [
        h.make_node("Pad", ["x", "pads"], ["p"]), h.make_node("MaxPool", ["p"], ["m"], kernel_shape=[3, 3]),
        h.make_node("MatMul", ["m", "w"], ["y"]),
    ]  # fmt: skip
    values = [h.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2, 9, 9]) for n in "xy"]
    draw = torch.Generator().manual_seed(0)
    w = torch.rand(9, 9, generator=draw) + 1.0
    stored = [
        h.make_tensor("pads", TensorProto.INT64, [8], [0, 0, 1, 1, 0, 0, 1, 1]),
        h.make_tensor("w", TensorProto.FLOAT, [9, 9], w.flatten().tolist()),
    ]
    proto = h.make_model(
        h.make_graph(nodes, "padded", values[:1], values[1:], stored), opset_imports=[h.make_opsetid("", 18)],
        ir_version=8,
    )  # fmt: skip
    x = torch.full((1, 2, 9, 9), -1e-9)
    x[..., 3:6, 3:6] = 1.0 + torch.rand(3, 3, generator=draw)

    def padded(v: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.pad(v, (1, 1, 1, 1)), 3, 1) @ w

    c = ds.compare(padded, proto, x)
    found = next((f for f in c.findings if f.code == "O006"), None)
    if found is None and not _pads_with_nothing(proto, x):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} fuses this Pad rightly")
    assert found is not None
    assert "it was seen between the graphs, in float64" in found.fix
    assert (c.outputs[0].floors or 0.0) < 2.5


def _pads_with_nothing(proto: onnx.ModelProto, x: torch.Tensor) -> bool:
    """Whether the optimiser has made the Pad a part of the MaxPool, which takes it for minus infinity."""
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    runs = [
        onnxruntime.InferenceSession(proto.SerializeToString(), o).run(None, {"x": x.numpy()}) for o in (None, plain)
    ]
    return not np.array_equal(runs[0][0], runs[1][0])

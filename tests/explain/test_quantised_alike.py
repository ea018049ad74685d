"""Integers that are the rounding of several weights: gains near one, folds of them, layers that are nearly copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from test_quantised_more import quantised
from torch import nn

import driftscope as ds


class Alike(nn.Module):
    """Two layers, the second nearly a copy of the first; gains are near one, as after a little training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gains = nn.ModuleList(nn.LayerNorm(12) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.layers[1].load_state_dict(self.layers[0].state_dict())
        with torch.no_grad():
            for norm in self.gains:
                norm.weight.add_(1e-5 * torch.randn(12))
            self.layers[1].weight.mul_(1 + 1e-5 * torch.randn(12, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for gain, layer in zip(self.gains, self.layers, strict=True):
            x = x + layer(gain(x)).relu()
        return x


@pytest.mark.parametrize("how", ["dynamic", "QDQ", "QOperator"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PRECISION"), (1.25, "DIFFERENT")])
@pytest.mark.sampled(2)
def test_each_takes_the_weight_of_its_name_or_place(how: str, factor: float, verdict: str, tmp_path: Path):
    model, x = Alike().eval(), torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(1))
    if how == "dynamic":
        torch.onnx.export(model, (x,), tmp_path / "plain.onnx", verbose=False, dynamo=False)
        path = str(tmp_path / "small.onnx")
        quantize_dynamic(
            tmp_path / "plain.onnx", path, weight_type=QuantType.QInt8, extra_options={"MatMulConstBOnly": True}
        )
    else:
        path = quantised(model, (x,), tmp_path, how)
    file = onnx.load(path)
    scales = [i for i in file.graph.initializer if i.name.endswith("_scale") and "MatMul" in i.name]
    scales = [
        i for i in scales if i.name.removesuffix("_scale") + "_quantized" in {k.name for k in file.graph.initializer}
    ]
    assert scales
    for stored in scales[-1:]:
        stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored) * np.float32(factor), stored.name))
    found = ds.compare(model, file, x)
    assert found.verdict == verdict, found.reason


def test_weights_are_taken_in_the_order_in_which_they_are_read(tmp_path: Path):
    model, x = Alike().eval(), torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(1))
    file = onnx.load(quantised(model, (x,), tmp_path, "QDQ"))
    stored = {i.name for i in file.graph.initializer}
    nodes = list(file.graph.node)
    weights = [n for n in nodes if n.op_type == "DequantizeLinear" and n.input[0] in stored]
    del file.graph.node[:]
    file.graph.node.extend([*weights[::-1], *(n for n in nodes if n not in weights)])
    for k, i in enumerate(file.graph.initializer):
        for node in file.graph.node:
            node.input[:] = [f"stored_{k}" if name == i.name else name for name in node.input]
        i.name = f"stored_{k}"
    for k, node in enumerate(file.graph.node[: len(weights)]):
        for reader in file.graph.node:
            reader.input[:] = [f"real_{k}" if name == node.output[0] else name for name in reader.input]
        node.output[0] = f"real_{k}"
    found = ds.compare(model, file, x)
    assert found.verdict == "PRECISION", found.reason


class Outlier(nn.Module):
    """A GELU one of whose values is some hundred times as large as all that it has below zero; biases are zeros."""

    def __init__(self, act: nn.Module, size: float = 900.0):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.act, self.outer = nn.Linear(12, 16), act, nn.Linear(16, 6)
        with torch.no_grad():
            self.inner.weight[2, 3] = size
            self.inner.bias.zero_()
            self.outer.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.act(self.inner(x)))


@pytest.mark.parametrize(
    ("quantised_act", "act", "verdict"),
    [(nn.GELU(), nn.GELU(), "PRECISION"), (nn.ReLU(), nn.ReLU(), "PRECISION"), (nn.ReLU(), nn.Identity(), "DIFFERENT")],
    ids=["gelu", "relu", "a relu that one side lacks"],
)
def test_a_range_that_ends_at_zero_may_have_cut_nothing_off(quantised_act, act, verdict, tmp_path: Path):
    x = torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(1))
    file = quantised(Outlier(quantised_act).eval(), (x,), tmp_path, "QDQ")
    found = ds.compare(Outlier(act).eval(), file, x)
    assert found.verdict == verdict, found.reason


class Normed(nn.Module):
    """Convolutions before batch norms that are near one, as made, or zero, as some trainings begin with."""

    def __init__(self, gain: float):
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        with torch.no_grad():
            for norm in self.norms:
                norm.weight.add_(1e-4 * torch.randn(4))
                norm.bias.add_(0.1 * torch.randn(4))
                norm.running_mean.add_(1e-5 * torch.randn(4))
            self.norms[1].weight.mul_(gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x)).relu()
        return x


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("gain", "own", "verdict"), [(1.0, 1.0, "PRECISION"), (0.0, 0.0, "PRECISION"),
                                                      (1.0, 1.1, "DIFFERENT")])  # fmt: skip
@pytest.mark.sampled(2)
def test_integers_of_a_layer_before_a_batch_norm_are_those_of_the_fold(turned, gain, own, verdict, tmp_path: Path):
    x = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(1))
    pair = (Normed(own).eval(), quantised(Normed(gain).eval(), (x,), tmp_path, "QDQ"))
    found = ds.compare(*(pair[::-1] if turned else pair), x)
    assert found.verdict == verdict, found.reason


class Hidden(nn.Module):
    """What a GELU has below zero, all of it less than half a step, keeps a unit behind it above zero."""

    def __init__(self, act: nn.Module):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.act, self.behind, self.outer = nn.Linear(1, 3), act, nn.Linear(3, 3), nn.Linear(3, 2)
        with torch.no_grad():
            self.inner.weight.copy_(torch.tensor([[0.0], [0.0], [900.0]]))
            self.inner.bias.copy_(torch.tensor([-0.75, 1.0, 0.0]))
            self.behind.weight.copy_(torch.tensor([[-20.0, -3.0, 0.0], [0.0, -0.6, 0.0], [0.0, 6.0, 0.0]]))
            self.behind.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(nn.functional.leaky_relu(self.behind(self.act(self.inner(x)))))


@pytest.mark.parametrize(("act", "verdict"), [(nn.GELU(), "PRECISION"), (nn.ReLU(), "DIFFERENT")])
def test_a_range_that_cut_nothing_off_hides_others_behind_it(act: nn.Module, verdict: str, tmp_path: Path):
    x = 0.5 + 0.5 * torch.rand(40, 1, generator=torch.Generator().manual_seed(1))
    file = quantised(Hidden(nn.GELU()).eval(), (x,), tmp_path, "QDQ")
    found = ds.compare(Hidden(act).eval(), file, x, explain=False)
    assert found.verdict == verdict, found.reason

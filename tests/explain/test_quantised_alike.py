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

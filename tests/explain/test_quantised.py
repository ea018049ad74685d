"""A quantised file is its float file when its integers are the rounded weights, and is not when a number is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from torch import nn

import driftscope as ds


class Batches(CalibrationDataReader):
    def __init__(self):
        generator = np.random.default_rng(0)
        self.left = iter([{"x": generator.standard_normal((8, 32)).astype(np.float32)} for _ in range(4)])

    def get_next(self):
        return next(self.left, None)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(32, 64) * 0.1), nn.Parameter(torch.randn(64, 32) * 0.1)

    def forward(self, x):
        return torch.relu(x @ self.one) @ self.two


def files(folder: Path, how: str) -> tuple[str, str]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16))
    module = (Products() if "bits" in how else layers).eval()
    plain, small = str(folder / "plain.onnx"), str(folder / "small.onnx")
    torch.onnx.export(module, (torch.randn(8, 32),), plain, verbose=False, dynamo=False, input_names=["x"])
    if how == "dynamic":
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
    elif how == "dynamic per channel":
        quantize_dynamic(plain, small, weight_type=QuantType.QUInt8, per_channel=True)
    elif how == "static":
        quantize_static(plain, small, Batches(), quant_format=QuantFormat.QDQ, per_channel=True)
    else:
        quantizer = MatMulNBitsQuantizer(
            onnx.load(plain), bits=int(how[0]), block_size=32, is_symmetric="symmetric" in how
        )
        quantizer.process()
        quantizer.model.save_model_to_file(small)
    return plain, small


KINDS = ["dynamic", "dynamic per channel", "static", "4 bits symmetric", "4 bits", "8 bits"]


@pytest.mark.parametrize("how", KINDS)
def test_rounded_weights_are_precision_with_what_each_layer_costs(tmp_path, how):
    plain, small = files(tmp_path, how)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    for pair, side in (((plain, small), "B"), ((small, plain), "A")):
        c = ds.compare(*pair, x)
        assert (c.verdict, c.first.code) == (ds.Verdict.PRECISION, "W013")
        assert c.first.what.startswith(f"{side} is ")
        layers = c.first.evidence["replay"]["layers"]
        assert [row["output"] for row in layers] == sorted((row["output"] for row in layers), reverse=True)
        assert 0 < layers[0]["output"] < 0.5


def spoiled(path: str, target: str, change) -> str:
    model = onnx.load(path)
    tensor = next(t for t in model.graph.initializer if t.name.endswith(target))
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), tensor.name))
    onnx.save(model, path.replace("small", "wrong"))
    return path.replace("small", "wrong")


@pytest.mark.parametrize(
    ("how", "target", "change"),
    [
        ("dynamic", "weight_scale", lambda s: (s * 1.1).astype(s.dtype)),
        ("dynamic", "weight_quantized", lambda w: np.ascontiguousarray(w[::-1])),
        ("static", "0.weight_scale", lambda s: s[::-1].copy()),
        ("static", "0.weight_zero_point", lambda z: z + np.asarray(3, z.dtype)),
        ("4 bits symmetric", "_scales", lambda s: (s * 1.2).astype(s.dtype)),
    ],
)
def test_a_wrong_scale_zero_point_or_axis_is_different(tmp_path, how, target, change):
    plain, small = files(tmp_path, how)
    wrong = spoiled(small, target, change)
    c = ds.compare(plain, wrong, torch.randn(8, 32, generator=torch.Generator().manual_seed(1)))
    assert c.verdict is ds.Verdict.DIFFERENT
    assert "W012" in {f.code for f in c.findings}

"""An infinity among what is resized reaches the elements that give it a weight, and no others."""

from __future__ import annotations

import math

import pytest
import torch
from onnx import TensorProto, helper

import driftscope as ds


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_an_infinity_stays_where_it_has_a_weight(mode):
    x = torch.randn(1, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1.0, 1.0, 2.0, 2.0])
    node = helper.make_node(
        "Resize", ["x", "", "scales"], ["y"], name="resize", mode=mode,
        coordinate_transformation_mode="half_pixel", cubic_coeff_a=-0.75,
    )  # fmt: skip
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 24, 24])
    graph = helper.make_graph([node], "g", [given], [result], [scales])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    kind = {"linear": "bilinear", "cubic": "bicubic"}[mode]

    def torchs(x):
        return torch.nn.functional.interpolate(x, scale_factor=2, mode=kind, align_corners=False)

    x[0, 0, 5, 5] = math.inf
    clean = ds.compare(torchs, file, [x])
    assert clean.verdict <= ds.Verdict.ROUNDING, clean.reason
    far = ds.compare(lambda x: torchs(x) * 1.001, file, [x], explain=False)
    assert far.verdict is ds.Verdict.DIFFERENT

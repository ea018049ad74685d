"""Sampling far outside an image: the rounding of positions is in the floor, another sampling is not."""

from __future__ import annotations

import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional as F

import driftscope as ds


class Sampled(nn.Module):
    def __init__(self, aligned: bool, mode: str = "bilinear"):
        super().__init__()
        self.aligned, self.mode = aligned, mode

    def forward(self, x, grid):
        return F.grid_sample(x, grid, mode=self.mode, padding_mode="reflection", align_corners=self.aligned)


def exported(aligned: bool, mode: str = "linear"):
    """What an exporter makes of it."""
    node = helper.make_node(
        "GridSample", ["x", "grid"], ["y"], "sample", mode=mode, padding_mode="reflection", align_corners=int(aligned)
    )
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 9, 10]),
         helper.make_tensor_value_info("grid", TensorProto.FLOAT, [2, 5, 6, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 5, 6])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def given(size: float) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(2, 4, 9, 10, generator=g), size * torch.randn(2, 5, 6, 2, generator=g)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("size", [0.5, 60.0, 1e4, 1e12])
def test_reflected_positions_far_out_are_rounding_in_both_orders(aligned: bool, size: float):
    model, file = Sampled(aligned), exported(aligned)
    for pair in ((model, file), (file, model)):
        c = ds.compare(*pair, given(size))
        assert str(c.verdict) in ("IDENTICAL", "ROUNDING"), c.reason
        assert not any(f.code == "N025" for f in c.findings)


@pytest.mark.parametrize("size", [0.5, 60.0])
def test_other_corners_and_another_interpolation_are_other_functions(size: float):
    for file in (exported(aligned=True), exported(aligned=False, mode="cubic")):
        for pair in ((Sampled(aligned=False), file), (file, Sampled(aligned=False))):
            assert str(ds.compare(*pair, given(size)).verdict) == "DIFFERENT"

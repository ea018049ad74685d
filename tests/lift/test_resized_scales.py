"""Few numbers stored as one tensor, rounded: the scales of a Resize, a short filter."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

import driftscope as ds


class Enlarge(nn.Module):
    def __init__(self, mode: str):
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=(1.7, 1.2), mode=self.mode)


def as_file(mode: str, *scales: float, sizes: tuple[int, ...] = ()) -> onnx.ModelProto:
    linear = {"bilinear": "linear", "bicubic": "cubic"}[mode]
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"] if sizes else ["x", "", "scales"], ["y"], mode=linear, cubic_coeff_a=-0.75,
        coordinate_transformation_mode="half_pixel", nearest_mode="floor",
    )  # fmt: skip
    stored = numpy_helper.from_array(np.array([1, 1, *scales], np.float32), "scales")
    if sizes:
        stored = numpy_helper.from_array(np.array(sizes, np.int64), "sizes")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["a", "b", f"h{n}", f"w{n}"]) for n in "xy"]
    graph = helper.make_graph([node], "resize", ends[:1], ends[1:], [stored])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_scale_rounded_to_float32_is_that_scale(mode: str, swapped: bool) -> None:
    pair = Enlarge(mode), as_file(mode, 1.7, 1.2)
    found = ds.compare(*(reversed(pair) if swapped else pair), (torch.randn(1, 2, 7, 9),))
    assert found.verdict in ("IDENTICAL", "ROUNDING")
    assert found.first is None or found.first.note


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_another_scale_is_none(mode: str) -> None:
    near = float(np.float32(1.7) * np.float32(1 + 1e-6))
    assert ds.compare(Enlarge(mode), as_file(mode, near, 1.2), (torch.randn(1, 2, 7, 9),)).verdict == "DIFFERENT"


@pytest.mark.parametrize("times", [3, 7, 8])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_shrinking_by_a_whole_number_is_rounding(mode: str, times: int) -> None:
    """torch multiplies by the number, which is exact; onnxruntime divides by its inverse, which is not."""
    x = torch.randn(1, 2, 4 * times, 4 * times)
    file = as_file(mode, sizes=(1, 2, 4, 4))
    assert ds.compare(lambda x: F.interpolate(x, size=4, mode=mode), file, (x,)).verdict in ("IDENTICAL", "ROUNDING")
    assert ds.compare(lambda x: F.interpolate(x * 1.0001, size=4, mode=mode), file, (x,)).verdict == "DIFFERENT"


class Placed(nn.Module):
    """A table of positions that every call shrinks."""

    def __init__(self, mode: str):
        super().__init__()
        self.mode = mode
        self.table = nn.Parameter(0.02 * torch.randn(1, 2, 28, 28))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.interpolate(self.table, size=4, mode=self.mode)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_a_table_that_an_optimiser_shrank_ahead_of_time_is_that_table(mode: str) -> None:
    torch.manual_seed(0)
    module, x = Placed(mode), torch.randn(1, 2, 4, 4)
    session = ort.InferenceSession(as_file(mode, sizes=(1, 2, 4, 4)).SerializeToString())
    (shrunk,) = session.run(None, {"x": module.table.detach().numpy()})
    other = shrunk.copy()
    other[0, 1, 2, 3] *= 1.0005
    for table, expected in ((shrunk, ("IDENTICAL", "ROUNDING")), (other, ("DIFFERENT",))):
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2, 4, 4]) for n in "xy"]
        stored = [numpy_helper.from_array(table, "table")]
        graph = helper.make_graph([helper.make_node("Add", ["x", "table"], ["y"])], "g", ends[:1], ends[1:], stored)
        file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        assert ds.compare(module, file, (x,)).verdict in expected


class Filter(nn.Module):
    """A pre-emphasis whose two numbers are the weight of a convolution."""

    def __init__(self, share: float):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[[-share, 1.0]]]))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv1d(x[:, None], self.weight)[:, 0]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("share", "agree"), [(0.97, True), (0.98, False)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_filter_stored_rounded_is_the_filter_and_another_is_none(dtype, share: float, agree: bool, swapped: bool):
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    pair = (lambda x: x[:, 1:] - 0.97 * x[:, :-1], Filter(share).to(dtype))
    found = ds.compare(*(reversed(pair) if swapped else pair), (x,))
    assert found.verdict == ("ROUNDING" if agree else "DIFFERENT"), found.reason

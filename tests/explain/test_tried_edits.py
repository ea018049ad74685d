"""An edit that was tried works only where the program gives A's values, in A's shapes."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import nn

import driftscope as ds

WEIGHT = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


class Chosen(nn.Module):
    """A projection of one token of a sequence, or of one sequence of a batch."""

    def __init__(self, axis: int, index: int) -> None:
        super().__init__()
        self.axis, self.index = axis, index
        self.weight = nn.Parameter(torch.from_numpy(WEIGHT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.select(self.axis, self.index) @ self.weight


def gathered(axis: int) -> onnx.ModelProto:
    """The same in ONNX, which takes index 0."""
    nodes = [helper.make_node("Gather", ["x", "index"], ["token"], name="pick", axis=axis),
             helper.make_node("MatMul", ["token", "w"], ["y"], name="project")]  # fmt: skip
    stored = [numpy_helper.from_array(np.int64(0), "index"), numpy_helper.from_array(WEIGHT, "w")]
    shapes = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [3, 3, 8]), ("x", [2, 5, 8]), ("y", None))]
    given = shapes[0] if axis == 0 else shapes[1]
    graph = helper.make_graph(nodes, "g", [given], [shapes[2]], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_an_edit_that_changes_the_shape_of_the_output_does_not_work() -> None:
    """The last token is meant, not the first: along the other axis there are as few shapes in common as values."""
    c = ds.compare(Chosen(1, -1), gathered(1), (torch.randn(2, 5, 8),))
    assert c.verdict == "DIFFERENT"
    assert c.first is not None
    assert "axis" not in c.first.fix
    assert not (c.first.verified and "axis" in c.answer)


def test_the_axis_is_named_where_setting_it_gives_the_values() -> None:
    c = ds.compare(Chosen(1, 0), gathered(0), (torch.randn(3, 3, 8),))
    assert c.verdict == "DIFFERENT"
    assert c.first is not None
    assert (c.first.fix, c.first.verified) == ("Set axis of pick to 1.", True)

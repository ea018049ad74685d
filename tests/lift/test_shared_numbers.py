"""A number that a narrow format makes another one is told apart from it where each is read."""

from __future__ import annotations

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import driftscope as ds


class Logit(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.logit(x, self.eps)


def as_exported(element: int, eps: float, high: float) -> onnx.ModelProto:
    """The graph torch.onnx makes of logit: where ``high`` is 1 it is the very constant of ``1 - x``."""
    one = "high" if high == 1.0 else "one"
    nodes = [
        helper.make_node("Less", ["x", "low"], ["below"]),
        helper.make_node("Where", ["below", "low", "x"], ["raised"]),
        helper.make_node("LessOrEqual", ["raised", "high"], ["inside"]),
        helper.make_node("Where", ["inside", "raised", "high"], ["clamped"], name="clamp"),
        helper.make_node("Sub", [one, "clamped"], ["rest"]),
        helper.make_node("Div", ["clamped", "rest"], ["odds"]),
        helper.make_node("Log", ["odds"], ["y"]),
    ]
    numbers = {"low": eps, "high": high, "one": 1.0}
    stored = [helper.make_tensor(n, element, [], [v]) for n, v in numbers.items()]
    values = [helper.make_tensor_value_info(n, element, ["n"]) for n in "xy"]
    graph = helper.make_graph(nodes, "logit", values[:1], values[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("element", "dtype", "eps"), [
    (TensorProto.FLOAT16, torch.float16, 1e-6), (TensorProto.FLOAT16, torch.float16, 1e-4),
    (TensorProto.FLOAT, torch.float32, 1e-9),
])  # fmt: skip
def test_one_and_nearly_one_stored_once(element: int, dtype: torch.dtype, eps: float, swapped: bool) -> None:
    x = torch.tensor([0.0, 1.0, 0.5, 0.25, 2.0, 0.75, -1.0, 0.125], dtype=dtype)
    pair = Logit(eps), as_exported(element, eps, 1.0)
    found = ds.compare(*(reversed(pair) if swapped else pair), (x,))
    assert found.verdict in ("IDENTICAL", "ROUNDING")
    assert [f.code for f in found.findings if not f.note and f.code != "N017"] == []


@pytest.mark.parametrize("high", [1.0, 0.9995])
def test_a_number_that_the_format_tells_apart_is_another(high: float) -> None:
    x = torch.tensor([0.0, 1.0, 0.5, 0.25, 2.0, 0.75, -1.0, 0.125], dtype=torch.float16)
    assert ds.compare(Logit(1e-2), as_exported(TensorProto.FLOAT16, 1e-2, high), (x,)).verdict == "DIFFERENT"

"""Operators that are one kind by their name, and wires that were tried: what is not the cause is not printed as one."""

from __future__ import annotations

import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import driftscope as ds


class Feed(nn.Module):
    def __init__(self, approximate: str):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.approximate = nn.Linear(16, 24), nn.Linear(24, 16), approximate

    def forward(self, x):
        return x + self.two(F.gelu(self.one(x), approximate=self.approximate))


def fused(model: Feed, operator: str):
    """The same with the bias fused into a GELU of onnxruntime."""
    stored = {"w1": model.one.weight.T, "b1": model.one.bias, "w2": model.two.weight.T, "b2": model.two.bias}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "first"),
        helper.make_node(operator, ["h", "b1"], ["g"], "active", domain="com.microsoft"),
        helper.make_node("MatMul", ["g", "w2"], ["p"], "second"),
        helper.make_node("Add", ["p", "b2"], ["q"], "bias"),
        helper.make_node("Add", ["x", "q"], ["y"], "joined"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 16])],
        [numpy_helper.from_array(v.detach().contiguous().numpy(), k) for k, v in stored.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(("operator", "kind", "other"), [("BiasGelu", "none", "tanh"), ("FastGelu", "tanh", "none")])
def test_a_fused_gelu_of_the_other_kind_is_named_and_tried_and_one_of_its_kind_is_none(operator, kind, other):
    x = (torch.randn(5, 16, generator=torch.Generator().manual_seed(1)),)
    wrong, right = Feed(other).eval(), Feed(kind).eval()
    c = ds.compare(wrong, fused(wrong, operator), x)
    assert str(c.verdict) == "DIFFERENT"
    assert c.first.where.node == "active"
    assert c.first.verified
    assert f"approximate '{other}'" in c.first.fix
    assert len([f for f in c.findings if not f.note]) == 1
    for pair in ((right, fused(right, operator)), (fused(right, operator), right)):
        assert str(ds.compare(*pair, x).verdict) in ("ROUNDING", "IDENTICAL")

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


def nested(x):
    return 1 + x * (0.5 + x * (-0.3 + x * 0.1))


def written_out(x):
    return 1 + 0.5 * x - 0.3 * x**2 + 0.1001 * x**3


def test_steps_that_are_paired_by_mistake_are_no_cause():
    x = (torch.randn(4, 16, generator=torch.Generator().manual_seed(1)),)
    for pair, right in (((nested, written_out), 0.1), ((written_out, nested), 0.1001)):
        c = ds.compare(*pair, x, isolate=False)
        assert str(c.verdict) == "DIFFERENT"
        assert all(f"with {right} it gives" in f.why for f in c.findings if f.verified)
        assert "0.5 here" not in c.first.why
        assert "0.1 here" not in c.first.why


class Cells(nn.Module):
    """An LSTM unrolled by hand, its gates split in another order than they are stored where ``order`` says so."""

    def __init__(self, order):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.order = nn.LSTM(16, 8, batch_first=True), order

    def forward(self, x):
        h, c, out, w = torch.zeros(x.shape[0], 8), torch.zeros(x.shape[0], 8), [], self.layer
        for t in range(x.shape[1]):
            made = x[:, t] @ w.weight_ih_l0.T + w.bias_ih_l0 + h @ w.weight_hh_l0.T + w.bias_hh_l0
            parts = dict(zip(self.order, made.split(8, -1), strict=True))
            c = torch.sigmoid(parts["f"]) * c + torch.sigmoid(parts["i"]) * torch.tanh(parts["g"])
            h = torch.sigmoid(parts["o"]) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, 1)


class Fused(Cells):
    def forward(self, x):
        return self.layer(x)[0]


def test_a_layout_is_no_cause_where_it_was_tried_and_gates_in_another_order_are_the_place():
    x = (torch.randn(2, 2, 16, generator=torch.Generator().manual_seed(1)),)
    assert str(ds.compare(Fused(""), Cells("ifgo"), x, isolate=False).verdict) == "ROUNDING"
    c = ds.compare(Fused(""), Cells("figo"), x, isolate=False)
    assert str(c.verdict) == "DIFFERENT"
    assert "another order" not in c.first.why
    assert "Lay them out" not in (c.first.fix or "")

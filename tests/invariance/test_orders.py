"""The two accumulations of the first operator whose bits change: only what kernels were seen to do is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.accumulation.in_passing import forget
from driftscope.invariance.orders import SumCall, node_call, sum_call, two_orders
from driftscope.report.kinds import text_of


def in_turn(x):
    total = x[:, 0]
    for k in range(1, x.shape[1]):
        total = total + x[:, k]
    return total


def in_halves(x):
    middle = x.shape[1] // 2
    return in_turn(x[:, :middle]) + in_turn(x[:, middle:])


@pytest.fixture
def kernels(monkeypatch):
    """Two kernels of known order in place of those of one row and of many."""
    known = {1: ds.reveal(in_turn, 8, dtype=np.float32), 4: ds.reveal(in_halves, 8, dtype=np.float32)}
    monkeypatch.setattr(SumCall, "order", lambda call, *_: known[call.shapes[0][0]])


def call(rows):
    return SumCall("mm", ((rows, 8), (8, 3)), "float32")


def test_two_orders_stand_side_by_side(kernels):
    found = two_orders(call(1), call(4), "torch")
    assert found.words == (
        "mm of 1x8 and 8x3 adds 8 terms as sequential (fold(8));"
        " mm of 4x8 and 8x3 as split in 2 halves, each: sequential (pair(+4: fold(4)))"
    )
    assert found.evidence["one"]["pattern"] != found.evidence["other"]["pattern"]


def test_the_same_order_twice_explains_nothing(kernels):
    assert two_orders(call(4), call(4), "torch") is None
    assert two_orders(call(4), None, "torch") is None
    assert two_orders(call(4), SumCall("mm", ((4, 9), (9, 3)), "float32"), "torch") is None


@pytest.mark.slow
def test_what_is_said_of_a_model_is_what_reveal_measures():
    forget()
    torch.manual_seed(0)
    report = ds.check_invariance(nn.Linear(300, 40), {"input": "4x300:float32"}, axes="batch")
    for finding in report.findings:  # on some processors one row has the bits of many
        orders = finding.evidence.get("orders")
        if orders is not None:
            for side in ("one", "other"):
                m, k, n = orders[side]["shape"]
                again = ds.reveal("torch.linear", k, dtype=torch.float32, shape=(m, k, n))
                assert again.pattern == orders[side]["pattern"]
            assert orders["one"]["family"] in finding.why
            assert orders["other"]["family"] in text_of(report, width=100, color=False).replace("\n    ", " ")


def test_calls_that_cannot_be_asked_are_not_noted():
    add = torch.ops.aten.add.Tensor._schema
    assert sum_call("aten.add", add, (torch.ones(2), torch.ones(2)), {}) is None
    linear = torch.ops.aten.mm.default._schema
    noted = sum_call("aten.mm", linear, (torch.ones(2, 5), torch.ones(3, 5).t()), {})
    assert (noted.terms, noted.attributes["transposed_b"]) == (5, True)
    assert sum_call("aten.mm", linear, (torch.ones(2, 5), torch.ones(5, 3)), {}).attributes["transposed_b"] is False
    long = dataclasses.replace(noted, shapes=((2, 1 << 20), (1 << 20, 3)))
    assert isinstance(long.order("torch"), str)


def test_nodes_of_a_graph_are_noted_with_their_shapes():
    import onnx
    from onnx import helper, numpy_helper

    weight = numpy_helper.from_array(np.ones((6, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("y")], [weight])
    model = onnx.ModelProto(graph=graph)
    noted = node_call(model, node, {"x": torch.ones(2, 6)})
    assert (noted.shapes, noted.terms, noted.constant) == (((2, 6), (6, 4)), 6, True)
    assert node_call(model, node, {}) is None
    assert node_call(model, helper.make_node("Relu", ["x"], ["y"]), {"x": torch.ones(2, 6)}) is None

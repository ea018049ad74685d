"""A weight that differs where the inputs do not reach it is told; one that only looks different is not."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.records.verdict import FailOn, Verdict


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(50, 8), nn.Linear(8, 4)

    def forward(self, ids):
        return self.linear(self.embedding(ids))


@pytest.fixture
def pair():
    torch.manual_seed(0)
    a = Words()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.embedding.weight[17] *= 1.5
    return a, b


def test_the_row_of_a_token_that_is_not_given_is_told(pair):
    found = ds.compare(*pair, (torch.tensor([[1, 2, 3]]),))
    assert found.verdict is Verdict.IDENTICAL
    (note,) = found.findings
    assert (note.code, note.note, note.evidence["unreached"]) == ("W008", True, 1)
    assert "index 17 of axis 0; these inputs do not show it" in note.what
    assert "which do not reach where embedding.weight differs" in found.reason
    assert FailOn.FUNCTION.fails(found.verdict, functions_differ=found.functions_differ)


def test_the_same_row_given_is_another_program_and_equal_weights_are_not_told(pair):
    a, b = pair
    assert ds.compare(a, b, (torch.tensor([[1, 17, 3]]),)).verdict is Verdict.DIFFERENT
    same = ds.compare(a, copy.deepcopy(a), (torch.tensor([[1, 2, 3]]),))
    assert (same.reason, same.findings, same.functions_differ) == ("the same bits", (), False)


def test_another_scale_in_another_place_is_not_told():
    """Two tensors of one name that hold other numbers, in two ways of writing one function."""

    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.scale, self.factor = nn.Parameter(torch.full((4,), 2.0) * factor), factor

        def forward(self, x):
            return x * self.scale / self.factor

    found = ds.compare(Scaled(1.0), Scaled(4.0), (torch.randn(3, 4),))
    assert (found.verdict, found.findings) == (Verdict.IDENTICAL, ())


def units(seed: int, added: float) -> onnx.ModelProto:
    """Two layers behind a ReLU; one element of the second is reached where the first's unit 0 is positive."""
    rng = np.random.default_rng(seed)
    first, second = (rng.normal(size=(16, 16)).astype("f") for _ in range(2))
    second[0, 4] += added
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["m"]), helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])],
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_inputs_that_driftscope_draws_are_drawn_until_they_reach_it(tmp_path):
    seen = set()
    for seed in (1, 3):
        for name, added in (("a", 0.0), ("b", 0.25)):
            onnx.save(units(seed, added), tmp_path / f"{name}{seed}.onnx")
        found = ds.compare(tmp_path / f"a{seed}.onnx", tmp_path / f"b{seed}.onnx")
        assert (found.verdict, found.first.code) == (Verdict.DIFFERENT, "W004")
        seen.add(found.inputs["seed"])
        same = ds.compare(tmp_path / f"a{seed}.onnx", tmp_path / f"a{seed}.onnx")
        assert (same.verdict, same.inputs["seed"]) == (Verdict.IDENTICAL, 0)
    assert len(seen) == 2  # one was reached at once

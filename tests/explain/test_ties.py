"""Equal values, sorted or picked otherwise by two runtimes, are a tie; another element than these is none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import driftscope as ds

SIZE = 17


class Best(nn.Module):
    """The three best, and what stands in a table at their places."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, places = x.topk(3, -1)
        return values, places, (torch.arange(SIZE, dtype=x.dtype) * 0.5)[places]


def as_file(largest: int = 1, later: int = 0) -> onnx.ModelProto:
    """The same with ONNX's TopK; ``later`` is added to the places."""
    nodes = [
        helper.make_node("TopK", ["x", "three"], ["values", "found"], axis=-1, largest=largest),
        helper.make_node("Add", ["found", "later"], ["sum"]),
        helper.make_node("Mod", ["sum", "size"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["scores"]),
    ]
    stored = {"three": [3], "later": [later], "size": [SIZE]}
    weights = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in stored.items()]
    weights.append(numpy_helper.from_array(np.arange(SIZE, dtype=np.float32) * 0.5, "table"))
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, SIZE])]
    kinds = {"values": TensorProto.FLOAT, "places": TensorProto.INT64, "scores": TensorProto.FLOAT}
    made = [helper.make_tensor_value_info(n, k, [4, 3]) for n, k in kinds.items()]
    graph = helper.make_graph(nodes, "best", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def equal_values() -> Tensor:
    x = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0))
    x[:3] = torch.tensor([0.0, 0.7, 3.0])[:, None]
    return x


@pytest.mark.parametrize("swapped", [False, True])
def test_equal_values_in_another_order_are_a_tie(swapped: bool) -> None:
    pair = Best(), as_file()
    found = ds.compare(*(reversed(pair) if swapped else pair), (equal_values(),))
    assert found.verdict in ("IDENTICAL", "ROUNDING")
    assert not [f for f in found.findings if f.code in ("N001", "N010")]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("twin", [as_file(largest=0), as_file(later=1)])
def test_other_elements_are_no_tie(twin: onnx.ModelProto, swapped: bool) -> None:
    pair = Best(), twin
    assert ds.compare(*(reversed(pair) if swapped else pair), (equal_values(),)).verdict == "DIFFERENT"


def test_one_element_taken_twice_is_no_tie() -> None:
    places = torch.zeros(2, 3, dtype=torch.int64)

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.topk(3, -1).indices * 0 + places

    class Once(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.topk(3, -1).indices

    assert ds.compare(Once(), Twice(), (torch.ones(2, 9),)).verdict == "DIFFERENT"


def indices(function, dtype):
    return lambda x: function(x, dim=-1).to(dtype)


@pytest.mark.parametrize("turned", [False, True])
def test_indices_of_another_width_are_the_same_indices(turned):
    pair = indices(torch.argmax, torch.int64), indices(torch.argmax, torch.int32)
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    found = ds.compare(*(pair[::-1] if turned else pair), (x,), isolate=False)
    assert str(found.verdict) == "IDENTICAL", found.reason
    assert [(f.code, f.note) for f in found.findings if f.code == "N009"] == [("N009", True)]
    assert "int32" in found.reason
    assert "int64" in found.reason


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "other",
    [indices(torch.argmin, torch.int32), lambda x: x.argmax(-1).float(), lambda x: x.argmax(-1) > 0],
    ids=["others", "floats", "booleans"],
)
def test_other_indices_are_others_whatever_their_width(other, turned):
    pair = indices(torch.argmax, torch.int64), other
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    found = ds.compare(*(pair[::-1] if turned else pair), (x,), isolate=False)
    assert str(found.verdict) == "DIFFERENT", found.reason


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, ds.Verdict.ROUNDING), (1.01, ds.Verdict.DIFFERENT)])
def test_values_that_are_equal_on_one_side_alone(swapped, factor, verdict):
    """Logits of 1e-38 are all different; what a softmax makes of them is one number."""
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    logits = 1e-38 * torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(-1, 1, 96).reshape(4, 24)

    def before(x, y):
        share, best = y.topk(2, -1)
        return (share.softmax(-1)[..., None] * torch.tanh(x[:, None] * weights[best])).sum(1)

    def after(x, y):
        share, best = y.softmax(-1).topk(2, -1)
        share = factor * share / share.sum(-1, keepdim=True)
        return (share[..., None] * torch.tanh(x[:, None] * weights[best])).sum(1)

    found = ds.compare(*((after, before) if swapped else (before, after)), (x, logits), isolate=False)
    assert found.verdict is verdict, found.reason

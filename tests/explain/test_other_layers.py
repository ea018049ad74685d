"""What a layer takes from another one: a view of its keys, and the sign of a mask, in a file and in its reverse."""

from __future__ import annotations

import copy
import warnings

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.finding import Finding
from driftscope.records.verdict import Verdict

X = (torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)),)


class Attention(nn.Module):
    """Causal attention with two heads, and the residual."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).view(2, 5, 2, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 16)


@pytest.fixture(scope="module")
def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention()).eval()


@pytest.fixture(scope="module")
def exported(layers: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> onnx.ModelProto:
    path = tmp_path_factory.mktemp("layers") / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(layers, X, path, dynamo=True, verbose=False)
    return onnx.load(path)


def _keys(model: onnx.ModelProto) -> list[list[onnx.NodeProto]]:
    """Of each layer the three views that turn its keys for the product with its queries."""
    made = {node.output[0]: node for node in model.graph.node}
    readers = [n for n in model.graph.node if n.op_type == "Mul" and made[n.input[0]].op_type == "Reshape"]
    found = []
    for reader in readers:
        third = made[reader.input[0]]
        second = made[third.input[0]]
        found.append([made[second.input[0]], second, third])
    return found


def _wrong(a: object, b: object) -> list[Finding]:
    compared = ds.compare(a, b, X)
    assert compared.verdict is Verdict.DIFFERENT
    return [f for f in compared.findings if not f.note]


def _rewired(model: onnx.ModelProto, view: int) -> tuple[onnx.ModelProto, str]:
    """The second layer takes the keys of the first one before this view of them."""
    broken = copy.deepcopy(model)
    first, second = _keys(broken)
    second[view].input[0] = first[view].input[0]
    return broken, second[view].name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("view", range(3))
@pytest.mark.parametrize("turned", [False, True])
def test_the_view_that_reads_another_layers_keys_is_the_place(exported, view, turned):
    broken, edited = _rewired(exported, view)
    first, *more = _wrong(*((broken, exported) if turned else (exported, broken)))
    assert (first.where.node, more) == (edited, [])
    assert first.verified
    assert first.fix.startswith(f"Connect {edited} to")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("view", range(3))
def test_it_is_the_place_beside_a_fused_attention_too(layers, exported, view):
    broken, edited = _rewired(exported, view)
    first, *more = _wrong(layers, broken)
    assert (first.where.node, more) == (edited, [])
    assert "too, which B does not read" in first.why


def test_a_product_of_the_keys_alone_does_not_read_what_a_fused_attention_does(layers, exported):
    broken = copy.deepcopy(exported)
    made = {node.output[0]: node for node in broken.graph.node}
    products = [[made.get(name) for name in n.input] for n in broken.graph.node if n.op_type == "MatMul"]
    _, (queries, keys) = [pair for pair in products if all(n is not None and n.op_type == "Mul" for n in pair)]
    queries.input[0] = made[made[made[keys.input[0]].input[0]].input[0]].input[0]  # before its three views
    first, *more = _wrong(layers, broken)
    assert (first.where.node, more) == (queries.name, [])
    assert "too, which B does not read" in first.why


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_that_is_subtracted_is_the_place_and_no_number_is_accused(exported, turned):
    """What is left chooses among masked places alone, and float64 decides nothing: no number may be repaired by it."""
    broken = copy.deepcopy(exported)
    made = {node.output[0]: node for node in broken.graph.node}
    masks = [made[n.input[0]] for n in broken.graph.node if n.op_type == "Softmax"]
    masks[1].op_type = "Sub"
    first, *more = _wrong(*((broken, exported) if turned else (exported, broken)))
    assert (first.where.node, more) == (masks[1].name, [])
    assert first.verified
    assert "constant" not in first.why


def test_the_file_itself_is_the_same_function(layers, exported):
    assert ds.compare(layers, exported, X).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
    assert ds.compare(exported, exported, X).verdict is Verdict.IDENTICAL

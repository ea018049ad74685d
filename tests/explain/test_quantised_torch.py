"""Integers and scales that a torch program stores itself, and what a quantised program chooses by its values."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers quantized_decomposed


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.one = nn.Parameter(0.2 * torch.randn(24, 16, generator=generator))
        self.two = nn.Parameter(0.2 * torch.randn(8, 24, generator=generator))

    def forward(self, x):
        return torch.relu(x @ self.one.T) @ self.two.T


class Stored(nn.Module):
    """Each weight as integers with a scale per row; the input and what lies between are rounded as well."""

    def __init__(self, plain, activations, scaled):
        super().__init__()
        self.activations, self.scaled = activations, scaled
        for name in ("one", "two"):
            weight = getattr(plain, name).detach()
            scale = weight.abs().amax(1) / 127
            self.register_buffer(name, torch.round(weight / scale[:, None]).to(torch.int8))
            self.register_buffer(f"{name}_scale", scale)

    def weight(self, name):
        integers, scale = getattr(self, name), getattr(self, f"{name}_scale")
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        return torch.ops.quantized_decomposed.dequantize_per_channel(integers, scale, zeros, 0, -128, 127, torch.int8)

    def product(self, x, name):
        if self.scaled:  # as torchao multiplies: integers first, scales afterwards
            return (x @ getattr(self, name).to(torch.float32).T) * getattr(self, f"{name}_scale")
        return x @ self.weight(name).T

    def rounded(self, x):
        if not self.activations:
            return x
        ops = torch.ops.quantized_decomposed
        given = ops.quantize_per_tensor(x, 0.03, 128, 0, 255, torch.uint8)
        return ops.dequantize_per_tensor(given, 0.03, 128, 0, 255, torch.uint8)

    def forward(self, x):
        return self.product(self.rounded(torch.relu(self.product(self.rounded(x), "one"))), "two")


def x():
    return (torch.randn(5, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("how", [(True, False), (False, False), (False, True)])
def test_stored_integers_are_quantised_weights_on_either_side(how, turned):
    plain = Plain()
    pair = (Stored(plain, *how), plain) if turned else (plain, Stored(plain, *how))
    found = ds.compare(*pair, x(), isolate=False)
    assert str(found.verdict) == "PRECISION", found.reason
    assert found.first.code == "W013"
    assert f"{'A' if turned else 'B'} is {'B' if turned else 'A'} with quantised weights: 2 " in found.reason


@pytest.mark.parametrize("how", [(True, False), (False, True)])
@pytest.mark.parametrize("bug", ["scale", "integer", "function"])
def test_a_bug_beside_stored_integers_is_found(how, bug):
    plain = Plain()
    other = Stored(plain, *how)
    if bug == "scale":
        other.one_scale[3] *= 1.5
    elif bug == "integer":
        other.two[2, 3] += 9
    else:
        other.product = lambda x, name: Stored.product(other, x, name) * (1.001 if name == "two" else 1.0)
    found = ds.compare(plain, other, x(), isolate=False)
    assert str(found.verdict) == "DIFFERENT"


def _classifier(levels: bool, shift: float = 0.0):
    """Scores of a weight, stored in floats or as integers, and the largest of each row."""
    weight = np.random.default_rng(3).standard_normal((16, 6)).astype(np.float32)
    scale = np.float32(np.abs(weight).max() / 7)
    stored = {"i": np.rint(weight / scale).astype(np.int8), "s": scale} if levels else {"w": weight}
    nodes = [helper.make_node("DequantizeLinear", ["i", "s"], ["w"], "weights")] if levels else []
    nodes += [
        helper.make_node("MatMul", ["x", "w"], ["scores"], "product"),
        helper.make_node("Add", ["scores", "b"], ["moved"], "move"),
        helper.make_node("ArgMax", ["moved"], ["y"], "choose", axis=1, keepdims=0),
    ]
    stored["b"] = np.array([shift, 0, 0, 0, 0, 0], np.float32)
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [400, 16])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [400])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_choices_of_a_quantised_program_are_its_quantisation():
    inputs = (torch.randn(400, 16, generator=torch.Generator().manual_seed(2)),)
    for pair in ((False, True), (True, False)):
        found = ds.compare(*(_classifier(levels) for levels in pair), inputs)
        assert str(found.verdict) == "PRECISION", found.reason
        assert found.first.code == "W013"
        assert "elements differ" in found.reason


def test_choices_that_stay_without_the_quantisation_are_another_program():
    inputs = (torch.randn(400, 16, generator=torch.Generator().manual_seed(2)),)
    found = ds.compare(_classifier(levels=False), _classifier(levels=True, shift=0.5), inputs)
    assert str(found.verdict) == "DIFFERENT"


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.layer = getattr(nn, kind)(12, 8, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.layer(x)[0])


def shrunk(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.LSTM, nn.GRU, nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.slow
def test_a_recurrent_layer_with_packed_weights_is_lifted_and_is_its_float_layer_quantised(kind):
    model, given = Recurrent(kind).eval(), torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
    small = shrunk(model)
    for a, b in ((model, small), (small, model)):
        c = ds.compare(a, b, (given,), isolate=False)
        assert str(c.verdict) == "PRECISION", c.reason
        assert "9 integer tensors" in c.reason
        assert "evaluated" not in c.reason  # its graph in float64 gives what the kernel gave
    itself = ds.compare(small, small, (given,), isolate=False)
    assert str(itself.verdict) == "IDENTICAL"
    with torch.no_grad():
        model.layer.weight_hh_l1[3] *= 1.1
    for a, b in ((model, small), (small, model)):
        c = ds.compare(a, b, (given,), isolate=False)
        assert str(c.verdict) == "DIFFERENT", c.reason
        assert c.first.code == "W012"
        assert "weight_hh_l1" in c.first.what


class Cell(nn.Module):
    """One step of a recurrent layer, called by itself."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.cell = getattr(nn, kind)(6, 5)

    def forward(self, x, h):
        return self.cell(x, (h, h.flip(0)) if "LSTM" in type(self.cell).__name__ else h)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.sampled(2)
def test_a_cell_with_packed_weights_is_lifted_and_is_its_float_cell_rounded(kind, dtype):
    g = torch.Generator().manual_seed(1)
    given = torch.randn(3, 6, generator=g), torch.randn(3, 5, generator=g)
    model = Cell(kind).eval()
    small = torch.ao.quantization.quantize_dynamic(model, {nn.LSTMCell, nn.GRUCell, nn.RNNCell}, dtype=dtype)
    words = "weights rounded to float16" if dtype is torch.float16 else "2 integer tensors"
    for a, b in ((model, small), (small, model)):
        found = ds.compare(a, b, given)
        assert found.verdict == "PRECISION", found.reason
        assert words in found.reason
        assert "evaluated" not in found.reason  # its graph in float64 gives what the kernel gave
    assert ds.compare(small, small, given).verdict == "IDENTICAL"
    with torch.no_grad():
        model.cell.weight_hh[3] *= 1.1
    for a, b in ((model, small), (small, model)):
        assert ds.compare(a, b, given).verdict == "DIFFERENT"


class Copies(nn.Module):
    """Two layers of which the second is nearly a copy of the first."""

    def __init__(self, factor: float = 1.0):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(2))
        self.layers[1].load_state_dict(self.layers[0].state_dict())
        with torch.no_grad():
            self.layers[1].weight.mul_(1 + 1e-6 * torch.randn(12, 12)).mul_(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return x


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PRECISION"), (1.05, "DIFFERENT")])
def test_packed_weights_are_integers_or_float16_and_each_layer_has_its_own(turned, dtype, factor, verdict):
    packed = torch.ao.quantization.quantize_dynamic(Copies(factor), {nn.Linear}, dtype=dtype)
    values = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    pair = (Copies(), packed)
    found = ds.compare(*(pair[::-1] if turned else pair), values)
    assert found.verdict == verdict, found.reason
    if factor == 1.0:
        assert ("weights rounded to float16" if dtype == torch.float16 else "quantised weights") in found.reason


class Unpacked(nn.Module):
    """The same with integers and a scale per row that the program stores itself."""

    def __init__(self, model: Copies):
        super().__init__()
        for k, layer in enumerate(model.layers):
            scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
            self.register_buffer(f"integers_{k}", torch.round(layer.weight.detach() / scale).to(torch.int8))
            self.register_buffer(f"scale_{k}", scale)
            self.register_buffer(f"bias_{k}", layer.bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in range(2):
            weight = getattr(self, f"integers_{k}").float() * getattr(self, f"scale_{k}")
            x = x + (x @ weight.T + getattr(self, f"bias_{k}")).relu()
        return x


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PRECISION"), (1.05, "DIFFERENT")])
def test_stored_integers_of_nearly_equal_layers_have_the_scale_beside_them(turned, factor, verdict):
    values = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    pair = (Copies(), Unpacked(Copies(factor)))
    found = ds.compare(*(pair[::-1] if turned else pair), values)
    assert found.verdict == verdict, found.reason

"""Quantisation beside weights: infinite ranges, padded integers, activations alone, tables and integers with a zero."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from driftscope.explain.quantised.weights import IntegerGrid

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers quantized_decomposed
OPS = torch.ops.quantized_decomposed


def quantised(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path, layout: str, dynamo: bool = False
) -> str:
    plain, small = str(folder / "plain.onnx"), str(folder / f"{layout}.onnx")
    names = ["x", "keep"][: len(inputs)]
    torch.onnx.export(model, inputs, plain, verbose=False, dynamo=dynamo, input_names=names)

    class Reader(CalibrationDataReader):
        left = iter([{name: value.numpy() for name, value in zip(names, inputs, strict=True)}])

        def get_next(self):
            return next(self.left, None)

    quantize_static(plain, small, Reader(), quant_format=QuantFormat[layout], activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8, reduce_range=True)  # fmt: skip
    return small


class Masked(nn.Module):
    """Attention whose mask holds infinities: stored, or made of an input; ``scale`` is a number of its own."""

    def __init__(self, stored: bool):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer, self.stored = nn.Linear(16, 48), nn.Linear(16, 16), stored
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.register_buffer("scale", torch.tensor(0.37))

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) * self.scale
        hidden = scores + (self.mask if keep is None else torch.where(keep, 0.0, -torch.inf))
        return self.outer(torch.softmax(hidden, -1) @ v)


@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.sampled(1)
def test_an_infinite_range_is_the_one_thing_that_is_wrong_with_a_quantisation(
    stored: bool, layout: str, tmp_path: Path
):
    model = Masked(stored).eval()
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))
    inputs = (x,) if stored else (x, torch.ones(8, 8).tril() > 0)
    small = quantised(model, inputs, tmp_path, layout)
    for pair in ((model, small), (small, model)):
        c = ds.compare(*pair, inputs)
        assert str(c.verdict) == "DIFFERENT", c.reason
        assert [(f.code, f.verified) for f in c.findings if not f.note] == [("W012", True)]
        assert "infinit" in c.first.what
        assert "nodes_to_exclude" in c.first.fix


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)

    def forward(self, x):
        y = F.pad(self.one(x), (1, 1, 1, 1))
        return self.two(y[..., 1:, :] + y[..., :-1, :])


@pytest.mark.parametrize(("off", "verdict"), [(0, "PRECISION"), (40, "DIFFERENT")])
@pytest.mark.sampled(1)
def test_integers_are_padded_with_the_one_that_stands_for_zero(off: int, verdict: str, tmp_path: Path):
    model, x = Padded().eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    small = onnx.load(quantised(model, (x,), tmp_path, "QOperator"))
    pad = next(n for n in small.graph.node if n.op_type == "Pad")
    filled = next(i for i in small.graph.initializer if i.name == pad.input[2])
    assert filled.data_type == onnx.TensorProto.UINT8
    moved = numpy_helper.to_array(filled) + np.uint8(off)
    small.graph.initializer.append(numpy_helper.from_array(moved, "filled"))
    pad.input[2] = "filled"
    for pair in ((model, small), (small, model)):
        c = ds.compare(*pair, (x,))
        assert str(c.verdict) == verdict, c.reason


def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    given = OPS.quantize_per_tensor(x, scale, 128, 0, 255, torch.uint8)
    return OPS.dequantize_per_tensor(given, scale, 128, 0, 255, torch.uint8)


class Rounding(nn.Module):
    """A product whose input or whose table is rounded to integers on the way, and no weight is stored as integers."""

    def __init__(self, where: str, factor: float = 1.0):
        super().__init__()
        self.where, self.factor = where, factor
        self.weight = nn.Parameter(torch.randn(16, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        table = torch.exp(-self.weight.square())
        x = rounded(x, 0.03) if self.where == "input" else x
        table = rounded(table, 0.01) if self.where == "table" else table
        return torch.tanh(x @ table) * self.factor


@pytest.mark.parametrize("where", ["input", "table"])
def test_rounding_on_the_way_alone_is_quantisation_and_a_factor_beside_it_is_none(where: str):
    x = (torch.randn(5, 16, generator=torch.Generator().manual_seed(1)),)
    plain = Rounding("")
    for pair, side in (((plain, Rounding(where)), "B"), ((Rounding(where), plain), "A")):
        c = ds.compare(*pair, x, isolate=False)
        assert str(c.verdict) == "PRECISION", c.reason
        assert f"{side} is {'B' if side == 'A' else 'A'} with quantised activations" in c.reason
        assert "no weights" in c.first.why
    c = ds.compare(plain, Rounding(where, 1.001), x, isolate=False)
    assert str(c.verdict) == "DIFFERENT"


class Unsigned(nn.Module):
    """A table stored as unsigned integers with a zero point; ``off`` moves one of them."""

    def __init__(self, plain: Rounding, off: int = 0):
        super().__init__()
        table = torch.exp(-plain.weight.detach().square()) - 0.2
        self.scale = float((table.max() - table.min()) / 255)
        self.zero = round(float(-table.min()) / self.scale)
        integers = torch.round(table / self.scale + self.zero).clamp(0, 255)
        integers[2, 3] += off
        self.register_buffer("table", integers.to(torch.uint8))

    def forward(self, x):
        return x @ OPS.dequantize_per_tensor(self.table, self.scale, self.zero, 0, 255, torch.uint8)


class Shifted(Rounding):
    def forward(self, x):
        return x @ (torch.exp(-self.weight.square()) - 0.2)


@pytest.mark.parametrize(("off", "verdict"), [(0, "PRECISION"), (9, "DIFFERENT")])
def test_integers_with_a_zero_point_are_the_rounding_of_what_the_other_side_computes(off: int, verdict: str):
    x = (torch.randn(5, 16, generator=torch.Generator().manual_seed(1)),)
    plain = Shifted("")
    small = Unsigned(plain, off)
    for pair in ((plain, small), (small, plain)):
        c = ds.compare(*pair, x, isolate=False)
        assert str(c.verdict) == verdict, c.reason


class Positions(nn.Module):
    """A bias that a small network computes of places, as in Swin V2: its first product is stored before its bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(2, 16), nn.Linear(16, 4, bias=False), nn.Linear(4, 4)
        axis = torch.linspace(-1, 1, 3)
        self.register_buffer("places", torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)[None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + self.second(torch.relu(self.first(self.places)))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PRECISION"), (1.25, "DIFFERENT")])
@pytest.mark.sampled(1)
def test_a_stored_product_before_its_bias_is_a_weight_like_any_other(factor: float, verdict: str, tmp_path: Path):
    model, x = Positions().eval(), torch.randn(2, 3, 3, 4)
    path = quantised(model, (x,), tmp_path, "QDQ", dynamo=True)
    graph = onnx.load(path)
    back = (n for n in graph.graph.node if n.op_type == "DequantizeLinear")
    scale = next(n.input[1] for n in back if n.input[0].startswith("val"))
    stored = next(i for i in graph.graph.initializer if i.name == scale)
    stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored) * np.float32(factor), scale))
    for pair in ((model, graph), (graph, model)):
        found = ds.compare(*pair, (x,))
        assert found.verdict == verdict, found.reason
        assert found.first is not None
        assert found.first.code == ("W013" if factor == 1.0 else "W012")
        assert factor == 1.0 or found.first.verified


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PRECISION"), (1.1, "DIFFERENT")])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(2)
def test_a_weight_that_is_computed_in_the_graph_is_quantised_while_running(factor, verdict, swapped, tmp_path: Path):
    generator = torch.Generator().manual_seed(0)
    flat, layer = torch.randn(12, 5, generator=generator), torch.randn(12, 12, generator=generator) / 4
    x = torch.randn(2, 12, 9, generator=generator)
    nodes = [
        helper.make_node("MatMul", ["x", "layer"], ["hidden"], "matmul"),
        helper.make_node("Unsqueeze", ["flat", "one"], ["weight"], "unsqueeze"),
        helper.make_node("Transpose", ["hidden"], ["turned"], "turn", perm=[0, 2, 1]),
        helper.make_node("Conv", ["turned", "weight"], ["y"], "conv", group=12, pads=[2, 2]),
    ]
    held = {"layer": layer.numpy(), "flat": flat.numpy(), "one": np.array([1], np.int64)}
    kinds = [("x", [2, 9, 12]), ("y", [2, 12, 9])]
    given, made = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in kinds)
    stored = [numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph(nodes, "computed", [given], [made], stored)
    plain, small = tmp_path / "plain.onnx", tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), plain)
    quantize_dynamic(plain, small)
    assert sum(n.op_type == "DynamicQuantizeLinear" for n in onnx.load(small).graph.node) == 3

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.conv1d((x @ layer).transpose(1, 2), factor * flat.unsqueeze(1), padding=2, groups=12)

    pair = [program, str(small)]
    found = ds.compare(*(pair[::-1] if swapped else pair), (x.transpose(1, 2),), explain=False)
    assert found.verdict == verdict, found.reason


def _renamed(path: str) -> None:
    model = onnx.load(path)
    names = {i.name: f"number{k}" for k, i in enumerate(model.graph.initializer) if "bias" in i.name}
    for holder in model.graph.initializer:
        holder.name = names.get(holder.name, holder.name)
    for node in model.graph.node:
        for values in (node.input, node.output):
            for k, name in enumerate(values):
                values[k] = names.get(name, name.replace("bias", "made"))
    onnx.save(model, path)


class Twins(nn.Module):
    """Layers of one size whose biases are far less than a step of their sums: their integers are all nought."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.factor = 1e4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in (2, 0, 3, 1):
            x = torch.relu(self.layers[k](x)) * self.factor
        return x


@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
@pytest.mark.parametrize(("off", "verdict"), [(0, "PRECISION"), (1, "DIFFERENT")])
@pytest.mark.sampled(2)
def test_a_bias_that_any_is_the_rounding_of_is_that_of_its_layer(layout, off, verdict, tmp_path: Path):
    model, x = Twins().eval(), torch.randn(16, 8, generator=torch.Generator().manual_seed(1)) * 1e3
    small = quantised(model, (x,), tmp_path, layout)
    _renamed(small)  # as those that an exporter folds
    if off:
        with torch.no_grad():
            model.layers[3].weight[2] *= 1.3
    found = ds.compare(model, small, (x,), explain=False)
    assert found.verdict == verdict, found.reason


class Enlarged(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 4, 3)

    def forward(self, x):
        y = self.one(x)
        return self.two(F.interpolate(y[..., 1:, :] + y[..., :-1, :], scale_factor=2, mode="bilinear"))


@pytest.mark.parametrize(("spread", "verdict"), [("half_pixel", "PRECISION"), ("asymmetric", "DIFFERENT")])
@pytest.mark.sampled(1)
def test_integers_that_are_interpolated_are_numbers_that_are(spread: str, verdict: str, tmp_path: Path):
    model, x = Enlarged().eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    small = onnx.load(quantised(model, (x,), tmp_path, "QOperator", dynamo=True))
    resize = next(n for n in small.graph.node if n.op_type == "Resize")
    made = next(n for n in small.graph.node if resize.input[0] in n.output)
    assert made.op_type == "QLinearAdd"
    next(a for a in resize.attribute if a.name == "coordinate_transformation_mode").s = spread.encode()
    for pair in ((model, small), (small, model)):
        c = ds.compare(*pair, (x,), explain=False)
        assert str(c.verdict) == verdict, c.reason


class Shared(nn.Module):
    """Results added up by shares that are a softmax of a parameter: an exporter stores each share, one number."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.shares = nn.ModuleList(nn.Linear(8, 8) for _ in range(20)), nn.Parameter(torch.randn(20))

    def forward(self, x):
        shares = torch.softmax(self.shares, -1)
        return sum(layer(x) * shares[k] for k, layer in enumerate(self.layers))


@pytest.mark.parametrize(("off", "verdict"), [(0.0, "PRECISION"), (0.01, "DIFFERENT")])
@pytest.mark.sampled(1)
def test_a_number_that_the_program_computes_may_be_quantised_too(off: float, verdict: str, tmp_path: Path):
    model, x = Shared().eval(), torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    small = quantised(model, (x,), tmp_path, "QDQ", dynamo=True)
    with torch.no_grad():
        model.shares[1] += off
    for pair in ((model, small), (small, model)):
        c = ds.compare(*pair, (x,), explain=False)
        assert str(c.verdict) == verdict, c.reason


class Cancelled(nn.Module):
    """A result times the small difference of two large numbers, each computed from parameters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.one = nn.Linear(8, 8), nn.Parameter(torch.full((4,), 1.25))
        self.other = nn.Parameter(torch.full((4,), 1.25) - 1e-3)

    def forward(self, x):
        return self.layer(x) * (self.one.sum().exp() - self.other.sum().exp())


@pytest.mark.parametrize(("off", "verdict"), [(4e-6, "PRECISION"), (2e-2, "DIFFERENT")])
def test_a_number_of_few_digits_may_be_what_another_kernel_computed(off: float, verdict: str, tmp_path: Path):
    """The difference of two numbers near 148 is 0.6 here: float32 is off by 1e-5 and more, whoever computes it."""
    model, x = Cancelled().eval(), torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    small = onnx.load(quantised(model, (x,), tmp_path, "QDQ", dynamo=True))
    held = {t.name: t for t in small.graph.initializer}
    scales = [n.input[1] for n in small.graph.node if n.input[0] in held and not held[n.input[0]].dims]
    number = next(held[name] for name in scales if name in held)
    number.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(number) * np.float32(1 + off), number.name))
    for pair in ((model, small), (small, model)):
        c = ds.compare(*pair, (x,), explain=False)
        assert str(c.verdict) == verdict, c.reason


def test_steps_of_a_bias_may_be_smaller_than_its_own_roundings():
    exact, step = torch.tensor([1.0, 0.01], dtype=torch.float64), torch.tensor(1e-9, dtype=torch.float64)
    for off, rounds in ((1e-7, True), (1e-6, False)):
        grid = IntegerGrid("bias", exact + torch.tensor([0.0, off], dtype=torch.float64), step, exact < 0)
        assert grid.rounds(exact) is rounds
    rows = exact.expand(2, 2)  # a weight has no terms that cancel
    assert not IntegerGrid("weight", rows + 1e-7 * (rows < 0.5), step, rows < 0).rounds(rows)

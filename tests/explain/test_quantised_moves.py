"""Quantised graphs with neutral numbers that the model does not have, and with integers that are moved on their way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer
from tests.zoo.tools import dynamo
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.verdict import Verdict


class Grouped(nn.Module):
    """A group norm, which exporters write as an instance norm with ones and zeros; a gain has the size of those."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.GroupNorm(4, 8), nn.Linear(4, 4)
        self.gain = nn.Parameter(1.0 + 0.1 * torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(x) * self.gain)


def _quantise(model: ModelProto, node: onnx.NodeProto, slot: int, integers: np.ndarray, scale: float) -> None:
    name = f"{node.name}.{slot}"
    stored = ((f"{name}.q", integers.astype(np.int8)), (f"{name}.s", np.float32(scale)), (f"{name}.z", np.int8(0)))
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), n) for n, value in stored)
    model.graph.node.insert(
        0, helper.make_node("DequantizeLinear", [n for n, _ in stored], [f"{name}.d"], f"{name}.node")
    )
    node.input[slot] = f"{name}.d"


@pytest.mark.slow
@pytest.mark.parametrize(("one", "verdict"), [(127, Verdict.PRECISION), (64, Verdict.DIFFERENT)])
def test_a_quantised_one_is_no_wrong_weight_of_another_layer(one: int, verdict: Verdict, tmp_path: Path):
    torch.manual_seed(0)
    module, x = Grouped().eval(), torch.randn(2, 8, 4)
    model = onnx.load(dynamo(module, (x,), tmp_path))
    norm = next(n for n in model.graph.node if n.op_type == "InstanceNormalization")
    _quantise(model, norm, 1, np.full(4, one), 1 / 127)
    _quantise(model, norm, 2, np.zeros(4), 1.0)
    product = next(n for n in model.graph.node if n.op_type in ("MatMul", "Gemm"))
    weight = next(numpy_helper.to_array(i) for i in model.graph.initializer if i.name == product.input[1])
    scale = float(np.abs(weight).max() / 127)
    _quantise(model, product, 1, np.round(weight / scale), scale)
    found = ds.compare(module, model, (x,))
    assert found.verdict is verdict, found.reason


def _square(quantised: bool, turned: bool = True) -> ModelProto:
    """``x @ W + x.T``; quantised, the integers of ``x`` are made once, and transposed as integers."""
    weight = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    scale = np.float32(np.abs(weight).max() / 127)
    move = helper.make_node("Transpose" if turned else "Identity", ["q" if quantised else "x"], ["moved"], "move")
    stored = [numpy_helper.from_array(weight, "W")]
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["y"], "product"),
        move,
        helper.make_node("Add", ["y", "moved"], ["out"]),
    ]
    if quantised:
        stored = [
            numpy_helper.from_array(np.round(weight / scale).astype(np.int8), "W"),
            numpy_helper.from_array(scale, "s"), numpy_helper.from_array(np.int8(0), "z"),
        ]  # fmt: skip
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"], "quantise"),
            helper.make_node("MatMulInteger", ["q", "W", "xz", "z"], ["i"], "product"),
            helper.make_node("Cast", ["i"], ["c"], "cast", to=TensorProto.FLOAT),
            helper.make_node("Mul", ["xs", "s"], ["both"], "scales"),
            helper.make_node("Mul", ["c", "both"], ["y"], "scaled"),
            move,
            helper.make_node("DequantizeLinear", ["moved", "xs", "xz"], ["back"], "back"),
            helper.make_node("Add", ["y", "back"], ["out"], "sum"),
        ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [6, 6]) for n in ("x", "out")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("turned", "verdict"), [(True, Verdict.PRECISION), (False, Verdict.DIFFERENT)])
def test_dynamically_quantised_integers_may_be_moved_before_they_are_floats_again(turned: bool, verdict: Verdict):
    x = {"x": np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)}
    found = ds.compare(_square(False), _square(True, turned), x)
    assert found.verdict is verdict, found.reason


def _clipped(end: float, quantised: bool) -> ModelProto:
    """``clip(x @ W, 0, end) @ V``; quantised, a range from 0 to 6 takes the place of the clip."""
    one, two = (np.random.default_rng(k).normal(size=(6, 6)).astype(np.float32) for k in (3, 4))
    scale = np.float32(np.abs(two).max() / 127)
    stored = {"W": one, "V": two, "low": np.float32(0.0), "high": np.float32(end)}
    nodes = [helper.make_node("Clip", ["h", "low", "high"], ["c"], "clip")]
    if quantised:
        stored = {"W": one, "Vq": np.round(two / scale).astype(np.int8), "vs": scale, "vz": np.int8(0)}
        stored |= {"s": np.float32(6.0 / 255), "z": np.uint8(0)}
        nodes = [
            helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"], "quantise"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["c"], "back"),
            helper.make_node("DequantizeLinear", ["Vq", "vs", "vz"], ["V"], "weight"),
        ]
    whole = [
        helper.make_node("MatMul", ["x", "W"], ["h"], "first"), *nodes,
        helper.make_node("MatMul", ["c", "V"], ["out"], "second"),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [6, 6]) for n in ("x", "out")]
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph(whole, "g", ends[:1], ends[1:], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("end", "verdict"), [(6.0, Verdict.PRECISION), (5.0, Verdict.DIFFERENT)])
def test_a_range_may_take_the_place_of_a_clip_that_ends_with_it(end: float, verdict: Verdict):
    x = {"x": 4.0 * np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)}
    found = ds.compare(_clipped(end, False), _clipped(end, True), x)
    assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(("bias", "verdict"), [(40, Verdict.PRECISION), (90, Verdict.DIFFERENT)])
def test_a_bias_of_one_element_is_a_weight_and_stored_zeros_are_none(bias: int, verdict: Verdict):
    """Zeros with a scale of one would be any small weight of their size, rounded."""
    torch.manual_seed(0)
    module, x = nn.Linear(4, 1), torch.randn(4, 4)
    steps = (torch.arange(4.0) - 1.5)[None] * 20 + 1
    with torch.no_grad():
        module.weight.copy_(steps * 0.01)
        module.bias.fill_(0.4013)
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [4, 4]), ("y", [4, 2])))
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["l"], "linear", transB=1),
        helper.make_node("Concat", ["l", "zeros"], ["y"], "join", axis=1),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [given], [made]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    _quantise(model, nodes_of(model)["linear"], 1, (steps.numpy()).round(), 0.01)
    _quantise(model, nodes_of(model)["linear"], 2, np.array([bias]), 0.01)
    _quantise(model, nodes_of(model)["join"], 1, np.zeros((4, 1)), 1.0)
    found = ds.compare(lambda x: torch.cat([module(x), torch.zeros(4, 1)], 1), model, x)
    assert found.verdict is verdict, found.reason


def nodes_of(model: ModelProto) -> dict[str, onnx.NodeProto]:
    """The nodes by their names."""
    return {node.name: node for node in model.graph.node}


class Embedded(nn.Module):
    """An embedding whose rows linear layers read at once; with ``kept``, its rows are read as floats as well."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.table, self.one, self.two, self.kept = nn.Embedding(50, 16), nn.Linear(16, 8), nn.Linear(16, 8), kept

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x)
        made = self.one(rows).tanh() + self.two(rows)
        return torch.cat((made, rows), -1) if self.kept else made


def embedded(kept: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Embedded(kept).eval(), torch.randint(0, 50, (3, 7))


@pytest.mark.parametrize("kept", [True, False])
def test_the_integers_of_an_embedding_are_multiplied_with_the_next_layers(kept: bool, tmp_path: Path):
    module, x = embedded(kept)
    quantize_dynamic(dynamo(module, (x,), tmp_path), tmp_path / "q.onnx")
    model = onnx.load(tmp_path / "q.onnx")
    assert any(n.op_type == "MatMulInteger" and n.input[0].startswith("embedding") for n in model.graph.node)
    for a, b in ((module, model), (model, module)):
        found = ds.compare(a, b, (x,))
        assert found.verdict is Verdict.PRECISION, found.reason
        assert "3 integer tensors" in found.reason
    (scale,) = (i for i in model.graph.initializer if i.name == "val_2_scale")
    scale.CopyFrom(numpy_helper.from_array(np.float32(1.5) * numpy_helper.to_array(scale), scale.name))
    found = ds.compare(module, model, (x,))
    assert found.verdict is Verdict.DIFFERENT
    assert "is not two.weight quantised: its scale is" in found.findings[0].what


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_table_quantised_in_blocks_is_its_rounding(symmetric: bool, tmp_path: Path):
    """GatherBlockQuantized, which onnxruntime's quantiser makes of an embedding."""
    module, x = embedded(True)
    how = DefaultWeightOnlyQuantConfig(
        block_size=16, is_symmetric=symmetric, op_types_to_quantize=("Gather",), quant_axes=(("Gather", 1),)
    )
    quantiser = MatMulNBitsQuantizer(onnx.load(dynamo(module, (x,), tmp_path)), algo_config=how)
    quantiser.process()
    model = quantiser.model.model
    assert any(n.op_type == "GatherBlockQuantized" for n in model.graph.node)
    for a, b in ((module, model), (model, module)):
        found = ds.compare(a, b, (x,))
        assert found.verdict is Verdict.PRECISION, found.reason
        assert "table.weight" in found.reason
    (scale,) = (i for i in model.graph.initializer if i.name == "table.weight_scales")
    wrong = numpy_helper.to_array(scale).copy()
    wrong[: len(wrong) // 2] *= 1.5
    scale.CopyFrom(numpy_helper.from_array(wrong, scale.name))
    assert ds.compare(module, model, (x,)).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, True)])
def test_integers_of_a_table_that_share_bytes_are_its_rounding_too(bits: int, zeros: bool):
    weight = torch.randn(20, 32, generator=torch.Generator().manual_seed(1))
    blocks, middle = weight.numpy().reshape(20, 2, 16), 1 << (bits - 1)
    low, high = (blocks.min(-1), blocks.max(-1)) if zeros else (-np.abs(blocks).max(-1), np.abs(blocks).max(-1))
    scale = ((high - low) / (2 * middle - 2)).astype(np.float32)
    zero = np.round(-low / scale).astype(np.uint8) if zeros else np.full(scale.shape, middle, np.uint8)
    integers = (np.round(blocks / scale[..., None]) + zero[..., None]).clip(0, 2 * middle - 1).reshape(20, 32)

    def packed(values: np.ndarray) -> np.ndarray:
        whole = values.astype(np.uint8)
        return whole if bits == 8 else whole[..., ::2] | (whole[..., 1::2] << 4)

    def model(factor: float) -> ModelProto:
        made = helper.make_node(
            "GatherBlockQuantized", ["d", "i", "s", *(["z"] if zeros else [])], ["r"], "table", domain="com.microsoft",
            bits=bits, block_size=16, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        held = {"d": packed(integers), "s": scale * np.float32(factor), **({"z": packed(zero)} if zeros else {})}
        graph = helper.make_graph(
            [made, helper.make_node("Tanh", ["r"], ["y"])], "g",
            [helper.make_tensor_value_info("i", TensorProto.INT64, [3, 5])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5, 32])],
            [numpy_helper.from_array(value, name) for name, value in held.items()],
        )  # fmt: skip
        sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=sets, ir_version=10)

    x = torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(2))
    for factor, verdict in ((1.0, Verdict.PRECISION), (1.5, Verdict.DIFFERENT)):
        found = ds.compare(lambda i: nn.functional.embedding(i, weight).tanh(), model(factor), (x,))
        assert found.verdict is verdict, found.reason

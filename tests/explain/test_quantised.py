"""A quantised file is its float file when its integers are the rounded weights, and is not when a number is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from torch import nn

import driftscope as ds
from driftscope.explain.quantised.findings import wrong_weight
from driftscope.explain.quantised.weights import IntegerGrid
from driftscope.lift.formulas.quantisation import integer_product, sums_of_two_saturate
from driftscope.lift.steps import Constant, Origin
from driftscope.programs.bare_sessions import bare_session
from driftscope.records.finding import Where
from driftscope.records.verdict import Verdict


class Batches(CalibrationDataReader):
    def __init__(self):
        generator = np.random.default_rng(0)
        self.left = iter([{"x": generator.standard_normal((8, 32)).astype(np.float32)} for _ in range(4)])

    def get_next(self):
        return next(self.left, None)


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(32, 64) * 0.1), nn.Parameter(torch.randn(64, 32) * 0.1)

    def forward(self, x):
        return torch.relu(x @ self.one) @ self.two


def files(folder: Path, how: str) -> tuple[str, str]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16))
    module = (Products() if "bits" in how else layers).eval()
    plain, small = str(folder / "plain.onnx"), str(folder / "small.onnx")
    torch.onnx.export(module, (torch.randn(8, 32),), plain, verbose=False, dynamo=False, input_names=["x"])
    if how == "dynamic":
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
    elif how == "dynamic per channel":
        quantize_dynamic(plain, small, weight_type=QuantType.QUInt8, per_channel=True)
    elif how == "static":
        quantize_static(plain, small, Batches(), quant_format=QuantFormat.QDQ, per_channel=True)
    else:
        quantizer = MatMulNBitsQuantizer(
            onnx.load(plain), bits=int(how[0]), block_size=16, is_symmetric="symmetric" in how,
            quant_format=QuantFormat.QDQ if "QDQ" in how else QuantFormat.QOperator,
        )  # fmt: skip
        quantizer.process()
        quantizer.model.save_model_to_file(small)
    return plain, small


KINDS = ["dynamic", "dynamic per channel", "static", "4 bits symmetric", "4 bits", "8 bits", "4 bits QDQ"]


@pytest.mark.parametrize("how", KINDS)
def test_rounded_weights_are_precision_with_what_each_layer_costs(tmp_path, how):
    plain, small = files(tmp_path, how)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    for pair, side in (((plain, small), "B"), ((small, plain), "A")):
        c = ds.compare(*pair, x)
        assert (c.verdict, c.first.code) == (ds.Verdict.PRECISION, "W013")
        assert c.first.what.startswith(f"{side} is ")
        layers = c.first.evidence["replay"]["layers"]
        assert [row["output"] for row in layers] == sorted((row["output"] for row in layers), reverse=True)
        assert 0 < layers[0]["output"] < 0.5


def test_weights_beside_a_graph_are_read_into_memory_for_a_quantised_side_alone(tmp_path, monkeypatch):
    plain, small = files(tmp_path, "dynamic")
    loaded = []
    load = onnx.external_data_helper.load_external_data_for_model
    monkeypatch.setattr(
        onnx.external_data_helper,
        "load_external_data_for_model",
        lambda model, folder: (loaded.append(len(model.graph.node)), load(model, folder))[1],
    )
    for path in (plain, small):
        made = onnx.load(path)
        onnx.save_model(made, path, save_as_external_data=True, location=f"{Path(path).name}.data", size_threshold=0)
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    assert ds.compare(plain, small, x).first.code == "W013"
    assert set(loaded) == {len(onnx.load(small, load_external_data=False).graph.node)}

    wrong = onnx.load(plain, load_external_data=False)
    next(n for n in wrong.graph.node if n.op_type == "Relu").op_type = "Sigmoid"
    onnx.save(wrong, str(tmp_path / "wrong.onnx"))
    loaded.clear()
    assert ds.compare(plain, str(tmp_path / "wrong.onnx"), x).verdict is ds.Verdict.DIFFERENT
    assert not loaded


def spoiled(path: str, target: str, change) -> str:
    model = onnx.load(path)
    tensor = next(t for t in model.graph.initializer if t.name.endswith(target))
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor).copy()), tensor.name))
    onnx.save(model, path.replace("small", "wrong"))
    return path.replace("small", "wrong")


@pytest.mark.parametrize(
    ("how", "target", "change"),
    [
        ("dynamic", "weight_scale", lambda s: (s * 1.1).astype(s.dtype)),
        ("dynamic", "weight_quantized", lambda w: np.ascontiguousarray(w[::-1])),
        ("static", "0.weight_scale", lambda s: s[::-1].copy()),
        ("static", "0.weight_zero_point", lambda z: z + np.asarray(3, z.dtype)),
        ("4 bits symmetric", "_scales", lambda s: (s * 1.2).astype(s.dtype)),
    ],
)
@pytest.mark.sampled(2)
def test_a_wrong_scale_zero_point_or_axis_is_different(tmp_path, how, target, change):
    plain, small = files(tmp_path, how)
    wrong = spoiled(small, target, change)
    c = ds.compare(plain, wrong, torch.randn(8, 32, generator=torch.Generator().manual_seed(1)))
    assert c.verdict is ds.Verdict.DIFFERENT
    assert "W012" in {f.code for f in c.findings}


def saturates_here() -> bool:
    """Whether onnxruntime, on this processor, adds two products of uint8 and int8 in 16 bits."""
    given = [helper.make_tensor_value_info("a", TensorProto.UINT8, [4, 64])]
    made = [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 16])]
    weights = [numpy_helper.from_array(np.full((64, 16), 127, np.int8), "b")]
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "g", given, made, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,) = bare_session(model.SerializeToString()).run(None, {"a": np.full((4, 64), 255, np.uint8)})
    return bool((y != 64 * 255 * 127).any())


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_integer_sums_that_saturate_are_named_where_they_do(tmp_path, kind):
    torch.manual_seed(0)
    weight = torch.rand(64, 32) * 0.1 + 0.05  # large integers of one sign: neighbouring products add up

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, x):
            return x @ self.weight

    plain, small = str(tmp_path / "plain.onnx"), str(tmp_path / "small.onnx")
    x = torch.rand(8, 64) + 0.5
    torch.onnx.export(Product().eval(), (x,), plain, verbose=False, dynamo=False, input_names=["x"])
    quantize_dynamic(plain, small, weight_type=kind)
    (ran,) = ds.program(small)(x).values()
    off = torch.linalg.vector_norm(ran - x @ weight)
    for pair in ((plain, small), (small, plain)):
        c = ds.compare(*pair, x)
        assert (c.verdict, c.first.code) == (ds.Verdict.PRECISION, "W013")
        named = [f for f in c.findings if f.code == "N025"]
        assert bool(named) == (saturates_here() and kind == QuantType.QInt8)
        for finding in named:
            assert finding.evidence["off"] == pytest.approx(float(off / torch.linalg.vector_norm(x @ weight)), rel=0.02)
            assert finding.evidence["replay"]["rest"] < 1e-3 * finding.evidence["off"]


def test_the_replay_of_saturating_sums_is_what_pairs_in_16_bits_give():
    generator = np.random.default_rng(3)
    a = generator.integers(0, 256, (5, 7)).astype(np.uint8)
    b = generator.integers(-128, 128, (7, 4)).astype(np.int8)
    a[0], b[:, 0] = 255, 127
    zero_a, zero_b = np.uint8(3), np.array([1, -2, 0, 5], np.int8)
    raw = np.zeros((5, 4))
    for k in range(0, 7, 2):
        two = a[:, k : k + 2].astype(np.int64) @ b[k : k + 2].astype(np.int64)
        raw += np.clip(two, -32768, 32767)
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    expected = raw - int(zero_a) * wide_b.sum(0) - np.outer(wide_a.sum(1), zero_b) + 7 * int(zero_a) * zero_b
    tensors = [torch.from_numpy(np.asarray(t)) for t in (a, b, zero_a, zero_b)]
    exact = integer_product(*tensors)
    with sums_of_two_saturate():
        assert np.array_equal(integer_product(*tensors).numpy(), expected)
        # Unsigned weights are multiplied in another way, which is exact everywhere.
        assert torch.equal(integer_product(tensors[0], tensors[1].to(torch.uint8), None, None),
                           tensors[0].double() @ tensors[1].to(torch.uint8).double())  # fmt: skip
    assert torch.equal(integer_product(*tensors), exact)
    assert not np.array_equal(exact.numpy(), expected)


def _in_operators(tmp_path: Path) -> tuple[nn.Module, tuple[torch.Tensor, ...], onnx.ModelProto]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    x = (torch.randn(2, 3, 16, 16),)
    torch.onnx.export(module.eval(), x, tmp_path / "m.onnx", dynamo=True, verbose=False)

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{onnx.load(tmp_path / "m.onnx").graph.input[0].name: x[0].numpy()}]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    quantize_static(
        str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), Reader(), quant_format=QuantFormat.QOperator,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=True,
    )  # fmt: skip
    model = onnx.load(tmp_path / "q.onnx")
    assert {"QLinearConv", "QGemm"} <= {n.op_type for n in model.graph.node}
    return module, x, model


def test_quantised_operators_hold_the_rounded_weights_either_way(tmp_path: Path):
    module, x, model = _in_operators(tmp_path)
    for a, b in ((module, model), (model, module)):
        found = ds.compare(a, b, x)
        assert found.verdict is Verdict.PRECISION, found.reason
        assert "quantised weights" in found.reason


def test_a_wrong_scale_of_a_quantised_operator_is_different(tmp_path: Path):
    module, x, model = _in_operators(tmp_path)
    conv = next(n for n in model.graph.node if n.op_type == "QLinearConv")
    scale = next(i for i in model.graph.initializer if i.name == conv.input[4])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.25), scale.name))
    found = ds.compare(module, model, x)
    assert found.verdict is Verdict.DIFFERENT
    wrong = next(f for f in found.findings if f.code == "W012")
    assert wrong.where.node == conv.name
    assert "its scale is" in wrong.what


@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
@pytest.mark.sampled(1)
def test_a_quantised_fold_of_a_batch_norm_is_the_same_model_and_of_another_epsilon_is_not(layout: str, tmp_path: Path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 24), nn.BatchNorm1d(24, eps=1e-3), nn.ReLU(), nn.Linear(24, 8)).eval()
    norm = module[1]
    assert isinstance(norm, nn.BatchNorm1d)
    with torch.no_grad():
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            value.copy_(torch.rand(24) + 0.5)
    x = (torch.randn(8, 32),)
    torch.onnx.export(module, x, tmp_path / "m.onnx", input_names=["x"], dynamo=True, verbose=False)
    quantize_static(
        str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx"), Batches(), quant_format=QuantFormat[layout],
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=True,
    )  # fmt: skip
    found = ds.compare(module, str(tmp_path / "q.onnx"), x)
    assert found.verdict is Verdict.PRECISION, found.reason
    assert "quantised weights" in found.reason
    norm.eps = 0.1
    assert ds.compare(module, str(tmp_path / "q.onnx"), x).verdict is Verdict.DIFFERENT


class Looked(nn.Module):
    """An embedding, whose integers are chosen from before they are dequantised, and a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(20, 32), nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(ids) * 0.7)


def test_a_quantised_embedding_is_undone_and_one_with_a_wrong_scale_is_different(tmp_path: Path):
    module, ids = Looked().eval(), torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(1))
    plain, small = str(tmp_path / "plain.onnx"), str(tmp_path / "small.onnx")
    torch.onnx.export(module, (ids,), plain, verbose=False, dynamo=False)
    quantize_dynamic(plain, small, weight_type=QuantType.QInt8, reduce_range=True)
    assert {"Gather", "DequantizeLinear"} <= {n.op_type for n in onnx.load(small).graph.node}
    wrong = spoiled(small, "table.weight_scale", lambda s: np.asarray(s * 1.1, s.dtype))
    for file, expected in ((small, (Verdict.PRECISION, "W013")), (wrong, (Verdict.DIFFERENT, "W012"))):
        for pair in ((module, file), (file, module)):
            c = ds.compare(*pair, (ids,))
            assert (c.verdict, c.first.code) == expected, c.reason


def test_a_quantised_scalar_is_a_weight_like_any_other(tmp_path: Path):
    scale = numpy_helper.from_array(np.float32(0.7 / 127), "s")
    whole, zero = (numpy_helper.from_array(np.int8(v), n) for v, n in ((127, "q"), (0, "z")))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy")
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["c"]), helper.make_node("Mul", ["x", "c"], ["y"])]
    graph = helper.make_graph(nodes, "g", [given], [made], [scale, whole, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = torch.randn(4, generator=torch.Generator().manual_seed(1))
    factor = torch.tensor([0.7])
    for pair in ((lambda x: x * factor, model), (model, lambda x: x * factor)):
        assert ds.compare(*pair, x).verdict is not Verdict.DIFFERENT
    assert ds.compare(lambda x: x * (factor + 0.1), model, x).verdict is Verdict.DIFFERENT


def _packed(factor: float = 1.0) -> tuple[nn.Module, nn.Module]:
    """An MLP and its dynamic int8 copy by torch; the scale of its last layer times ``factor``."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).eval()
    small = torch.ao.quantization.quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    weight, bias = small[2].weight(), small[2].bias()
    scale = weight.q_scale() * factor
    small[2].set_weight_bias(torch._make_per_tensor_quantized_tensor(weight.int_repr(), scale, 0), bias)
    return module, small


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dynamic_int8_by_torch_is_precision_and_with_a_wrong_scale_different():
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
    module, small = _packed()
    for pair, side in (((module, small), "B"), ((small, module), "A")):
        c = ds.compare(*pair, x)
        assert (c.verdict, c.first.code) == (ds.Verdict.PRECISION, "W013"), c.reason
        assert c.first.what.startswith(f"{side} is ")
        layers = c.first.evidence["replay"]["layers"]
        assert {row["weight"] for row in layers} == {"0.weight", "2.weight"}
        assert all(0 < row["output"] < 0.1 for row in layers)
    module, wrong = _packed(1.1)
    for pair in ((module, wrong), (wrong, module)):
        c = ds.compare(*pair, x)
        assert c.verdict is ds.Verdict.DIFFERENT
        # One finding, tried: the layer whose numbers are right is not accused of its quantisation.
        assert [(f.code, f.verified) for f in c.findings if not f.note] == [("W012", True)]
        assert "its scale is" in c.first.what
        assert "2.weight" in c.first.what


def test_an_expanded_token_is_matched_with_the_token_and_not_with_a_stranger_of_its_size():
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(1, 1, 32, generator=generator, dtype=torch.float64)
    step = token.abs().max() / 127
    value = (torch.round(token / step) * step).expand(2, 1, 32)
    grid = IntegerGrid("expanded", value, step, torch.zeros(2, 1, 32, dtype=torch.bool))
    stranger = Constant("bias", torch.randn(64, generator=generator), Origin.WEIGHT, Where())
    found = grid.partner([stranger, Constant("token", token, Origin.WEIGHT, Where())])
    assert found is not None
    assert found[0].name == "token"
    assert grid.rounds(found[1])
    assert not grid.rounds(found[1] * 1.1)


class Masked(nn.Module):
    """Causal attention with an additive mask, as exporters write it."""

    def __init__(self, masked: float):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.full((8, 8), masked).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        return self.outer(torch.softmax(2 * q @ k.transpose(-1, -2) + self.mask, -1) @ v)


@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
@pytest.mark.parametrize(("masked", "verdict"), [(-3.4e38, Verdict.DIFFERENT), (-20.0, Verdict.PRECISION)])
@pytest.mark.sampled(1)
def test_a_mask_that_takes_the_whole_range_is_named_and_one_that_leaves_the_scores_some_is_none(
    layout: str, masked: float, verdict: Verdict, tmp_path: Path
):
    torch.manual_seed(0)
    model, x = Masked(masked).eval(), torch.randn(2, 8, 16)
    plain, small = str(tmp_path / "plain.onnx"), str(tmp_path / "small.onnx")
    torch.onnx.export(model, (x,), plain, verbose=False, dynamo=False, input_names=["x"])

    class Reader(CalibrationDataReader):
        left = iter([{"x": x.numpy()}])

        def get_next(self):
            return next(self.left, None)

    quantize_static(plain, small, Reader(), quant_format=QuantFormat[layout], activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8, reduce_range=True)  # fmt: skip
    for c in (ds.compare(model, small, (x,)), ds.compare(plain, small, (x,))):
        assert c.verdict is verdict, c.reason
        if verdict is Verdict.DIFFERENT:
            assert c.first.code == "W012"
            assert c.first.verified
            assert "-3.4e+38" in c.first.what
            assert "one integer" in c.first.what


def recurrent_files(folder: Path, per_channel: bool) -> tuple[nn.Module, str, str]:
    torch.manual_seed(0)
    model = nn.LSTM(12, 8, batch_first=True, bidirectional=True).eval()
    plain, small = str(folder / "plain.onnx"), str(folder / "small.onnx")
    torch.onnx.export(model, (torch.randn(2, 5, 12),), plain, verbose=False, dynamo=False, input_names=["x"])
    how = {"weight_type": QuantType.QInt8, "reduce_range": True, "per_channel": per_channel}
    quantize_dynamic(plain, small, op_types_to_quantize=["LSTM"], **how)
    return model, plain, small


@pytest.mark.slow
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_dynamically_quantised_lstm_is_precision_and_with_a_wrong_scale_different(tmp_path: Path, per_channel: bool):
    model, plain, small = recurrent_files(tmp_path, per_channel)
    x = torch.randn(2, 5, 12)
    for a, b in ((model, small), (plain, small), (small, plain)):
        c = ds.compare(a, b, (x,))
        assert c.verdict is Verdict.PRECISION, c.reason
        assert "2 integer tensors" in c.reason
        assert "evaluated" not in c.reason
    broken = onnx.load(small)
    layer = next(n for n in broken.graph.node if n.op_type == "DynamicQuantizeLSTM")
    scale = next(i for i in broken.graph.initializer if i.name == layer.input[8])
    wrong = numpy_helper.to_array(scale).copy()
    wrong[-1] *= np.float32(1.1)
    scale.CopyFrom(numpy_helper.from_array(wrong, scale.name))
    c = ds.compare(model, broken, (x,))
    assert c.verdict is Verdict.DIFFERENT, c.reason
    assert c.first.code == "W012"


def test_a_quantised_mask_of_infinities_is_named_as_such():
    grid = IntegerGrid("mask", torch.zeros(2, 2).double(), torch.ones(2, 2).double(), torch.zeros(2, 2).bool())
    mask = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]).double()
    found = wrong_weight(grid, "triu", mask, Where(node="n"))
    assert found.what == "mask is not triu quantised: triu holds 1 infinity, which no integer stands for"
    assert "nodes_to_exclude" in found.fix
    steps = wrong_weight(grid, "triu", torch.full((2, 2), 3.0).double(), Where(node="n"))
    assert "its zero point is off by -3" in steps.what

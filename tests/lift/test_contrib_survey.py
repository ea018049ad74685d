"""Whatever onnxruntime's optimiser makes of exported models can be lifted, at every level.

A file and its optimised graph may differ by constants that the optimiser multiplies and stores in float32 (a scale, an
epsilon), so the lifts of whole models agree to a few 1e-8; ``test_contrib_fusions.py`` has the exact comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from one_node import distance, lifted, run, session
from torch import nn

from driftscope.lift.noise.floor import noise_samples

LEVELS = ("BASIC", "EXTENDED", "LAYOUT", "ALL")
CONSTANTS_ROUNDED = 5e-8
NATIVE = {torch.float32: 1e-5, torch.float16: 1e-2}
ORDINARY = 1.5  # floors: what two roundings of one function may differ by
OWN = ("com.microsoft", "com.microsoft.nchwc")


class Call(nn.Module):
    """A module whose positional inputs go to another module's keywords."""

    def __init__(self, inner: nn.Module, *names: str, output: int | str = 0, **fixed: Any):
        super().__init__()
        self.inner, self.names, self.output, self.fixed = inner, names, output, fixed

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        if self.names:
            result = self.inner(**dict(zip(self.names, args, strict=True)), **self.fixed)
        else:
            result = self.inner(*args)
        return result[self.output] if not isinstance(result, torch.Tensor) else result


def convolutions(activation: Callable[[], nn.Module] = nn.ReLU) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [
        *(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), activation()),
        *(nn.Conv2d(16, 16, 3, padding=1, groups=16, stride=2), nn.BatchNorm2d(16), activation()),
        *(nn.Conv2d(16, 20, 1), activation(), nn.MaxPool2d(2), nn.Conv2d(20, 32, 3, groups=4, padding=1)),
        *(activation(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)),
    ]
    return nn.Sequential(*layers), (torch.randn(2, 3, 16, 16),)


def encoder(activation: str = "gelu") -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, activation=activation)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 7, 32),)


def linears() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.Sigmoid()]
    return nn.Sequential(*layers), (torch.randn(5, 16),)


def one_dimension() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [
        *(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 8, 3, padding=2, dilation=2, groups=2)),
        *(nn.GELU("tanh"), nn.InstanceNorm1d(8), nn.GroupNorm(2, 8)),
    ]
    return nn.Sequential(*layers), (torch.randn(2, 4, 16),)


def recurrent(kind: type[nn.RNNBase], **options: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Call(kind(8, 12, batch_first=True, **options)), (torch.randn(2, 6, 8),)


def language(name: str, **options: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    widths = {
        "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
        "": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 16,
        },
    }
    config = getattr(transformers, f"{name}Config")(vocab_size=50, **widths.get(name, widths[""]), **options)
    model = getattr(transformers, f"{name}Model")(config)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    fixed = {"use_cache": False} if name in ("GPT2", "Llama") else {}
    inputs = (torch.randint(0, 50, (2, 7)), mask)
    return Call(model, "input_ids", "attention_mask", output="last_hidden_state", **fixed), inputs


def vision(**options: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=4, **sizes, **options))
    return Call(model, "pixel_values", output="last_hidden_state"), (torch.randn(2, 3, 16, 16),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "convolutions": convolutions,
    "encoder": encoder,
    "encoder-relu": lambda: encoder("relu"),
    "linears": linears,
    "one-dimension": one_dimension,
    "convolutions-silu": lambda: convolutions(nn.SiLU),
    "convolutions-gelu": lambda: convolutions(nn.GELU),
    "convolutions-hardswish": lambda: convolutions(nn.Hardswish),
    "convolutions-leaky": lambda: convolutions(nn.LeakyReLU),
    "convolutions-relu6": lambda: convolutions(nn.ReLU6),
    "lstm": lambda: recurrent(nn.LSTM, num_layers=2),
    "lstm-bidirectional": lambda: recurrent(nn.LSTM, bidirectional=True),
    "gru": lambda: recurrent(nn.GRU),
    "bert": lambda: language("Bert", attn_implementation="sdpa"),
    "bert-eager": lambda: language("Bert", attn_implementation="eager"),
    "gpt2": lambda: language("GPT2", attn_implementation="sdpa"),
    "llama": lambda: language("Llama", attn_implementation="sdpa", num_key_value_heads=2),
    "clip-text": lambda: language("CLIPText"),
    "vit": lambda: vision(attn_implementation="sdpa"),
}


def prepared(name: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A model whose parameters all differ, so that the exporter merges none of them."""
    torch.manual_seed(0)
    module, args = MODELS[name]()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for key, buffer in module.named_buffers():
            if "running" in key:
                buffer.copy_(1 + torch.rand_like(buffer))
    return module.eval().to(dtype), tuple(a.to(dtype) if a.is_floating_point() else a for a in args)


def export(module: nn.Module, args: tuple[torch.Tensor, ...], folder: Path, **options: Any) -> onnx.ModelProto:
    path = str(folder / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options.get("dynamo", True):
            program = torch.onnx.export(module, args, dynamo=True, verbose=False, **options)
            program.save(path)
        else:
            torch.onnx.export(module, args, path, **options)
    return onnx.load(path)


def optimised(model: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    for level in LEVELS:
        path = str(folder / f"{level}.onnx")
        chosen = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        session(model, graph_optimization_level=chosen, optimized_model_filepath=path)
        yield level, onnx.load(path)


def own_operators(model: onnx.ModelProto) -> set[str]:
    return {n.op_type for n in model.graph.node if n.domain in OWN}


def survey(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path, native: float) -> set[str]:
    """Lift the graph of every level, compare with the file's lift and with onnxruntime; name what was met."""
    expected = run(model, feeds)
    plain = [leaf.value for leaf in lifted(model, feeds).run()]
    met: set[str] = set()
    for level, graph in optimised(model, folder):
        met |= own_operators(graph)
        for want, base, leaf in zip(expected, plain, lifted(graph, feeds).run(), strict=True):
            assert distance(base.numpy(), leaf.value) < CONSTANTS_ROUNDED, level
            assert distance(want, leaf.value) < native, level
        if level == "ALL":
            assert floors_apart(model, graph, feeds) < ORDINARY, level
    return met


def floors_apart(model: onnx.ModelProto, graph: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    """The difference of two graphs' native results in units of the noise floor their lifts predict."""
    worst = 0.0
    graphs = [lifted(m, feeds) for m in (model, graph)]
    samples = [noise_samples(g, g.run(), seed=0) for g in graphs]
    for index, (a, b) in enumerate(zip(run(model, feeds), run(graph, feeds), strict=True)):
        squares = [
            np.mean([float(sample[index].square().mean()) for sample in one if sample[index] is not None])
            for one in samples
        ]
        apart = float(np.sqrt(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)))
        worst = max(worst, apart / float(np.sqrt(sum(squares))))
    return worst


def feeds_of(model: onnx.ModelProto, args: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
    return {i.name: a.numpy() for i, a in zip(model.graph.input, args, strict=True)}


def survey_exported(name: str, dtype: torch.dtype, folder: Path, **options: Any) -> set[str]:
    module, args = prepared(name, dtype)
    model = export(module, args, folder, **options)
    return survey(model, feeds_of(model, args), folder, NATIVE[dtype])


@pytest.mark.slow
def test_every_level_of_a_small_network_can_be_lifted(tmp_path: Path) -> None:
    met = survey_exported("convolutions", torch.float32, tmp_path)
    assert {"Conv", "ReorderOutput", "FusedConv"} <= met


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float32, id="float32"), pytest.param(torch.float16, id="float16", marks=pytest.mark.sweep)],
)
@pytest.mark.parametrize("name", MODELS)
def test_every_level_of_every_model_can_be_lifted(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    survey_exported(name, dtype, tmp_path)


WRITTEN = {
    "bert": {"SkipLayerNormalization", "FusedMatMul", "Gelu"},
    "gpt2": {"FusedMatMul"},
    "llama": {"FusedMatMul"},
    "clip-text": {"QuickGelu", "FusedMatMul"},
    "vit": {"Gelu"},
    "linears": {"FusedGemm"},
    "one-dimension": {"FusedConv"},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", WRITTEN)
def test_older_exports_are_fused_further_and_can_be_lifted(name: str, tmp_path: Path) -> None:
    met = survey_exported(name, torch.float32, tmp_path, dynamo=False, opset_version=17)
    assert WRITTEN[name] <= met, f"onnxruntime now writes {sorted(met)}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_offline_transformer_optimiser_writes_can_be_lifted(tmp_path: Path) -> None:
    """onnxruntime.transformers fuses whole attentions, which the session's optimiser does not."""
    from onnxruntime.transformers import optimizer

    module, args = prepared("bert-eager", torch.float32)
    model = export(module, args, tmp_path, dynamo=False, opset_version=17)
    fused = optimizer.optimize_model(str(tmp_path / "model.onnx"), "bert", 4, 32, opt_level=0).model
    assert {"Attention", "BiasGelu", "SkipLayerNormalization"} <= own_operators(fused)
    feeds = feeds_of(model, args)
    got, base = lifted(fused, feeds).run()[0].value, lifted(model, feeds).run()[0].value
    assert distance(run(fused, feeds)[0], got) < NATIVE[torch.float32]
    # Rows that are padding attend to nothing, where the fused mask and the file's differ; words do not.
    words = args[1].bool()
    assert distance(base[words].numpy(), got[words]) < 1e-6


class Quantisable(nn.Module):
    """Convolutions, a residual sum, pooling, gating, concatenation and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.each, self.linear = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        y = nn.functional.leaky_relu(self.second(x) + x, 0.1)
        y = nn.functional.max_pool2d(y, 2)
        y = torch.cat([torch.sigmoid(self.each(y)) * y, y], 1)[:, :16]
        y = nn.functional.avg_pool2d(y, 2).mean((2, 3))
        return torch.softmax(self.linear(y), -1)


def quantisable(folder: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    torch.manual_seed(0)
    args = (torch.randn(1, 3, 16, 16),)
    model = export(Quantisable().eval(), args, folder, dynamo=False, opset_version=17)
    return model, feeds_of(model, args)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantised_graphs_choose_the_same_integers_at_every_level(tmp_path: Path) -> None:
    """Quantise and dequantise nodes become quantised operators; the two lifts agree bit for bit."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    _, feeds = quantisable(tmp_path)

    class Once(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows = iter([feeds])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    path = str(tmp_path / "quantised.onnx")
    types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_static(str(tmp_path / "model.onnx"), path, Once(), quant_format=QuantFormat.QDQ, **types)
    quantised = onnx.load(path)
    base = lifted(quantised, feeds).run()[0].value
    met: set[str] = set()
    for level, graph in optimised(quantised, tmp_path):
        met |= own_operators(graph)
        assert torch.equal(lifted(graph, feeds).run()[0].value, base), level
    assert {"QLinearAdd", "QLinearConcat", "QLinearConv", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid"} <= met
    assert {"NhwcMaxPool", "QLinearAveragePool", "QGemm"} <= met


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dynamic_quantisation_survives_fusion(tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    _, feeds = quantisable(tmp_path)
    path = str(tmp_path / "dynamic.onnx")
    quantize_dynamic(str(tmp_path / "model.onnx"), path, weight_type=QuantType.QInt8)
    quantised = onnx.load(path)
    base = lifted(quantised, feeds).run()[0].value
    met: set[str] = set()
    for level, graph in optimised(quantised, tmp_path):
        met |= own_operators(graph)
        assert distance(base.numpy(), lifted(graph, feeds).run()[0].value) < 1e-13, level
    assert "DynamicQuantizeMatMul" in met


class TwoLinears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_weights_quantised_in_blocks_survive_fusion(tmp_path: Path) -> None:
    """The fused node may compute with 8-bit activations; its lift does not, and so shows that the kernel did."""
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    torch.manual_seed(0)
    args = (torch.randn(2, 5, 32),)
    model = export(TwoLinears().eval(), args, tmp_path, dynamo=False, opset_version=17)
    quantiser = MatMulNBitsQuantizer(model, bits=4, block_size=32, is_symmetric=False, quant_format=QuantFormat.QDQ)
    quantiser.process()
    quantised = quantiser.model.model
    feeds = feeds_of(quantised, args)
    base = lifted(quantised, feeds).run()[0].value
    for level, graph in optimised(quantised, tmp_path):
        got = lifted(graph, feeds).run()[0].value
        assert distance(base.numpy(), got) < 1e-13, level
        fused = [n for n in graph.graph.node if n.op_type == "MatMulNBits"]
        assert bool(fused) == (level != "BASIC")
        eight_bits = any(a.name == "accuracy_level" and a.i == 4 for n in fused for a in n.attribute)
        assert (distance(run(graph, feeds)[0], got) > 1e-3) == eight_bits

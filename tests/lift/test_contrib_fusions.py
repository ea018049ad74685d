"""What onnxruntime's optimiser fuses computes what the separate nodes computed.

Constants are powers of two where the optimiser multiplies them, so that no constant is rounded on the way and the
two lifts must agree to the rounding of float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from one_node import distance, lifted, run, session
from onnx import helper, numpy_helper

from driftscope.lift.steps import Step

RNG = np.random.default_rng(25)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Graph:
    """A standard graph of float32 input ``x`` being written: every call adds a node and names its result."""

    def __init__(self, *shape: int, opset: int = 17):
        self.shape, self.opset = list(shape), opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.outputs = ["y"]

    def weight(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, None if isinstance(value, np.ndarray) else np.float32)
        return name

    def __call__(self, op_type: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        name = to or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], f"n{len(self.nodes)}", **attributes))
        return name

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "standard",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, self.shape)],
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [numpy_helper.from_array(w, name) for name, w in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)


def scaled_matmul() -> Graph:
    g = Graph(2, 3, 8)
    g("Mul", g("MatMul", "x", g.weight(f32(8, 4))), g.weight(0.25), to="y")
    return g


def transposed_matmul() -> Graph:
    g = Graph(2, 3, 8)
    g("MatMul", "x", g("Transpose", "x", perm=[0, 2, 1]), to="y")
    return g


def moved_batches_matmul() -> Graph:
    g = Graph(3, 2, 8)
    g("MatMul", g("Transpose", "x", perm=[1, 0, 2]), g.weight(f32(2, 8, 4)), to="y")
    return g


def conv_activation(name: str, **attributes: Any) -> Callable[[], Graph]:
    def build() -> Graph:
        g = Graph(2, 4, 9)
        conv = g("Conv", "x", g.weight(f32(6, 4, 3)), g.weight(f32(6)), pads=[1, 1])
        g(name, conv, to="y", **attributes)
        return g

    return build


def gemm_activation(name: str, **attributes: Any) -> Callable[[], Graph]:
    def build() -> Graph:
        g = Graph(3, 8)
        g(name, g("Gemm", "x", g.weight(f32(8, 4)), g.weight(f32(4))), to="y", **attributes)
        return g

    return build


def erf_gelu(g: Graph, x: str, to: str) -> None:
    root = np.float32(math.sqrt(2))
    half = g("Mul", x, g("Add", g("Erf", g("Div", x, g.weight(root))), g.weight(1.0)))
    g("Mul", half, g.weight(0.5), to=to)


def gelu() -> Graph:
    g = Graph(3, 8, opset=14)
    erf_gelu(g, "x", "y")
    return g


def bias_gelu() -> Graph:
    g = Graph(2, 3, 8, opset=14)
    erf_gelu(g, g("Add", "x", g.weight(f32(8))), "y")
    return g


def tanh_gelu() -> Graph:
    g = Graph(2, 3, 8, opset=14)
    x = g("Add", "x", g.weight(f32(8)))
    cubic = g("Mul", g("Pow", x, g.weight(3.0)), g.weight(0.044715))
    inner = g("Mul", g("Add", x, cubic), g.weight(np.float32(math.sqrt(2 / math.pi))))
    result = g("Mul", g("Mul", x, g.weight(0.5)), g("Add", g("Tanh", inner), g.weight(1.0)))
    # The optimiser leaves a graph output alone.
    g("Neg", result, to="y")
    return g


def quick_gelu() -> Graph:
    g = Graph(3, 8)
    g("Mul", "x", g("Sigmoid", g("Mul", "x", g.weight(1.5))), to="y")
    return g


def layer_norm(g: Graph, x: str, to: str) -> str:
    return g("LayerNormalization", x, g.weight(f32(8)), g.weight(f32(8)), to=to, axis=-1, epsilon=2.0**-10)


def skip_norm() -> Graph:
    g = Graph(2, 3, 8)
    layer_norm(g, g("Add", "x", g("MatMul", "x", g.weight(f32(8, 8)))), "y")
    return g


def rms(g: Graph, x: str, to: str) -> None:
    mean = g("ReduceMean", g("Pow", x, g.weight(2.0)), axes=[-1], keepdims=1)
    root = g("Sqrt", g("Add", mean, g.weight(2.0**-10)))
    g("Mul", g("Div", x, root), g.weight(f32(8)), to=to)


def rms_norm() -> Graph:
    g = Graph(2, 3, 8)
    rms(g, "x", "y")
    return g


def separate_layer_norm() -> Graph:
    g = Graph(2, 3, 8, opset=14)
    centred = g("Sub", "x", g("ReduceMean", "x", axes=[-1], keepdims=1))
    variance = g("ReduceMean", g("Pow", centred, g.weight(2.0)), axes=[-1], keepdims=1)
    normal = g("Div", centred, g("Sqrt", g("Add", variance, g.weight(2.0**-10))))
    g("Add", g("Mul", normal, g.weight(f32(8))), g.weight(f32(8)), to="y")
    return g


FUSIONS: dict[str, tuple[Callable[[], Graph], Sequence[str]]] = {
    "matmul-scale": (scaled_matmul, ["FusedMatMul"]),
    "matmul-transpose": (transposed_matmul, ["FusedMatMul"]),
    "matmul-batches": (moved_batches_matmul, ["FusedMatMul"]),
    "conv-relu": (conv_activation("Relu"), ["FusedConv"]),
    "conv-leaky": (conv_activation("LeakyRelu", alpha=0.25), ["FusedConv"]),
    "conv-sigmoid": (conv_activation("Sigmoid"), ["FusedConv"]),
    "conv-hard-sigmoid": (conv_activation("HardSigmoid", alpha=0.25, beta=0.5), ["FusedConv"]),
    "gemm-relu": (gemm_activation("Relu"), ["FusedGemm"]),
    "gemm-leaky": (gemm_activation("LeakyRelu", alpha=0.25), ["FusedGemm"]),
    "gemm-tanh": (gemm_activation("Tanh"), ["FusedGemm"]),
    "gelu": (gelu, ["Gelu"]),
    "bias-gelu": (bias_gelu, ["BiasGelu"]),
    "fast-gelu": (tanh_gelu, ["FastGelu"]),
    "quick-gelu": (quick_gelu, ["QuickGelu"]),
    "skip-layer-norm": (skip_norm, ["SkipLayerNormalization"]),
    "rms-norm": (rms_norm, ["SimplifiedLayerNormalization"]),
    "layer-norm": (separate_layer_norm, ["LayerNormalization"]),
}


def optimised(model: onnx.ModelProto, folder: Any) -> onnx.ModelProto:
    path = str(folder / "optimised.onnx")
    level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session(model, graph_optimization_level=level, optimized_model_filepath=path)
    return onnx.load(path)


@pytest.mark.parametrize("name", FUSIONS)
def test_a_fused_node_computes_what_its_parts_computed(name: str, tmp_path: Any) -> None:
    build, wanted = FUSIONS[name]
    model = build().model()
    fused = optimised(model, tmp_path)
    operators = [n.op_type for n in fused.graph.node]
    assert set(wanted) <= set(operators), f"onnxruntime now writes {operators}"
    feeds = {"x": f32(*[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])}
    parts, whole = lifted(model, feeds).run(), lifted(fused, feeds).run()
    native = run(fused, feeds)
    for part, got, kernel in zip(parts, whole, native, strict=True):
        torch.testing.assert_close(got.value, part.value, rtol=1e-12, atol=1e-12)
        assert got.format == part.format
        assert distance(kernel, got.value) < 1e-5


@pytest.mark.parametrize("name", ["matmul-scale", "conv-leaky", "gemm-leaky", "quick-gelu", "skip-layer-norm"])
def test_the_attribute_of_a_fused_node_is_a_constant_that_can_be_replaced(name: str, tmp_path: Any) -> None:
    """Half a percent on the attribute moves the result; the stored value put back leaves it bit for bit."""
    model = FUSIONS[name][0]().model()
    fused = lifted(optimised(model, tmp_path), {"x": f32(*model_shape(model))})
    plain = fused.run()[0].value
    found = [c for c in fused.constants() if c.origin == "attribute" and float(c.value) not in (0.0, 1.0)]
    assert found, [c.name for c in fused.constants()]
    same = fused.run(replace={c.name: c.value.double() for c in found})[0].value
    assert torch.equal(same, plain)
    moved = fused.run(replace={found[0].name: found[0].value.double() * 1.005})[0].value
    assert float((moved - plain).abs().max()) > 1e-6


def model_shape(model: onnx.ModelProto) -> list[int]:
    return [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]


@pytest.mark.parametrize("name", ["conv-sigmoid", "gemm-tanh", "bias-gelu", "skip-layer-norm"])
def test_a_fused_node_is_as_noisy_as_its_parts(name: str, tmp_path: Any) -> None:
    """Noise of one ulp injected wherever a step says it rounds: the fused graph's floor is near its parts'."""
    model = FUSIONS[name][0]().model()
    feeds = {"x": f32(*model_shape(model))}
    fused = optimised(model, tmp_path)
    floors = [_floor(m, feeds) for m in (model, fused)]
    assert 0.4 < floors[1] / floors[0] < 1.6


def _floor(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    generator = torch.Generator().manual_seed(0)

    def observe(step: Step) -> list[torch.Tensor | None]:
        if step.constant or step.rounding.kind == "exact":
            return list(step.outputs)
        size = 2.0**-24 * math.sqrt(step.rounding.length)
        return [
            o
            if o is None or not o.is_floating_point()
            else o + size * o.square().mean().sqrt() * torch.randn(o.shape, generator=generator, dtype=o.dtype)
            for o in step.outputs
        ]

    graph = lifted(model, feeds)
    clean = graph.run()[0].value
    noisy = [graph.run(observe=observe)[0].value - clean for _ in range(8)]
    return float(torch.stack(noisy).square().mean().sqrt())


@pytest.mark.parametrize(
    "name", ["matmul-scale", "conv-leaky", "conv-hard-sigmoid", "gemm-leaky", "quick-gelu", "fast-gelu", "rms-norm"]
)
def test_attributes_enter_differentiably(name: str, tmp_path: Any) -> None:
    """A constant is solved for by its derivative: it must agree with a finite difference."""
    model = FUSIONS[name][0]().model()
    fused = lifted(optimised(model, tmp_path), {"x": f32(*model_shape(model))})
    plain = fused.run()[0].value
    names = {c.name: c for c in fused.constants() if c.origin == "attribute" and "beta" not in c.name}
    for constant in names.values():
        value = constant.value.double().requires_grad_()
        (slope,) = torch.autograd.grad(fused.run(replace={constant.name: value})[0].value.square().sum(), value)
        step = 1e-6 * max(abs(float(value.detach())), 1e-3)
        moved = fused.run(replace={constant.name: value.detach() + step})[0].value
        rise = float(moved.square().sum() - plain.square().sum()) / step
        assert abs(float(slope) - rise) < 1e-4 * abs(rise) + 1e-6, constant.name

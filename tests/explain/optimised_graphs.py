"""Small ONNX graphs that onnxruntime's optimisers rewrite: into another function, into cheaper kernels, or honestly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

WIDTH = 64
APPROXIMATE = {"optimization.enable_gelu_approximation": "1"}


def stored(name: str, value: Any, dtype: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(
    nodes: list[Any], initializers: list[Any], *, element: int = TensorProto.FLOAT, opset: int = 21, rows: int = 8
) -> onnx.ModelProto:
    """Return a model from ``x`` to ``y``, both of WIDTH columns, that every supported onnxruntime loads."""
    shape = [rows, WIDTH]
    graph = helper.make_graph(
        nodes, "optimised", [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)], initializers,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def gelu(source: str, result: str, dtype: Any = np.float32) -> tuple[list[Any], list[Any]]:
    """Gelu written out with erf, as exporters wrote it before ONNX had one."""
    nodes = [
        helper.make_node("Div", [source, "root_two"], ["g0"], name="gelu_div"),
        helper.make_node("Erf", ["g0"], ["g1"], name="gelu_erf"),
        helper.make_node("Add", ["g1", "one"], ["g2"], name="gelu_add"),
        helper.make_node("Mul", [source, "g2"], ["g3"], name="gelu_mul"),
        helper.make_node("Mul", ["g3", "half"], [result], name="gelu_half"),
    ]
    return nodes, [stored("root_two", 2**0.5, dtype), stored("one", 1, dtype), stored("half", 0.5, dtype)]


def affine(source: str, result: str, seed: int = 0) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    weight = stored(f"{result}_w", rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5)
    bias = stored(f"{result}_b", rng.standard_normal(WIDTH))
    nodes = [
        helper.make_node("MatMul", [source, weight.name], [f"{result}_p"], name=f"{result}_matmul"),
        helper.make_node("Add", [f"{result}_p", bias.name], [result], name=f"{result}_add"),
    ]
    return nodes, [weight, bias]


def four_bits(source: str, result: str, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """A product with 4-bit weights, dequantised in blocks: onnxruntime makes one MatMulNBits of it."""
    rng = np.random.default_rng(seed)
    block = 32
    numbers = rng.integers(0, 16, WIDTH * WIDTH).tolist()
    scale = rng.random((WIDTH // block, WIDTH)) * 0.05 + 0.01
    zero = [8] * (WIDTH // block * WIDTH)
    initializers = [
        helper.make_tensor("q", TensorProto.UINT4, [WIDTH, WIDTH], numbers),
        stored("q_scale", scale),
        helper.make_tensor("q_zero", TensorProto.UINT4, [WIDTH // block, WIDTH], zero),
    ]
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["q", "q_scale", "q_zero"], ["q_w"], name="dequantise", axis=0, block_size=block
        ),
        helper.make_node("MatMul", [source, "q_w"], [result], name="four_bit_matmul"),
    ]
    return nodes, initializers


def chain(*parts: tuple[list[Any], list[Any]], **options: Any) -> onnx.ModelProto:
    nodes = [node for part in parts for node in part[0]]
    return model(nodes, [tensor for part in parts for tensor in part[1]], **options)


def written_gelu() -> onnx.ModelProto:
    """MatMul + Add + Gelu by hand: fused honestly by default, approximated where that is allowed."""
    # From opset 20 on, ONNX has a Gelu of its own, which onnxruntime never approximates.
    return chain(affine("x", "h"), gelu("h", "y"), opset=17)


def four_bit_model() -> onnx.ModelProto:
    return chain(four_bits("x", "h"), ([helper.make_node("Tanh", ["h"], ["y"], name="tanh")], []))


def two_faults() -> onnx.ModelProto:
    """A 4-bit product and onnxruntime's own Gelu: two optimisers move the result, each at its own place."""
    own = helper.make_node("Gelu", ["h"], ["y"], name="own_gelu", domain="com.microsoft")
    return chain(four_bits("x", "h"), ([own], []))


def root_mean_square(scale: float = 200.0, rows: int = 4) -> onnx.ModelProto:
    """An RMS norm by hand in float16 whose squares leave the format when the input is scaled by 200, not by 1."""
    half = np.float16
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["h"], name="scale_up"),
        helper.make_node("Pow", ["h", "two"], ["p"], name="square"),
        helper.make_node("ReduceMean", ["p", "axes"], ["m"], name="mean", keepdims=1),
        helper.make_node("Add", ["m", "epsilon"], ["e"], name="add_epsilon"),
        helper.make_node("Sqrt", ["e"], ["r"], name="root"),
        helper.make_node("Div", ["h", "r"], ["n"], name="divide"),
        helper.make_node("Mul", ["n", "gain"], ["y"], name="gain_up"),
    ]
    initializers = [
        stored("scale", scale, half), stored("two", 2, half), stored("axes", [-1], np.int64),
        stored("epsilon", 1e-5, half), stored("gain", rng.standard_normal(WIDTH), half),
    ]  # fmt: skip
    return model(nodes, initializers, element=TensorProto.FLOAT16, rows=rows)


def batch(rows: int = 8, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(rows, WIDTH, generator=generator).to(dtype)}

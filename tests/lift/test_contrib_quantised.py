"""Quantised operators and mixtures of experts: the lift picks the integers that onnxruntime picks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_node import OneNode, assert_lift_agrees, distance, lifted, run

from driftscope.lift.onnx.contrib.quantised_products import unpacked

RNG = np.random.default_rng(22)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(f32(*shape)) + np.float32(0.01)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def s7(*shape: int) -> np.ndarray:
    """Signed weights of 7 bits, for use beside unsigned activations.

    A processor without VNNI adds two such products in 16 bits: with 8 bits the sum saturates there, and only there.
    """
    return RNG.integers(-64, 64, shape).astype(np.int8)


def scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def eight_bits(name: str) -> dict[str, OneNode]:
    """Every quantised operator on one 8-bit format."""
    make, zero, least = (u8, np.uint8(120), np.uint8(0)) if name == "u8" else (i8, np.int8(-3), np.int8(-128))
    zero, least = np.array(zero), np.array(least)
    x, y = [make(5, 40), scale(0.05), zero], [scale(0.04), zero]
    pair = [make(5, 40), scale(0.02), zero, make(5, 40), scale(0.03), zero, scale(0.05), zero]
    shares = [scale(1 / 256), least]
    image = [make(1, 3, 7, 7), scale(0.05), zero, scale(0.03), zero]
    kernel = {"kernel_shape": [3, 3]}
    condition = RNG.integers(0, 2, (5, 40)).astype(bool)
    bias = RNG.integers(-100, 100, 6).astype(np.int32)
    conv = [scale(0.05), zero, make(6, 4, 3, 3), scale(0.03), zero, scale(1.7), zero]
    cases = {
        "add": OneNode("QLinearAdd", pair),
        "multiply": OneNode("QLinearMul", pair),
        "where": OneNode("QLinearWhere", [condition, *pair]),
        "sigmoid": OneNode("QLinearSigmoid", [*x, *shares]),
        "leaky": OneNode("QLinearLeakyRelu", [*x, *y], {"alpha": 0.1}),
        "softmax": OneNode("QLinearSoftmax", [*x, *shares], {"opset": 13, "axis": 0}),
        "softmax-flat": OneNode(
            "QLinearSoftmax", [make(5, 4, 3), scale(0.05), zero, *shares], {"opset": 12, "axis": 1}
        ),
        "concat": OneNode(
            "QLinearConcat",
            [*y, make(2, 3), scale(0.05), zero, make(2, 4), scale(0.03), zero],
            {"axis": 1},
        ),
        "mean-all": OneNode("QLinearGlobalAveragePool", image),
        "max-nhwc": OneNode("NhwcMaxPool", [make(1, 7, 7, 3)], {**kernel, "pads": [1, 1, 1, 1]}),
        "conv": OneNode("QLinearConv", [make(1, 4, 7, 7), *conv], kernel),
        "conv-nhwc": OneNode(
            "QLinearConv", [make(1, 7, 7, 4), *conv, bias], {**kernel, "pads": [1, 1, 1, 1], "channels_last": 1}
        ),
        "quantize": OneNode("QuantizeLinear", [f32(5, 6), scale(0.02), zero]),
        "quantize-axis": OneNode("QuantizeLinear", [f32(5, 6), positive(5), make(5)], {"axis": 0}),
        "dequantize": OneNode("DequantizeLinear", [make(5, 6), scale(0.02), zero]),
        "matmul": OneNode(
            "MatMulIntegerToFloat", [make(3, 8), make(8, 5), scale(0.02), scale(0.03), zero, zero, f32(5)]
        ),
        "matmul-columns": OneNode("MatMulIntegerToFloat", [make(2, 3, 8), s7(8, 5), scale(0.02), f32(5), zero, s7(5)]),
        "gemm": OneNode(
            "QGemm",
            [make(3, 8), scale(0.02), zero, make(8, 6), scale(0.03), zero, bias, scale(0.5), zero],
            {"alpha": 0.5},
        ),
        "gemm-real": OneNode(
            "QGemm",
            [make(8, 3), scale(0.02), zero, s7(5, 8), positive(5), s7(5)],
            {"transA": 1, "transB": 1},
        ),
    }
    return {f"{name}-{key}": case for key, case in cases.items()}


_BLOCKS = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
PACKED = {
    "4-bits": OneNode("MatMulNBits", [f32(3, 40), u8(5, 2, 16), positive(5, 2)], {**_BLOCKS, "K": 40}),
    "4-bits-zeros": OneNode(
        "MatMulNBits", [f32(3, 70), u8(5, 3, 16), positive(5, 3), u8(5, 2), None, f32(5)], {**_BLOCKS, "K": 70}
    ),
    "4-bits-float-zeros": OneNode(
        "MatMulNBits", [f32(3, 64), u8(5, 2, 16), positive(5, 2), 8 * positive(5, 2)], _BLOCKS
    ),
    "8-bits": OneNode("MatMulNBits", [f32(3, 64), u8(5, 2, 32), positive(5, 2), u8(5, 2)], {**_BLOCKS, "bits": 8}),
    "2-bits": OneNode(
        "MatMulNBits", [f32(3, 64), u8(5, 1, 16), positive(5, 1)], {**_BLOCKS, "bits": 2, "block_size": 64}
    ),
    "half": OneNode("MatMulNBits", [f16(3, 64), u8(5, 2, 16), np.abs(f16(5, 2))], _BLOCKS),
    "gather": OneNode(
        "GatherBlockQuantized",
        [u8(9, 32), RNG.integers(0, 9, (2, 3)), f32(9, 4), u8(9, 2)],
        {"bits": 4, "block_size": 16, "quantize_axis": 1},
        weights=(0, 2, 3),
    ),
    "gather-8-bits": OneNode(
        "GatherBlockQuantized",
        [u8(9, 32), RNG.integers(0, 9, (2, 3)), f32(9, 2)],
        {"bits": 8, "block_size": 16, "quantize_axis": 1},
        weights=(0, 2),
    ),
}

_ZERO = np.array(120, np.uint8)
OTHERS = {
    "dynamic": OneNode("DynamicQuantizeMatMul", [f32(3, 8), u8(8, 5), scale(0.02), _ZERO, f32(5)]),
    "dynamic-columns": OneNode("DynamicQuantizeMatMul", [f32(2, 3, 8), s7(8, 5), f32(5), s7(5)], weights=(1,)),
    "attention": OneNode(
        "QAttention",
        [u8(2, 5, 8), s7(8, 24), f32(24), scale(0.01), scale(0.02), np.array([3, 5], np.int32), _ZERO],
        {"num_heads": 2},
    ),
    "attention-past": OneNode(
        "QAttention",
        [
            u8(2, 5, 8),
            s7(8, 24),
            f32(24),
            scale(0.01),
            0.02 * positive(24),
            None,
            _ZERO,
            np.zeros(24, np.int8),
            f32(2, 2, 2, 3, 4),
        ],
        {"num_heads": 2, "unidirectional": 1},
        2,
    ),
    "int16": OneNode(
        "MatMulInteger16",
        [RNG.integers(-99, 99, (3, 4)).astype(np.int16), RNG.integers(-99, 99, (4, 5)).astype(np.int16)],
    ),
    "embedding": OneNode(
        "QEmbedLayerNormalization",
        [
            RNG.integers(0, 9, (2, 3)).astype(np.int32),
            RNG.integers(0, 2, (2, 3)).astype(np.int32),
            *(u8(9, 8), u8(5, 8), u8(2, 8), u8(8), u8(8)),
            np.array([[1, 1, 0], [1, 1, 1]], np.int32),
            *(scale(s) for s in (0.02, 0.03, 0.01, 0.05, 0.02)),
            *(np.array(z, np.uint8) for z in (120, 121, 122, 123, 124)),
        ],
        {"epsilon": 1e-5},
        2,
    ),
}


def experts(activation: str, make: Any = f32, width: int = 10, **attributes: Any) -> OneNode:
    inputs = [make(6, 8), make(6, 3), make(3, width, 8), make(3, width), make(3, 8, 10), make(3, 8)]
    return OneNode("MoE", inputs, {"k": 2, "activation_type": activation, **attributes})


def packed_experts(width: int, blocks: int | None, zeros: bool = False, **attributes: Any) -> OneNode:
    """QMoE of 3 experts on 32 inputs, 4-bit weights, with one scale per row or per block."""
    scales = (3, 32) if blocks is None else (3, 32, blocks)
    inputs = [f32(6, 32), f32(6, 3)]
    inputs += [u8(3, 32, 16), positive(*scales), f32(3, 32), u8(3, 32, width // 2), positive(*scales), f32(3, 32)]
    weights = (2, 5)
    if zeros:
        inputs += [None, None, None, u8(3, 16), u8(3, 16)]
        weights = (2, 5, 11, 12)
    attributes = {"k": 2, "normalize_routing_weights": 1, "expert_weight_bits": 4, **attributes}
    return OneNode("QMoE", inputs, attributes, weights=weights)


EXPERTS = {
    **{f"experts-{a}": experts(a, normalize_routing_weights=1) for a in ("relu", "gelu", "silu", "identity")},
    "experts-plain-weights": experts("relu"),
    "experts-half": experts("relu", f16, normalize_routing_weights=1),
    "experts-swiglu": experts(
        "swiglu", width=20, swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=0.5
    ),
    "packed-experts": packed_experts(32, None, activation_type="silu"),
    "packed-experts-blocks": packed_experts(32, 2, activation_type="relu", block_size=16),
    "packed-experts-zeros": packed_experts(32, None, True, activation_type="relu"),
    "packed-experts-swiglu": packed_experts(16, None, activation_type="swiglu", swiglu_fusion=1),
}

CASES = {**eight_bits("u8"), **eight_bits("i8"), **PACKED, **OTHERS, **EXPERTS}


@pytest.mark.parametrize("name", CASES)
def test_lift_equals_the_kernel(name: str) -> None:
    assert_lift_agrees(CASES[name])


@pytest.mark.parametrize("layout", [0, 1], ids=["nchw", "nhwc"])
def test_a_mean_of_integers_lands_on_the_same_step_or_its_neighbour(layout: int) -> None:
    """Nine integers over nine often lie half way between two steps, where the kernel's own division decides."""
    x = u8(1, 7, 7, 3) if layout else u8(1, 3, 7, 7)
    inputs = [x, scale(0.05), _ZERO, scale(0.03), _ZERO]
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "channels_last": layout}
    case = OneNode("QLinearAveragePool", inputs, attributes)
    expected = run(case.model(), case.feeds())[0].astype(int)
    got = lifted(case.model(), case.feeds()).run()[0].value
    steps = np.abs(expected - got.numpy().astype(int))
    assert steps.max() <= 1
    assert (steps > 0).mean() < 0.1


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("u8-leaky", "alpha", 0.2),
        ("u8-gemm", "alpha", 0.51),
        ("4-bits", "block_size", 16),
        ("gather", "block_size", 32),
        ("experts-relu", "k", 1),
        ("experts-plain-weights", "normalize_routing_weights", 1),
        ("experts-swiglu", "swiglu_limit", 0.6),
    ],
)
def test_another_attribute_is_another_function(name: str, attribute: str, value: object) -> None:
    from driftscope.errors import CannotLift

    right = CASES[name]
    attributes = {**right.attributes, attribute: value}
    wrong = OneNode(right.op_type, right.inputs, attributes, right.outputs, weights=right.weights)
    expected = run(right.model(), right.feeds())
    try:
        found = distance(expected[0], lifted(wrong.model(), wrong.feeds()).run()[0].value)
    except CannotLift:  # blocks of another size do not fit the tensors
        return
    assert found > 1e-3


def test_packed_integers_come_first_in_the_low_bits() -> None:
    packed = torch.tensor([[0x21, 0xF3]], dtype=torch.uint8)
    assert unpacked(packed, 4, 4).tolist() == [[1, 2, 3, 15]]
    assert unpacked(packed, 2, 5).tolist() == [[1, 0, 2, 0, 3]]
    assert unpacked(packed, 8, 2).tolist() == [[0x21, 0xF3]]

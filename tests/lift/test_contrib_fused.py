"""Fused products, convolutions, activations and normalisations: the lift equals onnxruntime's kernel."""

from __future__ import annotations

import numpy as np
import pytest
from one_node import PRECISION, OneNode, assert_lift_agrees, distance, lifted, run

RNG = np.random.default_rng(20)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def i32(*shape: int, high: int) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(np.int32)


ACTIVATIONS = {
    "gelu": OneNode("Gelu", [f32(3, 5)]),
    "bias-gelu": OneNode("BiasGelu", [f32(3, 5), f32(5)]),
    "fast-gelu": OneNode("FastGelu", [f32(3, 5)]),
    "fast-gelu-bias": OneNode("FastGelu", [f32(3, 5), f32(5)]),
    "fast-gelu-half": OneNode("FastGelu", [f16(3, 5), f16(5)]),
    "quick-gelu": OneNode("QuickGelu", [f32(3, 5)]),
    "quick-gelu-alpha": OneNode("QuickGelu", [f32(3, 5)], {"alpha": 0.7}),
    "scaled-silu": OneNode("ScaledSiLU", [f32(3, 5)], {"alpha": 0.5}),
    "gated-add": OneNode("GatedAdd", [f32(3, 5), f32(3, 5), f32(3, 1)]),
}

PRODUCTS = {
    "alpha": OneNode("FusedMatMul", [f32(3, 5), f32(5, 4)], {"alpha": 0.3}),
    "both-transposed": OneNode("FusedMatMul", [f32(2, 5, 3), f32(2, 4, 5)], {"alpha": 0.3, "transA": 1, "transB": 1}),
    "batch-a": OneNode("FusedMatMul", [f32(3, 2, 5), f32(2, 5, 4)], {"transBatchA": 1}),
    "batch-a-4d": OneNode("FusedMatMul", [f32(3, 2, 6, 5), f32(2, 6, 5, 4)], {"transBatchA": 1}),
    "batch-a-and-last": OneNode("FusedMatMul", [f32(5, 2, 3), f32(2, 5, 4)], {"transBatchA": 1, "transA": 1}),
    "batch-b": OneNode("FusedMatMul", [f32(2, 3, 5), f32(5, 2, 4)], {"transBatchB": 1}),
    "batch-b-4d": OneNode("FusedMatMul", [f32(2, 6, 3, 5), f32(5, 2, 6, 4)], {"transBatchB": 1}),
    "batch-b-and-last": OneNode("FusedMatMul", [f32(2, 6, 3, 5), f32(4, 2, 6, 5)], {"transBatchB": 1, "transB": 1}),
    "double": OneNode("FusedMatMul", [f32(3, 5).astype(np.float64), f32(5, 4).astype(np.float64)], {"alpha": 0.25}),
    "transpose-matmul": OneNode("TransposeMatMul", [f32(3, 5), f32(4, 5)], {"transB": 1, "alpha": 2.0}),
    "gemm-relu": OneNode("FusedGemm", [f32(3, 5), f32(5, 4), f32(4)], {"activation": "Relu"}),
    "gemm-leaky": OneNode(
        "FusedGemm",
        [f32(3, 5), f32(4, 5), f32(4)],
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1, "alpha": 0.5, "beta": 0.3},
    ),
    "gemm-hard-sigmoid": OneNode(
        "FusedGemm",
        [f32(3, 5), f32(5, 4)],
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
    ),
    "gemm-elu": OneNode("FusedGemm", [f32(3, 5), f32(5, 4)], {"activation": "Elu", "activation_alpha": 0.3}),
    **{
        f"gemm-{name}": OneNode("FusedGemm", [f32(3, 5), f32(5, 4)], {"activation": name})
        for name in ("Sigmoid", "Tanh", "Softplus", "Softsign")
    },
}

_PADDED = {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}
CONVOLUTIONS = {
    **{
        f"conv-{name}": OneNode(
            "FusedConv", [f32(2, 4, 6, 6), f32(4, 2, 3, 3), f32(4)], {"activation": name, **_PADDED, **extra}
        )
        for name, extra in (
            ("Relu", {}),
            ("Sigmoid", {}),
            ("Tanh", {}),
            ("HardSwish", {}),
            ("LeakyRelu", {"activation_params": [0.1]}),
            ("Clip", {"activation_params": [0.0, 0.5]}),
            ("HardSigmoid", {"activation_params": [0.2, 0.5]}),
        )
    },
    "conv-plain": OneNode("FusedConv", [f32(2, 4, 6, 6), f32(4, 4, 3, 3)]),
    "conv-sum": OneNode(
        "FusedConv",
        [f32(2, 4, 6, 6), f32(4, 4, 3, 3), f32(4), f32(2, 4, 6, 6)],
        {"activation": "Relu", "auto_pad": "SAME_UPPER"},
    ),
    "conv-1d": OneNode("FusedConv", [f32(2, 4, 6), f32(4, 4, 3)], {"activation": "Relu", "dilations": [2]}),
    "conv-3d": OneNode("FusedConv", [f32(2, 4, 4, 4, 4), f32(4, 4, 3, 2, 3)], {"activation": "Relu"}),
    "transposed": OneNode(
        "ConvTransposeWithDynamicPads",
        [f32(2, 4, 5, 5), f32(4, 3, 3, 3), np.array([1, 1, 1, 1]), f32(3)],
        {"strides": [2, 2], "output_padding": [1, 1]},
    ),
    "transposed-uneven": OneNode(
        "ConvTransposeWithDynamicPads",
        [f32(2, 4, 5, 5), f32(4, 3, 3, 3), np.array([0, 1, 1, 0])],
        {"strides": [2, 1]},
    ),
}

_EPSILON = {"epsilon": 1e-3}
NORMS = {
    "layer": OneNode("LayerNormalization", [f32(2, 3, 8), f32(8), f32(8)], {"axis": -1}, 3, "", opset=14),
    "layer-half": OneNode(
        "LayerNormalization", [f16(2, 3, 8), f16(3, 8), f16(3, 8)], {"axis": 1, **_EPSILON}, 3, "", opset=14
    ),
    "rms": OneNode("SimplifiedLayerNormalization", [f32(2, 3, 8), f32(8)], {"axis": -1}, 2, ""),
    "rms-half": OneNode("SimplifiedLayerNormalization", [f16(2, 3, 8), f16(8)], {"axis": -1}, 1, ""),
    "skip": OneNode("SkipLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)], _EPSILON, [0, 3]),
    "skip-2d": OneNode("SkipLayerNormalization", [f32(2, 3, 8), f32(3, 8), f32(8)], _EPSILON),
    "skip-one-batch": OneNode("SkipLayerNormalization", [f32(2, 3, 8), f32(1, 3, 8), f32(8), f32(8)], _EPSILON, [0, 3]),
    "skip-half": OneNode(
        "SkipLayerNormalization", [f16(2, 3, 8), f16(2, 3, 8), f16(8), f16(8), f16(8)], _EPSILON, [0, 3]
    ),
    "skip-rms": OneNode(
        "SkipSimplifiedLayerNormalization", [f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8)], _EPSILON, [0, 3]
    ),
    "skip-rms-half": OneNode(
        "SkipSimplifiedLayerNormalization", [f16(2, 3, 8), f16(2, 3, 8), f16(8), f16(8)], _EPSILON, [0, 3]
    ),
    "branches": OneNode("BranchwiseRMSNorm", [f32(2, 3, 8), f32(8)], {"num_branches": 2}),
    "branches-grouped": OneNode("BranchwiseRMSNorm", [f32(2, 3, 8), f32(3, 8)]),
    "gated": OneNode("GatedRMSNorm", [f32(2, 8), f32(4), f32(2, 8)]),
    "gated-sigmoid": OneNode("GatedRMSNorm", [f32(2, 8), f32(8), f32(2, 8)], {"activation": "sigmoid"}),
    "embed": OneNode(
        "EmbedLayerNormalization",
        [
            i32(2, 3, high=9),
            i32(2, 3, high=2),
            f32(9, 8),
            f32(5, 8),
            f32(2, 8),
            f32(8),
            f32(8),
            np.array([[1, 1, 0], [1, 1, 1]], np.int32),
        ],
        _EPSILON,
        3,
    ),
    "embed-positions": OneNode(
        "EmbedLayerNormalization",
        [
            i32(2, 3, high=9),
            None,
            f32(9, 8),
            f32(5, 8),
            None,
            f32(8),
            f32(8),
            None,
            np.array([[2, 3, 4]], np.int32),
        ],
        _EPSILON,
        2,
    ),
}

CASES = {**ACTIVATIONS, **PRODUCTS, **CONVOLUTIONS, **NORMS}


@pytest.mark.parametrize("name", CASES)
def test_lift_equals_the_kernel(name: str) -> None:
    assert_lift_agrees(CASES[name])


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("quick-gelu", "alpha", 1.71),
        ("alpha", "alpha", 0.301),
        ("gemm-leaky", "activation_alpha", 0.201),
        ("gemm-leaky", "beta", 0.301),
        ("conv-LeakyRelu", "activation_params", [0.11]),
        ("conv-Clip", "activation_params", [0.0, 0.51]),
        ("skip", "epsilon", 1.1e-3),
        ("skip-rms", "epsilon", 1.1e-3),
        ("branches", "num_branches", 4),
        ("gated", "activation", "sigmoid"),
    ],
)
def test_another_attribute_is_another_function(name: str, attribute: str, value: object) -> None:
    right = CASES[name]
    wrong = OneNode(right.op_type, right.inputs, {**right.attributes, attribute: value}, right.outputs, right.domain)
    expected = run(right.model(), right.feeds())
    results = lifted(wrong.model(), wrong.feeds()).run()
    assert distance(expected[0], results[0].value) > 10 * PRECISION[expected[0].dtype]


def test_an_unknown_activation_is_refused_by_name() -> None:
    from driftscope.errors import CannotLift

    case = OneNode("FusedConv", [f32(1, 2, 3, 3), f32(2, 2, 1, 1)], {"activation": "Snake"})
    with pytest.raises(CannotLift, match="'Snake'"):
        lifted(case.model(), case.feeds()).run()

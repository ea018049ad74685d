"""What steps say about their rounding: the sums of squares against dense sums, kinds and lengths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from onnx_models import FLOAT, lift_onnx, model_of, node, steps_of

from driftscope.lift.steps import Kind, Rounding, Step


def step_of(op: str, x: torch.Tensor, *weights: np.ndarray, opset: int = 20, **attributes: Any) -> Step:
    names = [f"w{i}" for i in range(len(weights))]
    model = model_of(
        [node(op, ["x", *names], ["y"], "n", **attributes)], {"x": FLOAT}, ["y"],
        dict(zip(names, weights, strict=True)), opset=opset,
    )  # fmt: skip
    (step,) = steps_of(lift_onnx(model, {"x": x}))
    return step


def squares(rounding: Rounding) -> torch.Tensor:
    assert rounding.squares is not None
    return rounding.squares()


RANDOM = np.random.default_rng(5)


def _signs(*shape: int) -> np.ndarray:
    return RANDOM.choice([-1.0, 1.0], shape).astype(np.float32)


def test_the_rank_one_form_is_exact_for_terms_of_equal_size() -> None:
    a, b = torch.from_numpy(3 * _signs(2, 5, 7)), 2 * _signs(7, 4)
    step = step_of("MatMul", a, b)
    assert (step.rounding.kind, step.rounding.length) == (Kind.DOT, 7)
    dense = (a.double().unsqueeze(-1) * torch.from_numpy(b).double()).square().sum(-2)
    torch.testing.assert_close(squares(step.rounding).expand(2, 5, 4), dense)


def test_the_rank_one_form_is_near_the_dense_sum_for_random_terms() -> None:
    a = torch.from_numpy(RANDOM.standard_normal((64, 256)).astype(np.float32))
    b = RANDOM.standard_normal((256, 64)).astype(np.float32)
    cheap = squares(step_of("MatMul", a, b).rounding)
    dense = a.double().square() @ torch.from_numpy(b).double().square()
    assert (cheap.mean() / dense.mean()).item() == pytest.approx(1, abs=0.03)


def test_gemm_counts_its_factors_and_its_bias() -> None:
    a, b, c = torch.from_numpy(_signs(3, 5)), _signs(4, 5), 3 * _signs(4)
    step = step_of("Gemm", a, b, c, alpha=0.5, beta=2.0, transB=1)
    assert step.rounding.length == 5
    torch.testing.assert_close(
        squares(step.rounding).expand(3, 4), torch.full((3, 4), 5 * 0.25 + 36, dtype=torch.float64)
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_count_the_products_of_a_patch(groups: int) -> None:
    x, w = torch.from_numpy(2 * _signs(2, 4, 6, 6)), 3 * _signs(6, 4 // groups, 3, 3)
    step = step_of("Conv", x, w, group=groups, strides=[2, 1])
    length = 9 * 4 // groups
    assert (step.rounding.kind, step.rounding.length) == (Kind.DOT, length)
    assert step.outputs[0] is not None
    expected = torch.full(step.outputs[0].shape, 36.0 * length, dtype=torch.float64)
    torch.testing.assert_close(squares(step.rounding).expand(expected.shape), expected)


@pytest.mark.parametrize(
    ("op", "attributes", "kind", "length"),
    [
        ("Relu", {}, Kind.EXACT, 1), ("Neg", {}, Kind.EXACT, 1), ("Transpose", {}, Kind.EXACT, 1),
        ("Sqrt", {}, Kind.ROUND, 1), ("Exp", {}, Kind.FUNCTION, 1), ("Gelu", {}, Kind.FUNCTION, 1),
        ("ReduceSum", {}, Kind.SUM, 24), ("ReduceMean", {"axes": [1]}, Kind.SUM, 6),
        ("ReduceMax", {}, Kind.EXACT, 24), ("Softmax", {"axis": 0}, Kind.SOFTMAX, 4),
        ("LpNormalization", {}, Kind.NORM, 6), ("Cast", {"to": 10}, Kind.ROUND, 1), ("Cast", {"to": 11}, Kind.EXACT, 1),
    ],
)  # fmt: skip
def test_kinds_and_lengths(op: str, attributes: dict[str, Any], kind: Kind, length: int) -> None:
    opset = 12 if op == "ReduceMean" else 20
    step = step_of(op, torch.rand(4, 6) + 0.5, opset=opset, **attributes)
    assert (step.rounding.kind, step.rounding.length) == (kind, length)


def test_integer_arithmetic_is_exact() -> None:
    model = model_of([node("Add", ["x", "x"], ["y"])], {"x": 7}, ["y"])
    (step,) = steps_of(lift_onnx(model, {"x": torch.arange(3)}))
    assert step.rounding.kind == Kind.EXACT


@pytest.mark.parametrize(
    ("op", "attributes", "terms"),
    [
        ("ReduceSum", {}, 4 * 24), ("ReduceMean", {}, 4 / 24), ("ReduceSumSquare", {}, 16 * 24),
        ("GlobalAveragePool", {}, 4 / 6), ("AveragePool", {"kernel_shape": [2]}, 4 / 2),
    ],
)  # fmt: skip
def test_sums_count_their_squared_terms(op: str, attributes: dict[str, Any], terms: float) -> None:
    step = step_of(op, torch.from_numpy(2 * _signs(2, 2, 6)), **attributes)
    assert squares(step.rounding).flatten()[0].item() == pytest.approx(terms)


def test_fused_attention_shows_its_inner_products() -> None:
    model = model_of([node("Attention", ["x", "x", "x"], ["y"], "a")], {"x": FLOAT}, ["y"], opset=23)
    steps = steps_of(lift_onnx(model, {"x": torch.rand(1, 2, 5, 8)}))
    shown = [(s.operator, s.rounding.kind, s.rounding.length) for s in steps]
    assert shown == [
        ("scores", Kind.DOT, 8), ("softmax", Kind.SOFTMAX, 5), ("values", Kind.DOT, 5),
        ("Attention", Kind.EXACT, 1),
    ]  # fmt: skip
    assert all(s.outputs[0] is not None and math.isfinite(s.outputs[0].sum().item()) for s in steps)

"""Small operators of com.microsoft: against onnxruntime, or, without a CPU kernel, against separate nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_node import OneNode, assert_lift_agrees, lifted
from torch.nn import functional as F

from driftscope.errors import CannotLift
from driftscope.lift.steps import Kind, Step

RNG = np.random.default_rng(23)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


_WELL_CONDITIONED = np.eye(4, dtype=np.float32) + 0.1 * f32(2, 4, 4)
CASES = {
    "inverse": OneNode("Inverse", [_WELL_CONDITIONED]),
    "inverse-half": OneNode("Inverse", [_WELL_CONDITIONED[0].astype(np.float16)]),
    "distance": OneNode("CDist", [f32(5, 6), f32(7, 6)]),
    "distance-euclidean": OneNode("CDist", [f32(5, 6), f32(7, 6)], {"metric": "euclidean"}),
    "trilu": OneNode("Trilu", [f32(4, 5), np.array(1)], {"upper": 0}),
    "gather-nd": OneNode("GatherND", [f32(3, 4, 5), np.array([[0, 1], [2, 3]])]),
    "grid": OneNode("GridSample", [f32(1, 2, 5, 5), f32(1, 3, 3, 2)], {"padding_mode": "border"}),
    "grid-cubic": OneNode("GridSample", [f32(1, 2, 5, 5), f32(1, 3, 3, 2)], {"mode": "bicubic", "align_corners": 1}),
    "pad": OneNode("Pad", [f32(3, 4), np.array([1, 0, 0, 2]), np.array([0.5], np.float32)]),
    "pad-reflect": OneNode("Pad", [f32(3, 4), np.array([1, 0, 0, 2])], {"mode": "reflect"}),
    "pad-edge-2d": OneNode("Pad", [f32(3, 4), np.array([[1, 0, 0, 2]])], {"mode": "edge"}),
    "range": OneNode("Range", [np.float32(0), np.float32(1), np.float32(0.3)]),
    "range-default-step": OneNode("Range", [np.array([2]), np.array([7])]),
    "expand": OneNode("ExpandDims", [f32(3, 4), np.array(1, np.int32)]),
    "expand-last": OneNode("ExpandDims", [f32(3, 4), np.array(-1, np.int32)]),
    "unfold": OneNode("UnfoldTensor", [f32(3, 7)], {"size": 3, "step": 2}),
    "unique": OneNode("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], {}, 3),
}


@pytest.mark.parametrize("name", CASES)
def test_lift_equals_the_kernel(name: str) -> None:
    case = CASES[name]
    case.inputs = [np.asarray(x) for x in case.inputs]
    assert_lift_agrees(case)


def value(op_type: str, inputs: list[np.ndarray | None], output: int = 0, **attributes: Any) -> torch.Tensor:
    case = OneNode(op_type, inputs, attributes, output + 1)
    return lifted(case.model(), case.feeds()).run()[output].value


def double(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x).double()


def test_bias_softmax_broadcasts_inner_and_outer_dimensions() -> None:
    x, inner, outer = f32(2, 3, 4, 5), f32(2, 5), f32(4, 5)
    got = value("BiasSoftmax", [x, inner], axis=3, is_inner_broadcast=1)
    torch.testing.assert_close(got, torch.softmax(double(x) + double(inner)[:, None, None], -1))
    got = value("BiasSoftmax", [x, outer], axis=3, is_inner_broadcast=0)
    torch.testing.assert_close(got, torch.softmax(double(x) + double(outer), -1))
    got = value("BiasSoftmax", [x, outer], axis=2, is_inner_broadcast=0)
    flat = torch.softmax((double(x) + double(outer)).flatten(2), -1)
    torch.testing.assert_close(got, flat.reshape(2, 3, 4, 5))


@pytest.mark.parametrize("last", [0, 1], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("activation", [0, 1], ids=["plain", "silu"])
def test_group_norm_equals_separate_nodes(last: int, activation: int) -> None:
    x, gamma, beta, skip, bias = f32(2, 6, 3, 4), f32(6), f32(6), f32(2, 6), f32(6)
    settings = {"groups": 2, "activation": activation, "epsilon": 0.5, "channels_last": last}

    def expected(t: torch.Tensor) -> torch.Tensor:
        y = F.group_norm(t, 2, double(gamma), double(beta), 0.5)
        return F.silu(y) if activation else y

    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    got = value("GroupNorm", [given, gamma, beta], **settings)
    torch.testing.assert_close(got.movedim(-1, 1) if last else got, expected(double(x)))
    total = double(x) + double(skip)[:, :, None, None] + double(bias)[:, None, None]
    for output, wanted in enumerate((expected(total), total)):
        got = value("SkipGroupNorm", [given, gamma, beta, skip, bias], output, **settings)
        torch.testing.assert_close(got.movedim(-1, 1) if last else got, wanted)


def test_fused_sums_equal_separate_nodes() -> None:
    x, bias, skip = f32(2, 3, 8), f32(8), f32(2, 3, 8)
    total = double(x) + double(bias)
    torch.testing.assert_close(value("BiasAdd", [x, bias, skip]), total + double(skip))
    torch.testing.assert_close(value("BiasDropout", [x, bias, skip]), total + double(skip))
    left, right = total.chunk(2, -1)
    torch.testing.assert_close(value("BiasSplitGelu", [x, bias]), left * F.gelu(right))
    w = f32(8, 4)
    product = F.gelu(double(x) @ double(w) + double(bias)[:4], approximate="tanh")
    torch.testing.assert_close(value("GemmFastGelu", [x, w, bias[:4]]), product, rtol=1e-7, atol=1e-7)


def test_dropout_in_training_is_refused_and_in_inference_is_the_identity() -> None:
    x, bias, ratio = f32(2, 3), f32(3), np.array(0.5, np.float32)
    with pytest.raises(CannotLift, match="at random"):
        value("BiasDropout", [x, bias, None, ratio, np.array(True)])
    torch.testing.assert_close(value("BiasDropout", [x, bias, None, ratio, np.array(False)]), double(x) + double(bias))


def test_finiteness_is_decided_in_the_native_format() -> None:
    """2^16 is finite in float64 and not in float16: the lift answers as the native program does."""
    huge, fine = np.array([6.5e4, 1.0], np.float16), np.array([1.0], np.float16)
    assert bool(value("IsAllFinite", [huge, fine]))
    case = OneNode("IsAllFinite", [fine, fine])
    beyond = {"x0": torch.tensor([65536.0], dtype=torch.float64), "x1": torch.tensor([1.0]).half()}
    from driftscope.lift.onnx.graph import lift_onnx

    assert not bool(lift_onnx(case.model(), beyond).run()[0].value)
    nan = np.array([np.nan], np.float16)
    assert not bool(value("IsAllFinite", [nan]))
    assert bool(value("IsAllFinite", [nan], isinf_only=1))


def test_distances_that_cancel_carry_the_noise_of_the_terms_they_cancel_from() -> None:
    rounding = {}

    def observe(step: Step) -> None:
        rounding[step.name] = step.rounding

    x = f32(3, 4) + 100
    case = OneNode("CDist", [x, x + np.float32(0.01)])
    result = lifted(case.model(), case.feeds()).run(observe=observe)[0].value
    assert rounding["node"].kind == Kind.DOT
    assert bool((rounding["node"].squares().sqrt() > 100 * result.abs()).all())

"""Operators whose meaning changed between opsets, each against onnxruntime at the opset that had it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node import OneNode, assert_lift_agrees, lifted

from driftscope.errors import CannotLift

_RANDOM = np.random.default_rng(7)


def _floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(dtype)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _case(
    op: str, opset: int, *inputs: np.ndarray | None, outputs: int = 1, host: bool = False, **attributes: Any
) -> Any:
    weights = tuple(i for i, x in enumerate(inputs) if i and x is not None and x.dtype == np.int64) if host else ()
    inputs = tuple(None if x is None else np.asarray(x) for x in inputs)
    node = OneNode(op, inputs, attributes, outputs, domain="", weights=weights, opset=opset)
    return pytest.param(node, id=f"{op}-{opset}-{'-'.join(map(str, attributes)) or 'plain'}")


X = _floats(2, 3, 4, 5)
FLAT = [_case(op, 11, X, axis=axis) for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (0, 1, 2, -1)] + [
    _case(op, 13, X, axis=axis) for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (0, 1, -1)
]

REDUCTIONS = [
    _case(op, opset, np.abs(X) + 0.5, keepdims=keep, **({"axes": [1, -1]} if opset < 13 else {}))
    for op in (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare",
    )
    for opset, keep in ((7, 0), (11, 1), (13, 0), (18, 1))
] + [
    _case("ReduceSum", 13, X, _ints(1, -1), host=True, keepdims=0),
    _case("ReduceMean", 18, X, _ints(0, 2), host=True),
    _case("ReduceMean", 18, X, _ints(), host=True, noop_with_empty_axes=1),
    _case("ReduceSumSquare", 18, X, None, noop_with_empty_axes=1),
]  # fmt: skip

ATTRIBUTES_THAT_BECAME_INPUTS = [
    _case("Clip", 6, X, min=-0.5, max=0.25),
    _case("Clip", 6, X, max=0.25),
    _case("Clip", 11, X, np.float32(-0.5), np.float32(0.25)),
    _case("Clip", 13, X, None, np.float32(0.25)),
    _case("Clip", 12, X, np.float32(1.0), np.float32(-1.0)),
    _case("Pad", 2, X, pads=[0, 1, 2, 0, 0, 0, 1, 3], value=1.5),
    _case("Pad", 2, X, pads=[0, 0, 2, 1, 0, 0, 1, 3], mode="reflect"),
    _case("Pad", 10, X, pads=[0, 0, -1, 1, 0, 0, -1, 3], mode="edge"),
    _case("Pad", 11, X, _ints(0, 1, 2, 0, 0, 0, 1, 3), np.float32(2.5), host=True),
    _case("Pad", 18, X, _ints(2, 1, 1, 3), np.float32(2.5), _ints(-1, 1), host=True),
    _case("Pad", 19, X, _ints(0, 0, 2, 1, 0, 0, 1, 4), host=True, mode="wrap"),
    _case("Slice", 9, X, starts=[1, -3], ends=[99, -1], axes=[1, 3]),
    _case("Slice", 10, X, _ints(1, -3), _ints(99, -1), _ints(1, -1), host=True),
    _case("Slice", 13, X, _ints(-1, 3), _ints(-99, 0), _ints(1, 3), _ints(-1, -2), host=True),
    _case("Squeeze", 11, _floats(1, 3, 1, 2), axes=[0, -2]),
    _case("Squeeze", 13, _floats(1, 3, 1, 2), _ints(0, -2), host=True),
    _case("Squeeze", 13, _floats(1, 3, 1, 2)),
    _case("Unsqueeze", 11, X, axes=[0, -1]),
    _case("Unsqueeze", 13, X, _ints(0, -1), host=True),
    _case("Split", 2, X, axis=3, split=[2, 3], outputs=2),
    _case("Split", 11, X, axis=2, outputs=2),
    _case("Split", 13, X, _ints(1, 2), host=True, axis=1, outputs=2),
    _case("Split", 18, X, axis=3, num_outputs=2, outputs=2),
    _case("TopK", 7, X, k=2, axis=3, outputs=2),
    _case("TopK", 10, X, _ints(2), host=True, axis=1, outputs=2),
    _case("TopK", 11, X, _ints(3), host=True, largest=0, outputs=2),
    _case("Dropout", 7, X, outputs=1, ratio=0.4),
    _case("Dropout", 12, X, np.float32(0.4), outputs=2),
    _case("Upsample", 7, X, scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"),
    _case("Upsample", 9, X, np.float32([1.0, 1.0, 2.0, 1.6]), mode="linear"),
    _case("Resize", 10, X, np.float32([1.0, 1.0, 0.6, 1.7]), mode="nearest"),
    _case("Resize", 10, X, np.float32([1.0, 1.0, 1.5, 2.0]), mode="linear"),
]  # fmt: skip

TRANSFORMS = (
    "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric",
)  # fmt: skip
RESIZES = [
    _case(
        "Resize", 19, X, None, None, _ints(2, 3, 7, 3), host=True, mode=mode, coordinate_transformation_mode=t,
    )
    for mode in ("nearest", "linear", "cubic")
    for t in TRANSFORMS
] + [
    _case("Resize", 13, X, None, np.float32([1, 1, 1.3, 0.7]), mode="nearest", nearest_mode=nearest)
    for nearest in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
] + [
    _case("Resize", 18, X, None, None, _ints(2, 3, 2, 3), host=True, mode="linear", antialias=1),
    _case("Resize", 18, X, None, None, _ints(8, 7), host=True, mode="cubic", axes=[2, 3], exclude_outside=1),
    _case("Resize", 13, X, None, np.float32([1, 1, 0.7, 0.7]), mode="linear",
          coordinate_transformation_mode="align_corners"),
]  # fmt: skip

SCALE, BIAS = _floats(3), _floats(3)
NORMALISATIONS = [
    _case("BatchNormalization", 7, X, SCALE, BIAS, _floats(3), np.abs(_floats(3)), epsilon=1e-3),
    _case("BatchNormalization", 9, X, SCALE, BIAS, _floats(3), np.abs(_floats(3))),
    _case("BatchNormalization", 15, X, SCALE, BIAS, _floats(3), np.abs(_floats(3))),
    _case("InstanceNormalization", 6, X, SCALE, BIAS),
    _case("GroupNormalization", 21, _floats(2, 6, 4), _floats(6), _floats(6), num_groups=3),
    _case("LayerNormalization", 17, X, _floats(5), _floats(5), outputs=3),
    _case("LayerNormalization", 17, X, _floats(4, 5), axis=2, epsilon=0.1),
    _case("LpNormalization", 1, X, axis=1, p=1),
    _case("LpNormalization", 1, X, axis=2, p=2),
    _case("MeanVarianceNormalization", 9, X),
    _case("LRN", 1, _floats(2, 7, 3, 3), size=5, alpha=0.3, beta=0.6, bias=1.5),
]

WINDOWS = [
    _case("MaxPool", opset, _floats(2, 3, 9, 8), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], outputs=2)
    for opset in (8, 10, 12)
] + [
    _case("MaxPool", 12, _floats(1, 2, 9, 9), kernel_shape=[3, 3], dilations=[2, 2], ceil_mode=1, strides=[2, 2]),
    _case("MaxPool", 12, _floats(1, 2, 9, 9), kernel_shape=[2, 2], storage_order=1, outputs=2),
    _case("MaxPool", 7, _floats(1, 2, 9), kernel_shape=[4], auto_pad="SAME_LOWER", strides=[2]),
    _case("AveragePool", 7, _floats(1, 2, 9, 9), kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    _case("AveragePool", 7, _floats(1, 2, 9, 9), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    _case("AveragePool", 11, _floats(1, 2, 8, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    _case("AveragePool", 19, _floats(1, 2, 8, 8, 6), kernel_shape=[2, 3, 2], auto_pad="SAME_UPPER"),
    _case("LpPool", 11, _floats(1, 2, 8, 8), kernel_shape=[3, 3], p=3),
    _case("GlobalLpPool", 2, _floats(1, 2, 8, 8), p=3),
    _case("Conv", 11, _floats(2, 4, 9, 9), _floats(6, 2, 3, 3), _floats(6), group=2, strides=[2, 1], pads=[1, 0, 2, 1]),
    _case("Conv", 11, _floats(2, 4, 9), _floats(6, 4, 3), auto_pad="SAME_LOWER", strides=[2]),
    _case("Conv", 11, _floats(1, 2, 5, 6, 7), _floats(3, 2, 2, 3, 2), dilations=[2, 1, 2]),
    _case("ConvTranspose", 11, _floats(2, 4, 5, 5), _floats(4, 3, 3, 3), _floats(6), group=2, strides=[2, 3],
          pads=[1, 0, 1, 2], output_padding=[1, 0]),
    _case("ConvTranspose", 11, _floats(1, 2, 5, 5), _floats(2, 3, 3, 3), strides=[2, 2], output_shape=[10, 11]),
    _case("ConvTranspose", 11, _floats(1, 2, 5), _floats(2, 3, 4), strides=[2], auto_pad="SAME_UPPER"),
]  # fmt: skip

OTHERS = [
    _case("Gemm", 7, _floats(4, 3), _floats(5, 4), _floats(3, 1), transA=1, transB=1, alpha=0.7, beta=1.3),
    _case("Gemm", 11, _floats(3, 4), _floats(4, 5)),
    _case("Einsum", 12, _floats(2, 3, 4), _floats(2, 4, 5), equation="bij, bjk -> bik"),
    _case("Einsum", 12, _floats(3, 3), equation="ii"),
    _case("Mod", 10, _ints(-7, 7, -7), _ints(3, -3, -3)),
    _case("Mod", 13, _floats(6) * 9, _floats(6), fmod=1),
    _case("CumSum", 14, X, _ints(2), host=True, exclusive=1, reverse=1),
    _case("OneHot", 11, _ints(-1, 0, 5, 2), _ints(4), np.float32([0.5, 2.0])),
    _case("ArgMax", 7, np.round(X), axis=1, keepdims=0),
    _case("ArgMin", 13, np.round(X), axis=-1, select_last_index=1),
    _case("GatherND", 12, _floats(0, 3, 4), np.zeros((0, 2, 1), dtype=np.int64), batch_dims=1),
    _case("GatherND", 12, _floats(2, 3), np.zeros((4, 0, 2), dtype=np.int64)),
    _case("GatherND", 12, _floats(2, 3, 4), np.array([[[1], [2]], [[0], [-1]]]), batch_dims=1),
    _case("GatherElements", 13, _floats(3, 3), np.array([[1, 2, -1], [0, 0, 0]])),
    _case("ScatterElements", 16, _floats(3, 3), np.array([[1, 0, 2], [1, 2, 0]]), _floats(2, 3), reduction="add"),
    _case("ScatterND", 16, _floats(4, 2), np.array([[1], [1]]), _floats(2, 2), reduction="mul"),
    _case("Trilu", 14, _floats(4, 4), np.array(-1, dtype=np.int64), upper=0),
    _case("DepthToSpace", 13, _floats(1, 8, 2, 3), blocksize=2, mode="CRD"),
    _case("Gelu", 20, X, approximate="tanh"),
    _case("GridSample", 16, _floats(1, 2, 4, 4), np.tanh(_floats(1, 3, 3, 2)), mode="bicubic",
          padding_mode="reflection"),
    _case("GridSample", 16, _floats(1, 2, 4, 4), np.tanh(_floats(1, 3, 3, 2)), mode="nearest", align_corners=1),
    _case("RoiAlign", 16, _floats(2, 3, 8, 8), np.float32([[0, 0, 5, 6], [2, 1, 7, 7]]), _ints(0, 1), output_height=3,
          output_width=2, spatial_scale=0.7),
    _case("RoiAlign", 10, _floats(2, 3, 8, 8), np.float32([[0, 0, 5, 6], [2, 1, 7, 7]]), _ints(1, 0), output_height=2,
          output_width=2, sampling_ratio=2, mode="max"),
    _case("Unique", 11, np.float32([2, 1, 1, 3, 4, 3]), outputs=4, sorted=0),
]  # fmt: skip

DIRECTIONS = (("forward", 1), ("reverse", 1), ("bidirectional", 2))
RECURRENT = [
    _case(op, opset, _floats(6, 2, 4), _floats(d, g * 3, 4), _floats(d, g * 3, 3), _floats(d, 2 * g * 3),
          np.int32([6, 4]), _floats(d, 2, 3), outputs=2, hidden_size=3, direction=name, **more)
    for op, g, more in (("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {}))
    for name, d in DIRECTIONS
    for opset in (7, 14)
] + [
    _case("LSTM", 14, _floats(6, 2, 4), _floats(1, 12, 4), _floats(1, 12, 3), _floats(1, 24), None, None,
          _floats(1, 2, 3), _floats(1, 9), outputs=3, hidden_size=3, clip=0.4),
    _case("GRU", 14, _floats(6, 2, 4), _floats(1, 9, 4), _floats(1, 9, 3), hidden_size=3, outputs=2,
          activations=["HardSigmoid", "LeakyRelu"], activation_alpha=[0.3, 0.1], activation_beta=[0.4]),
]  # fmt: skip

CASES = [
    *FLAT, *REDUCTIONS, *ATTRIBUTES_THAT_BECAME_INPUTS, *RESIZES, *NORMALISATIONS, *WINDOWS, *OTHERS, *RECURRENT,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_onnxruntime(case: OneNode) -> None:
    assert_lift_agrees(case, 5e-6)


def test_group_normalization_18_has_one_scale_per_group() -> None:
    x, scale, bias = _floats(2, 6, 4), _floats(3), _floats(3)
    old = OneNode("GroupNormalization", (x, scale, bias), {"num_groups": 3}, domain="", opset=18)
    each = (x, np.repeat(scale, 2), np.repeat(bias, 2))
    new = OneNode("GroupNormalization", each, {"num_groups": 3}, domain="", opset=21)
    before = lifted(old.model(), old.feeds()).run()[0].value
    after = lifted(new.model(), new.feeds()).run()[0].value
    assert before is not None
    assert before.equal(after)


def test_an_opset_before_the_first_we_know_is_refused() -> None:
    case = OneNode("Add", (_floats(2), _floats(2)), {}, domain="", opset=6)
    with pytest.raises(CannotLift, match=r"Add.*opset"):
        lifted(case.model(), case.feeds()).run()

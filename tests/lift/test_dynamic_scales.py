"""The scale that an operator computes of its input's extremes is a number like any other: only integers are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

import driftscope as ds

WEIGHT = np.random.default_rng(1).integers(-127, 128, (6, 5)).astype(np.int8)
SCALE = np.float32(0.013)
X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def file():
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[4,6] x) => (float[4,5] y) '
        "{ q, s, z = DynamicQuantizeLinear(x) m = MatMulInteger(q, w, z) "
        "f = Cast<to=1>(m) both = Mul(s, ws) y = Mul(f, both) }"
    )
    model.graph.initializer.extend([numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(SCALE, "ws")])
    return model


def by_hand(steps, order):
    def run(x):
        low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
        scale = (high - low) / np.float32(steps)
        zero = np.clip(np.rint(-low / scale), 0, 255)
        levels = np.clip(np.rint(x / scale) + zero, 0, 255) - zero
        return order(levels @ WEIGHT.astype(np.float32), scale)

    return ds.program(run, framework="numpy")


ORDERS = {"scales first": lambda m, s: m * (s * SCALE), "one after the other": lambda m, s: m * s * SCALE}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_a_scale_computed_by_hand_is_the_same_function(order, turned):
    pair = file(), by_hand(255, ORDERS[order])
    found = ds.compare(*(pair[::-1] if turned else pair), {"x": X}, isolate=False)
    assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason
    assert "N016" not in [f.code for f in found.findings]


@pytest.mark.parametrize("turned", [False, True])
def test_a_scale_for_one_step_less_is_another_function(turned):
    pair = file(), by_hand(254, ORDERS["scales first"])
    assert str(ds.compare(*(pair[::-1] if turned else pair), {"x": X}, isolate=False).verdict) == "DIFFERENT"

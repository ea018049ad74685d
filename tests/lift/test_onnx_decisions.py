"""Decisions are made on native values: what ties natively ties in the lift, and values follow in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx_models import lift_onnx, model_of, node

HALF = 10

# In float16 both sums are 1.0; in float64 the second is greater.
NEARLY = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float16)
SMALL = np.float16([0.0, 0.0002, 0.0])


def decided(
    op: str, *more: np.ndarray, outputs: int = 1, shift: np.ndarray = SMALL, **attributes: Any
) -> list[torch.Tensor]:
    names = [f"w{i}" for i in range(len(more))]
    nodes = [
        node("Add", ["x", "small"], ["sum"]),
        node(op, ["sum", *names], [f"y{i}" for i in range(outputs)], "decision", **attributes),
    ]
    weights = {"small": shift, **dict(zip(names, more, strict=True))}
    model = model_of(nodes, {"x": HALF}, [f"y{i}" for i in range(outputs)], weights)
    values = [output.value for output in lift_onnx(model, {"x": NEARLY}).run()]
    return [v for v in values if v is not None]


@pytest.mark.parametrize(
    ("op", "more", "attributes", "expected"),
    [
        ("ArgMax", (), {"axis": 0}, [0]),
        ("Greater", (np.float16(1),), {}, [False, False, False]),
        ("Equal", (np.float16(1),), {}, [True, True, False]),
        ("Ceil", (), {}, [1, 1, 1]),
        ("Sign", (), {}, [1, 1, 1]),
        ("Cast", (), {"to": 7}, [1, 1, 0]),
    ],
)  # fmt: skip
def test_ties_of_the_native_format_stay_ties(op: str, more: Any, attributes: Any, expected: list[Any]) -> None:
    assert decided(op, *more, **attributes)[0].tolist() == expected


def test_a_difference_the_format_can_hold_still_decides() -> None:
    wide = np.float16([0.0, 0.002, 0.0])
    assert decided("ArgMax", axis=0, shift=wide)[0].tolist() == [1]
    assert decided("Ceil", shift=wide)[0].tolist() == [1, 2, 1]


def test_top_k_chooses_natively_and_returns_float64_values() -> None:
    values, indices = decided("TopK", np.int64([2]), outputs=2)
    assert indices.tolist() == [0, 1]
    assert values.tolist() == [1.0, 1.0 + float(SMALL[1])]


def test_unique_merges_what_is_equal_natively() -> None:
    values, first = decided("Unique", outputs=2)[:2]
    assert values.tolist() == [0.5, 1.0]
    assert first.tolist() == [2, 0]


def test_quantisation_rounds_the_native_quotient() -> None:
    # 1 / 0.4 is a tie in float16, where 0.4 is 0.39990234375 and the quotient 2.5.
    (levels,) = decided("QuantizeLinear", np.float16(0.4), np.int8(0))
    native = np.rint(np.float16([1, 1, 0.5]) / np.float16(0.4)).astype(int)
    assert levels.tolist() == native.tolist()

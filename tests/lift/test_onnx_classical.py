"""Classical machine learning operators, against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_models import FLOAT, graph_of, lift_onnx

X = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4) + 1e-12


def evaluated(op: str, **attributes: Any) -> torch.Tensor:
    node = helper.make_node(op, ["x"], ["y"], "n", domain="ai.onnx.ml", **attributes)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    model: onnx.ModelProto = helper.make_model(graph_of([node], {"x": FLOAT}, ["y"]), opset_imports=opsets)
    (output,) = lift_onnx(model, {"x": X}).run()
    assert output.value is not None
    assert output.format == torch.float32
    return output.value


def single(*values: float) -> torch.Tensor:
    return torch.from_numpy(np.float32(values)).double()


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("Scaler", {"offset": [0.1], "scale": [0.3]}, (X - single(0.1)) * single(0.3)),
        ("LinearRegressor", {"coefficients": [0.1, 0.2, 0.3, 0.4], "intercepts": [0.7]},
         (X * single(0.1, 0.2, 0.3, 0.4)).sum(-1, keepdim=True) + single(0.7)),
        ("Normalizer", {"norm": "L2"}, X / X.square().sum(-1, keepdim=True).sqrt()),
        ("Normalizer", {"norm": "L1"}, X / X.abs().sum(-1, keepdim=True)),
        ("Normalizer", {}, X / X.abs().amax(-1, keepdim=True)),
    ],
)  # fmt: skip
def test_linear_parts_stay_in_float64(op: str, attributes: dict[str, Any], expected: torch.Tensor) -> None:
    torch.testing.assert_close(evaluated(op, **attributes), expected, rtol=1e-14, atol=1e-14)


def test_a_threshold_decides_on_the_native_value() -> None:
    # 2 + 1e-12 is 2 in float32, and 2 is not above a threshold of 2.
    values = evaluated("Binarizer", threshold=2.0)
    assert values.max().item() == 0
    assert evaluated("Binarizer", threshold=1.9).max().item() == 1


def test_a_tree_decides_on_the_native_value() -> None:
    tree = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [3, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [5.0, 7.0],
        "n_targets": 1,
    }  # fmt: skip
    assert evaluated("TreeEnsembleRegressor", **tree, nodes_values=[2.0, 0.0, 0.0])[2].item() == 5
    assert evaluated("TreeEnsembleRegressor", **tree, nodes_values=[1.9, 0.0, 0.0])[2].item() == 7

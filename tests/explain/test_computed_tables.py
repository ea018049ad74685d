"""A table that a program computes from no input, computed otherwise: the step is named, and not who reads the table."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from onnx import ModelProto, numpy_helper, parser
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.verdict import Verdict

DRAWN = torch.Generator().manual_seed(0)
PLACES, FIRST, SHIFT, LAST = (torch.randn(n, generator=DRAWN) for n in ((7, 2), (2, 32), (32,), (32, 6)))


def biased(x: Tensor) -> Tensor:
    """Adds a bias that a small network computes from positions."""
    return (x + 16 * torch.sigmoid(torch.relu(PLACES @ FIRST + SHIFT) @ LAST)).tanh()


def file(
    function: str = "Sigmoid", scale: float = 16.0, weight: float = 1.0, rectified: str = "r = Relu(p)"
) -> ModelProto:
    """The same in a file that stores its first product, rounded to float32."""
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> g (float[3,7,6] x) => (float[a,b,c] y) { p = Add(w, b)'
        f" {rectified} m = MatMul(r, v) s = {function}(m) t = Mul(s, k) h = Add(x, t) y = Tanh(h) }}"
    )
    first = FIRST.clone()
    first[1, 3] *= weight
    held = {
        "w": (PLACES @ first).numpy(),
        "b": SHIFT.numpy(),
        "v": LAST.numpy(),
        "k": np.float32(scale),
        "o": np.float32(0.5),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in held.items())
    return model


def test_the_same_table_is_the_same_function() -> None:
    x = (torch.randn(3, 7, 6, generator=DRAWN) / 10,)
    for pair in ((biased, file()), (file(), biased)):
        assert ds.compare(*pair, x).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


@pytest.mark.parametrize(
    ("other", "node"),
    [
        ({"function": "HardSigmoid"}, "HardSigmoid_3"),
        ({"scale": 15.9}, "Mul_4"),
        ({"weight": 1.1}, "Add_0"),
        ({"rectified": "u = Abs(p) v2 = Add(u, p) r = Mul(v2, o)", "scale": 15.9}, "Mul_6"),
    ],
)
def test_the_step_from_which_a_table_is_another_one_is_the_place(other: dict, node: str) -> None:
    c = ds.compare(biased, file(**other), (torch.randn(3, 7, 6, generator=DRAWN) / 10,))
    assert c.verdict is Verdict.DIFFERENT
    assert c.first.where.node == node
    assert c.first.verified


class Timed(nn.Module):
    """Adds what two layers make of one time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.time = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 6))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.time(torch.ones(1, 4))).tanh()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_table_that_only_one_side_computes_is_placed_where_it_is_computed(swapped: bool) -> None:
    module, x = Timed().eval(), (torch.randn(3, 6, generator=DRAWN),)
    with torch.no_grad():
        table = module.time(torch.ones(1, 4))
    verdicts = []
    for factor in (1.0, 1.1):
        table[0, 2] *= factor
        other = parser.parse_model(
            '<ir_version: 9, opset_import: ["": 20]> g (float[3,6] x) => (float[a,b] y) { h = Add(x, t) y = Tanh(h) }'
        )
        other.graph.initializer.append(numpy_helper.from_array(table.numpy(), "t"))
        c = ds.compare(*((other, module) if swapped else (module, other)), x)
        verdicts.append(c.verdict)
    assert verdicts[0] in (Verdict.IDENTICAL, Verdict.ROUNDING)
    assert verdicts[1] is Verdict.DIFFERENT
    assert c.first.where.module == "time.2"


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, Verdict.PRECISION), (1.1, Verdict.DIFFERENT)])
def test_a_rounded_weight_that_a_table_is_computed_from_is_one(factor: float, verdict: Verdict) -> None:
    module, x = Timed().eval(), (torch.randn(3, 6, generator=DRAWN),)
    rounded = copy.deepcopy(module)
    with torch.no_grad():
        for weight in (rounded.time[0].weight, rounded.time[2].weight):
            weight.copy_(weight.bfloat16())
        rounded.time[2].weight[0, 3] *= factor
    for pair in ((module, rounded), (rounded, module)):
        c = ds.compare(*pair, x)
        assert c.verdict is verdict, c.reason
        assert factor > 1 or "weights rounded to bfloat16" in c.reason

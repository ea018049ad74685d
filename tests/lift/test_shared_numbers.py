"""A number that a narrow format makes another one is told apart from it where each is read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, parser
from torch import Tensor, nn

import driftscope as ds


class Logit(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return torch.logit(x, self.eps)


def as_exported(element: int, eps: float, high: float) -> onnx.ModelProto:
    """The graph torch.onnx makes of logit: where ``high`` is 1 it is the very constant of ``1 - x``."""
    one = "high" if high == 1.0 else "one"
    nodes = [
        helper.make_node("Less", ["x", "low"], ["below"]),
        helper.make_node("Where", ["below", "low", "x"], ["raised"]),
        helper.make_node("LessOrEqual", ["raised", "high"], ["inside"]),
        helper.make_node("Where", ["inside", "raised", "high"], ["clamped"], name="clamp"),
        helper.make_node("Sub", [one, "clamped"], ["rest"]),
        helper.make_node("Div", ["clamped", "rest"], ["odds"]),
        helper.make_node("Log", ["odds"], ["y"]),
    ]
    numbers = {"low": eps, "high": high, "one": 1.0}
    stored = [helper.make_tensor(n, element, [], [v]) for n, v in numbers.items()]
    values = [helper.make_tensor_value_info(n, element, ["n"]) for n in "xy"]
    graph = helper.make_graph(nodes, "logit", values[:1], values[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("element", "dtype", "eps"), [
    (TensorProto.FLOAT16, torch.float16, 1e-6), (TensorProto.FLOAT16, torch.float16, 1e-4),
    (TensorProto.FLOAT, torch.float32, 1e-9),
])  # fmt: skip
def test_one_and_nearly_one_stored_once(element: int, dtype: torch.dtype, eps: float, swapped: bool) -> None:
    x = torch.tensor([0.0, 1.0, 0.5, 0.25, 2.0, 0.75, -1.0, 0.125], dtype=dtype)
    pair = Logit(eps), as_exported(element, eps, 1.0)
    found = ds.compare(*(reversed(pair) if swapped else pair), (x,))
    assert found.verdict in ("IDENTICAL", "ROUNDING")
    assert [f.code for f in found.findings if not f.note and f.code != "N017"] == []


@pytest.mark.parametrize("high", [1.0, 0.9995])
def test_a_number_that_the_format_tells_apart_is_another(high: float) -> None:
    x = torch.tensor([0.0, 1.0, 0.5, 0.25, 2.0, 0.75, -1.0, 0.125], dtype=torch.float16)
    assert ds.compare(Logit(1e-2), as_exported(TensorProto.FLOAT16, 1e-2, high), (x,)).verdict == "DIFFERENT"


class Normed(nn.Module):
    """An epsilon as a literal, and the same in rms_norm, whose kernel rounds it to float32."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) / 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.weight
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return x + nn.functional.rms_norm(0.01 * x, (16,), eps=self.eps)


class Stored(Normed):
    """The same with one stored number for both, as exporters write it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("epsilon", torch.tensor(1e-5))

    def forward(self, x: Tensor) -> Tensor:
        for factor in (1.0, 0.01):
            given, before = (x @ self.weight if factor == 1.0 else factor * x), x
            x = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return before + x


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("eps", "same"), [(1e-5, True), (1.0001e-5, False)])
def test_a_literal_that_a_kernel_rounded_is_the_one_written_elsewhere(eps: float, same: bool, swapped: bool) -> None:
    x = 0.01 * torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    pair = Normed(eps), Stored()
    found = ds.compare(*(reversed(pair) if swapped else pair), (x,))
    assert (found.verdict in ("IDENTICAL", "ROUNDING")) == same
    assert ("not the same function" in found.reason or any(f.code == "N016" for f in found.findings)) != same


class Weighed(nn.Module):
    """A number that is computed from weights, with cancellation, and an activation behind it."""

    def __init__(self, folded: float | None = None):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.folded, self.last = folded, torch.sigmoid
        self.one, self.two = (nn.Parameter(0.3 * torch.randn(2, 8, generator=generator)) for _ in range(2))

    def number(self) -> Tensor:
        return torch.exp((self.one[0] * self.one[1]).sum()) - torch.exp((self.two[0] * self.two[1]).sum())

    def forward(self, x: Tensor) -> Tensor:
        number = self.number() if self.folded is None else torch.tensor(self.folded)
        return self.last(torch.sin(x) - number * torch.relu(x))


@pytest.mark.parametrize("swapped", [False, True])
def test_a_number_folded_with_another_rounding_is_not_blamed_for_another_function(swapped: bool) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        healthy = Weighed()
        broken = Weighed(float(healthy.number()) + 2.0**-24)
        pair = healthy, broken
        assert ds.compare(*(reversed(pair) if swapped else pair), (x,)).verdict in ("IDENTICAL", "ROUNDING")
        broken.last = nn.functional.hardsigmoid
        found = ds.compare(*(reversed(pair) if swapped else pair), (x,))
    assert found.verdict == "DIFFERENT"
    assert "sigmoid" in str(found.first.where.operator)
    assert not any("add" in f.why or "sub" in f.why for f in found.findings if not f.note)


WRITTEN = "d = Div(x, root) e = Erf(d) p = Add(e, one) q = Mul(x, p) {} = Mul(q, half)"
LEFT_BEHIND = {"tensors": "", "steps": WRITTEN.format("left")}


def gelu(body, root):
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g (float[4,9] x) => (float[4,9] y) <float root = {{{root}}}, '
        f"float one = {{1.0}}, float half = {{0.5}}> {{ {body} }}"
    )
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_numbers_that_a_fusion_leaves_behind_are_not_the_fused_operators(left, turned):
    x = {"x": np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)}
    for root, verdicts in ((1.4142135, ("IDENTICAL", "ROUNDING")), (1.4143, ("DIFFERENT",))):
        pair = gelu(WRITTEN.format("y"), root), gelu(f"y = Gelu(x) {LEFT_BEHIND[left]}", root)
        found = ds.compare(*(pair[::-1] if turned else pair), x, isolate=False)
        assert str(found.verdict) in verdicts
        assert "N016" not in [f.code for f in found.findings]

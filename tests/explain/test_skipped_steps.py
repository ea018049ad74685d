"""What A does and B leaves out, and what only a number or a default says: each named, tried, and absent from twins."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.verdict import Verdict

G = torch.Generator().manual_seed(0)
X = torch.randn(5, 8, generator=G)
Function = Callable[..., Tensor]


class Gated(nn.Module):
    """A norm with its gain, and a product with the transpose of a square weight that was used before."""

    def __init__(self, gain: bool = True, transposed: bool = True):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.gain = nn.Parameter(1 + 0.3 * torch.randn(8))
        self.gained, self.transposed = gain, transposed

    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(self.first(x), (8,), eps=1e-6)
        y = y * self.gain if self.gained else y
        weight = self.first.weight
        y = y @ (weight.T if self.transposed else weight)
        return self.last(F.gelu(y))


def test_a_gain_that_is_left_out_is_named():
    found = ds.compare(Gated(), Gated(gain=False), X).first
    assert found.where.operator == "aten.mm"
    assert "where A computes mul_1 (aten.mul, " in found.why
    assert found.verified


@pytest.mark.parametrize("swapped", [False, True])
def test_a_square_weight_that_is_not_transposed_is_named(swapped: bool):
    pair = (Gated(), Gated(transposed=False))
    found = ds.compare(*(pair[::-1] if swapped else pair), X).first
    assert found.where.operator == "aten.mm"
    assert "transpose" in found.why
    assert "first.weight" in found.why
    other = ds.compare(Gated(), Gated(), X)
    assert other.verdict is Verdict.IDENTICAL


@pytest.mark.parametrize("move", ["flip", "transpose", "roll"])
def test_elements_that_are_not_put_elsewhere_first_are_named(move: str):
    moved: dict[str, Function] = {
        "flip": lambda v: v.flip(-1), "transpose": lambda v: v.mT.contiguous(), "roll": lambda v: v.roll(1, 0)
    }  # fmt: skip
    x = torch.randn(6, 6, generator=G)
    found = ds.compare(lambda v: moved[move](v.tanh()).exp().cumsum(-1), lambda v: v.tanh().exp().cumsum(-1), x)
    assert found.verdict is Verdict.DIFFERENT
    assert move in found.first.why or "order" in found.first.why, found.first.why


def _softmax(opset: int, axis: int) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3, 4]) for n in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], "soft", axis=axis)], "g", *([v] for v in values)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("reference", ["torch", "file"])
def test_a_softmax_of_an_old_opset_is_told_from_one_over_a_single_axis(axis: int, reference: str):
    x = torch.randn(2, 3, 4, generator=G)
    new = (lambda v: torch.softmax(v, axis)) if reference == "torch" else _softmax(13, axis)
    old = _softmax(12, axis)
    found = ds.compare(new, old, x).first
    assert f"over all axes from {axis} on, as ONNX does up to opset 12, and A over axis {axis} alone" in found.why
    assert found.verified
    back = ds.compare(old, new, x).first
    assert f"over axis {axis} alone, and A over all axes from {axis} on" in back.why
    last = ds.compare(lambda v: torch.softmax(v, -1), _softmax(12, 2), x)
    assert last.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


def _rotated(x: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]), base ** (-torch.arange(half) / half))
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angles.cos().repeat(1, 2) + turned * angles.sin().repeat(1, 2)


DEFAULTS: dict[str, tuple[Function, Function, str]] = {
    "the share of a sum": (
        lambda v: torch.add(v, v.exp(), alpha=2), lambda v: torch.add(v, v.exp()), "alpha is 1 here and 2 in A"),
    "descending": (
        lambda v: v.sort(-1, descending=True).values * torch.arange(8.0),
        lambda v: v.sort(-1).values * torch.arange(8.0),
        "descending is False here and True in A",
    ),
    "every second element": (
        lambda v: v.tanh()[:, ::2].exp(), lambda v: v.tanh()[:, :4].exp(),
        "end is 4 here and the last in A; step is 1 here and 2 in A",
    ),
    "a base inside tables": (
        lambda v: torch.softmax(_rotated(v, 1e4) @ _rotated(v, 1e4).mT, -1),
        lambda v: torch.softmax(_rotated(v, 5e4) @ _rotated(v, 5e4).mT, -1), "is 50000; with 10000 it gives A's values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_only_a_default_or_a_number_inside_a_table_says_is_named(name: str):
    a, b, words = DEFAULTS[name]
    found = ds.compare(a, b, X).first
    assert words in found.why
    assert found.verified
    assert ds.compare(b, a, X).first.verified


class Ended(nn.Module):
    """A layer with a residual, and last what makes the result of it."""

    def __init__(self, last: nn.Module):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(8, 8), last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + F.gelu(self.first(x)))


class WrittenNorm(nn.Module):
    """A root mean square norm of several steps."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize(
    ("last", "step"), [(nn.Tanh(), "tanh"), (nn.LayerNorm(8), "layer_norm"), (WrittenNorm(), "pow")]
)
def test_steps_that_one_program_ends_without_are_named_in_both_orders(last: nn.Module, step: str):
    whole, short = Ended(last), Ended(nn.Identity())
    lacking, more = ds.compare(whole, short, X), ds.compare(short, whole, X)
    assert lacking.first.where.operator == "aten.add"
    assert step in lacking.first.fix
    assert step in more.first.where.operator
    assert step in more.first.fix
    for found in (lacking, more):
        assert found.verdict is Verdict.DIFFERENT
        assert found.first.verified
        assert [f.code for f in found.findings if not f.note] == ["N001"]


def test_results_in_another_order_are_not_steps_that_are_left_out():
    """Each value that B returns is one that A has, and no step is missing; the whole program is its own twin."""
    found = ds.compare(lambda v: (v.tanh(), v.tanh().exp()), lambda v: (v.tanh().exp(), v.tanh()), X)
    assert found.verdict is Verdict.DIFFERENT
    assert not any("stays as it is" in f.why or "A computes no" in f.why for f in found.findings)
    assert ds.compare(Ended(WrittenNorm()), Ended(WrittenNorm()), X).verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(("one", "other"), [(F.gelu, F.relu), (torch.tanh, torch.abs), (torch.exp, lambda v: v * 1.0)])
def test_a_last_step_that_changes_nothing_on_these_inputs_is_not_called_left_out(one, other):
    """A Relu of positive numbers gives what it takes, and A computes nothing of it; nor has A no other step there."""
    weight = torch.rand(8, 8, generator=torch.Generator().manual_seed(5))
    a, b = (lambda v: one(v @ weight).flatten()), (lambda v: other(v @ weight).flatten())
    for found in (ds.compare(a, b, X.abs()), ds.compare(b, a, X.abs())):
        assert found.verdict is Verdict.DIFFERENT
        assert found.first.verified
        assert "stays as it is" not in found.first.why
        assert "A computes no" not in found.first.why


def test_one_of_several_results_that_ends_without_a_step_is_named_in_both_orders():
    def both(x):
        return x * 1.5, torch.tanh(x * 1.5)

    def once(x):
        return x * 1.5, x * 1.5

    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for pair in ((both, once), (once, both)):
        found = ds.compare(*pair, x)
        assert [o.verdict for o in found.outputs] == ["IDENTICAL", "DIFFERENT"]
        told = [f for f in found.findings if not f.note]
        assert len(told) == 1
        assert "tanh (aten.tanh" in told[0].why
        assert told[0].verified is True

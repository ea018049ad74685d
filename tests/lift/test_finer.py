"""Scaling decides: what shrinks in finer arithmetic is rounding, what stays is another function."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import driftscope as ds
from driftscope.lift.finer.evaluate import evaluate
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.verdict import Verdict

G = torch.Generator().manual_seed(3)
TAIL = torch.randn(8, 16, generator=G) * 0.3 - 5
FAR = torch.randn(8, 64, generator=G) + 300
SMALL = torch.randn(8, 16, generator=G) * 1e-4
SAME = (Verdict.IDENTICAL, Verdict.ROUNDING, Verdict.PRECISION)


def one_pass(v: torch.Tensor) -> torch.Tensor:
    m = v.mean(-1, keepdim=True)
    return (v - m) / torch.sqrt((v * v).mean(-1, keepdim=True) - m * m + 1e-5)


def one_pass_into(v: torch.Tensor) -> torch.Tensor:
    found = torch.zeros(8, 2)
    found[:, 0] = (v * v).mean(-1)
    found[:, 1] = v.mean(-1)
    found[:, 1].square_()
    return found[:, 0] - found[:, 1]


REWRITINGS = {
    "variance-in-place": (lambda v: v.var(-1, unbiased=False), one_pass_into, FAR),
    "gelu": (lambda v: F.gelu(v), lambda v: v * 0.5 * (1 + torch.erf(v / math.sqrt(2))), TAIL),
    "gelu-tanh": (
        lambda v: F.gelu(v, approximate="tanh"),
        lambda v: 0.5 * v * (1 + torch.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
        TAIL,
    ),
    "log1p": (lambda v: torch.log1p(v.abs()), lambda v: torch.log(1 + v.abs()), SMALL),
    "expm1": (lambda v: torch.expm1(v), lambda v: torch.exp(v) - 1, SMALL),
    "expm1-quotient": (lambda v: torch.expm1(v) / v, lambda v: (torch.exp(v) - 1) / v, SMALL * 1e-34),
    "logsigmoid": (lambda v: F.logsigmoid(v), lambda v: -torch.log(1 + torch.exp(-v)), TAIL + 25),
    "softplus": (lambda v: F.softplus(v), lambda v: torch.log(1 + torch.exp(v)), TAIL * 4),
    "variance": (lambda v: v.var(-1, unbiased=False), lambda v: (v * v).mean(-1) - v.mean(-1) ** 2, FAR),
    "layer-norm": (lambda v: F.layer_norm(v, (64,)), one_pass, FAR),
}


IMAGE, FILTER = torch.randn(1, 2, 5, 6, generator=G), torch.randn(3, 2, 3, 3, generator=G)
HEADS = torch.randn(1, 2, 5, 4, generator=G)


EXTREME = {
    "log1p-of-tiny": (lambda v: torch.log1p(v), lambda v: torch.log(1 + v), TAIL.abs() * 1e-38),
    "expm1-of-tiny": (lambda v: torch.expm1(v), lambda v: torch.exp(v) - 1, TAIL.abs() * 1e-38),
    "log1mexp-far-out": (lambda v: torch.log(-torch.expm1(-v)), lambda v: torch.log1p(-torch.exp(-v)), FAR[:, :16]),
}


@pytest.mark.parametrize("name", EXTREME)
def test_where_float64_loses_everything_finer_arithmetic_decides(name):
    one, two, x = EXTREME[name]
    for a, b in ((one, two), (two, one)):
        found = ds.compare(a, b, x, explain=False)
        assert found.verdict in SAME, found.reason
        assert found.evidence["reconciled"]["finer"]
    found = ds.compare(one, lambda v: two(v) * (1 + 1e-9), x, explain=False)
    assert found.verdict is Verdict.DIFFERENT or found.functions_differ, found.reason


@pytest.mark.parametrize("stride", [1, 2])
def test_balls_convolve_as_torch_does(stride):
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, FILTER[:, :1], FILTER[:, 0, 0, 0], stride=stride, padding=(1, 2), dilation=(1, 2), groups=1)

    lifted = lift_torch(function, (IMAGE[:, :1],), {})
    (fine,) = evaluate(lifted, [])
    assert fine is not None
    assert fine.bound < 1e-50
    torch.testing.assert_close(fine.value, lifted.run()[0].value, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_balls_attend_as_torch_does(causal):
    lifted = lift_torch(lambda q: F.scaled_dot_product_attention(q, q + 1, q, is_causal=causal), (HEADS,), {})
    (fine,) = evaluate(lifted, [])
    assert fine is not None
    assert fine.bound < 1e-50
    torch.testing.assert_close(fine.value, lifted.run()[0].value, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", REWRITINGS)
def test_a_cancelling_rewriting_is_the_same_function_either_way(name):
    one, two, x = REWRITINGS[name]
    for a, b in ((one, two), (two, one)):
        found = ds.compare(a, b, x, explain=False)
        # Where float64 has them equal, as some processors' logarithms have, there is nothing to look at more closely.
        assert found.outputs[0].lifted <= found.outputs[0].lifted_threshold, found.reason
        assert not found.outputs[0].lifted or found.outputs[0].lifted_threshold <= 1e-12, found.reason
        assert found.verdict in SAME


@pytest.mark.parametrize("name", REWRITINGS)
@pytest.mark.parametrize("off", [1e-9, -3e-11])
@pytest.mark.sampled(5)
def test_the_same_rewriting_with_a_tiny_error_is_another_one(name, off):
    one, two, x = REWRITINGS[name]
    for a, b in ((one, lambda v: two(v) * (1 + off)), (lambda v: two(v) * (1 + off), one)):
        found = ds.compare(a, b, x, explain=False)
        assert found.verdict is Verdict.DIFFERENT or found.functions_differ, found.reason


def test_the_step_that_loses_digits_is_named_on_its_side():
    one, two, x = REWRITINGS["variance"]
    there, back = ds.compare(one, two, x, explain=False), ds.compare(two, one, x, explain=False)
    for found, side in ((there, "B"), (back, "A")):
        notes = [f for f in found.findings if f.code == "N012" and "digits" in f.what]
        assert [f.what[0] for f in notes] == [side]
        assert notes[0].where.operator in ("aten.sub", "aten.add")


def test_a_program_too_large_or_without_rules_is_left_to_float64():
    x = torch.randn(4, 8, dtype=torch.float64)
    assert evaluate(lift_torch(torch.linalg.pinv, (x,), {}), []) == [None]
    big = torch.randn(600, 600)
    assert evaluate(lift_torch(lambda v: v @ v, (big,), {}), []) == []


def test_balls_say_what_float64_says_where_nothing_cancels():
    def function(v: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(torch.cat((v[1:], v[:1])) @ v.transpose(0, 1), (6,))
        return torch.softmax(y * 0.5, -1)

    x = torch.randn(6, 6, dtype=torch.float64, generator=G)
    lifted = lift_torch(lambda v: function(torch.cat((v, v[:, :2]), 1)), (x,), {})
    (found,) = evaluate(lifted, [])
    assert found is not None
    assert found.bound < 2.0**-180
    torch.testing.assert_close(found.value, lifted.run()[0].value, rtol=1e-13, atol=0)


@pytest.mark.parametrize("order", ["torch first", "torch second"])
def test_an_epsilon_that_a_kernel_rounds_to_float32_is_the_same_number(order):
    def divided(v: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
        return v / torch.sqrt((v * v).sum(-1, keepdim=True) / v.shape[-1] + eps)

    def kernel(v: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(v, (16,), eps=1e-6)

    def pair(one, two):
        return (one, two) if order == "torch first" else (two, one)

    found = ds.compare(*pair(kernel, divided), SMALL, explain=False)
    assert found.verdict in SAME, found.reason
    assert not found.functions_differ
    found = ds.compare(*pair(kernel, lambda v: divided(v, 1.000001e-6)), SMALL, explain=False)
    assert found.verdict is Verdict.DIFFERENT or found.functions_differ, found.reason
    # A program that computes in float64 is another one with that epsilon.
    wide = ds.compare(*pair(lambda v: divided(v, 9.999999974752427e-07), divided), SMALL.double(), explain=False)
    assert wide.verdict is not Verdict.ROUNDING, wide.reason

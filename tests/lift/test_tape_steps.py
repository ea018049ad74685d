"""What an observer of a torch tape sees: every step, its formats, and how rounding enters it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from float64_truth import lift, truth
from torch import nn

from driftscope.lift.steps import Kind

torch.manual_seed(0)
X = torch.randn(2, 4, 9, 9)
W = torch.randn(8, 2, 3, 3)
M = torch.randn(6, 64)
V = torch.randn(64, 5)


def _steps(function, *args, **kwargs):
    steps = []

    def observe(step):
        if step.rounding.squares is not None:
            step.rounding.squares = (lambda value: lambda: value)(step.rounding.squares())
        steps.append(step)

    lift(function, *args, **kwargs).run(observe=observe)
    return steps


KINDS = [
    (lambda x: x + 1, Kind.ROUND, 1),
    (lambda x: x / 3, Kind.ROUND, 1),
    (lambda x: x.sqrt(), Kind.ROUND, 1),
    (lambda x: x.half(), Kind.ROUND, 1),
    (lambda x: x.double(), Kind.EXACT, 1),
    (lambda x: x.exp(), Kind.FUNCTION, 1),
    (lambda x: F.gelu(x), Kind.FUNCTION, 1),
    (lambda x: x.transpose(0, 1), Kind.EXACT, 1),
    (lambda x: x.relu(), Kind.EXACT, 1),
    (lambda x: x > 0, Kind.EXACT, 1),
    (lambda x: torch.maximum(x, -x), Kind.EXACT, 1),
    (lambda x: x.sum(3), Kind.SUM, 9),
    (lambda x: x.mean((2, 3)), Kind.SUM, 81),
    (lambda x: x.half().cumsum(1), Kind.SUM, 4),
    (lambda x: F.avg_pool2d(x, 3), Kind.SUM, 9),
    (lambda x: x.var(3), Kind.SUM, 9),
    (lambda x: F.softmax(x, 3), Kind.SOFTMAX, 9),
    (lambda x: x.logsumexp(2), Kind.SOFTMAX, 9),
    (lambda x: F.layer_norm(x, (9, 9)), Kind.NORM, 81),
    (lambda x: F.group_norm(x, 2), Kind.NORM, 162),
    (lambda x: F.conv2d(x, W, groups=2), Kind.DOT, 18),
    (lambda x: x.flatten(0, 2) @ torch.ones(9, 2), Kind.DOT, 9),
    (lambda x: F.linear(x, torch.ones(3, 9), torch.ones(3)), Kind.DOT, 10),
]


@pytest.mark.parametrize(("function", "kind", "length"), KINDS, ids=range(len(KINDS)))
def test_kinds_and_lengths(function, kind, length):
    last = [s for s in _steps(function, X) if s.rounding.kind is kind and s.rounding.length == length]
    assert last


def _mean_ratio(estimate, exact):
    estimate, exact = torch.broadcast_tensors(estimate, exact)
    return float(estimate.sum() / exact.sum())


def test_squares_of_a_matmul_are_near_the_sum_of_squared_products():
    step = next(s for s in _steps(lambda a, b: a @ b, M, V) if s.rounding.kind is Kind.DOT)
    exact = M.double().square() @ V.double().square()
    assert 0.9 < _mean_ratio(step.rounding.squares(), exact) < 1.1


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2}], ids=str)
def test_squares_of_a_convolution_are_near_the_sum_of_squared_products(options):
    step = next(s for s in _steps(lambda x, w: F.conv2d(x, w, groups=2, **options), X, W) if s.rounding.squares)
    exact = F.conv2d(X.double().square(), W.double().square(), groups=2, **options)
    assert step.rounding.squares().shape == exact.shape
    assert 0.85 < _mean_ratio(step.rounding.squares(), exact) < 1.15


def test_squares_of_sums_and_means():
    for function, exact in (
        (lambda x: x.sum(3), X.double().square().sum(3)),
        (lambda x: x.mean(3), X.double().square().sum(3) / 81),
        (lambda x: x.half().cumsum(3), X.double().square().cumsum(3)),
    ):
        step = next(s for s in _steps(function, X) if s.rounding.kind is Kind.SUM)
        assert torch.allclose(step.rounding.squares(), exact, rtol=1e-12)


def test_attention_is_seen_as_its_inner_steps():
    q = torch.randn(1, 2, 5, 4).half()
    steps = _steps(lambda q: F.scaled_dot_product_attention(q, q, q), q)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert [s.name for s in steps] == [f"{name}.scores", f"{name}.softmax", name]
    assert [s.rounding.kind for s in steps] == [Kind.DOT, Kind.SOFTMAX, Kind.DOT]
    assert [s.formats[0] for s in steps] == [torch.float32, torch.float16, torch.float16]
    assert [s.index for s in steps] == [0, 1, 2]


def test_fused_recurrent_layers_are_seen_time_step_by_time_step():
    steps = _steps(nn.LSTM(6, 4).eval(), torch.randn(3, 2, 6))
    names = [s.name for s in steps]
    assert {f"mkldnn_rnn_layer.t{t}.hidden" for t in range(3)} <= set(names)
    assert all(s.rounding.kind is Kind.DOT for s in steps if s.name.endswith(("recurrent", "input")))


def test_steps_know_values_names_and_attributes():
    module = nn.Sequential(nn.Linear(64, 5), nn.LayerNorm(5, eps=1e-3)).half().eval()
    linear, norm = (s for s in _steps(module, M.half()) if s.rounding.kind in (Kind.DOT, Kind.NORM))
    assert linear.input_names == ["0.bias", "in[0][0]", "t"]
    assert [t.dtype for t in linear.inputs] == [torch.float64] * 3
    assert linear.formats == [torch.float16]
    assert norm.attributes["eps"] == 1e-3
    assert norm.output_names == ["native_layer_norm", "native_layer_norm.1", "native_layer_norm.2"]
    assert norm.formats == [torch.float16] * 3
    assert norm.where.module == "1"
    assert not norm.constant


def test_an_observer_replaces_values_also_where_they_are_written_in_place():
    def run(x):
        x = x * 1
        view = x[0]
        x.mul_(2)
        return view + 0

    def one_more(step):
        return [o + 1 for o in step.outputs] if step.name == "mul_" else None

    value = lift(run, M).run(observe=one_more)[0].value
    assert torch.equal(value, M[0].double() * 2 + 1)


def test_a_silent_observer_changes_nothing():
    module = nn.Sequential(nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    tape = lift(module, M)
    assert torch.equal(tape.run(observe=lambda step: None)[0].value, tape.run()[0].value)
    assert torch.allclose(tape.run()[0].value, truth(module, M)[0], rtol=1e-13)

"""Results that are infinite in float64 too, because float64 has no number for a value on the way to them."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.explain.freed_values import RoundedStep
from driftscope.explain.leaving_ranges import inside_of
from driftscope.lift.finer.evaluate import evaluate
from driftscope.lift.steps import Rounding, Step
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Where

Function = Callable[[torch.Tensor], torch.Tensor]
X = 1e3 * torch.randn(4, 33, generator=torch.Generator().manual_seed(3))

# A function, the same in steps that leave every range, what happens there, and at which step.
STEPS: dict[str, tuple[Function, Function, str, str]] = {
    "softmax": (lambda v: torch.softmax(v, -1), lambda v: v.exp() / v.exp().sum(-1, keepdim=True), "overflow", "exp"),
    "log-softmax": (lambda v: F.log_softmax(v, -1), lambda v: torch.softmax(v, -1).log(), "underflow", "_softmax"),
    "logsigmoid": (F.logsigmoid, lambda v: v.sigmoid().log(), "underflow", "sigmoid"),
    "complement": (lambda v: F.logsigmoid(-v), lambda v: (1 - v.sigmoid()).log(), "rounding", "rsub"),
    "logsumexp": (lambda v: v.logsumexp(-1), lambda v: v.exp().sum(-1).log(), "overflow", "exp"),
    "running": (lambda v: v.logcumsumexp(-1), lambda v: v.exp().cumsum(-1).log(), "overflow", "exp"),
}  # fmt: skip


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_what_leaves_every_range_is_no_other_function(name: str, swapped: bool) -> None:
    whole, steps, kind, place = STEPS[name]
    found = ds.compare(*((steps, whole) if swapped else (whole, steps)), [X])
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert f"{kind} in {'A' if swapped else 'B'}, " in found.reason
    assert found.first is not None
    assert found.first.code == "N004"
    assert found.first.where.operator == f"aten.{place}"
    assert "in float32" not in found.first.fix  # it is there, and no wider


@pytest.mark.parametrize("name", STEPS)
def test_another_function_that_leaves_every_range_is_another(name: str) -> None:
    whole, steps, _, _ = STEPS[name]
    found = ds.compare(whole, lambda v: 1.01 * steps(v), [X], explain=False)
    assert found.verdict is ds.Verdict.DIFFERENT, found.reason


def test_the_same_bits_beyond_the_smallest_number_hide_nothing() -> None:
    x = 300.0 + torch.randn(4, 33, generator=torch.Generator().manual_seed(1))
    parts = ds.compare(lambda v: F.soft_margin_loss(v, v.sign()), lambda v: (1 + (-v).exp()).log().mean(), [x])
    assert parts.reason == "the same bits"
    wrong = ds.compare(lambda v: F.soft_margin_loss(v, v.sign()), lambda v: (1 + (-2 * v).exp()).log().mean(), [x])
    assert "not the same function" in wrong.reason


def test_a_wide_balls_infinity_stays_what_it_is() -> None:
    mask = torch.full((4, 4), -torch.inf).triu(1)

    def masked(v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(v + mask, -1)

    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    lifted = lift_torch(masked, (x,), {})
    (fine,) = evaluate(lifted, [])
    assert fine is not None
    torch.testing.assert_close(fine.value, lifted.run()[0].value, rtol=1e-13, atol=1e-15)
    assert fine.lost is None


def _quotient() -> onnx.ModelProto:
    """The logit by a quotient, which leaves the range of float16 but not that in which onnxruntime computes it."""
    kind = TensorProto.FLOAT16
    values = [helper.make_tensor_value_info(name, kind, [4, 33]) for name in "xy"]
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["p"], name="probability"),
        helper.make_node("Sub", ["one", "p"], ["q"], name="rest"),
        helper.make_node("Div", ["p", "q"], ["odds"], name="odds"),
        helper.make_node("Log", ["odds"], ["y"], name="log"),
    ]
    one = helper.make_tensor("one", kind, [], [1.0])
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_overflow_that_a_runtime_does_not_meet_is_no_cause(swapped: bool) -> None:
    x = (X / 100).half()

    def logit(v: torch.Tensor) -> torch.Tensor:
        return torch.logit(v.sigmoid())

    found = ds.compare(*((_quotient(), logit) if swapped else (logit, _quotient())), [x])
    side = "B" if swapped else "A"
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert f"rounding in {side}, " in found.reason
    assert "overflow" not in found.reason


def _difference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) - x * y


@pytest.mark.parametrize("swapped", [False, True])
def test_nan_in_the_place_of_an_infinity_is_the_overflow_that_the_other_side_has_not(swapped: bool) -> None:
    x, y = ((300.0 + torch.rand(4, 8, generator=torch.Generator().manual_seed(k))).half() for k in (1, 2))

    def wide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _difference(x.float(), y.float()).half()

    found = ds.compare(*((wide, _difference) if swapped else (_difference, wide)), [x, y])
    assert found.verdict is ds.Verdict.PRECISION, found.reason
    assert f"overflow in {'B' if swapped else 'A'}, " in found.reason
    assert found.first is not None
    assert found.first.where.operator == "aten.mul"


def test_nan_in_the_place_of_an_infinity_that_no_overflow_makes_is_another_function() -> None:
    x, y = ((300.0 + torch.rand(4, 8, generator=torch.Generator().manual_seed(k))).half() for k in (1, 2))
    found = ds.compare(_difference, lambda x, y: (x.exp() - x.exp() * y / y).half(), [x, y], explain=False)
    assert found.verdict in (ds.Verdict.DIFFERENT, ds.Verdict.INCONCLUSIVE)
    near = ds.compare(lambda x: (x.float().exp() / 3e5).half(), lambda x: (x.float().exp() / 4e5).half() * 2, [x / 20])
    assert near.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize(("size", "named"), [(3e38, True), (1e30, False)])
def test_a_kernel_leaves_its_range_only_near_the_end_of_it(size: float, named: bool) -> None:
    exact, broken = torch.tensor([size, 1.0], dtype=torch.float64), torch.tensor([True, False])
    step = Step(0, "cosh", "aten.cosh", Where(), ["x"], ["y"], [exact.log()], [exact], [torch.float32], Rounding(), {})
    made = RoundedStep(step, exact, torch.tensor([torch.inf, 1.0], dtype=torch.float64), torch.float32)
    found = inside_of(made, broken)
    assert (found is not None) == named
    if found is not None:
        assert found.in_side("A").startswith("overflow inside a kernel of A, 3e+38, near the largest float32")


LAW = torch.tensor([1e18, -1e18, 300.0, -300.0, 30.0, -30.0, 3.0, -3.0, 0.1, -1e-30])


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(1)
def test_tails_of_the_normal_law_are_known_far_beyond_float64(swapped: bool) -> None:
    def parts(v: torch.Tensor) -> torch.Tensor:
        return (0.5 * torch.erfc(-v * 0.5**0.5)).log()

    pair = (parts, torch.special.log_ndtr) if swapped else (torch.special.log_ndtr, parts)
    found = ds.compare(*pair, [LAW])
    assert found.verdict is ds.Verdict.PRECISION
    assert f"underflow in {'BA'[swapped]}, " in found.reason
    scaled = (lambda v: torch.special.erfcx(v.abs()), lambda v: (v * v).exp() * torch.erfc(v.abs()))
    over = ds.compare(*scaled[:: -1 if swapped else 1], [LAW])
    assert over.verdict is ds.Verdict.PRECISION
    assert f"overflow in {'BA'[swapped]}, " in over.reason
    wrong = ds.compare(torch.special.log_ndtr, lambda v: parts(v * 1.001), [LAW], explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.sampled(1)
def test_digits_that_even_float64_loses_are_no_other_function(swapped: bool) -> None:
    tiny = 1e-38 * torch.randn(4, 33, generator=torch.Generator().manual_seed(5))
    pairs: list[tuple[Function, Function]] = [
        (lambda v: F.celu(v, 1.3), lambda v: v.clamp(min=0) + (1.3 * ((v / 1.3).exp() - 1)).clamp(max=0)),
        (lambda v: torch.erfinv(v.tanh()), lambda v: torch.special.ndtri((v.tanh() + 1) / 2) / 2**0.5),
        (lambda v: torch.polygamma(1, v.abs() + 1), lambda v: torch.special.zeta(torch.full_like(v, 2), v.abs() + 1)),
    ]
    for one, two in pairs:
        found = ds.compare(*((two, one) if swapped else (one, two)), [tiny])
        assert found.verdict <= ds.Verdict.ROUNDING, found.reason
        wrong = ds.compare(one, lambda v, f=two: f(v) * 1.001, [tiny * 1e38], explain=False)
        assert wrong.verdict is ds.Verdict.DIFFERENT

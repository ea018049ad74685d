"""Where NaN and infinity begin, and that infinities which are meant are nobody's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import driftscope as ds
from driftscope.comparison.leaves import compare_leaves
from driftscope.explain.native.nonfinite import origin_findings
from driftscope.lift.evidence import Evidence
from driftscope.lift.side_lift import SideLift
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Finding
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.paths import Path


class Body(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def compared(broken: Callable[[Tensor], Tensor], x: Tensor) -> Comparison:
    return ds.compare(Body(lambda t: torch.tanh(t)), Body(broken), (x,))


def origins(comparison: Comparison) -> list[Finding]:
    return [f for f in comparison.findings if f.code == "N017"]


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize(
    ("broken", "operator", "words"),
    [
        (lambda t: torch.tanh(torch.log(t)), "log", "logarithm"),
        (lambda t: torch.relu(torch.sqrt(t) * 2), "sqrt", "negative"),
        (lambda t: (t / (t - t)) + 1, "div", "divisors are zero"),
        (lambda t: torch.exp(t * 1e3) * 0, "exp", "largest float32"),
        (lambda t: torch.softmax(t.masked_fill(t < 2, -torch.inf), -1) @ torch.ones(4, 4), "softmax", "masked"),
        (lambda t: torch.acos(t * 3) + 0, "acos", "domain"),
        (lambda t: torch.softmax(t.masked_fill(t > 0, torch.inf), -1) + 0, "softmax", "combines infinities"),
        (lambda t: F.layer_norm(t.masked_fill(t > 0, torch.inf), (4,)) + 0, "layer_norm", "combines infinities"),
        (lambda t: F.layer_norm(t * 0, (4,), eps=0.0) + 0, "layer_norm", "no variance"),
    ],
)
def test_the_first_operator_is_named_with_its_range_and_cause(broken, operator, words):
    found = origins(compared(broken, X))
    assert len(found) == 1
    assert operator in found[0].where.operator
    assert words in found[0].why
    assert found[0].fix
    assert found[0].evidence["side"] == "B"
    one = found[0].evidence["low"] == found[0].evidence["high"]
    assert f"its inputs there {'are all ' if one else 'range from '}" in found[0].what


def test_overflow_in_the_declared_format_is_the_origin_of_the_nan_it_leads_to():
    half = (X * 300).to(torch.float16)
    comparison = ds.compare(Body(lambda t: t * 0), Body(lambda t: (t * t * 4) - (t * t * 4)), (half,))
    (found,) = origins(comparison)
    assert "mul" in found.where.operator
    assert "65504" in found.why


def test_a_mask_of_infinities_is_nobodys_mistake():
    masked = Body(lambda t: torch.softmax(t.masked_fill(t < 0, -torch.inf), 0))
    assert origins(ds.compare(masked, masked, (X.abs(),))) == []
    shown = Body(lambda t: t.masked_fill(t < 0, -torch.inf))
    assert origins(ds.compare(shown, shown, (X,))) == []


def test_the_same_infinities_on_both_sides_are_only_noted():
    log = Body(lambda t: torch.log(t.relu()))
    found = origins(ds.compare(log, Body(lambda t: torch.log(t.clamp(min=0))), (X,)))
    assert found
    assert all(f.note for f in found)


def test_a_kernel_that_leaves_the_range_on_the_way_is_told_from_a_result_that_does():
    x = torch.tensor([1.0, 89.0, 95.0])  # cosh: 2.2e38, which float32 holds, and 9.1e40, which it does not
    side = SideLift(graph := lift_torch(torch.cosh, (x,), {}), clean=graph.run())
    right = torch.cosh(x.double()).float()
    early = right.clone()
    early[1] = torch.inf
    leaves = compare_leaves([(Path(()), right)], [(Path(()), early)], flat=False)
    found = origin_findings(Evidence(side, side, [(0, 0)]), leaves, ([right], [early]))
    serious = [f for f in found if not f.note]
    assert [f.code for f in serious] == ["R003"]
    assert serious[0].what.startswith("B returns NaN or infinity at 1 element")
    assert {f.code for f in found if f.note} == {"N017"}


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("broken", [2, 3])
def test_what_was_seen_in_declared_formats_alone_is_said_so(side, broken):
    x = torch.tensor([1.0, 2.0, 300.0, 400.0]).half()
    graph = lift_torch(lambda t: t * t, (x,), {})
    native, whole = x.float() * x.float(), torch.ones(4).half()
    native = torch.where(torch.arange(4) >= broken, torch.inf, native).half()  # a device that rounds less: 300 is kept
    native[2] = native[2] if broken == 2 else 6e4
    own = SideLift(graph, clean=graph.run())
    plain = lift_torch(lambda t: t / t, (x,), {})
    other = SideLift(plain, clean=plain.run())
    sides, values = (own, other), ([native], [whole])
    if side == "B":
        sides, values = sides[::-1], values[::-1]
    leaves = compare_leaves([(Path(), values[0][0])], [(Path(), values[1][0])])
    (found,) = origin_findings(Evidence(*sides, [(0, 0)]), leaves, values)
    assert f"is the first in {side} to create 2 infinities" in found.what
    assert ("this run has NaN or infinity at 1 element of out" in found.what) == (broken == 3)
    assert found.what.startswith("with every result rounded to its declared format") == (broken == 3)


def _squared(dtype, factor):
    return lambda x: (x.to(dtype) * x.to(dtype)).float() * factor


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("factor", [0.5, 0.25])
def test_an_overflow_beside_another_function_is_placed_and_told_too(side, factor):
    x = torch.tensor([[1.0, 2.0, 300.0, 4.0], [1.5, 400.0, 3.0, 5.0]])
    pair = _squared(torch.float16, 0.5), _squared(torch.float32, factor)
    found = ds.compare(*(pair if side == "A" else pair[::-1]), (x,), isolate=False)
    assert found.verdict == ("PRECISION" if factor == 0.5 else "DIFFERENT"), found.reason
    told = [f for f in found.findings if not f.note]
    # What is left when the factor is mended is the second finding, and the only one where it is right.
    (overflow,) = (f for f in told if f.code == ("N004" if factor == 0.5 else "N006"))
    assert overflow.where.operator == "aten.mul"
    assert f"overflow in {side}, 1.6e+05 exceeds the largest float16" in overflow.what
    assert overflow.fix
    assert ("N001" in [f.code for f in told]) == (factor != 0.5)


@pytest.mark.parametrize("given", [1.0, torch.nan])
def test_a_kernel_that_may_have_picked_a_nan_is_not_said_to_leave_a_range(given):
    x = torch.tensor([1.0, 2.0, given, 4.0])
    graph = lift_torch(lambda t: t[[0, 1, 1, 3]] * 2, (x,), {})
    own = SideLift(graph, clean=graph.run())
    native, whole = torch.tensor([2.0, 4.0, torch.nan, 8.0]), torch.tensor([2.0, 4.0, 4.0, 8.0])
    leaves = compare_leaves([(Path(), whole)], [(Path(), native)])
    found = origin_findings(Evidence(own, own, [(0, 0)]), leaves, ([whole], [native]))
    (kernel,) = (f for f in found if f.code == "R003")
    assert "whose exact values, up to 4, float32 can hold" in kernel.what
    assert ("a kernel does inside" in kernel.why) == (given == 1.0)


@pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
def test_infinities_that_only_one_function_makes_are_told_once(turned):
    x = torch.tensor([[1.0, torch.inf, -3.0], [0.3, 2.0, -torch.inf]])
    pair = (lambda t: torch.div(t, 0.7, rounding_mode="floor"), lambda t: torch.floor(t / 0.7))
    found = ds.compare(*(pair[::-1] if turned else pair), (x,), isolate=False)
    assert found.verdict == "DIFFERENT"
    told = [f.what for f in found.findings if not f.note]
    assert told
    assert len(set(told)) == len(told)
    same = ds.compare(*(pair[::-1] if turned else pair), (x.nan_to_num(posinf=5.0, neginf=-5.0),), isolate=False)
    assert same.verdict in ("IDENTICAL", "ROUNDING")

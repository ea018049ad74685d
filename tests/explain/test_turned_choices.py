"""A choice inside a program that rounding turns is no other function; a choice by other values is."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.comparison.measuring.prediction import correlation
from driftscope.explain.native.choices import _first_turned
from driftscope.lift.torch.tape import lift_torch


class Routed(nn.Module):
    """Each row goes to the one of four experts with the largest score; in half, close scores are equal."""

    def __init__(self, dtype=torch.float32, bias=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.gate = nn.Parameter(0.1 * torch.randn(16, 4, generator=generator).to(dtype))
        self.experts = nn.Parameter(torch.randn(4, 16, generator=generator).to(dtype))
        self.dtype, self.bias = dtype, bias

    def forward(self, x):
        x = x.to(self.dtype)
        scores = (
            0.02 * torch.tanh(x @ self.gate) + 4.0 + self.bias * torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=self.dtype)
        )
        weight, best = scores.max(-1)
        return (x * self.experts[best] * weight[:, None]).float()


def x():
    return (torch.randn(40, 16, generator=torch.Generator().manual_seed(1)),)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")])
def test_a_choice_that_a_narrower_format_turns_is_precision(dtype, name, turned):
    # The weights are bfloat16's in both, so that all that differs is what is computed.
    plain, narrow = Routed(), Routed(dtype)
    with torch.no_grad():
        for one, other in zip(plain.parameters(), narrow.parameters(), strict=True):
            one.copy_(one.to(torch.bfloat16))
            other.copy_(one)
    found = ds.compare(*((narrow, plain) if turned else (plain, narrow)), x(), isolate=False)
    assert str(found.verdict) == "PRECISION", found.reason
    assert found.first.code == "N011"
    assert f"in {'A' if turned else 'B'}, which rounds to {name}" in found.reason


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_choice_by_other_values_is_another_function(dtype, turned):
    pair = (Routed(), Routed(dtype, bias=0.05))
    found = ds.compare(*(pair[::-1] if turned else pair), x(), isolate=False)
    assert str(found.verdict) == "DIFFERENT", found.reason


@pytest.mark.parametrize(("program", "runs"), [(torch.tanh, 1), (torch.argmax, 2)])
def test_only_a_program_that_chooses_is_run_with_other_choices(program, runs):
    graph, made = lift_torch(program, x(), {}), []
    run = graph.run
    graph.run = lambda **how: (made.append(how), run(**how))[1]
    assert _first_turned(graph, ()) is None
    assert len(made) == runs


def half(scale, shift=0.0):
    return ((torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * scale + shift).half(),)


def single(scale):
    return (torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * scale,)


STEPS = {
    "floor of a rounded quotient": (
        lambda x: torch.floor_divide(x, 0.7),
        lambda x: torch.floor(x / 0.7),
        lambda x: torch.floor(x / 0.71),
        (half(2e3), half(1.0, 300.0), single(1e18)),
    ),
    "decimals": (
        lambda x: torch.round(x * 100) / 100,
        lambda x: torch.round(x, decimals=2),
        lambda x: torch.round(x, decimals=1),
        (half(20.0), half(1.0, 300.0), single(1e4)),
    ),
    "remainder": (
        lambda x: torch.fmod(x, 0.7),
        lambda x: torch.fmod(x, torch.tensor(0.7, dtype=x.dtype)),
        lambda x: torch.fmod(x, torch.tensor(0.71, dtype=x.dtype)),
        (half(2e3), single(1e18), single(20.0)),
    ),
    "a remainder written out": (
        lambda x: torch.remainder(x, 0.3),
        lambda x: x - torch.floor(x / 0.3) * 0.3,
        lambda x: torch.remainder(x, 0.31),
        (half(20.0), half(1.0, 300.0), half(2e3)),
    ),
    "a cut": (
        lambda x: torch.nn.functional.hardshrink(x * 3, 0.5),
        lambda x: torch.nn.functional.hardshrink(x.float() * 3, 0.5).to(x.dtype),
        lambda x: torch.nn.functional.softshrink(x * 3, 0.5),
        (torch.linspace(0.16, 0.17, 200).half().reshape(1, 20, 10),),
    ),
    "a threshold": (
        lambda x: torch.nn.functional.threshold(x * 3, 0.5, 0.1),
        lambda x: torch.nn.functional.threshold(x.float() * 3, 0.5, 0.1).to(x.dtype),
        lambda x: torch.nn.functional.threshold(x * 3, 0.5, 0.0),
        (torch.linspace(0.16, 0.17, 200).half().reshape(1, 20, 10),),
    ),
    "a rounded product": (
        lambda x: torch.trunc(x * 3),
        lambda x: torch.trunc(x.float() * 3).to(x.dtype),
        lambda x: torch.ceil(x * 3),
        (half(2e3), half(1.0, 300.0)),
    ),
}
ASKED = [(name, k) for name, (*_, values) in STEPS.items() for k in range(len(values))]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("name", "k"), ASKED)
def test_a_step_whose_rounded_argument_lies_on_its_other_side_is_no_other_function(name, k, turned):
    one, other, _, values = STEPS[name]
    found = ds.compare(*((other, one) if turned else (one, other)), values[k], isolate=False)
    assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason
    assert not [f.code for f in found.findings if not f.note]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("name", "k"), [case for case in ASKED if case != ("remainder", 1)])
@pytest.mark.sampled(8)
def test_another_step_is_another_function_whatever_rounding_turns(name, k, turned):
    one, _, other, values = STEPS[name]
    found = ds.compare(*((other, one) if turned else (one, other)), values[k], isolate=False)
    assert str(found.verdict) == "DIFFERENT" or "N016" in [f.code for f in found.findings], found.reason


@pytest.mark.parametrize("turned", [False, True])
def test_another_remainder_far_out_is_another_function(turned):
    pair = (lambda x: torch.remainder(x, 0.3), lambda x: torch.fmod(x, 0.3))
    x = (single(1e18)[0].bfloat16(),)
    found = ds.compare(*(pair[::-1] if turned else pair), x, isolate=False)
    assert str(found.verdict) == "DIFFERENT", found.reason


@pytest.mark.parametrize("turned", [False, True])
def test_what_overflows_before_it_is_rounded_is_an_overflow(turned):
    pair = STEPS["decimals"][0], STEPS["decimals"][1]
    found = ds.compare(*(pair[::-1] if turned else pair), half(2e3), isolate=False)
    assert str(found.verdict) == "PRECISION", found.reason
    assert found.first.code == "N004"
    assert f"overflow in {'B' if turned else 'A'}" in found.reason


class Truncated(nn.Module):
    def forward(self, x):
        return torch.trunc(x * 3)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("values", [half(2e3), half(1.0, 300.0), half(20.0)])
@pytest.mark.sampled(2)
def test_an_optimiser_that_leaves_out_a_rounding_before_a_step_made_no_other_function(values, turned, tmp_path):
    file = tmp_path / "truncated.onnx"
    torch.onnx.export(Truncated(), values, file, dynamo=True, verbose=False)
    pair = Truncated(), str(file)
    found = ds.compare(*(pair[::-1] if turned else pair), values, isolate=False)
    assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason
    assert "O006" not in [f.code for f in found.findings]


def _levels(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x.softmax(-1) * 255)


def _levels_in_steps(x: torch.Tensor) -> torch.Tensor:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return torch.round(e / e.sum(-1, keepdim=True) * 255)


def _levels_in_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x.bfloat16().softmax(-1).to(x.dtype) * 255)


@pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
def test_a_step_turned_over_in_an_element_or_two_proves_no_arithmetic(turned: bool) -> None:
    for seed in range(8):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(seed + 11), dtype=torch.float64).to(
            torch.float16
        )
        programs = (_levels_in_steps, _levels) if turned else (_levels, _levels_in_steps)
        comparison = ds.compare(*programs, (x,), isolate=False)
        assert comparison.verdict in ("IDENTICAL", "ROUNDING"), comparison.reason
        assert "bfloat16" not in comparison.reason
        assert "cannot make: rounding" not in comparison.reason


def test_steps_are_of_one_height_whatever_turned_them() -> None:
    one, many = torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
    one[5], many[::4] = 1.0, torch.tensor([1.0, -1.0] * 8, dtype=torch.float64)
    assert correlation(one, one) == pytest.approx(1.0)
    assert correlation(one, one, steps=True) == -1.0
    assert correlation(many, many, steps=True) == pytest.approx(1.0)


@pytest.mark.parametrize("side", ["A", "B"])
def test_an_arithmetic_that_turned_many_steps_is_still_named(side: str) -> None:
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(1)) * 3
    programs = (_levels, _levels_in_bfloat16) if side == "B" else (_levels_in_bfloat16, _levels)
    comparison = ds.compare(*programs, (x,), isolate=False)
    assert comparison.verdict == "PRECISION"
    assert re.search(rf"rounding to bfloat16 .* in {side}", comparison.reason), comparison.reason

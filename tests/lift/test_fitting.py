"""Tensors that no formula gives: solved for, if they hold on inputs that they were not solved from."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import driftscope as ds
from driftscope.lift.onnx.graph import lift_onnx
from driftscope.lift.reconcile.fitting import _Budget, _Values, is_rounded, shuffled
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.verdict import Verdict

generator = torch.Generator().manual_seed(3)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def layer(made: Any) -> Any:
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=generator)
    return made.requires_grad_(False).eval()


EACH, POINT = layer(nn.Conv2d(4, 4, 3, groups=4)), layer(nn.Conv2d(4, 6, 1))
LINEAR, NORM, SCORE = layer(nn.Linear(8, 6)), layer(nn.LayerNorm(8)), layer(nn.Linear(8, 1))
CENTRES, WIDTH, SLOPE, SHIFT = numbers(6, 8), 0.37, 1.7, -0.3
IMAGE, ROWS, WORDS = numbers(2, 4, 7, 7), numbers(5, 8), numbers(2, 6, 8)
MERGED = POINT.weight[:, :, 0, 0, None, None] * EACH.weight[None, :, 0]
MERGED_BIAS = POINT.bias + POINT.weight[:, :, 0, 0] @ EACH.bias
CENTRED = (LINEAR.weight * NORM.weight) @ (torch.eye(8) - 1 / 8)
CENTRED_BIAS = LINEAR.bias + LINEAR.weight @ NORM.bias


def waves() -> Tensor:
    at, rate = torch.arange(6)[:, None], torch.exp(torch.arange(0, 8, 2) * (-np.log(1e4) / 8))
    return torch.stack([torch.sin(at * rate), torch.cos(at * rate)], -1).reshape(6, 8)


def distances(x: Tensor) -> Tensor:
    return torch.exp(-WIDTH * ((x[:, None] - CENTRES) ** 2).sum(-1))


# What is stored; the program that computes it; the one that reads it; the inputs.
CASES: dict[str, tuple[list[Tensor], Callable[..., Tensor], Callable[..., Tensor], Tensor]] = {
    "two convolutions are one": (
        [MERGED, MERGED_BIAS],
        lambda x: torch.relu(POINT(EACH(x))),
        lambda x, w, b: torch.relu(F.conv2d(x, w, b)),
        IMAGE,
    ),
    "squared distances are multiplied out": (
        [2 * WIDTH * CENTRES, WIDTH * (CENTRES**2).sum(1)],
        distances,
        lambda x, w, b: torch.exp(x @ w.T - WIDTH * (x * x).sum(1, keepdim=True) - b),
        0.3 * ROWS,
    ),
    "a weight centres": (
        [CENTRED, CENTRED_BIAS],
        lambda x: LINEAR(NORM(x)),
        lambda x, w, b: F.linear(x, w) * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) + b,
        ROWS,
    ),
    "a projected table of waves": (
        [LINEAR.weight * 8**0.5, waves() @ LINEAR.weight.T + LINEAR.bias],
        lambda x: torch.tanh(LINEAR(x * 8**0.5 + waves())),
        lambda x, w, b: torch.tanh(F.linear(x, w) + b),
        WORDS,
    ),
    "a calibrated score": (
        [SCORE.weight * SLOPE, SCORE.bias * SLOPE + SHIFT],
        lambda x: torch.sigmoid(SLOPE * SCORE(x) + SHIFT),
        lambda x, w, b: torch.sigmoid(F.linear(x, w, b)),
        ROWS,
    ),
}


def reading(case: str, stored: list[Tensor]) -> Callable[[Tensor], Tensor]:
    _, _, program, _ = CASES[case]
    return lambda x: program(x, *stored)


def judged(case: str, stored: list[Tensor], swapped: bool) -> ds.Comparison:
    pair = CASES[case][1], reading(case, stored)
    with torch.no_grad():
        return ds.compare(*(reversed(pair) if swapped else pair), (CASES[case][3],), explain=False)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(6)
def test_what_was_computed_ahead_of_time_is_the_same_function(case: str, swapped: bool) -> None:
    found = judged(case, [t.clone() for t in CASES[case][0]], swapped)
    assert found.verdict is Verdict.ROUNDING, found.reason


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(4)
def test_one_number_of_it_changed_is_another_function(case: str, swapped: bool) -> None:
    for which in (0, 1):
        stored = [t.clone().contiguous() for t in CASES[case][0]]
        flat = stored[which].view(-1)
        flat[flat.abs().argmax()] *= 1 + 2e-6  # 16 roundings
        assert judged(case, stored, swapped).verdict is Verdict.DIFFERENT


def test_what_no_input_reaches_is_not_taken_for_the_same() -> None:
    off = layer(nn.Conv2d(4, 6, 1))
    off.bias[2] = -1000.0  # a channel that is never on, and in which anything may be wrong
    bias = off.bias + off.weight[:, :, 0, 0] @ EACH.bias
    bias[2] += 0.25
    weight = off.weight[:, :, 0, 0, None, None] * EACH.weight[None, :, 0]
    with torch.no_grad():
        found = ds.compare(
            lambda x: torch.relu(off(EACH(x))),
            lambda x: torch.relu(F.conv2d(x, weight, bias)),
            (IMAGE,),
            explain=False,
        )
    assert found.verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("case", ["two convolutions are one", "a weight centres"])
def test_in_a_narrow_format_half_an_ulp_and_no_more(case: str) -> None:
    stored = [t.half().float() for t in CASES[case][0]]
    for changed, verdict in ((False, Verdict.PRECISION), (True, Verdict.DIFFERENT)):
        kept = [t.half() for t in stored]
        if changed:
            flat = kept[0].view(-1)
            flat[flat.abs().argmax()] *= 1 + 2e-3  # two of float16's roundings
        program = CASES[case][2]
        with torch.no_grad():
            found = ds.compare(
                CASES[case][1], lambda x, p=program, k=kept: p(x, *(t.float() for t in k)), (CASES[case][3],)
            )
        assert found.verdict is verdict, found.reason


def test_numpy_and_a_file_of_onnx_are_solved_for_as_well(tmp_path: Path) -> None:
    class Merged(nn.Module):
        def __init__(self, off: float = 0.0) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(MERGED.clone()), nn.Parameter(MERGED_BIAS.clone())
            self.w.data[0, 0, 0, 0] += off

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(F.conv2d(x, self.w, self.b))

    source = CASES["two convolutions are one"][1]
    for off, verdict in ((0.0, Verdict.ROUNDING), (1e-5, Verdict.DIFFERENT)):
        file = tmp_path / "merged.onnx"
        torch.onnx.export(Merged(off).eval(), (IMAGE,), file, verbose=False)
        for pair in ((source, file), (file, source)):
            with torch.no_grad():
                assert ds.compare(*pair, (IMAGE,), explain=False).verdict is verdict

    w, b = (t.numpy() for t in (2 * WIDTH * CENTRES, WIDTH * (CENTRES**2).sum(1)))

    def near(x: Any) -> Any:
        return np.exp(x @ w.T - x.dtype.type(WIDTH) * (x * x).sum(1, keepdims=True) - b)

    near_by = ds.program(near, framework="numpy")
    assert ds.compare(distances, near_by, (0.3 * ROWS,), explain=False).verdict is Verdict.ROUNDING


def test_what_was_found_is_said_on_the_side_that_stores_it() -> None:
    case = "two convolutions are one"
    pair = CASES[case][1], reading(case, [t.clone() for t in CASES[case][0]])
    for swapped, side in ((False, "B"), (True, "A")):
        with torch.no_grad():
            found = ds.compare(*(reversed(pair) if swapped else pair), (IMAGE,))
        notes = [f for f in found.findings if f.note]
        assert any(n.what.startswith(f"{side} stores") and "tested on another" in n.what for n in notes), notes


def test_a_tensor_shows_several_roundings_or_has_one() -> None:
    exact = torch.linspace(1.0, 1.9, 64, dtype=torch.float64)
    stored = exact.float()
    assert is_rounded(stored, exact, 4.0)
    one = exact.clone()
    one[5] += 3 * 2.0**-23
    assert not is_rounded(stored, one, 4.0)  # one number changed
    moved = torch.linspace(-2.0, 2.0, 64, dtype=torch.float64)
    assert is_rounded(stored, exact + 2.0**-23 * moved, 4.0)
    assert not is_rounded(stored, exact + 3 * 2.0**-23 * moved, 4.0)
    assert is_rounded(exact.half(), exact, 4.0)
    assert not is_rounded(exact.half(), exact + 2.0**-10 * moved, 4.0)
    number = torch.tensor([1.5])
    assert is_rounded(number, number.double() + 2.0**-24, 4.0)
    assert not is_rounded(number, number.double() + 2.0**-23, 4.0)


@given(st.integers(0, 50), st.lists(st.floats(0.0, 1e3, width=32), min_size=1, max_size=20))
def test_equal_numbers_are_shuffled_equally_and_kept(seed: int, given: list[float]) -> None:
    change, numbers = shuffled(seed), torch.tensor(given)
    mixed = change(numbers)
    usual = float(numbers[numbers != 0].median()) if bool(numbers.any()) else 0.0
    limit = min(math.ldexp(1.0, math.frexp(usual)[1] + 10), 3e38)
    assert torch.equal(mixed.sort().values, numbers.clamp(max=limit).sort().values)  # but for outliers
    assert torch.equal(change(numbers.double().reshape(1, -1)), mixed.double().reshape(1, -1))


def test_a_program_on_other_inputs_is_that_program(tmp_path: Path) -> None:
    def program(x: Tensor, at: Tensor) -> Tensor:
        return torch.tanh(LINEAR(x[at])) * x.mean()

    inputs = ROWS, torch.tensor([3, 1, 0])
    file = tmp_path / "p.onnx"

    class Module(nn.Module):
        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            return program(x, at)

    torch.onnx.export(Module(), inputs, file, verbose=False)
    import onnx

    model = onnx.load(file)
    feeds = dict(zip((i.name for i in model.graph.input), inputs, strict=True))
    for lifted in (lift_torch(program, inputs, {}), lift_onnx(model, feeds, directory=tmp_path)):
        before = lifted.run()[0].value
        change = shuffled(4)
        after = lifted.with_values(change).run()[0].value
        expected = lift_torch(program, tuple(map(change, inputs)), {}).run()[0].value
        assert after is not None
        assert expected is not None
        assert before is not None
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(before, after)
        assert torch.equal(before, lifted.run()[0].value)  # type: ignore[arg-type]


def test_all_attempts_together_cost_no_more_than_one_may() -> None:
    sides = _Values(), _Values()
    for side in sides:
        side.operations, side.elements = 5e5, 100
    budget = _Budget(left=1e8)
    budget.weigh(sides)
    before = budget.steps(runs=1)
    assert 0 < budget.steps(runs=2) < before
    budget.spend(passes=60, runs=1)
    assert budget.steps(runs=1) < before
    budget.spend(passes=60, runs=1)
    assert budget.steps(runs=1) <= 0

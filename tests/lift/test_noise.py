"""What the injector touches, what it leaves alone, and what a noise sample is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch

from driftscope.lift.noise.arithmetics import ARITHMETICS, ORDINARY, unit_of
from driftscope.lift.noise.floor import NoiseSample, floor64_sample, noise_sample, noisy_run
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.noise.rows import rows_of
from driftscope.lift.steps import Constant, Kind, LiftedOutput, Observer, Rounding, Step
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Where
from driftscope.records.paths import Path

ROUND, DOT = Rounding(Kind.ROUND), Rounding(Kind.DOT, 64)


def step_of(
    value: torch.Tensor, dtype: torch.dtype, rounding: Rounding = ROUND, *, index: int = 0, constant: bool = False
) -> Step:
    return Step(index, f"n{index}", "op", Where(), [], ["o"], [], [value], [dtype], rounding, {}, constant)


def noise_of(step: Step, injector: NoiseInjector | None = None) -> torch.Tensor | None:
    outputs = (injector or NoiseInjector())(step)
    return None if outputs is None else outputs[0] - step.outputs[0]


def values(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale


class Chain:
    """A lifted program made of (function, rounding) pairs applied to one input."""

    kind = "torch"

    def __init__(self, x: torch.Tensor, dtype: torch.dtype, *steps: tuple[Callable[..., torch.Tensor], Rounding]):
        self.x, self.dtype, self.steps, self.runs = x, dtype, steps, 0

    def constants(self) -> Sequence[Constant]:
        return []

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        self.runs += 1
        value = self.x
        for index, (function, rounding) in enumerate(self.steps):
            value = function(value)
            changed = observe(step_of(value, self.dtype, rounding, index=index)) if observe else None
            if changed is not None and changed[0] is not None:
                value = changed[0]
        return [LiftedOutput(Path(), "out", value, self.dtype)]


def rms(x: torch.Tensor | None) -> float:
    assert x is not None
    return float(x.abs().square().mean().sqrt())


@pytest.mark.parametrize(
    "step",
    [
        step_of(values(8), torch.float32, Rounding(Kind.EXACT)),
        step_of(values(8), torch.float32, constant=True),
    ],
    ids=["exact", "constant"],
)
def test_steps_without_rounding_are_left_alone(step):
    assert NoiseInjector()(step) is None


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8])
def test_integers_and_booleans_are_left_alone(dtype):
    value = torch.ones(4).to(dtype)
    assert NoiseInjector()(step_of(value, dtype))[0] is value


def test_missing_and_empty_outputs_are_left_alone():
    step = step_of(values(0, 3), torch.float32)
    step.outputs, step.formats = [None, step.outputs[0]], [None, torch.float32]
    assert NoiseInjector()(step)[0] is None
    assert NoiseInjector()(step)[1].shape == (0, 3)


def test_the_evaluator_s_own_tensor_is_not_written_to():
    value = values(100)
    before = value.clone()
    assert rms(noise_of(step_of(value, torch.float32))) > 0
    assert torch.equal(value, before)


def test_nan_and_infinity_pass_and_their_neighbours_still_get_noise():
    value = values(64)
    value[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    noisy = NoiseInjector()(step_of(value, torch.float32))[0]
    assert torch.equal(noisy[:3], value[:3]) or (noisy[0].isnan() and torch.equal(noisy[1:3], value[1:3]))
    assert (noisy[3:] != value[3:]).all()
    assert noisy[3:].isfinite().all()


def test_masks_as_large_as_the_format_stay_finite():
    value = torch.finfo(torch.float32).min * torch.linspace(0.5, 0.999, 64, dtype=torch.float64)
    noisy = NoiseInjector()(step_of(value, torch.float32))[0]
    assert noisy.isfinite().all()
    assert rms(noisy - value) == pytest.approx(0.415 * 2**-24 * rms(value / 1e30) * 1e30, rel=0.3)


@pytest.mark.parametrize("kind", [Kind.ROUND, Kind.FUNCTION, Kind.SUM, Kind.DOT, Kind.NORM, Kind.SOFTMAX])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_noise_has_mean_zero_and_the_format_s_size(kind, dtype):
    value = values(400, 64)
    noise = noise_of(step_of(value, dtype, Rounding(kind, 64)), NoiseInjector(scale=2.0**10))
    unit = unit_of(str(dtype)) * 2.0**10
    assert 0.3 * unit < rms(noise) < 6 * unit
    assert abs(float(noise.mean())) < 6 * rms(noise) / math.sqrt(400)  # rows share some of it


def test_same_seed_same_noise_and_other_seed_other_noise():
    value = values(1000)
    one, two, other = (noise_of(step_of(value, torch.float32), NoiseInjector(seed=s)) for s in (1, 1, 2))
    assert torch.equal(one, two)
    assert abs(float((one * other).mean())) < 0.15 * rms(one) ** 2


def test_the_noise_of_a_step_does_not_depend_on_the_steps_before_it():
    value = values(100)
    alone, after = NoiseInjector(), NoiseInjector()
    after(step_of(values(999), torch.float32, index=4))
    assert torch.equal(noise_of(step_of(value, torch.float32), alone), noise_of(step_of(value, torch.float32), after))


def test_two_steps_get_independent_noise():
    value = values(4000)
    one, two = (noise_of(step_of(value, torch.float32, index=i)) for i in (0, 1))
    assert abs(float((one * two).mean())) < 0.1 * rms(one) ** 2


def test_scale_is_a_factor():
    value = values(1000)
    one, ten = (noise_of(step_of(value, torch.float32, DOT), NoiseInjector(scale=s)) for s in (1.0, 1024.0))
    assert torch.allclose(ten, 1024 * one, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.arange(64.0, dtype=torch.float64) - 7, 0.0),  # integers: exact
        (torch.arange(64.0, dtype=torch.float64) / 8, 0.0),  # a power of two: exact
        (torch.arange(64.0, dtype=torch.float64) * 0.1, 0.415 * 2**-24 * 3.65),  # 0.1 is not
    ],
)
def test_results_the_format_holds_exactly_are_not_rounded(value, expected):
    assert rms(noise_of(step_of(value, torch.float32))) == pytest.approx(expected, rel=0.3)


def test_exact_elements_beside_inexact_ones():
    value = torch.cat([values(100), torch.arange(100.0, dtype=torch.float64)])
    # The first row decides whether exactness is looked for at all; here the last one is exact.
    noise = noise_of(step_of(value.reshape(2, 100), torch.float32))
    assert rms(noise[1]) == 0
    assert rms(noise[0]) > 0


def test_subnormal_float16_has_an_absolute_error():
    value = values(4000, scale=2.0**-20)
    spacing = 2.0**-24
    assert rms(noise_of(step_of(value, torch.float16))) == pytest.approx(spacing / math.sqrt(12), rel=0.1)
    assert rms(noise_of(step_of(value, torch.bfloat16))) < 5e-2 * spacing  # its subnormals begin at 1e-38


def test_zero_stays_zero():
    assert rms(noise_of(step_of(torch.zeros(50, dtype=torch.float64), torch.float16, DOT))) == 0


@pytest.mark.parametrize("unit", [None, 2.0**-40])
@pytest.mark.parametrize("kind", [Kind.ROUND, Kind.FUNCTION, Kind.DOT])
def test_no_zero_changes_its_sign(kind, unit):
    """An angle beside -0.0 would turn by 2 pi: a program that computes one had no floor."""
    value = torch.tensor([-0.0, 0.0] * 20 + [0.1, -0.1], dtype=torch.float64)
    (noisy,) = NoiseInjector(unit=unit)(step_of(value, torch.float32, Rounding(kind, 4)))
    assert torch.equal(noisy.signbit(), value.signbit())
    assert not torch.equal(noisy, value)


def test_a_zero_that_is_left_of_large_terms_has_any_sign():
    terms = Rounding(Kind.DOT, 64, lambda: torch.ones(400, dtype=torch.float64))
    (noisy,) = NoiseInjector()(step_of(torch.zeros(400, dtype=torch.float64), torch.float32, terms))
    assert 100 < int(noisy.signbit().sum()) < 300


def test_complex_results_get_noise_in_both_parts():
    value = torch.complex(values(2000), values(2000).flip(0))
    noise = noise_of(step_of(value, torch.complex64))
    assert rms(noise) == pytest.approx(0.415 * 2**-24 * rms(value), rel=0.1)
    assert rms(noise.real) == pytest.approx(rms(noise.imag), rel=0.1)


def test_squares_larger_than_the_result_are_seen():
    """Cancellation: a sum near zero of large terms has their error, not its own."""
    value = values(100, 100)
    rounding = Rounding(Kind.DOT, 64, lambda: torch.full((100, 1), 1e6, dtype=torch.float64))
    blind = rms(noise_of(step_of(value, torch.float32, DOT)))
    assert rms(noise_of(step_of(value, torch.float32, rounding))) > 300 * blind


def test_squares_of_another_output_are_not_used():
    rounding = Rounding(Kind.SUM, 64, lambda: torch.ones(7, dtype=torch.float64))
    assert rms(noise_of(step_of(values(10, 3), torch.float32, rounding))) > 0


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=lambda a: a.name)
def test_named_arithmetics_are_coarser_for_float32(arithmetic):
    value = values(100, 100)
    rounding = Rounding(Kind.DOT, 512, lambda: torch.ones(1, 1, dtype=torch.float64))
    ordinary, cheap = (
        rms(noise_of(step_of(value, torch.float32, rounding), NoiseInjector(a))) for a in (ORDINARY, arithmetic)
    )
    assert cheap > 50 * ordinary


def test_named_arithmetics_go_from_mild_to_coarse():
    value = values(100, 100)
    rounding = Rounding(Kind.DOT, 512, lambda: torch.ones(1, 1, dtype=torch.float64))
    sizes = [rms(noise_of(step_of(value, torch.float32, rounding), NoiseInjector(a))) for a in ARITHMETICS]
    assert sizes == sorted(sizes)


def test_an_arithmetic_no_coarser_than_the_format_changes_nothing():
    value = values(100, 100)
    tf32 = next(a for a in ARITHMETICS if a.name.startswith("TF32"))
    rounding = Rounding(Kind.DOT, 64, lambda: torch.ones(1, 1, dtype=torch.float64))
    ordinary, cheap = (
        rms(noise_of(step_of(value, torch.bfloat16, rounding), NoiseInjector(a))) for a in (ORDINARY, tf32)
    )
    assert cheap == pytest.approx(ordinary, rel=0.05)


def test_cheaper_sums_leave_elementwise_steps_alone():
    value = values(1000)
    half = next(a for a in ARITHMETICS if a.name == "float16 accumulation")
    assert rms(noise_of(step_of(value, torch.float32), NoiseInjector(half))) < 2**-24


def test_rows_are_put_back_where_they_came_from():
    value = values(3, 5, 7)
    for axis, length in enumerate(value.shape):
        step = step_of(value, torch.float32, Rounding(Kind.SOFTMAX, length))
        step.attributes = {"dim": axis}
        rows = rows_of(step, value)
        assert rows.view.shape == (value.numel() // length, length)
        assert torch.equal(rows.restore(rows.view), value)


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


def test_a_sample_is_the_noisy_run_minus_the_clean_one():
    chain = Chain(values(5000), torch.float32, (square, ROUND), (torch.sqrt, ROUND))
    clean = chain.run()
    (noise,) = noise_sample(chain, clean, seed=3)
    (noisy,) = noisy_run(chain, seed=3)
    assert torch.equal(noise, noisy.value - clean[0].value)
    # Two roundings; the square root halves the first.
    assert rms(noise) == pytest.approx(0.415 * 2**-24 * math.hypot(1, 0.5) * rms(clean[0].value), rel=0.05)


def test_float64_programs_have_a_floor_too():
    chain = Chain(values(5000), torch.float64, (square, ROUND))
    clean = chain.run()
    (noise,) = noise_sample(chain, clean)
    assert rms(noise) == pytest.approx(0.415 * 2**-53 * rms(clean[0].value), rel=0.05)


def test_the_floor_at_float64_is_scaled_from_a_float32_sample_without_another_run():
    chain = Chain(values(5000), torch.float32, (square, ROUND), (torch.sqrt, ROUND))
    clean = chain.run()
    ordinary = noise_sample(chain, clean)
    before = chain.runs
    (scaled,) = floor64_sample(chain, clean, ordinary)
    assert chain.runs == before
    (measured,) = floor64_sample(chain, clean)
    assert chain.runs == before + 1
    assert rms(scaled) == pytest.approx(rms(measured), rel=0.05)


@pytest.mark.parametrize(
    ("chain", "runs"),
    [
        (Chain(values(500), torch.float16, (square, DOT)), 1),  # accumulates in float32: two unit roundoffs
        (
            Chain(values(500, scale=3000.0), torch.float32, (torch.exp, ROUND), (torch.sin, ROUND)),
            2,
        ),  # not linear, nor nearer to float64
    ],
    ids=["float16", "chaotic"],
)
def test_a_sample_that_cannot_be_scaled_is_measured_again(chain, runs):
    clean = chain.run()
    ordinary = noise_sample(chain, clean)
    before = chain.runs
    floor64_sample(chain, clean, ordinary)
    assert chain.runs == before + runs


def test_what_rounding_takes_away_even_beside_float64_has_noise_as_large_as_itself():
    far = Chain(
        torch.full((500,), 64.0, dtype=torch.float64), torch.float32,
        (lambda x: x + 1e17, ROUND), (lambda x: x - 1e17, ROUND), (torch.log, ROUND),
    )  # fmt: skip
    clean = far.run()
    sample = floor64_sample(far, clean)
    lost = sample[0] == clean[0].value.abs()
    assert 50 < int(lost.sum()) < 450
    near = Chain(
        torch.full((500,), 64.0, dtype=torch.float64),
        torch.float32,
        (lambda x: x + 1e3, ROUND),
        (lambda x: x - 1e3, ROUND),
    )
    clean = near.run()
    assert rms(floor64_sample(near, clean)[0]) < 1e-12


def test_outputs_without_floats_have_no_noise():
    chain = Chain(values(50), torch.float32, (lambda x: x.argmax(), Rounding()))
    chain.dtype = torch.int64
    sample = noise_sample(chain, chain.run())
    assert isinstance(sample, NoiseSample)
    assert sample == [None]


def test_noise_beside_the_largest_float64_stays_the_noise_of_one_rounding():
    def function(v: torch.Tensor) -> torch.Tensor:
        return v.clamp_min(0) + torch.expm1(v).clamp_max(0)

    x = torch.linspace(-3, 709.7, 400, dtype=torch.float64).to(torch.float16)
    lifted = lift_torch(function, (x,), {})
    clean = lifted.run()
    (noise,) = noise_sample(lifted, clean)
    assert noise is not None
    assert float(noise.abs().max()) <= 2.0**-10 * float(clean[0].value.abs().max())

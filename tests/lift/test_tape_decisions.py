"""Decisions see values in their native formats; the floats around them keep float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from float64_truth import distance, lift

import driftscope as ds


def _lifted(function, *args):
    return [o.value for o in lift(function, *args).run()]


def test_a_tie_in_float32_is_a_tie_in_the_lift():
    """In float64 the second sum is larger; the program sees equal numbers and takes the first."""
    x = torch.tensor([[1.0, 1.0], [0.0, 2.0**-30]])
    index, equal, largest = _lifted(lambda x: (x.sum(0).argmax(), x.sum(0)[0] == x.sum(0)[1], x.sum(0).max()), x)
    assert int(index) == 0
    assert bool(equal)
    assert float(largest) == 1.0 + 2.0**-30


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cast_to_integer_rounds_first(dtype):
    x = torch.tensor([1.0], dtype=dtype)
    tiny = torch.tensor([torch.finfo(dtype).eps / 4], dtype=dtype)
    integer, boolean, floor = _lifted(lambda x, t: ((x - t).long(), (x - t) < 1, (x - t).floor()), x, tiny)
    assert int(integer) == 1
    assert not bool(boolean)
    assert float(floor) == 1.0


def test_the_twin_just_beyond_rounding_decides_otherwise():
    x, less = torch.tensor([1.0]), torch.tensor([2.0**-20])
    integer, boolean = _lifted(lambda x, t: ((x - t).long(), (x - t) < 1), x, less)
    assert int(integer) == 0
    assert bool(boolean)


def test_float_casts_do_not_round_and_remember():
    x = torch.tensor([1.0 / 3.0])
    tape = lift(lambda x: (x.half().float() * 3, x.to(torch.bfloat16), x.half() + x.double()), x)
    outputs = tape.run()
    third = x.double()
    assert distance(outputs, [third * 3, third, third * 2]) <= 1e-16
    assert [o.format for o in outputs] == [torch.float32, torch.bfloat16, torch.float64]


def test_reductions_and_softmax_with_a_dtype_argument():
    x = torch.randn(4, 6).half()
    exact = x.double()
    values = lift(
        lambda x: (
            x.sum(1, dtype=torch.float32),
            F.softmax(x, -1, dtype=torch.float32).to(x.dtype),
            x.mean(dtype=torch.float32),
            torch.zeros_like(x, dtype=torch.float32) + x,
        ),
        x,
    ).run()
    assert distance(values, [exact.sum(1), exact.softmax(-1), exact.mean(), exact]) <= 1e-15
    assert [v.format for v in values] == [torch.float32, torch.float16, torch.float32, torch.float32]


def test_float8_really_rounds():
    x = torch.tensor([0.3, 1.7])
    (value,) = _lifted(lambda x: x.to(torch.float8_e4m3fn).float() * 2, x)
    assert torch.equal(value, x.to(torch.float8_e4m3fn).double() * 2)


def test_quantisation_really_quantises():
    x = torch.linspace(-1.2, 1.9, 24)

    def run(x):
        q = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8)
        return q.dequantize() * 0.5, torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -8, 7)

    dequantised, fake = _lifted(run, x)
    steps = torch.quantize_per_tensor(x, 0.1, 3, torch.quint8).int_repr().double() - 3
    assert torch.equal(dequantised, steps * 0.1 * 0.5)
    assert torch.equal(fake, (x / 0.1).round().clamp(-8, 7).double() * 0.1)


def test_dynamic_quantisation_multiplies_the_integers_exactly():
    torch.manual_seed(0)
    module = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(16, 8)), dtype=torch.qint8)
    x = torch.randn(4, 16)
    tape = lift(module, x)
    assert torch.allclose(tape.run()[0].value, module(x).double(), atol=1e-5)


def test_chosen_values_keep_float64():
    x = torch.tensor([[3.0, 1.0, 2.0], [0.5, 0.25, 0.125]]).sin()
    w = torch.tensor(1.0 / 3.0)

    def run(x, w):
        y = x * w
        return y.sort(-1), y.topk(2), y.max(1), y.median(1), y.kthvalue(2), y.argsort(), y.cummax(1)

    y = x.double() * w.double()
    expected = [*y.sort(-1), *y.topk(2), *y.max(1), *y.median(1), *y.kthvalue(2), y.argsort(), *y.cummax(1)]
    assert distance(lift(run, x, w).run(), expected) <= 1e-16


def test_remainders_keep_the_native_quotient():
    """fmod jumps where the quotient does: it must jump with the program."""
    x, y = torch.tensor([0.3, 0.9, -0.7]), torch.tensor([0.1, 0.3, 0.2])
    fmod, remainder, floor = _lifted(lambda x, y: (torch.fmod(x, y), x % y, x // y), x, y)
    for lifted, native in ((fmod, torch.fmod(x, y)), (remainder, x % y), (floor, x // y)):
        assert torch.allclose(lifted, native.double(), atol=1e-6)
    quotient = torch.round((x - torch.fmod(x, y)) / y).double()
    assert torch.equal(fmod, x.double() - y.double() * quotient)


def test_overflow_exceeds_the_format_in_the_lift():
    (value,) = _lifted(lambda x: x * x, torch.tensor([1000.0], dtype=torch.float16))
    assert float(value) == 1e6
    infinite, number = _lifted(lambda x: ((x * x).isinf(), torch.nan_to_num(x * x)), torch.tensor([1e30]))
    assert bool(infinite)
    assert float(number) == pytest.approx(1e60)


def test_data_dependent_shapes_are_those_of_the_native_run():
    x = torch.tensor([0.1, -0.2, 0.3, -0.4])
    kept, places, unique = _lifted(lambda x: (x[x > 0] * 2, x.nonzero(), (x > 0).unique()), x)
    assert torch.equal(kept, x.double()[[0, 2]] * 2)
    assert torch.equal(places, x.nonzero())
    assert unique.tolist() == [False, True]


def test_branches_are_the_native_ones():
    def run(x):
        return x * 2 if x.sum() > 0 else x * 3

    for sign in (1.0, -1.0):
        x = torch.tensor([0.5, 0.25]) * sign
        assert distance(lift(run, x).run(), [run(x.double())]) <= 1e-16


def test_nearest_resize_moves_the_native_pixels():
    for size in ((11, 5), (7, 13), (3, 3)):
        x = torch.arange(81.0).reshape(1, 1, 9, 9)
        (value,) = _lifted(lambda x, s=size: F.interpolate(x, size=s), x)
        assert torch.equal(value, F.interpolate(x, size=size).double())


def test_nearest_grid_sampling_takes_the_native_pixels():
    torch.manual_seed(0)
    x, grid = torch.randn(2, 3, 5, 5), torch.rand(2, 4, 4, 2) * 2.4 - 1.2
    (value,) = _lifted(lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False), x, grid)
    assert torch.equal(value, F.grid_sample(x, grid, mode="nearest", align_corners=False).double())


def test_thresholds_jump_with_the_program():
    x = torch.tensor([0.1, 0.1, 0.1]).cumsum(0)
    (value,) = _lifted(lambda x: F.threshold(x, 0.2, 20.0), x)
    assert torch.equal(value == 20.0, F.threshold(x, 0.2, 20.0) == 20.0)


def test_rounding_to_decimals_is_a_native_decision_with_an_exact_result():
    x = torch.tensor([0.123456, -2.71828, 1e3])
    (value,) = _lifted(lambda x: x.round(decimals=2), x)
    assert value.tolist() == [0.12, -2.72, 1000.0]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("gain", "verdicts"), [(1.0, ("IDENTICAL", "ROUNDING")), (1.0001, ("DIFFERENT",))])
def test_weights_that_are_counted_into_bins_follow_in_float64(gain: float, verdicts: tuple[str, ...], swapped: bool):
    def counted(x: torch.Tensor) -> torch.Tensor:
        return torch.bincount(torch.arange(24) % 5, weights=x)

    def summed(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([gain * x[k::5].sum() for k in range(5)])

    pair = (summed, counted) if swapped else (counted, summed)
    assert ds.compare(*pair, torch.randn(24, generator=torch.Generator().manual_seed(0))).verdict in verdicts


def test_numbers_too_small_for_a_format_have_a_sign_in_float64():
    """A power pooling takes the sign of squares that float32 has lost; in float64 they are there."""
    x = torch.randn(2, 6, 4, 8, generator=torch.Generator().manual_seed(0)) * 1e-30

    def pooled(v: torch.Tensor) -> torch.Tensor:
        return F.lp_pool2d(v, 2, 2)

    for count, same in ((4, True), (3, False)):
        found = ds.compare(pooled, lambda v, count=count: (F.avg_pool2d(v**2, 2) * count).sqrt(), x)
        assert found.verdict == "IDENTICAL"
        assert ("N016" in {f.code for f in found.findings}) is not same

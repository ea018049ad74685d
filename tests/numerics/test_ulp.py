"""Ulps on examples that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from driftscope.numerics.formats import FORMATS
from driftscope.numerics.ulp import FAR, line_number, line_number_in, ulp_at, ulp_distance

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz,
          torch.float8_e5m2, torch.float8_e5m2fnuz]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_and_the_number_above_it_are_one_step_apart(dtype):
    fmt = FORMATS[str(dtype).removeprefix("torch.")]
    x = torch.tensor([1.0, 1.0, -1.0, 0.0, 2.0])
    y = torch.tensor([1.0, 1.0 + fmt.ulp(1.0), -1.0 - fmt.ulp(1.0), fmt.smallest_subnormal, 2.0 - fmt.ulp(1.0)],
                     dtype=torch.float64)  # fmt: skip
    assert ulp_distance(x.to(dtype), y.to(dtype)).tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_special_values(dtype):
    largest = torch.finfo(dtype).max
    a = torch.tensor([0.0, math.nan, math.nan, 1.0, math.inf, math.inf, -math.inf], dtype=dtype)
    b = torch.tensor([-0.0, math.nan, 1.0, math.nan, math.inf, largest, -largest], dtype=dtype)
    assert ulp_distance(a, b).tolist() == [0, 0, FAR, FAR, 0, 1, 1]


def test_the_issue_s_numbers_in_half_precision():
    a = torch.tensor([16.0, 256.0, 512.0], dtype=torch.float16)
    b = torch.tensor([16.015625, 256.25, 512.5], dtype=torch.float16)
    assert ulp_distance(a, b).tolist() == [1, 1, 1]


def test_float64_distances_that_do_not_fit_are_far_and_those_that_do_are_exact():
    a = torch.tensor([-1.7e308, -1.0, -0.0], dtype=torch.float64)
    b = torch.tensor([1.7e308, 1.0, 5e-324], dtype=torch.float64)
    assert ulp_distance(a, b).tolist() == [FAR, 2 * 0x3FF0000000000000, 1]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_line_numbers_keep_the_order(dtype):
    x = torch.tensor([-448.0, -2.0, -1.0, -0.0625, 0.0, 0.0625, 1.0, 2.0, 240.0]).to(dtype)
    numbers = line_number(x)
    assert numbers.dtype is (torch.int64 if dtype is torch.float64 else torch.int32)
    finite = numbers[~torch.isnan(x.float())]
    assert bool((finite.diff() > 0).all())


@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "float8_e3m4", "float8_e8m0fnu"])
def test_small_formats_without_arithmetic_are_counted_too(name):
    fmt = FORMATS[name]
    x = torch.tensor([1.0, 1.0 + fmt.ulp(1.0), fmt.largest])
    steps = line_number_in(x, fmt)
    assert int(steps[1] - steps[0]) == 1
    assert int(steps[2] - steps[0]) > 1


def test_eight_bit_numbers_have_as_many_lines_as_codes():
    codes = torch.arange(256, dtype=torch.uint8)
    # Chosen as integers: older versions of torch cannot index this format.
    finite = codes[~torch.isnan(codes.view(torch.float8_e4m3fn).float())].view(torch.float8_e4m3fn)
    assert line_number(finite).unique().numel() == 253  # 256 codes, two NaNs, two zeros on one line


def test_ulp_at_a_scale_is_the_format_s():
    fmt = FORMATS["float16"]
    scale = torch.tensor([0.0, 1.0, -3.0, 1000.0, 1e6, math.nan])
    expected = [fmt.ulp(float(s)) for s in scale]
    assert ulp_at(scale, fmt).tolist()[:-1] == expected[:-1]
    assert math.isnan(float(ulp_at(scale, fmt)[-1]))


@pytest.mark.parametrize(
    ("a", "b"),
    [(torch.zeros(2), torch.zeros(2, dtype=torch.float16)), (torch.zeros(2), torch.zeros(1)),
     (torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))],
    ids=["formats", "shapes", "integers"],
)  # fmt: skip
def test_steps_are_defined_inside_one_format(a, b):
    with pytest.raises(ValueError, match="ulps are counted"):
        ulp_distance(a, b)


def test_inputs_are_left_alone():
    a = torch.randn(64, dtype=torch.float64)
    before = a.clone()
    ulp_distance(a, a + 1)
    assert torch.equal(a, before)

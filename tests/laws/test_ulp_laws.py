"""Laws of distances counted in steps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftscope.numerics.formats import FORMATS
from driftscope.numerics.ulp import FAR, line_number, ulp_at, ulp_distance

WORD = {"float16": torch.int16, "bfloat16": torch.int16, "float32": torch.int32, "float64": torch.int64,
        "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8, "float8_e4m3fnuz": torch.uint8}  # fmt: skip
dtypes = st.sampled_from(sorted(WORD))


def drawn(draw, name: str, count: int) -> list[torch.Tensor]:
    """Draw numbers by their bits, so that subnormals, infinities and NaNs are as likely as anything."""
    info = torch.iinfo(WORD[name])
    bits = st.lists(st.integers(info.min, info.max), min_size=count, max_size=count)
    return list(torch.tensor(draw(bits), dtype=WORD[name]).view(getattr(torch, name)).split(1))


@st.composite
def numbers(draw, count):
    return drawn(draw, draw(dtypes), count)


@given(numbers(2))
def test_distance_is_symmetric(pair):
    a, b = pair
    assert int(ulp_distance(a, b)) == int(ulp_distance(b, a)) >= 0


@given(numbers(3))
def test_the_triangle_holds(three):
    a, b, c = three
    if any(torch.isnan(x.double()) for x in three):
        return
    assert int(ulp_distance(a, c)) <= int(ulp_distance(a, b)) + int(ulp_distance(b, c))


@given(numbers(2))
def test_zero_exactly_for_equal_values(pair):
    a, b = pair
    x, y = float(a.double()), float(b.double())
    equal = x == y or (math.isnan(x) and math.isnan(y))
    assert (int(ulp_distance(a, b)) == 0) is equal
    assert (int(ulp_distance(a, b)) == FAR) >= (math.isnan(x) is not math.isnan(y))


@given(st.sampled_from(["float32", "float64"]), st.data())
def test_neighbours_are_one_step_apart(name, data):
    (a,) = drawn(data.draw, name, 1)
    if torch.isnan(a):
        return
    b = torch.nextafter(a, torch.tensor(math.inf, dtype=a.dtype))
    assert int(ulp_distance(a, b)) == int(a != b)


@given(numbers(2))
def test_line_numbers_keep_the_order(pair):
    a, b = pair
    if torch.isnan(a.double()) or torch.isnan(b.double()):
        return
    assert (int(line_number(a)) < int(line_number(b))) == bool(a.double() < b.double())


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_number_of_a_short_format_has_its_own_line(name):
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(getattr(torch, name))
    finite = every[torch.isfinite(every)]
    ordered = finite[finite.double().argsort(stable=True)]
    steps = line_number(ordered).diff()
    assert bool((steps >= 0).all())
    assert int((steps == 0).sum()) == 1  # the two zeros
    assert int(steps.max()) == 1


@given(st.floats(allow_nan=False), st.sampled_from(sorted(FORMATS)))
def test_an_ulp_at_a_scale_is_the_same_for_one_number_and_for_many(scale, name):
    fmt = FORMATS[name]
    assert float(ulp_at(torch.tensor([scale], dtype=torch.float64), fmt)) == fmt.ulp(scale)

"""One judge of values: what it lets pass as rounding and what it never does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftscope.comparison.agreement import agreement

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64)


def _values(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(32, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_two_roundings_agree_and_are_called_rounding(dtype):
    x = _values(dtype)
    eps = torch.finfo(dtype).eps
    y = (x.to(torch.complex128 if dtype.is_complex else torch.float64) * (1 + 2 * eps)).to(dtype)
    assert agreement(x, y).kind == "rounding"
    assert agreement(x, x.clone()).kind == "same"


@pytest.mark.parametrize(
    ("dtype", "off"),
    [
        (torch.bfloat16, 0.06),
        (torch.float16, 0.09),
        (torch.float16, 0.03),
        (torch.float32, 1e-3),
        (torch.float64, 1e-6),
        (torch.complex128, 1e-6),
        (torch.complex64, 1e-3),
        (torch.float8_e4m3fn, 0.5),
    ],
)
def test_what_rounding_cannot_do_is_a_value(dtype, off):
    x = _values(torch.complex128 if dtype.is_complex else torch.float64)
    found = agreement(x.to(dtype), (x * (1 + off)).to(dtype))
    assert found.kind == "value"
    assert found.excess > 1


def test_one_wrong_element_is_found_at_its_index():
    x = _values(torch.float32).reshape(4, 8)
    y = x.clone()
    y[2, 5] += 0.01
    found = agreement(x, y)
    assert (found.kind, found.index) == ("value", (2, 5))


def test_a_measured_floor_decides_and_nothing_else():
    x = torch.randn(256, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = 1e-2 * torch.randn(256, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert not agreement(x, x + noise).agrees
    assert agreement(x, x + noise, noises=[noise.flip(0)]).agrees
    assert not agreement(x, x + noise, noises=[noise.flip(0) * 1e-3]).agrees


class _Opaque:
    __hash__ = None


@pytest.mark.parametrize(
    ("one", "two", "kind"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "value"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), "nan"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("inf")]), "nan"),
        (torch.zeros(2), torch.zeros(2, 1), "shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "dtype"),
        (torch.zeros(2), None, "kind"),
        (_Opaque(), _Opaque(), "opaque"),
        (np.float32([1, 2]), np.float32([1, 2]), "same"),
        ("text", "text", "same"),
        ("text", "other", "value"),
    ],
)
def test_what_has_no_size_never_agrees(one, two, kind):
    found = agreement(one, two)
    assert found.kind == kind
    assert found.agrees is (kind == "same")


def test_values_that_cancel_are_judged_at_the_scale_they_came_from():
    zero, residue = torch.zeros(3), torch.full((3,), 1e-7)
    assert agreement(zero, residue).kind == "value"
    assert agreement(zero, residue, scale=1.0).kind == "rounding"


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), st.floats(-0.2, 0.2))
def test_growing_a_difference_never_makes_it_agree(values, off):
    x = torch.tensor(values)
    near, far = x + off, x + 4 * off
    if agreement(x, far).agrees:
        assert agreement(x, near).agrees

"""A number written with the digits that float32 holds is the number that another program writes in full."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import driftscope as ds

X = torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
Written = Callable[[Tensor, float], Tensor]


def by_factor(x: Tensor, number: float) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x * number))


def by_divisor(x: Tensor, number: float) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / number))


def by_tanh(x: Tensor, number: float) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(x * number * (1 + 0.044715 * x * x)))


def tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def half_turn(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x)


SHORT: dict[str, tuple[Callable[[Tensor], Tensor], Written, float, float]] = {
    # what is written in full or hidden in a kernel, the same with a number, the number, and one of another float32
    "1/sqrt(2)": (F.gelu, by_factor, 0.70710678, 0.70710688),
    "sqrt(2), cut": (F.gelu, by_divisor, 1.4142135, 1.4142137),
    "fast gelu": (tanh_gelu, by_tanh, 0.7978845608, 0.7978846608),
    "pi": (half_turn, lambda x, number: torch.sin(number * x), 3.1415927, 3.1415929),
}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("order", [1, -1])
def test_digits_that_no_kernel_reads_make_no_other_function(name: str, dtype: torch.dtype, order: int) -> None:
    full, written, short, wrong = SHORT[name]
    x = X.to(dtype)
    found = ds.compare(*(full, lambda x: written(x, short))[::order], x)
    assert found.verdict in ("IDENTICAL", "ROUNDING"), found.reason
    assert "N016" not in {f.code for f in found.findings}
    other = ds.compare(*(full, lambda x: written(x, wrong))[::order], x)
    assert other.verdict == "DIFFERENT" or "N016" in {f.code for f in other.findings}, other.reason


@pytest.mark.parametrize("name", SHORT)
def test_digits_that_float64_reads_make_another(name: str) -> None:
    full, written, short, _ = SHORT[name]
    assert ds.compare(full, lambda x: written(x, short), X.double()).verdict == "DIFFERENT"
    inside = ds.compare(lambda x: full(x.double()).float(), lambda x: written(x.double(), short).float(), X)
    assert inside.verdict == "DIFFERENT" or "N016" in {f.code for f in inside.findings}, inside.reason


@pytest.mark.parametrize("number", [0.1000000001, 0.09999999])
def test_a_number_of_few_digits_was_meant(number: float) -> None:
    """0.1 was not written for it, nor it for 0.1."""
    found = ds.compare(lambda x: torch.exp(x * 0.1), lambda x: torch.exp(x * number), X)
    assert found.verdict == "DIFFERENT" or "N016" in {f.code for f in found.findings}, found.reason

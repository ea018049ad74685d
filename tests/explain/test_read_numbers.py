"""A number that a person wrote is read in the format of a kernel: that may be far from rounding, and is no kernel's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import driftscope as ds

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(7))
NEAR, FAR = 0.1 + 1e-5 * X, 100.0 * X

ROUNDED: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str]] = {
    "sub": (lambda x: x - 0.1, NEAR, "the rounding of 0.1 (sub.other) to 0.100000001"),
    "amplified": (lambda x: torch.exp((x - 0.1) * 1e5), NEAR, "the rounding of 0.1 (sub.other) to 0.100000001"),
    "remainder": (lambda x: torch.remainder(x, 2 * math.pi), FAR, "of 6.28318531 (remainder.other) to 6.28318548"),
    "fmod": (lambda x: torch.fmod(x, 0.1), FAR, "the rounding of 0.1 (fmod.other) to 0.100000001"),
    "softshrink": (lambda x: F.softshrink(x, 0.1), NEAR, "the rounding of 0.1 (softshrink.lambd) to 0.100000001"),
}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("side", ["A", "B"])
def test_a_number_that_a_kernel_reads_rounded_is_named_as_the_cause(name: str, side: str) -> None:
    function, x, words = ROUNDED[name]
    pair = (function, lambda x: function(x.double()).float())
    found = ds.compare(*pair[:: 1 if side == "A" else -1], x)
    assert found.verdict == "PRECISION", found.reason
    assert f"{words} in {side}" in found.reason
    assert "N025" not in {f.code for f in found.findings}  # no kernel is at fault


@pytest.mark.parametrize("idle", [0.3, 0.7])
def test_of_several_numbers_the_one_that_moves_the_result_is_named(idle: float) -> None:
    """0.3 is rounded by more than 0.1, and makes no difference that shows."""
    found = ds.compare(lambda x: (x - 0.1) * idle, lambda x: ((x.double() - 0.1) * idle).float(), NEAR)
    assert "the rounding of 0.1 (sub.other) to 0.100000001, and of 1 more number, in A" in found.reason


def test_of_many_numbers_none_is_named() -> None:
    def chain(x: Tensor) -> Tensor:
        x = x - 0.1
        for k in range(20):
            x = x * (0.7 + 0.01 * k)
        return x

    found = ds.compare(chain, lambda x: chain(x.double()).float(), NEAR)
    assert found.verdict == "PRECISION", found.reason
    assert "numbers that it was written with in A" in found.reason


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("sub", lambda x: x.double() - 0.1000000001),
        ("remainder", lambda x: torch.remainder(x.double(), 6.2831863)),
        ("softshrink", lambda x: F.softshrink(x.double(), 0.1000000001)),
    ],
)
def test_another_number_is_another_function(name: str, other: Callable[[Tensor], Tensor]) -> None:
    function, x, _ = ROUNDED[name]
    assert ds.compare(function, lambda x: other(x).float(), x).verdict == "DIFFERENT"


def test_a_kernel_that_reads_yet_another_number_is_still_off() -> None:
    """The rounding of a number explains what it does, and no more."""

    def read(x: Tensor) -> Tensor:
        return torch.from_numpy((x - 0.1).numpy() + 3e-9)

    found = ds.compare(lambda x: x.double().sub(0.1).float(), read, NEAR)
    assert found.verdict == "DIFFERENT", found.reason

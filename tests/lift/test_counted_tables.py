"""Tables that a program makes of counted numbers, or of numbers that the other one writes, are no other function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import driftscope as ds

_WIDTH = 24
_DECAY = [[0.1 * 0.9 ** (k - j) if j <= k else 0.0 for k in range(_WIDTH)] for j in range(_WIDTH)]
_BELL = [math.exp(-k * k / 4.4) for k in range(-3, 4)]
_FILTER = torch.tensor(_BELL).reshape(1, 1, -1)


def _given() -> torch.Tensor:
    return torch.randn(6, _WIDTH, generator=torch.Generator().manual_seed(3))


def _written(x: torch.Tensor) -> torch.Tensor:
    columns = [sum(_DECAY[j][k] * x[:, j] for j in range(k + 1)) for k in range(_WIDTH)]
    return torch.stack(columns, -1)  # type: ignore[arg-type]


def _counted(base: float, wide: bool) -> Callable[[Any], Any]:
    def averaged(x: Any) -> Any:
        places = np.arange(_WIDTH)
        steps = np.maximum(places - places[:, None], 0)
        if wide:
            return x @ np.triu(0.1 * base**steps).astype(x.dtype)
        return x @ np.triu(np.asarray(0.1, x.dtype) * np.asarray(base, x.dtype) ** steps.astype(x.dtype))

    return averaged


def _judged(a: Any, b: Any, swapped: bool) -> Any:
    return ds.compare(*((b, a) if swapped else (a, b)), [_given()], isolate=False, explain=False)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_powers_of_counted_integers_are_followed_in_float64(wide: bool, swapped: bool) -> None:
    found = _judged(_written, ds.program(_counted(0.9, wide), framework="numpy"), swapped)
    assert found.verdict is ds.Verdict.ROUNDING, found.reason
    bug = _judged(_written, ds.program(_counted(0.9 + 1e-6, wide), framework="numpy"), swapped)
    assert bug.verdict is ds.Verdict.DIFFERENT, bug.reason


def test_what_goes_where_no_array_is_followed_is_what_numpy_gives() -> None:
    def counts(x: Any) -> Any:
        return x * np.bincount(np.arange(_WIDTH) % 5, minlength=_WIDTH).astype(x.dtype)

    own = torch.bincount(torch.arange(_WIDTH) % 5, minlength=_WIDTH)
    found = _judged(lambda x: x * own, ds.program(counts, framework="numpy"), False)
    assert found.verdict is ds.Verdict.IDENTICAL
    assert "float64" not in found.reason


@pytest.mark.parametrize("swapped", [False, True])
def test_a_table_of_numbers_that_the_other_program_writes(swapped: bool) -> None:
    def taps(x: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(x, (3, 3))
        return sum(number * padded[:, k : k + _WIDTH] for k, number in enumerate(_BELL))  # type: ignore[return-value]

    def filtered(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: functional.conv1d(x[:, None], weight, padding=3)[:, 0]

    table = torch.tensor(_DECAY)
    for a, b in ((taps, filtered(_FILTER)), (_written, lambda x: x @ table)):
        found = _judged(a, b, swapped)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
    off = _FILTER.clone()
    off[0, 0, 2] *= 1 + 3e-7
    assert _judged(taps, filtered(off), swapped).verdict is ds.Verdict.DIFFERENT

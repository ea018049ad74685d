"""What a normalisation's rounding is where it divides by little: rows of equal elements, and subnormal means."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import driftscope as ds
from driftscope.records.verdict import Verdict

G = torch.Generator().manual_seed(3)
EQUAL = torch.randn(5, 1, generator=G, dtype=torch.float64).expand(5, 24).contiguous()
IMAGE = torch.randn(2, 6, 7, 8, generator=G, dtype=torch.float64)
FORMATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def by_batch(x: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x.T, None, None, training=True).T


def by_groups(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 6)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("dtype", FORMATS)
def test_of_equal_elements_the_error_of_their_mean_is_left(dtype: torch.dtype, order: int) -> None:
    a, b = (lambda x: F.layer_norm(x, (24,)), by_batch)[::order]
    found = ds.compare(a, b, EQUAL.to(dtype))
    assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason
    assert (found.outputs[0].floors or 0.0) < 3, found.reason


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_that_is_stored_among_subnormal_numbers_is_ordinary_rounding(dtype: torch.dtype, order: int) -> None:
    a, b = (F.instance_norm, by_groups)[::order]
    x = (IMAGE * (6e-6 if dtype is torch.float16 else 1e-38)).to(dtype)
    found = ds.compare(a, b, x)
    assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason
    assert not [f for f in found.findings if not f.note]


@pytest.mark.parametrize("order", [1, -1])
def test_another_epsilon_shows_there_all_the_same(order: int) -> None:
    x = (IMAGE * 6e-6).half()
    for one, two in ((F.instance_norm, lambda x: F.group_norm(x, 6, eps=2e-5)), (by_groups, lambda x: by_groups(-x))):
        a, b = (one, two)[::order]
        assert ds.compare(a, b, x, explain=False).verdict is Verdict.DIFFERENT

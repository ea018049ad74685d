"""Least squares on torch's own derivatives: what closes a gap is found, and what cannot be closed stays open."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from driftscope.numerics.least_squares import least_change

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def correlated(count: int, width: int) -> Tensor:
    """Features as behind a ReLU: all positive, most of them nearly alike."""
    return 1.0 + 0.05 * numbers(count, width) @ torch.diag(torch.logspace(0, -2, width, dtype=torch.float64))


@pytest.mark.parametrize("width", [4, 20, 40])
def test_a_weight_is_found_behind_correlated_features(width: int) -> None:
    x, moved = correlated(400, width), 1e-7 * numbers(width, width)
    weight = numbers(width, width)
    at = weight.clone()
    for _ in range(4):  # each time it is closed by some digits
        leaf = at.clone().requires_grad_()
        move = least_change((x @ (weight + moved) - x @ leaf).reshape(-1), [leaf], 400, 1e-17)[0]
        at = at if move is None else at + move[0]
    assert float((at - weight - moved).abs().max()) < 1e-3 * 1e-7


def test_of_all_answers_one_near_by_is_given() -> None:
    row = numbers(1, 9)
    at = torch.zeros(9, dtype=torch.float64, requires_grad=True)
    found = least_change(2.0 - row @ at, [at], 50, 1e-17)[0]
    assert found is not None
    least = 2.0 * row[0] / float(row @ row.T)
    assert float(found[0].norm()) <= 2.0 * float(least.norm())
    assert float(row @ found[0]) == pytest.approx(2.0, rel=1e-3)


def test_what_nothing_closes_stays_open() -> None:
    x = numbers(60, 5)
    at = numbers(5).requires_grad_()
    assert least_change(x @ at - numbers(60), [at], 100, 1e-17)[0] is None
    exact = numbers(5)
    assert least_change(x @ (exact - at), [at], 100, 1e-17)[0] is not None


def test_unknowns_that_nothing_depends_on_stay() -> None:
    x, at, idle = numbers(30, 3), numbers(3).requires_grad_(), numbers(4).requires_grad_()
    found = least_change(x @ (numbers(3) - at), [at, idle], 50, 1e-17)[0]
    assert found is not None
    assert not bool(found[1].any())

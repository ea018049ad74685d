"""Rows that are masked as a whole: -3.4e38 absorbs the scores, in float32 and in float64, and the row is even."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import driftscope as ds
from driftscope.lift.noise.floor import floor64_sample, noise_sample
from driftscope.lift.torch.tape import lift_torch

LEAST = torch.finfo(torch.float32).min
X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
#: Causal, and the first two places of the first text are padding on its left: two rows see nothing.
SEEN = torch.ones(6, 6).tril().bool() & torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6]).bool()[:, None, :]


class Attention(nn.Module):
    """Scores, a mask that is added, a softmax; the scores in one product, or in two halves."""

    def __init__(self, least: float = LEAST, scale: float = 0.3, halves: bool = False):
        super().__init__()
        torch.manual_seed(1)
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.least, self.scale, self.halves = least, scale, halves

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k = self.query(x), self.key(x).mT
        scores = q[..., :4] @ k[..., :4, :] + q[..., 4:] @ k[..., 4:, :] if self.halves else q @ k
        mask = torch.where(seen, 0.0, self.least)
        return (scores * self.scale + mask).softmax(-1) @ x


@pytest.mark.parametrize("least", [LEAST, -2.3819763e38])
def test_such_a_row_is_rounded_like_the_others(least: float) -> None:
    lifted = lift_torch(Attention(least), (X, SEEN), {})
    clean = lifted.run()
    for take, most in ((noise_sample, 1e-6), (floor64_sample, 1e-14)):
        (noise,) = take(lifted, clean)
        assert noise is not None
        assert 0.0 < float(noise.abs().max()) < most


@pytest.mark.parametrize("least", [LEAST, -2.3819763e38, -1e30])
def test_a_row_that_is_masked_as_a_whole_is_no_reason_to_say_nothing(least: float) -> None:
    a, b = Attention(least), Attention(least, halves=True)
    assert ds.compare(a, b, (X, SEEN)).verdict in ("IDENTICAL", "ROUNDING")
    wrong = ds.compare(a, Attention(least, 0.30001, halves=True), (X, SEEN))
    assert wrong.verdict == "DIFFERENT"


def test_another_answer_for_such_a_row_is_another_function() -> None:
    """As zeros are, which torch's fused attention gives."""

    def zeros(x: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen.any(-1, keepdim=True), Attention()(x, seen), 0.0)

    assert ds.compare(Attention(), zeros, (X, SEEN)).verdict == "DIFFERENT"


def test_huge_numbers_that_a_format_does_not_hold_have_noise() -> None:
    """The twin: what is merely large is rounded like anything else."""
    large = torch.linspace(1.0, 2.0, 600) * 1e30
    for x, moved in ((large, True), (torch.full((600,), 2.0**100), False)):
        lifted = lift_torch((lambda v: v * 1.1) if moved else (lambda v: v + 1.0), (x,), {})
        clean = lifted.run()
        for sample in (noise_sample(lifted, clean), floor64_sample(lifted, clean)):
            assert sample[0] is not None
            assert bool((sample[0] != 0).any()) == moved

"""A number multiplied into a weight is the same function only where it was taken out elsewhere."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftscope as ds
from driftscope.records.verdict import Verdict


class Scores(nn.Module):
    """Attention scores; the scale stands beside the product or inside the query weights."""

    def __init__(self, weights: tuple[torch.Tensor, ...], folded: float | None):
        super().__init__()
        query, bias, key = weights
        self.folded = folded
        self.query = nn.Parameter(query if folded is None else query * folded)
        self.bias = nn.Parameter(bias if folded is None else bias * folded)
        self.key = nn.Parameter(key)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = F.linear(x, self.query, self.bias) @ F.linear(x, self.key).transpose(-1, -2)
        return (scores if self.folded is not None else scores * 12**-0.5).softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("folded", "verdict"),
    [(12**-0.5, Verdict.ROUNDING), (12**-0.5 * 1.01, Verdict.DIFFERENT), (12**-0.25, Verdict.DIFFERENT)],
)
def test_a_scale_folded_into_the_weights_before_it(dtype: torch.dtype, folded: float, verdict: Verdict) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = tuple(torch.randn(s, generator=generator).to(dtype) for s in ((12, 12), (12,), (12, 12)))
    x = torch.randn(4, 7, 12, generator=generator).to(dtype)
    c = ds.compare(Scores(weights, None).eval(), Scores(weights, folded).eval(), (x,))
    assert c.verdict is verdict, c.reason


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("epsilon", "verdict"), [(24e-6, Verdict.ROUNDING), (24.00001e-6, Verdict.DIFFERENT)])
def test_an_epsilon_that_a_kernel_rounds_is_solved_for_where_the_other_writes_a_multiple(
    epsilon: float, verdict: Verdict, order: int
) -> None:
    """torch's rms_norm rounds its epsilon to float32; a norm of sums instead of means adds 24 times as much."""
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)) * 1e-3

    def by_sums(v: torch.Tensor) -> torch.Tensor:
        return v * 24**0.5 / (v.square().sum(-1, keepdim=True) + epsilon).sqrt()

    pair = (lambda v: torch.nn.functional.rms_norm(v, (24,), eps=1e-6), by_sums)
    assert ds.compare(*pair[::order], x, explain=False).verdict is verdict

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

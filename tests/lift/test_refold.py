"""A fold that changes no bit of a weight is still a fold; a weight that was left unfolded is a bug."""

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.records.verdict import Verdict


class Folded(nn.Module):
    def __init__(self, source: nn.Sequential, scale: float):
        super().__init__()
        conv, norm = source
        self.conv = nn.Conv2d(3, 4, 3)
        factor = scale * norm.weight / torch.sqrt(norm.running_var + norm.eps)
        with torch.no_grad():
            self.conv.weight.copy_(conv.weight * factor.reshape(-1, 1, 1, 1))
            self.conv.bias.copy_((conv.bias - norm.running_mean) * factor + norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


SAME = {Verdict.IDENTICAL, Verdict.ROUNDING}


@pytest.mark.parametrize(("scale", "verdicts"), [(1.0, SAME), (1.01, {Verdict.DIFFERENT})])
def test_a_fold_with_default_statistics_in_float16(scale: float, verdicts: set[Verdict]) -> None:
    torch.manual_seed(0)
    source = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval().half()
    folded = Folded(source, scale).eval().half()
    if scale == 1.0:
        assert torch.equal(folded.conv.weight, source[0].weight)  # 1 / sqrt(1 + 1e-5) rounds to 1 in float16
    assert ds.compare(source, folded, (torch.randn(2, 3, 8, 8).half(),)).verdict in verdicts

"""Tables that are solved for, on inputs among which something is no number or far from all others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import driftscope as ds


class Table(nn.Module):
    """Multiply with what somebody computed ahead of time."""

    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x):
        return x @ self.table


def smooth(x):
    """An exponential average, written as a loop."""
    kept, out = torch.zeros(x.shape[0]), []
    for k in range(15):
        kept = 0.9 * kept + 0.1 * x[:, k]
        out.append(kept)
    return torch.stack(out, 1)


def mean(x):
    return x[:, :15].mean(-1, keepdim=True)


def decaying(factor=1.0):
    rows = [[0.1 * 0.9 ** (j - i) if j >= i else 0.0 for j in range(15)] for i in range(15)]
    table = torch.tensor(rows, dtype=torch.float64)
    table[2, 7] *= factor
    return Table(table.float())


def given(columns, outlier):
    x = torch.randn(4, columns, generator=torch.Generator().manual_seed(0))
    x[1, 3] = outlier
    return x


@pytest.mark.parametrize("outlier", [1e4, 1e6])
def test_a_table_is_found_beside_an_outlier(outlier):
    x = given(15, outlier)
    for pair in ((smooth, decaying()), (decaying(), smooth)):
        found = ds.compare(*pair, x)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
    assert ds.compare(smooth, decaying(1 + 1e-4), x).verdict is ds.Verdict.DIFFERENT


@pytest.mark.parametrize("outlier", [math.nan, math.inf])
def test_a_table_is_found_where_an_input_is_no_number(outlier, capfd):
    x = given(16, outlier)
    table = Table(torch.cat([torch.full((15, 1), 1 / 15), torch.zeros(1, 1)]))
    for pair in ((mean, table), (table, mean)):
        found = ds.compare(*pair, x)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
    wrong = Table(torch.cat([torch.full((15, 1), 1 / 15.01), torch.zeros(1, 1)]))
    assert ds.compare(mean, wrong, x).verdict is ds.Verdict.DIFFERENT
    assert "oneMKL" not in "".join(capfd.readouterr())

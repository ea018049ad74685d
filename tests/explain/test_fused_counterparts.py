"""A number inside a fused step and beside written-out steps: the place is the line that holds it, either way round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import driftscope as ds


def fused(x):
    return F.layer_norm(x, (32,))


def written(x):
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred * centred).mean(-1, keepdim=True)
    scale = torch.sqrt(spread + 1e-6)  # this line
    return centred / scale


def in_numpy(x):
    centred = x - x.mean(-1, keepdims=True)
    spread = (centred * centred).mean(-1, keepdims=True)
    scale = np.sqrt(spread + 1e-6)  # this line
    return centred / scale


def unbiased(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)


def drawn():
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("function", [written, in_numpy])
def test_the_epsilon_is_named_at_its_line_against_a_fused_norm(function):
    b = ds.program(function, framework="numpy" if function is in_numpy else "torch")
    first = ds.compare(fused, b, [drawn()]).first
    assert "1e-06" in first.why
    assert first.verified
    assert "this line" in (first.where.expression or "")


def test_a_fused_norm_with_another_epsilon_is_told_so():
    first = ds.compare(written, fused, [drawn()]).first
    assert first.verified
    assert "eps" in first.fix
    assert "1e-06" in first.fix


def test_no_number_is_named_where_none_makes_them_the_same():
    for a, b in ((fused, unbiased), (unbiased, fused)):
        first = ds.compare(a, b, [drawn()]).first
        assert not first.verified
        assert "its constant" not in first.why

"""A step of ours that asks for more memory than there is is left out; the verdict is from what was measured."""

from __future__ import annotations

import torch

import driftscope as ds

X = torch.arange(4.0)


def far(x: torch.Tensor) -> torch.Tensor:
    return (2.0 * x[:1]).expand(1 << 43)  # four elements to read, 32 TiB for whoever copies them


def test_what_no_memory_holds_is_no_error_of_ours():
    c = ds.compare(lambda x: 2.0 * x, far, X)
    assert c.verdict is ds.Verdict.DIFFERENT
    left = [f for f in c.findings if f.code == "O022"]
    assert "more memory than there is" in left[0].why
    assert "smaller inputs" in left[0].fix


def test_what_is_no_lack_of_memory_leaves_nothing_out():
    c = ds.compare(lambda x: 2.0 * x, lambda x: x + x, X)
    assert c.verdict is ds.Verdict.IDENTICAL
    assert not [f for f in c.findings if f.code == "O022"]

"""What a constant subgraph chooses is what it natively chooses: its integers stay, and its weights follow them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import driftscope as ds
from driftscope.records.verdict import Verdict

# One program computes nothing, and has no floor in which the rounded table of the other could hide.
SAME = {Verdict.ROUNDING, Verdict.PRECISION}
X = torch.randn(3, 29, generator=torch.Generator().manual_seed(0))


def interpolated(x, off: float = 0.0):
    """Values at the places of a line, between the two that are next to each; natively some lie at the wrong side."""
    places = (torch.linspace(-1, 1, 29, dtype=x.dtype) + 1) * 14 + off
    first, total = places.floor(), torch.zeros_like(x)
    for step in (0, 1):
        near = first + step
        inside = ((near >= 0) & (near < 29)).to(x.dtype)
        total = total + x[:, near.clamp(0, 28).long()] * (1 - (places - near).abs()) * inside
    return total


def in_numpy(x, off: float = 0.0):
    places = (np.linspace(-1, 1, 29, dtype=x.dtype) + np.asarray(1, x.dtype)) * np.asarray(14, x.dtype) + np.asarray(
        off, x.dtype
    )
    first, total = np.floor(places), np.zeros_like(x)
    for step in (0, 1):
        near = first + np.asarray(step, x.dtype)
        inside = ((near >= 0) & (near < 29)).astype(x.dtype)
        total = total + x[:, np.clip(near, 0, 28).astype(np.int64)] * (1 - np.abs(places - near)) * inside
    return total


def test_the_places_are_rounded_to_both_sides_of_whole_numbers():
    places = (torch.linspace(-1, 1, 29) + 1) * 14
    assert not torch.equal(places.floor(), torch.arange(29.0))


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(("off", "verdicts"), [(0.0, SAME), (0.01, {Verdict.DIFFERENT})])
@pytest.mark.sampled(3)
def test_weights_between_places_that_were_rounded(swapped, library, off, verdicts):
    program = ds.program(lambda x: in_numpy(x, off), framework="numpy") if library == "numpy" else (
        lambda x: interpolated(x, off)
    )  # fmt: skip
    pair = [lambda x: x * 1.0, program]
    found = ds.compare(*(pair[::-1] if swapped else pair), (X,), isolate=False)
    assert found.verdict in verdicts, found.reason
    assert "grid" not in found.reason  # weights of nearly nought and one are no integers of a quantisation

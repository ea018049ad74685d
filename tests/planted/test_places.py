"""How often the first finding names the guilty node, over the whole catalogue. Its twin is test_honest.py."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds

from .architectures import ARCHITECTURES
from .catalogue import CASES
from .exports import Exports
from .naming import names

#: Shares of the 196 cases. Measured: 196 in the piece, 194 the very node.
IN_PIECE, THE_NODE = 0.98, 0.95


@pytest.mark.parametrize("every", [pytest.param(6, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.sweep)])
def test_the_first_finding_names_the_guilty_node(exports: Exports, every: int):
    missed, near, cases = [], [], CASES[::every]
    for bug, dtype in cases:
        architecture, native = ARCHITECTURES[bug.architecture], getattr(torch, dtype)
        broken = exports.model(bug.architecture, dtype)
        guilty = bug.plant(broken)
        first = ds.compare(architecture.module(native), broken, architecture.example(native)).first
        said = f"{bug.id} in {dtype}: {first.where.node if first else None} for {guilty}"
        if not names(first, guilty):
            missed.append(said)
        elif first is not None and first.where.node != guilty:
            near.append(said)
    assert len(missed) <= (1 - IN_PIECE) * len(cases), missed
    assert len(missed) + len(near) <= (1 - THE_NODE) * len(cases), missed + near

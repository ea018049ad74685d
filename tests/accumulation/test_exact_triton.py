"""Exact sums by Triton: its interpreter runs the kernel where there is no device."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

import driftscope as ds

_INTERPRETED = """
import sys
import torch
from driftscope.accumulation.exact.formats import STORED
from driftscope.accumulation.exact.integers import _carry, _empty_limbs, _integers, _add, _split, _PIECE
from driftscope.accumulation.exact.triton_sums import launch
from driftscope.accumulation.exact.triton_kernel import add_rows

torch.manual_seed(0)
count = 0
for dtype, stored in STORED.items():
    bits = (1 << (stored.bits - stored.p)) + stored.p
    for n in (1, 5, 1024, 2500):
        for spread in (0, 6, 200):
            scale = 2.0 ** torch.randint(-spread, spread + 1, (3, n)).double()
            x = (torch.randn(3, n).double() * scale).to(dtype)
            x[0, 0], x[1, -1] = float("inf"), -0.0
            ours, theirs = _empty_limbs(x, bits), _empty_limbs(x, bits)
            launch(add_rows, x, stored, ours)
            split = _split(x, stored)
            _add(theirs, split.significand & ((1 << _PIECE) - 1), split.position)
            _add(theirs, split.significand >> _PIECE, split.position + _PIECE)
            _carry(ours), _carry(theirs)
            assert _integers(ours) == _integers(theirs), (dtype, n, spread)
            shuffled = _empty_limbs(x, bits)
            launch(add_rows, x[:, torch.randperm(n)].contiguous(), stored, shuffled)
            _carry(shuffled)
            assert _integers(shuffled) == _integers(ours)
            changed = _empty_limbs(x, bits)
            y = x.clone()
            y[2, 0] = 3.0 if y[2, 0] != 3 else 5.0
            launch(add_rows, y, stored, changed)
            _carry(changed)
            assert _integers(changed)[2] != _integers(ours)[2]
            count += 1
print(count)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernel_fills_the_limbs_that_integers_fill():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _INTERPRETED], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 48


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_device_gives_the_bits_of_the_host(dtype):
    x = (torch.randn(7, 5001, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    assert torch.equal(ds.exact.sum(x.cuda(), dim=-1).cpu(), ds.exact.sum(x, dim=-1))
    assert torch.equal(ds.exact.mean(x.cuda(), dim=0).cpu(), ds.exact.mean(x, dim=0))


def test_the_host_does_not_take_the_way_of_the_device():
    from driftscope.accumulation.exact.formats import STORED
    from driftscope.accumulation.exact.triton_sums import device_limbs

    x = torch.ones(1, 8)
    limbs = torch.zeros(1, 16, dtype=torch.int64)
    assert not device_limbs(x, STORED[x.dtype], limbs)
    assert not limbs.any()

"""Exact sums on a CUDA device by Triton, where it is installed: the first half of the integer way, in one pass.

A block of a row is added limb by limb in 64-bit integers and joined to the row's limbs by integer atomics. Integer
addition has no order, so neither blocks nor the order in which they finish can show; and what is in the limbs is what
:mod:`driftscope.accumulation.exact.integers` would have put there, which does the rest. There is no floating-point
operation here that a compiler could contract or flush.

Tried in Triton's interpreter; on a device only where there was one.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from driftscope.accumulation.exact.formats import StoredFormat

#: Elements of a block. A piece of 18 bits, shifted by up to 31, summed 1024 times, fits a signed 64-bit integer.
_BLOCK = 1024
_PIECE = 18


def device_limbs(x: torch.Tensor, stored: StoredFormat, limbs: torch.Tensor) -> bool:
    """Add every row of a matrix into its limbs; False where this is not the way.

    Parameters
    ----------
    x : Tensor, shape ``(R, n)``, contiguous
    stored : StoredFormat
        Its format.
    limbs : Tensor of int64, shape ``(R, limbs)``
        32 bits each, from the lowest position of the format up; added to.
    """
    if not x.is_cuda or not x.is_contiguous() or x.numel() == 0:
        return False
    kernel = _kernel()
    if kernel is None:
        return False
    launch(kernel, x, stored, limbs)
    return True


def launch(kernel: Any, x: torch.Tensor, stored: StoredFormat, limbs: torch.Tensor) -> None:
    """Run the kernel over all blocks of all rows."""
    rows, n = x.shape
    grid = (rows, -(-n // _BLOCK))
    kernel[grid](
        x.view(stored.integers), limbs, n, limbs.shape[1], MANTISSA=stored.p - 1,
        FIELDS=(1 << (stored.bits - stored.p)) - 1, PIECES=-(-stored.p // _PIECE), PIECE=_PIECE, BLOCK=_BLOCK,
    )  # fmt: skip


@functools.cache
def _kernel() -> Any:
    try:
        from driftscope.accumulation.exact.triton_kernel import add_rows
    except ImportError:
        return None
    return add_rows

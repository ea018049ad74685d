"""The Triton kernel of :mod:`driftscope.accumulation.exact.triton_sums`; importing this file needs triton."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped,import-not-found,misc,operator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_rows(
    x, limbs, n, limbs_per_row,
    MANTISSA: tl.constexpr, FIELDS: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add one block of one row into the row's limbs."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    bits = tl.load(x + row * n + at, mask=at < n, other=0).to(tl.int64)
    field = (bits >> MANTISSA) & FIELDS
    significand = bits & ((1 << MANTISSA) - 1)
    significand = tl.where(field > 0, significand | (1 << MANTISSA), significand)
    significand = tl.where(field == FIELDS, 0, significand)  # NaN and infinities are seen elsewhere
    position = tl.maximum(field - 1, 0)
    for piece in tl.static_range(PIECES):
        part = (significand >> (PIECE * piece)) & ((1 << PIECE) - 1)
        place = position + PIECE * piece
        shifted = tl.where(bits < 0, -part, part) << (place & 31)
        limb = place >> 5
        first = tl.min(tl.where(part != 0, limb, 1 << 20), axis=0)
        last = tl.max(tl.where(part != 0, limb, -1), axis=0)
        for k in range(first, last + 1):
            total = tl.sum(tl.where(limb == k, shifted, 0), axis=0)
            target = limbs + row * limbs_per_row + k
            tl.atomic_add(target, total & 0xFFFFFFFF)
            tl.atomic_add(target + 1, total >> 32)

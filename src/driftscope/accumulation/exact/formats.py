"""The four formats of exact reductions, with what the compiled library and the integer arithmetic call them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from driftscope.numerics.formats import FORMATS


class Reduction(enum.IntEnum):
    """What is computed of each row; the numbers are those of ``native/exact.c``."""

    SUM = 0
    MEAN = 1
    DOT = 2
    NORM = 3
    VAR = 4


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """A format as bits in memory.

    Parameters
    ----------
    name : str
        As in :mod:`driftscope.numerics.formats`.
    dtype : torch.dtype
    code : int
        The number of the format in ``native/rounding.h``.
    integers : torch.dtype
        The integers of the same width.
    """

    name: str
    dtype: torch.dtype
    code: int
    integers: torch.dtype

    @property
    def p(self) -> int:
        """Significand bits, the hidden one included."""
        return FORMATS[self.name].p

    @property
    def lowest(self) -> int:
        """Exponent of the last bit of a subnormal: every finite value is a multiple of ``2**lowest``."""
        return FORMATS[self.name].emin - self.p + 1

    @property
    def bits(self) -> int:
        """Width in bits."""
        return FORMATS[self.name].bits

    @property
    def infinity(self) -> int:
        """The bits of plus infinity."""
        return ((1 << (self.bits - self.p)) - 1) << (self.p - 1)

    @property
    def nan(self) -> int:
        """The bits of the NaN that is returned."""
        return self.infinity | 1 << (self.p - 2)

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.bits - 1)


STORED: dict[torch.dtype, StoredFormat] = {
    s.dtype: s
    for s in (
        StoredFormat("float64", torch.float64, 0, torch.int64),
        StoredFormat("float32", torch.float32, 1, torch.int32),
        StoredFormat("float16", torch.float16, 2, torch.int16),
        StoredFormat("bfloat16", torch.bfloat16, 3, torch.int16),
    )
}

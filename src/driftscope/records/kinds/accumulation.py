"""What was revealed about a sum, as plain data: the order in words and as a pattern, how it was verified, a drawing."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.records.showing import Record
from driftscope.records.words import counted

ACCUMULATION_SCHEMA = "driftscope/accumulation/1"


@dataclass(frozen=True, slots=True)
class Replayed:
    """How the order was verified: balanced rows replayed bit for bit, and the probability that one local change of the
    tree would have gone unnoticed."""

    rows: int
    miss: float


@dataclass(frozen=True, slots=True)
class OtherOrder:
    """Another order in the same result: its pattern, its name, its arithmetic, and for which elements it is."""

    pattern: str
    family: str
    accumulator: str
    fma: bool | str | None
    applies: str


@dataclass(frozen=True, slots=True, repr=False)
class AccumulationRecord(Record):
    """One revealed order of additions.

    Parameters
    ----------
    kernel, dtype, output, library : str
        What adds, the formats of terms and result, and who computed.
    n : int
        Number of terms.
    pattern, family : str
        The order as a pattern, and in words.
    accumulator : str
        Format of partial sums.
    fma : bool, str or None
        Whether products are added unrounded; ``"mixed"`` where some are; None where there is nothing to round.
    mean : str
        How a mean divides; ``"none"`` for a sum.
    depth, additions : int
        The longest chain of additions, and how many there are.
    applies : str
        For which elements of the result this is the order.
    calls, rows : int
        What asking took.
    verified : Replayed
    terms : tuple of int or None
        The terms that were asked, of a sketch.
    shape, threads, seconds, subnormals
        As asked for; seconds of asking; whether subnormal numbers were kept or flushed.
    others : tuple of OtherOrder
        The orders of the other elements, where a result has several: B, C, ... of the map, this one being A.
    map : tuple of str
        Row by row, which columns are added in which order; empty where there is one order.
    drawing : str
        The tree as SVG text; empty where nobody looks at it.
    """

    kernel: str
    n: int
    dtype: str
    output: str
    library: str
    pattern: str
    family: str
    accumulator: str
    fma: bool | str | None
    mean: str
    depth: int
    additions: int
    applies: str
    calls: int
    rows: int
    verified: Replayed
    shape: tuple[int, ...] | None = None
    threads: int | None = None
    seconds: float = 0.0
    subnormals: str = ""
    terms: tuple[int, ...] | None = None
    drawing: str = ""
    others: tuple[OtherOrder, ...] = ()
    map: tuple[str, ...] = ()
    schema: str = ACCUMULATION_SCHEMA

    def __str__(self) -> str:
        return f"{self.kernel}, {counted(self.n, 'term')} of {self.dtype}: {self.family}"

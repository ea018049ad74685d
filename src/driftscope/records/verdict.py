"""The five verdicts, their order and what each means to an exit code."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal


class Verdict(enum.StrEnum):
    """Whether two tensor programs are the same program.

    The order of definition is the order of severity: a comparison is as bad as its worst output.
    """

    IDENTICAL = "IDENTICAL"
    ROUNDING = "ROUNDING"
    PRECISION = "PRECISION"
    INCONCLUSIVE = "INCONCLUSIVE"
    DIFFERENT = "DIFFERENT"

    # Names in order of severity, not of the alphabet, in which DIFFERENT comes first.
    def __lt__(self, other: str) -> bool:
        return self.rank < Verdict(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= Verdict(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > Verdict(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= Verdict(other).rank

    @property
    def rank(self) -> int:
        """Position in the order of severity, 0 for IDENTICAL."""
        return list(Verdict).index(self)

    @property
    def meaning(self) -> str:
        """The verdict in one plain clause."""
        return _MEANING[self]


_MEANING = {
    Verdict.IDENTICAL: "the same bits on these inputs",
    Verdict.ROUNDING: "the same program; what differs is ordinary rounding",
    Verdict.PRECISION: "the same function, computed in cheaper arithmetic",
    Verdict.INCONCLUSIVE: "cannot be decided",
    Verdict.DIFFERENT: "not the same program",
}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict; IDENTICAL for none."""
    return max(verdicts, key=lambda v: v.rank, default=Verdict.IDENTICAL)


class FailOn(enum.StrEnum):
    """From which verdict on a command exits with 1. INCONCLUSIVE counts with PRECISION.

    FUNCTION is PRECISION, and also fails where two different functions happen to give the same bits.
    """

    DIFFERENT = "different"
    PRECISION = "precision"
    FUNCTION = "function"
    ROUNDING = "rounding"
    NEVER = "never"

    def fails(self, verdict: Verdict, *, functions_differ: bool = False) -> bool:
        """Whether ``verdict`` is bad enough to fail a command.

        Parameters
        ----------
        verdict : Verdict
        functions_differ : bool
            Whether the functions differ although the bits are the same on these inputs.
        """
        return verdict.rank >= _FAILS_FROM[self] or (self is FailOn.FUNCTION and functions_differ)


#: The same words for signatures.
FailOnName = Literal["different", "precision", "function", "rounding", "never"]

_FAILS_FROM = {
    FailOn.DIFFERENT: Verdict.DIFFERENT.rank,
    FailOn.PRECISION: Verdict.PRECISION.rank,
    FailOn.FUNCTION: Verdict.PRECISION.rank,
    FailOn.ROUNDING: Verdict.ROUNDING.rank,
    FailOn.NEVER: len(Verdict),
}

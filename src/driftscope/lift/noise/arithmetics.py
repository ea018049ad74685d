"""Arithmetics by name: how a program computes, where that is cheaper than its declared formats promise."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.numerics.formats import format_of


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a program computes, where that differs from its declared formats.

    Parameters
    ----------
    name : str
        For people: "TF32 multiplication".
    storage : str or None
        Format every result is rounded to, when coarser than the declared one.
    product : str or None
        Format the factors of matrix products and convolutions are rounded to.
    accumulator : str or None
        Format in which sums are accumulated, one running sum over all terms; None for the usual one (float32, or
        float64 for float64).
    """

    name: str
    storage: str | None = None
    product: str | None = None
    accumulator: str | None = None


ORDINARY = Arithmetic("ordinary rounding")

#: Named cheaper arithmetics, tried in this order when drift exceeds the ordinary floor: from mild to coarse
#: (for sums of some hundred products; accumulators matter less for shorter ones).
ARITHMETICS: tuple[Arithmetic, ...] = (
    Arithmetic("TF32 multiplication", product="tf32"),
    Arithmetic("float16 storage", storage="float16", product="float16"),
    Arithmetic("bfloat16 multiplication", product="bfloat16"),
    Arithmetic("bfloat16 storage", storage="bfloat16", product="bfloat16"),
    Arithmetic("float16 accumulation", product="float16", accumulator="float16"),
    Arithmetic("bfloat16 accumulation", product="bfloat16", accumulator="bfloat16"),
)


def unit_of(name: str) -> float:
    """Unit roundoff of a format by name, as ``"float16"`` or ``"tf32"``; of its parts for a complex dtype."""
    known = format_of(name)
    if known is None:
        raise ValueError(f"{name!r} is not a floating-point format with a known unit roundoff.")
    return known.unit_roundoff

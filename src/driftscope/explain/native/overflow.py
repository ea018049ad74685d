"""Whether leaving the range of a format inside one side explains what it gave: finite results, infinities or NaN.

A square that leaves float16 becomes infinity, its inverse root zero, and the output a plain, wrong number: nothing in
the results says so. What the declared formats would give is computed, and it is believed only if the side really gave
that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.errors import CannotLift
from driftscope.explain.half.keeping import HalfRuns
from driftscope.explain.native.ranges import Edge, Overflow, beyond_float64, first_overflow
from driftscope.lift.evidence import Evidence
from driftscope.lift.steps import Lifted

# Share of a side's error that may be left when its declared formats are taken at their word.
_LEFT = 0.1


def explaining_overflow(
    evidence: Evidence, natives: Sequence[tuple[int, torch.Tensor, torch.Tensor]]
) -> tuple[str, Overflow | Edge] | None:
    """Find the side whose overflow makes its results what they are.

    Parameters
    ----------
    evidence : Evidence
    natives : sequence of (pair, A's value, B's value)
        The native results that ordinary rounding does not explain, in float64.

    Returns
    -------
    ("A" or "B", Overflow or Edge), or None when neither side overflows, or its overflow is not what it gave.
    """
    for index, (name, side) in enumerate((("A", evidence.a), ("B", evidence.b))):
        if side.graph is None:
            continue
        found = first_overflow(side.graph)
        if found is None:
            continue
        given = [(evidence.pairs[pair][index], values[index]) for pair, *values in natives]
        if _gives(side.graph, given):
            return name, found
    return _beyond_float64(evidence, natives)


def _beyond_float64(
    evidence: Evidence, natives: Sequence[tuple[int, torch.Tensor, torch.Tensor]]
) -> tuple[str, Overflow | Edge] | None:
    """The side that natively gives what its float64 run gives because float64 itself leaves its range there."""
    for index, (name, side) in enumerate((("A", evidence.a), ("B", evidence.b))):
        lost = [evidence.lost(pair)[index] for pair, *_ in natives]
        first = next((one for one in lost if one is not None), None)
        if first is not None and all(
            _nearer(side.clean[evidence.pairs[pair][index]].value, values[index], values[1 - index])
            for pair, *values in natives
        ):
            return name, beyond_float64(first)
    return None


def _gives(graph: Lifted, given: Sequence[tuple[int, torch.Tensor]]) -> bool:
    """Whether the declared formats, taken at their word, lead to these outputs."""
    try:
        runs = HalfRuns(graph)
        outputs = runs.simulate().outputs
    except (CannotLift, RuntimeError, TypeError, ValueError, LookupError):
        return False  # an infinity can lead a graph where its lift does not follow
    for k, native in given:
        clean, declared = runs.clean[k].value, outputs[k].value
        if clean is None or declared is None or declared.shape != native.shape:
            return False
        if not _nearer(declared, native, clean.cpu()):
            return False
    return bool(given)


def _nearer(predicted: torch.Tensor | None, native: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a value is what was natively given, and not what should have been."""
    if predicted is None or predicted.shape != native.shape:
        return False
    return rms(finite(native - predicted.cpu())) <= _LEFT * rms(finite(native - right))

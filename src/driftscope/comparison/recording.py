"""From what was measured at one output to its record."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.comparison.judge import Judgement, OutputEvidence, told_floors
from driftscope.comparison.leaves import LeafComparison
from driftscope.comparison.measuring.spread import floor_of
from driftscope.comparison.tolerance import suggest_tolerance
from driftscope.numerics.formats import format_of
from driftscope.records.kinds.output import OutputRecord, Side, Tolerance
from driftscope.records.verdict import Verdict

# Relative difference of two errors below which neither side is called closer.
_EQUALLY_CLOSE = 0.1


def output_record(
    leaf: LeafComparison,
    evidence: OutputEvidence,
    judgement: Judgement,
    noises: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = ((), ()),
    errors: tuple[float | None, float | None] = (None, None),
) -> OutputRecord:
    """Put together the record of one output.

    Parameters
    ----------
    leaf : LeafComparison
        The native difference.
    evidence, judgement
        What was judged and how.
    noises : pair of sequences of Tensor
        Noise samples of A and of B.
    errors : pair of float or None
        rms(native - own lift) of each side.
    """
    drift = leaf.drift
    # Values that do not stand against each other have no lifted drift either, not one of 0.
    delta = None if leaf.kind in ("structure", "kind", "shape") else evidence.delta
    undecided = judgement.verdict is Verdict.INCONCLUSIVE
    return OutputRecord(
        path=str(leaf.path),
        verdict=judgement.verdict,
        reason=judgement.reason,
        kind=leaf.kind,
        count=drift.count if drift else 0,
        mismatched=drift.mismatched if drift else 0,
        max_ulp=drift.max_ulp if drift else None,
        max_abs=drift.max_abs if drift else None,
        max_rel=drift.max_rel if drift else None,
        rms=drift.rms if drift else None,
        worst_index=drift.worst_index if drift else None,
        worst_values=drift.worst_values if drift else None,
        floors=None if evidence.rho is None else told_floors(evidence.rho),
        lifted=delta.value if delta else None,
        lifted_threshold=delta.limit if delta else None,
        lifted_whole=None if delta is None or delta.place == "tensor" else delta.whole,
        closer=_closer(errors),
        a=_side(leaf.a_dtype, leaf.a_shape, noises[0], errors[0]),
        b=_side(leaf.b_dtype, leaf.b_shape, noises[1], errors[1]),
        # Where nothing is decided, a tolerance would be read as if something were.
        tolerance=None if undecided or not evidence.floating else _tolerance(evidence.formats, noises),
    )


def _side(
    dtype: str | None, shape: tuple[int, ...] | None, noises: Sequence[torch.Tensor], error: float | None
) -> Side | None:
    if dtype is None:
        return None
    floor = floor_of(noises)
    ratio = error / floor if error is not None and floor else None
    return Side(dtype, shape, floor, error, ratio)


def _closer(errors: tuple[float | None, float | None]) -> str | None:
    a, b = errors
    if a is None or b is None:
        return None
    if abs(a - b) <= _EQUALLY_CLOSE * max(a, b):
        return "equal"
    return "a" if a < b else "b"


def _tolerance(
    formats: tuple[str, str], noises: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]
) -> Tolerance | None:
    known = [f for f in map(format_of, formats) if f is not None]
    samples = [*noises[0], *noises[1]]
    if not known or not samples or samples[0].is_complex():
        return None
    return suggest_tolerance(samples, formats, max(f.unit_roundoff for f in known))

"""Outputs that differ by a choice which rounding turns, where each side natively is what its own lift says."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.comparison.measuring.spread import finite, floor_of, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.measured import Measured, Results, native_values, same_function, wide
from driftscope.explain.native.choices import Turned, turned_choices
from driftscope.explain.native.ties import Tied, taken_in_order, tied_words
from driftscope.lift.evidence import Evidence
from driftscope.numerics.formats import format_of


def explain_choices(results: Results, evidence: Evidence, measured: Sequence[Measured]) -> Tied | None:
    """Mark outputs that differ by a choice inside which rounding turned; equal values taken otherwise are asked first.

    Returns
    -------
    Tied or None
        Both sides' outputs where they take equal values in one order, if there is something that it might explain.
    """
    parted = [m for m in measured if m.pair is not None and not same_function(evidence, m.pair)]
    chosen = any(not m.floating and m.kind == "value" and not m.same_bits for m in measured)
    tied = taken_in_order(evidence) if chosen or parted else None
    parted = [m for m in parted if not m.quantised and m.pair is not None]
    for m in filter(faithful, parted) if tied is not None else ():
        m.turned = tied_words(evidence, tied, m.pair)  # type: ignore[arg-type]
    left = [m for m in parted if not m.turned]
    turned = turned_choices(evidence) if left else {}
    for m in left:
        found = turned.get(m.pair)  # type: ignore[arg-type]
        if found is not None and (faithful(m) or _as_chosen(results, evidence, m, found)):
            m.turned, m.turned_narrow = found.words, found.narrow
    return tied


def faithful(m: Measured) -> bool:
    """Whether both sides are within their own rounding of what their graphs give in float64."""
    own = [(e, THRESHOLDS.large * (floor_of(n) or 0.0)) for e, n in zip(m.errors, m.noises, strict=True)]
    return all(error is not None and error <= limit for error, limit in own)


def _as_chosen(results: Results, evidence: Evidence, m: Measured, found: Turned) -> bool:
    """Whether every element of both sides is what its graph gives, choosing natively or in float64."""
    lifted = evidence.lifted_a(m.pair), evidence.lifted_b(m.pair)  # type: ignore[arg-type]
    natives, dtypes = native_values(results, m.leaf), (m.leaf.a_dtype, m.leaf.b_dtype)
    for k, (native, name) in enumerate(zip(map(wide, natives), dtypes, strict=True)):
        fmt = format_of(name or "")
        chosen = [v.cpu() for v in (lifted[k], *found.chosen[k]) if v is not None and v.shape == native.shape]
        if fmt is None or not chosen:
            return False
        gap = torch.stack([finite(native - v).abs() for v in chosen]).amin(0)
        stored = fmt.unit_roundoff * rms(finite(native))
        if rms(gap) > THRESHOLDS.large * max(floor_of(m.noises[k]) or 0.0, stored):
            return False
    return True

"""What the native runs and the float64 evidence say of each output together, before anything is explained.

How far the two sides lie apart in floors, how far each is from its own lift, and how it repeats itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.comparison.judge import OutputEvidence
from driftscope.comparison.leaves import LeafComparison, compare_leaves
from driftscope.comparison.measuring.spread import drift_in_floors, finite, floor_of, lifted_drift, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.native.kernels_alone import KernelLooks
from driftscope.explain.unlifted import Unlifted
from driftscope.lift.evidence import Evidence, pairing_of
from driftscope.records.finding import Finding, Where
from driftscope.records.paths import Path
from driftscope.records.words import agreeing, counted

Leaves = Sequence[tuple[Path, Any]]


@dataclass(frozen=True, slots=True)
class Results:
    """What the native runs gave: each side twice, flattened.

    Parameters
    ----------
    a, a_again, b, b_again : sequence of (Path, leaf)
    seed : int
        Names the noise of further runs.
    say : callable
        Told what happens next.
    kernels : KernelLooks or None
        Asked which kernel is outside its own floor.
    unlifted : Unlifted
        What is known of sides without a lift of their own.
    """

    a: Leaves
    a_again: Leaves
    b: Leaves
    b_again: Leaves
    seed: int
    say: Callable[[str], None]
    kernels: KernelLooks | None = None
    unlifted: Unlifted = field(default_factory=Unlifted)


@dataclass(slots=True, kw_only=True)
class Measured(OutputEvidence):
    """The evidence of one output while it is gathered, and the tensors that it rests on."""

    leaf: LeafComparison
    pair: int | None
    drift: torch.Tensor | None = None
    noises: tuple[list[torch.Tensor], list[torch.Tensor]] = ((), ())  # type: ignore[assignment]
    errors: tuple[float | None, float | None] = (None, None)
    repeats: tuple[float, float] = (0.0, 0.0)  # root mean square of what each side's second run adds


def measure(results: Results, evidence: Evidence, leaf: LeafComparison, pair: int | None) -> Measured:
    m = Measured.of(leaf, leaf=leaf, pair=pair)
    if leaf.index_a is None or leaf.index_b is None:
        return m
    runs = (results.a, results.a_again), (results.b, results.b_again)
    sides = (_pair(*runs[0], leaf.index_a), _pair(*runs[1], leaf.index_b))
    changes = (_grown(*runs[k], "AB"[k]) or _changed(*sides[k], "AB"[k]) for k in (0, 1))
    m.random = next((words for words in changes if words), "")
    if m.random or pair is None or not leaf.floating or leaf.kind in ("shape", "structure", "kind"):
        return m
    (a, a_again), (b, b_again) = ([wide(v) for v in side] for side in sides)
    m.drift = finite(b - a)
    own, other = evidence.noise_a(pair), evidence.noise_b(pair)
    answers = (leaf.a_dtype or "", leaf.b_dtype or "")
    m.noises = (
        own or results.unlifted.noise(evidence, pair, "A", answers, results.seed),
        other or results.unlifted.noise(evidence, pair, "B", answers, results.seed),
    )
    m.errors = (_error(a, evidence.lifted_a(pair)), _error(b, evidence.lifted_b(pair)))
    m.repeats = (_repeat(m, 0, finite(a_again - a)), _repeat(m, 1, finite(b_again - b)))
    if m.noises[0] and m.drift.shape == m.noises[0][0].shape:
        m.rho = drift_in_floors(m.drift, [*m.noises[0], *m.noises[1]])
    return m


def _pair(leaves: Leaves, again: Leaves, index: int) -> tuple[Any, Any]:
    """A leaf of the first run and of the second, which may have given fewer."""
    return leaves[index][1], again[index][1] if index < len(again) else None


def _grown(first: Leaves, second: Leaves, name: str) -> str:
    """Say that a second run gives more outputs, or fewer; "" where it does not."""
    if len(first) == len(second):
        return ""
    counts = f"{counted(len(first), 'output')}, then {len(second)}"
    return f"{name} does not repeat itself: two runs on the same inputs differ ({counts})"


def _changed(first: Any, second: Any, name: str) -> str:
    """Say in what a second run differs beyond the size of its floats: shapes, integers, NaN; "" where it does not."""
    found = compare_leaves([(Path(()), first)], [(Path(()), second)], flat=False)[0]
    if found.same_bits or found.kind in ("same", "opaque") or (found.floating and found.kind == "value"):
        return ""
    return f"{name} does not repeat itself: two runs on the same inputs differ ({found.detail or found.kind})"


def _repeat(m: Measured, side: int, repeat: torch.Tensor) -> float:
    """Widen a side's floor by what two runs of it differ by; more than rounding is randomness."""
    size, floor = rms(repeat), floor_of(m.noises[side])
    if not size:
        return 0.0
    if floor is None or size > THRESHOLDS.repeat * floor:
        name = "AB"[side]
        m.random = (
            m.random or f"{name} does not repeat itself: two runs on the same inputs differ by more than rounding"
        )
    # A new list: a side without a lift of its own is measured with the other's noise, which stays as it is.
    noises = [list(noise) for noise in m.noises]
    noises[side].append(repeat)
    m.noises = (noises[0], noises[1])
    return size


def unsteady(m: Measured, side: int) -> Finding:
    """Note that a side's sums change order between runs: the floor was widened by what that does."""
    name, size = "AB"[side], m.repeats[side]
    return Finding(
        "N015",
        f"{name} repeats itself only up to rounding: two runs on the same inputs differ by {size:.1e} "
        "(root mean square)",
        "Its sums are added in an order that changes between runs; the floor was widened by that.",
        where=Where(output=str(m.leaf.path)),
        evidence={"rms": size, "side": name},
        note=True,
    )


def native_values(results: Results, leaf: LeafComparison) -> tuple[Any, Any]:
    """The native values of a leaf that both sides have: A's and B's."""
    return results.a[leaf.index_a or 0][1], results.b[leaf.index_b or 0][1]


def wide(value: Any) -> torch.Tensor:
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    if tensor.is_nested:
        tensor = torch.cat([part.reshape(-1) for part in tensor.unbind()])
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _error(native: torch.Tensor, lifted: torch.Tensor | None) -> float | None:
    if lifted is None or lifted.shape != native.shape:
        return None
    return rms(finite(native - lifted.cpu()))


def heed_natives(evidence: Evidence, measured: Sequence[Measured]) -> list[Finding]:
    """Leave out of the float64 evidence what is not finite there alone, where natively both sides are finite alike.

    A float64 run that gives NaN where its program gives a number (0 * inf in a fused kernel that has no such product)
    says nothing about that element: it is judged by what the two sides natively gave.
    """
    known, notes = evidence.reconciled, []
    for m in measured:
        if known is None or m.pair is None or not m.floating or m.kind not in ("same", "value"):
            continue
        i, j = evidence.pairs[m.pair]
        x, y = known.outputs_a[i].value, known.outputs_b[j].value
        if math.isfinite(known.drifts[m.pair].value) or x is None or y is None or x.shape != y.shape:
            continue
        spoken = torch.isfinite(x) & torch.isfinite(y).to(x.device)
        count = int((~spoken & ~_same_non_finite(x, y.to(x.device))).sum())
        if not bool(spoken.any()) or not count:
            continue
        floor64 = pairing_of(evidence.a, evidence.b, evidence.pairs).floor64[m.pair]
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        known.drifts[m.pair] = lifted_drift(
            torch.where(spoken, x, zero), torch.where(spoken, y.to(x.device), zero), floor64,
            relative=THRESHOLDS.lifted, multiple=THRESHOLDS.lifted_floor64,
        )  # fmt: skip
        words = f"{counted(count, 'element')} {agreeing(count, 'is', 'are')} not finite in one float64 run alone"
        why = (
            "Natively both sides have infinities and NaN in the same places: these were judged by native values alone."
        )
        notes.append(Finding("N012", words, why, where=Where(output=str(m.leaf.path)), note=True))
    return notes


def _same_non_finite(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.isnan() & y.isnan()) | (x == y)


def same_function(evidence: Evidence, pair: int) -> bool:
    delta = evidence.delta(pair)
    return delta is None or delta.value <= delta.limit

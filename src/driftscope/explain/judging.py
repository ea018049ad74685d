"""From native results and float64 evidence to judged outputs: what no single measurement says.

Here the two kinds of measurement meet: how far the native results lie apart, in floors, and whether a cheaper
arithmetic, a cast or a tie explains what ordinary rounding does not. Some of it needs another lifted run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.comparison.judge import Judgement, OutputEvidence, judge
from driftscope.comparison.leaves import LeafComparison
from driftscope.comparison.recording import output_record
from driftscope.comparison.spread import Ratio, drift_in_floors, floor_of, rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.narrowing import first_narrowing
from driftscope.explain.overflow_evidence import explaining_overflow
from driftscope.explain.ranges import first_overflow
from driftscope.lift.evidence import Evidence, cheaper_arithmetic, reached_by_noise
from driftscope.records.comparison import OutputRecord
from driftscope.records.finding import Finding, Where
from driftscope.records.paths import Path

Leaves = Sequence[tuple[Path, Any]]


@dataclass(frozen=True, slots=True)
class Results:
    """What the native runs gave: A twice and B once, flattened.

    Parameters
    ----------
    a, again, b : sequence of (Path, leaf)
    seed : int
        Names the noise of further runs.
    say : callable
        Told what happens next.
    """

    a: Leaves
    again: Leaves
    b: Leaves
    seed: int
    say: Callable[[str], None]


@dataclass(slots=True)
class _Measured:
    """What is known natively and in float64 of one output."""

    leaf: LeafComparison
    pair: int | None
    drift: torch.Tensor | None = None
    noises: tuple[list[torch.Tensor], list[torch.Tensor]] = ((), ())  # type: ignore[assignment]
    errors: tuple[float | None, float | None] = (None, None)
    rho: Ratio | None = None
    random: str = ""
    cheaper: str = ""
    narrowed: str = ""
    overflow: str = ""
    repeat: torch.Tensor | None = None


def judge_outputs(
    results: Results, evidence: Evidence, leaves: Sequence[LeafComparison], slots: Mapping[int, int]
) -> tuple[list[tuple[OutputRecord, Judgement]], list[Finding]]:
    """Judge every output; also return notes on how A repeats itself.

    Parameters
    ----------
    results : Results
        What the native runs gave.
    evidence : Evidence
        What the float64 runs gave; places found on the way are added to it.
    leaves : sequence of LeafComparison
        The native differences.
    slots : mapping of int to int
        For each leaf that both sides have, its pair in ``evidence``.
    """
    measured = [_measure(results, evidence, leaf, slots.get(k)) for k, leaf in enumerate(leaves)]
    _explain_excess(results, evidence, measured)
    _explain_narrowing(evidence, measured)
    judged = []
    for m in measured:
        found = _evidence(results, evidence, m)
        judgement = judge(found)
        judged.append((output_record(m.leaf, found, judgement, m.noises, m.errors), judgement))
    return judged, [_unsteady(m) for m in measured if m.repeat is not None and not m.random]


def _measure(results: Results, evidence: Evidence, leaf: LeafComparison, pair: int | None) -> _Measured:
    m = _Measured(leaf, pair)
    if pair is None or not leaf.floating or leaf.kind in ("shape", "structure", "kind"):
        return m
    a, again, b = (_native(v) for v in _values(results, leaf))
    m.drift = _finite(b - a)
    m.noises = (evidence.noise_a(pair), evidence.noise_b(pair) or evidence.noise_a(pair))
    m.errors = (_error(a, evidence.lifted_a(pair)), _error(b, evidence.lifted_b(pair)))
    repeat = _finite(again - a)
    floor = floor_of(m.noises[0])
    if bool((repeat != 0).any()):
        if floor is None or rms(repeat) > THRESHOLDS.repeat * floor:
            m.random = "A does not repeat itself: two runs on the same inputs differ by more than rounding"
        m.noises[0].append(repeat)
        m.repeat = repeat
    if m.noises[0] and m.drift.shape == m.noises[0][0].shape:
        m.rho = drift_in_floors(m.drift, [*m.noises[0], *m.noises[1]])
    return m


def _unsteady(m: _Measured) -> Finding:
    """Note that A's sums change order between runs: the floor was widened by what that does."""
    size = rms(m.repeat) if m.repeat is not None else 0.0
    return Finding(
        "N015",
        f"A repeats itself only up to rounding: two runs on the same inputs differ by {size:.1e} (root mean square)",
        "Its sums are added in an order that changes between runs; the floor was widened by that.",
        where=Where(output=str(m.leaf.path)),
        evidence={"rms": size},
        note=True,
    )


def _values(results: Results, leaf: LeafComparison) -> tuple[Any, Any, Any]:
    """The native values of a leaf that both sides have: A's, A's again, B's."""
    i, j = leaf.index_a or 0, leaf.index_b or 0
    return results.a[i][1], results.again[i][1], results.b[j][1]


def _native(value: Any) -> torch.Tensor:
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    if tensor.is_nested:
        tensor = torch.cat([part.reshape(-1) for part in tensor.unbind()])
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    return tensor.detach().cpu().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(x), x, torch.zeros((), dtype=x.dtype))


def _error(native: torch.Tensor, lifted: torch.Tensor | None) -> float | None:
    if lifted is None or lifted.shape != native.shape:
        return None
    return rms(_finite(native - lifted.cpu()))


def _explain_excess(results: Results, evidence: Evidence, measured: Sequence[_Measured]) -> None:
    """Name the cheaper arithmetic that explains the outputs above the floor, where one does."""
    excess = [
        (m.pair, m.drift)
        for m in measured
        if m.rho is not None and m.rho.value > THRESHOLDS.large and m.pair is not None and m.drift is not None
        and not m.random and _same_function(evidence, m.pair)
    ]  # fmt: skip
    if not excess:
        return
    if _explained_by_overflow(results, evidence, [m for m in measured if m.pair in {pair for pair, _ in excess}]):
        return
    results.say("Looking for a cheaper arithmetic that explains the drift")
    suspects = "AB" if _further(measured, 0) > _further(measured, 1) else "BA"
    name, _ = cheaper_arithmetic(evidence, excess, THRESHOLDS.large, results.seed, suspects=suspects)
    pairs = {pair for pair, _ in excess}
    for m in measured:
        m.cheaper = name if m.pair in pairs else ""


def _explained_by_overflow(results: Results, evidence: Evidence, excess: Sequence[_Measured]) -> bool:
    """Whether a side left the range of its format on the way, and gave what that leads to."""
    natives = [
        (m.pair, _native(_values(results, m.leaf)[0]), _native(_values(results, m.leaf)[2]))
        for m in excess
        if m.pair is not None
    ]
    found = explaining_overflow(evidence, natives)
    if found is None:
        return False
    name, overflow = found
    evidence.places["N004"] = overflow.where
    for m in excess:
        m.overflow = f"overflow in {name}, {overflow}"
    return True


def _further(measured: Sequence[_Measured], side: int) -> float:
    """How far a side is from its own lift at its worst output, in its own floors."""
    distances = [0.0]
    for m in measured:
        error, floor = m.errors[side], floor_of(m.noises[side])
        if error is not None and floor:
            distances.append(error / floor)
    return max(distances)


def _explain_narrowing(evidence: Evidence, measured: Sequence[_Measured]) -> None:
    """Find outputs that only B's own casts to a narrower format excuse: more than twice A's floor would allow.

    B's floor holds the rounding of every cast in B's graph. Where both outputs have the same format, the reference
    for ordinary rounding is A, which has no such cast.
    """
    a, b = evidence.a.graph, evidence.b.graph
    if a is None or b is None:
        return
    narrowing = None
    for m in measured:
        if m.rho is None or m.rho.value > THRESHOLDS.large or m.drift is None or m.random or m.pair is None:
            continue
        if m.leaf.a_dtype != m.leaf.b_dtype or not _same_function(evidence, m.pair):
            continue
        against_a = drift_in_floors(m.drift, [*m.noises[0], *m.noises[0]])
        if against_a.value <= THRESHOLDS.large:
            continue
        narrowing = narrowing or first_narrowing(a, b)
        if narrowing is None:
            return
        own = f", {m.rho.value:.2g} floors of that format" if m.rho.value == m.rho.value else ""
        m.cheaper, m.rho, m.narrowed = f"rounding to {narrowing} in B{own}", against_a, narrowing.format
        evidence.places["N003"] = narrowing.where


def _same_function(evidence: Evidence, pair: int) -> bool:
    delta = evidence.delta(pair)
    return delta is None or delta.value <= delta.limit


def _evidence(results: Results, evidence: Evidence, m: _Measured) -> OutputEvidence:
    leaf, pair = m.leaf, m.pair
    delta = evidence.delta(pair) if pair is not None else None
    floor = floor_of(m.noises[0])
    size = rms(_finite(_native(_values(results, leaf)[0]))) if m.drift is not None else 0.0
    return OutputEvidence(
        kind=leaf.kind,
        detail=leaf.detail,
        floating=leaf.floating,
        same_bits=leaf.same_bits,
        all_nan=leaf.all_nan,
        overflow=_overflow(evidence) if leaf.kind == "nan" else m.overflow,
        tie=_tie(results, evidence, leaf, pair),
        delta=delta,
        rho=m.rho,
        ill=floor / size if floor is not None and size else 0.0,
        cannot_a=evidence.a.reason if evidence.a.graph is None else "",
        cannot_b=evidence.b.reason if evidence.b.graph is None else "",
        cheaper=m.cheaper,
        random=m.random,
        formats=(leaf.a_dtype or "", m.narrowed or leaf.b_dtype or ""),
    )


def _overflow(evidence: Evidence) -> str:
    for name, side in (("B", evidence.b), ("A", evidence.a)):
        found = first_overflow(side.graph) if side.graph is not None else None
        if found is not None:
            evidence.places["N004"] = found.where
            return f"overflow in {name}, {found}"
    return ""


def _tie(results: Results, evidence: Evidence, leaf: LeafComparison, pair: int | None) -> bool:
    if pair is None or leaf.floating or leaf.kind != "value":
        return False
    a, _, b = _values(results, leaf)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return reached_by_noise(evidence, pair, (a, b), a != b, scale=THRESHOLDS.tie, seed=results.seed)

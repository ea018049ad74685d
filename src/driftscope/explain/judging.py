"""From native results and float64 evidence to judged outputs: what no single measurement says.

Here the two kinds of measurement meet: how far the native results lie apart, in floors, and whether a cheaper
arithmetic, a cast or a tie explains what ordinary rounding does not. Some of it needs another lifted run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.comparison.judge import Judgement, judge
from driftscope.comparison.leaves import LeafComparison
from driftscope.comparison.measuring.spread import Ratio, drift_in_floors, finite, floor_of, rms
from driftscope.comparison.recording import output_record
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.causes.alterations import REFERENCE_ROUNDED, alteration_of
from driftscope.explain.domain_ends import behind_infinities, unread_overflow
from driftscope.explain.locate.narrowing import Narrowing, first_narrowing
from driftscope.explain.measured import (
    Measured,
    Results,
    heed_natives,
    measure,
    native_values,
    same_function,
    unsteady,
    wide,
)
from driftscope.explain.native.accumulations import in_one_chain
from driftscope.explain.native.kernels_alone import KernelLooks, KernelsAlone
from driftscope.explain.native.overflow import explaining_overflow
from driftscope.explain.native.replays import reproduce
from driftscope.explain.native.ties import Tied
from driftscope.explain.native.ways.known_ways import DECLARED, WAYS
from driftscope.explain.quantised.packed import packed_quantisation
from driftscope.explain.quantised.rounded import rounded_weights
from driftscope.explain.quantised.running import QuantisedRun
from driftscope.explain.quantised.stored import stored_quantisation
from driftscope.explain.quantised.undoing import Quantisation, quantisation_of
from driftscope.explain.randomness import first_draw
from driftscope.explain.turned import explain_choices, faithful
from driftscope.explain.unlifted import narrower_format
from driftscope.lift.evidence import Evidence
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.ties import reached_by_noise
from driftscope.records.finding import Finding
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.words import counted
from driftscope.records.words import floors as said_floors


def judge_outputs(
    results: Results, evidence: Evidence, leaves: Sequence[LeafComparison], slots: Mapping[int, int]
) -> tuple[list[tuple[OutputRecord, Judgement]], list[Finding]]:
    """Judge every output; also return notes on how the sides repeat themselves.

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
    measured = [measure(results, evidence, leaf, slots.get(k)) for k, leaf in enumerate(leaves)]
    unheard = heed_natives(evidence, measured)
    quantised = _quantised(results, evidence, measured)
    tied = explain_choices(results, evidence, measured)
    _explain_excess(results, evidence, measured)
    _explain_narrowing(evidence, measured, results.seed)
    _explain_unlifted(results, evidence, measured)
    random = next((m.random for m in measured if m.random), "")
    drawn = first_draw((evidence.b if random.startswith("B") else evidence.a).graph) if random else None
    if drawn is not None:
        evidence.places["N014"] = drawn
    judged = []
    for m in measured:
        _complete(results, evidence, m, tied)
        judgement = judge(m)
        if m.replay:
            evidence.replays[str(m.leaf.path)] = m.replay
        judged.append((output_record(m.leaf, m, judgement, m.noises, m.errors), judgement))
    steady = [m for m in measured if not m.random]
    return judged, [*unheard, *quantised, *(unsteady(m, k) for m in steady for k in (0, 1) if m.repeats[k])]


def _explain_excess(results: Results, evidence: Evidence, measured: Sequence[Measured]) -> None:
    """Name the cheaper arithmetic that explains the outputs above the floor, where one does."""
    excess = [
        (m.pair, m.drift)
        for m in measured
        if m.rho is not None and m.rho.value > THRESHOLDS.large and m.pair is not None and m.drift is not None
        and not m.random and same_function(evidence, m.pair)
    ]  # fmt: skip
    if not excess:
        return
    if _explained_by_overflow(results, evidence, [m for m in measured if m.pair in {pair for pair, _ in excess}]):
        return
    concerned = [m for m in measured if m.pair in {pair for pair, _ in excess}]
    for m in concerned:
        m.faithful = faithful(m)
    if all(m.faithful for m in concerned):
        return  # what float64's own rounding grows to in these programs is all there is
    results.say("Looking for what explains the drift, by running it again")
    suspects = _suspects(evidence, measured)
    found = reproduce(evidence, excess, results.seed, suspects)
    if found is not None:
        _explained(concerned, str(found), found.to_dict())
    elif results.kernels is not None:
        chained = in_one_chain(results.kernels.bounds, evidence, excess, results.seed)
        for m in concerned:
            m.chained = chained
        if not chained:
            _ask_kernels(results.kernels, excess, concerned, suspects)


def _suspects(evidence: Evidence, measured: Sequence[Measured]) -> str:
    """The sides that may be to blame, the further from its own lift first: not one within its own rounding."""
    both = "AB" if _further(measured, 0) > _further(measured, 1) else "BA"
    lifted = {"A": evidence.a.graph is not None, "B": evidence.b.graph is not None}
    off = {"A": _further(measured, 0), "B": _further(measured, 1)}
    left = [side for side in both if not lifted[side] or off[side] > THRESHOLDS.rounding]
    return "".join(left) or both


def _explained(concerned: Sequence[Measured], words: str, replay: dict[str, Any]) -> None:
    for m in concerned:
        m.cheaper, m.replay = words, replay


def _ask_kernels(
    looks: KernelLooks, excess: Sequence[tuple[int, torch.Tensor]], concerned: Sequence[Measured], suspects: str
) -> None:
    """Run the kernels alone: one that is off explains the outputs, or all of them are within their own rounding."""
    explaining = looks.explaining(excess, suspects)
    if explaining is not None:
        looked, alike, left = explaining
        words = _kernel_words(looked)
        replay = {"way": "the kernels outside their floor, alone", "side": looked.side, "kind": "kernel",
                  "correlation": round(alike, 6), "rest": round(left, 4)}  # fmt: skip
        known = looked.outside[0].approximation is not None or bool(looked.outside[0].cause)
        proved = alike >= THRESHOLDS.replay
        for m in concerned:
            m.cheaper, m.consistent = (words, "") if known and proved else ("", words if known else "")
            m.kernels, m.replay = words if proved else "", replay if proved or known else {}
    elif all(looks.of(side).known for side in "AB"):
        off = [looks.of(side) for side in "AB" if looks.of(side).outside]
        for m in concerned:
            m.within, m.beside = True, " and ".join(_kernel_words(one) for one in off)


def _kernel_words(looked: KernelsAlone) -> str:
    worst = looked.outside[0]
    near = worst.approximation
    what = "" if near is None else f", {near}" if near.cancels else f", an approximation: {near}"
    what = f", {worst.cause['way']}" if worst.cause else what
    more = f" and {len(looked.outside) - 1} more" if len(looked.outside) > 1 else ""
    return f"the kernel of {worst.where.node} ({worst.where.operator}){what}{more}, in {looked.side}"


def _explained_by_overflow(results: Results, evidence: Evidence, excess: Sequence[Measured]) -> bool:
    """Whether a side left the range of its format on the way, and gave what that leads to."""
    natives = [
        (m.pair, wide(native_values(results, m.leaf)[0]), wide(native_values(results, m.leaf)[1]))
        for m in excess
        if m.pair is not None
    ]
    found = explaining_overflow(evidence, natives)
    if found is None:
        return False
    name, overflow = found
    evidence.places["N004"] = overflow.where
    for m in excess:
        m.overflow = overflow.in_side(name)
    return True


def _further(measured: Sequence[Measured], side: int) -> float:
    """How far a side is from its own lift at its worst output, in its own floors."""
    distances = [0.0]
    for m in measured:
        error, floor = m.errors[side], floor_of(m.noises[side])
        if error is not None and floor:
            distances.append(error / floor)
    return max(distances)


def _explain_narrowing(evidence: Evidence, measured: Sequence[Measured], seed: int) -> None:
    """Find outputs that only one side's casts to a narrower format excuse: more than twice the other's floor allows.

    A side's floor holds the rounding of every cast in its graph. Where both outputs have the same format, the reference
    for ordinary rounding is the side that has no such cast, whichever it is.
    """
    a, b = evidence.a.graph, evidence.b.graph
    if a is None or b is None:
        return
    found: list[Narrowing | None] = [None, None]
    for m in measured:
        if m.rho is None or m.rho.value > THRESHOLDS.large or m.drift is None or m.random or m.pair is None:
            continue
        if m.leaf.a_dtype != m.leaf.b_dtype or not same_function(evidence, m.pair):
            continue
        floors = [floor_of(noises) or 0.0 for noises in m.noises]
        finer = 0 if floors[0] <= floors[1] else 1
        alone = drift_in_floors(m.drift, [*m.noises[finer], *m.noises[finer]])
        if alone.value <= THRESHOLDS.large:
            continue
        name, pair = ("B", (a, b)) if finer == 0 else ("A", (b, a))
        narrowing = found[finer] = found[finer] or first_narrowing(*pair)
        if narrowing is None:
            _explain_rounded_constants(evidence, m, name, alone)
            continue
        own = f", {said_floors(m.rho.value)} of that format" if m.rho.value == m.rho.value else ""
        words = f"rounding to {narrowing} in {name}{own}"
        replay = reproduce(evidence, [(m.pair, m.drift)], seed, name, (DECLARED,))
        m.cheaper, m.consistent = ("", words) if replay is None else (words, "")
        m.replay = {} if replay is None else replay.to_dict()
        m.rho = alone
        m.formats = (narrowing.format, m.formats[1]) if finer else (m.formats[0], narrowing.format)
        evidence.places["N003"] = narrowing.where


def _explain_unlifted(results: Results, evidence: Evidence, measured: Sequence[Measured]) -> None:
    """Say of a side without a graph that all its numbers are in a narrower format, where that fits the drift."""
    sides = [name for name, side in (("A", evidence.a), ("B", evidence.b)) if side.graph is None]
    for m in measured:
        if m.rho is None or m.rho.value <= THRESHOLDS.large or m.drift is None or m.pair is None:
            continue
        if len(sides) != 1 or m.random or m.cheaper or m.consistent or not same_function(evidence, m.pair):
            continue
        k = "AB".index(sides[0])
        values = [wide(v) for v in native_values(results, m.leaf)]
        name = "" if m.drift.is_complex() else narrower_format(values[k], values[1 - k])
        coarse = results.unlifted.noise_in(name, evidence, m.pair, sides[0], results.seed) if name else []
        alone = drift_in_floors(m.drift, [*m.noises[1 - k], *coarse])
        if not coarse or alone.value > THRESHOLDS.large:
            continue
        m.consistent = f"{name} arithmetic in {sides[0]}, whose {counted(values[k].numel(), 'number')} fit that format"
        m.consistent += f", {said_floors(alone.value)} of that format"
        m.noises = (coarse, m.noises[1]) if k == 0 else (m.noises[0], coarse)
        m.formats = (name, m.formats[1]) if k == 0 else (m.formats[0], name)


# How well what rounding a side's constants did has to predict the native drift, and what may be left of it in floors.
_PREDICTS = 0.9


def _explain_rounded_constants(evidence: Evidence, m: Measured, side: str, alone: Ratio) -> None:
    """Say that a side's rounded constants are the cause, where a run without their rounding takes the drift away."""
    known, pair = evidence.reconciled, m.pair
    if known is None or pair is None or m.drift is None:
        return
    moved = evidence.moved_b(pair) if side == "B" else evidence.moved_a(pair)
    repairs = known.repairs_b if side == "B" else known.repairs_a
    if moved is None or moved.shape != m.drift.shape:
        return
    predicted = (moved if side == "B" else -moved).cpu()
    size = float(torch.linalg.vector_norm(m.drift) * torch.linalg.vector_norm(predicted))
    correlation = float((m.drift * predicted.conj()).sum().real) / size if size else 0.0
    ordinary = [n for n in (*m.noises[0], *m.noises[1]) if not torch.equal(n, moved)]
    rest = drift_in_floors(m.drift - predicted, ordinary).value
    if correlation < _PREDICTS or rest > THRESHOLDS.rounding:
        return
    sizes = {r.name: float((r.value - r.constant.value.to(r.value.dtype)).abs().max()) for r in repairs}
    first = max(repairs, key=lambda r: sizes[r.name])
    evidence.places["N003"] = first.constant.where
    words = _rounded_words(first, repairs, side)
    m.cheaper, m.consistent, m.rho = words, "", alone
    m.replay = {
        "way": "constants as stored", "side": side, "kind": "storage",
        "correlation": round(correlation, 6), "rest": round(rest, 4),
    }  # fmt: skip


def _rounded_words(first: Repair, repairs: Sequence[Repair], side: str) -> str:
    """Which constants of a side are rounded, with the format where all of them that it names are rounded to one."""
    done = {}
    for r in repairs:
        stored = r.constant.value
        if stored.is_floating_point() and stored.shape == r.value.shape:
            done[r.name] = alteration_of(stored.to(r.value.dtype), r.value, stored.dtype)
    alike = [r for r in repairs if r.name in done and done[r.name] == done.get(first.name)]
    # What a constant is meant to be is no grid that it left: a table of ones is near one.
    if first.name in done and done[first.name].code == "W007" and REFERENCE_ROUNDED not in done[first.name].words:
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        return f"constants {done[first.name].words} in {side}: {first.name}{more}"
    more = f" and {len(repairs) - 1} more" if len(repairs) > 1 else ""
    return f"constants rounded in {side}: {first.name} is {first.partner}{more}"


def _quantised(results: Results, evidence: Evidence, measured: Sequence[Measured]) -> list[Finding]:
    """Outputs that differ by the quantisation of one side alone are marked; returns what is wrong with it."""
    parted = [m for m in measured if m.pair is not None and not same_function(evidence, m.pair)]
    chosen = [m for m in measured if m.pair is not None and not m.leaf.floating and m.leaf.kind == "value"]
    if not (parted or chosen) or results.kernels is None:
        return []
    found = quantisation_of(results.kernels.bounds, evidence) or packed_quantisation(evidence)
    found = found or stored_quantisation(evidence) or rounded_weights(evidence)
    if found is None:
        return []
    if found.where is not None:
        evidence.places[found.code] = found.where
    run = QuantisedRun(found.side, evidence)
    for m in parted if found.words else ():
        m.quantised = f"{found.words}; {run.words(m.pair, native_values(results, m.leaf))}"  # type: ignore[arg-type]
        rest, replay = _beside_weights(results, evidence, m, found.side) if found.code == "W007" else ("", {})
        m.quantised += rest
        m.quantised_code = found.code
        layers = {"kind": "quantised", "side": found.side, "layers": list(found.layers)}
        evidence.replays[str(m.leaf.path)] = replay | layers
    for m in chosen if found.words and found.clean else ():
        if _same_choice(evidence, found, m.pair):  # type: ignore[arg-type]
            m.quantised, m.quantised_code = f"{m.leaf.detail}: {found.words}", found.code
    return [*found.wrong, *run.findings()]


def _same_choice(evidence: Evidence, found: Quantisation, pair: int) -> bool:
    """Whether integers that a program chooses are the other side's once its quantisation is undone."""
    k = "AB".index(found.side)
    places = evidence.pairs[pair]
    own, other = found.clean[places[k]].value, (evidence.a, evidence.b)[1 - k].clean[places[1 - k]].value
    return own is not None and other is not None and torch.equal(own, other)


def _beside_weights(results: Results, evidence: Evidence, m: Measured, side: str) -> tuple[str, dict[str, Any]]:
    """What a side with rounded weights rounds besides these, where a replay of its own graph shows it; the replay."""
    k = "AB".index(side)
    graph, other = (evidence.a.graph, evidence.b.graph)[:: 1 - 2 * k]
    exact = evidence.lifted_b(m.pair) if k else evidence.lifted_a(m.pair)  # type: ignore[arg-type]
    if graph is None or other is None or exact is None or m.drift is None or m.drift.shape != exact.shape:
        return "", {}
    error = finite(wide(native_values(results, m.leaf)[k]) - exact.cpu())
    if floor_of(m.noises[1 - k]) and drift_in_floors(error, m.noises[1 - k]).value <= THRESHOLDS.large:
        return "", {}
    narrowing = first_narrowing(other, graph)
    drift = [(m.pair, error if k else -error)]
    found = reproduce(evidence, drift, results.seed, side, WAYS if narrowing is None else (DECLARED,), own=True)  # type: ignore[arg-type]
    if found is None:
        return "", {}
    cause = found if narrowing is None else f"rounding to {narrowing} in {side}"
    return f"; the rest is explained by {cause}", found.to_dict()


def _complete(results: Results, evidence: Evidence, m: Measured, tied: Tied | None) -> None:
    """Add what the float64 evidence says of an output to what was found natively."""
    floor = floor_of(m.noises[0])
    size = rms(finite(wide(native_values(results, m.leaf)[0]))) if m.drift is not None else 0.0
    m.ill = floor / size if floor is not None and size else 0.0
    m.delta = evidence.delta(m.pair) if m.pair is not None else None
    m.tie = _tie(results, evidence, m, tied)
    m.overflow = _overflow(results, evidence, m) if m.kind == "nan" else m.overflow
    m.cannot_a, m.cannot_b = ("" if side.graph is not None else side.reason for side in (evidence.a, evidence.b))


def _overflow(results: Results, evidence: Evidence, m: Measured) -> str:
    natives = [wide(v) for v in native_values(results, m.leaf)]
    found = None if m.pair is None else behind_infinities(evidence, m.pair, natives, results.kernels)
    told, words = found or unread_overflow(evidence, natives, results.kernels), "" if found else "consistent with "
    if told is None:
        return ""
    evidence.places["N004"] = told[1].where
    return words + told[1].in_side(told[0])


def _tie(results: Results, evidence: Evidence, m: Measured, tied: Tied | None) -> bool:
    if m.pair is None or m.floating or m.kind != "value":
        return False
    a, b = native_values(results, m.leaf)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if tied is not None:
        i, j = evidence.pairs[m.pair]
        own = _holds(evidence.a.clean[i].value, a) and _holds(evidence.b.clean[j].value, b)
        agreed = tied.outputs_a[i].value, tied.outputs_b[j].value
        if own and any(all(_holds(value, native) for value in agreed) for native in (a, b)):
            return True
    return reached_by_noise(evidence, m.pair, (a, b), a != b, scale=THRESHOLDS.tie, seed=results.seed)


def _holds(lifted: torch.Tensor | None, native: torch.Tensor) -> bool:
    return lifted is not None and lifted.shape == native.shape and bool((lifted.cpu() == native.cpu()).all())

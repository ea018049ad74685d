"""Looks that cost sessions or runs of their own, taken once the verdict is known and asks for them.

A clean comparison stops before any of this. Whether the optimiser did it is asked when a runtime's numbers or its
optimised graph are wrong while the file is not, or when the person asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.blame.blaming import file_function, target_of
from driftscope.explain.blame.findings import blame_findings, place_of, timeless
from driftscope.explain.blame.optimisers import SearchBudget, blame_optimizers
from driftscope.explain.half.notes import half_findings
from driftscope.explain.native.kernels_alone import KernelLooks
from driftscope.explain.native.program_kernels import cast_finding, kernel_finding
from driftscope.lift.evidence import Evidence
from driftscope.lift.side_lift import SideLift
from driftscope.programs.protocol import Bound
from driftscope.records.finding import Finding
from driftscope.records.kinds.left_out import Blame, operators_in_words
from driftscope.records.kinds.output import OutputRecord, Side
from driftscope.records.verdict import Verdict

# Unasked, a comparison spends no more sessions than this on the question, and reads no more weights than this for them.
# (Counted, not timed: the same comparison gives the same record on a busy machine.)
_SESSIONS, _COMPILATIONS, _WEIGHTS = 24, 6, 4_000_000_000
# Codes that say: the numbers are further from the program's own graph than its formats explain.
_NATIVE = frozenset({"R003", "N003", "N006", "R005"})


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A comparison that has been judged.

    Parameters
    ----------
    a, b : Bound
    values : pair of sequences
        The flattened native results of A and of B.
    evidence : Evidence
    outputs : sequence of OutputRecord
    codes : sequence of str
        The code behind each output's verdict.
    seed : int
    say : callable
    kernels : KernelLooks
    """

    a: Bound
    b: Bound
    values: tuple[Sequence[Any], Sequence[Any]]
    evidence: Evidence
    outputs: Sequence[OutputRecord]
    codes: Sequence[str]
    seed: int
    say: Callable[[str], None]
    kernels: KernelLooks


def look_again(scene: JudgedPair, blame: bool | None) -> list[Finding]:
    """Take the looks that this verdict asks for.

    Parameters
    ----------
    scene : JudgedPair
    blame : bool or None
        Whether to search for the optimiser: None when the verdict asks for it, False never.

    Returns
    -------
    list of Finding
    """
    findings = []
    if _asks_for_blame(scene) if blame is None else blame:
        found = search(scene, unlimited=bool(blame))
        if found is not None:
            side = (scene.b, scene.evidence.b.graph) if found[1] == "B" else (scene.a, scene.evidence.a.graph)
            where = place_of(found[0], *side) if found[0].guilty else None
            findings += blame_findings(*found, asked=bool(blame), where=where)
        if blame and not any(f.code == "O013" for f in findings):
            findings += exporter_findings(scene)
    if _asks_for_kernels(scene):
        findings += kernel_findings(scene)
    findings += half_findings(scene.b, scene.evidence.b.graph, scene.values[1], "B")
    # The same file on both sides is tried once: what its formats do does not depend on the session.
    graph = None if _same_file(scene) else scene.evidence.a.graph
    findings += half_findings(scene.a, graph, scene.values[0], "A")
    return findings


def _same_file(scene: JudgedPair) -> bool:
    one, other = (bound.program.onnx_model for bound in (scene.a, scene.b))
    if one is None or other is None:
        return False
    return one.proto is other.proto or (one.path is not None and one.path == other.path)


# Share of the difference of two functions below which an optimiser is not asked about.
_PART = 1e-3


def _asks_for_blame(scene: JudgedPair) -> bool:
    if all(o.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING) for o in scene.outputs):
        return False
    optimized = scene.evidence.optimized
    known = scene.evidence.reconciled
    same = known is None or known.same_function
    if optimized is not None and not optimized.same_function:
        # Beside another function, what folding in a narrow format does to the file is no part of what is seen.
        own, whole = (max((d.value for d in r.drifts), default=0.0) for r in (optimized, known or optimized))
        return same or not own < _PART * whole
    return same and any(code in _NATIVE for code in scene.codes)


def _asks_for_kernels(scene: JudgedPair) -> bool:
    same = scene.evidence.reconciled is not None and scene.evidence.reconciled.same_function
    return same and any(code in ("R003", "N003") for code in scene.codes)


def kernel_findings(scene: JudgedPair) -> list[Finding]:
    """Name the operators whose native kernels are outside their floor, on the side further from its own lift."""
    for side in sorted("BA", key=lambda name: -_error(scene, name)):
        scene.say(f"Measuring every kernel of {side} on its native inputs")
        looked = scene.kernels.of(side)
        if looked.disturbed is not None:
            return [looked.disturbed]
        if looked.outside:
            return [kernel_finding(looked.outside, looked.count, side)]
        bound, file = (scene.b, scene.evidence.b.graph) if side == "B" else (scene.a, scene.evidence.a.graph)
        with contextlib.suppress(RuntimeRefused, CannotLift):
            cast = cast_finding(file, bound, side)
            if cast is not None:
                return [cast]
    return []


def search(scene: JudgedPair, *, unlimited: bool = True) -> tuple[Blame, str] | None:
    """Search the side that something optimises; when both are, the one further from its own lift.

    Returns
    -------
    (Blame, "A" or "B"), or None when nothing optimises either, or the search could not begin.
    """
    sides = [name for name, bound in (("B", scene.b), ("A", scene.a)) if _is_optimised(bound)]
    if not sides:
        return None
    name = max(sides, key=lambda side: _error(scene, side)) if len(sides) > 1 else sides[0]
    bound, lift = (scene.b, scene.evidence.b) if name == "B" else (scene.a, scene.evidence.a)
    budget = SearchBudget() if unlimited else _unasked(bound)
    scene.say(f"Leaving out what optimises {name}, one thing at a time")
    other = scene.a.program.name if name == "B" else scene.b.program.name
    evidence, values = (scene.evidence, scene.values[0]) if name == "B" else _exchanged(scene)
    target = target_of(values, evidence, f"{'A' if name == 'B' else 'B'} ({other})", _function(lift, scene.seed))
    try:
        if bound.program.kind == "compiled":
            from driftscope.explain.blame.compilation import blame_stages

            return blame_stages(bound, target, budget), name
        return blame_optimizers(bound, target, budget), name
    except (RuntimeRefused, CannotLift):
        return None


def exporter_findings(scene: JudgedPair) -> list[Finding]:
    """Export A anew with and without the exporter's optimisation, where B is a file that torch exported."""
    model = scene.b.program.onnx_model
    wrong = any(o.verdict is Verdict.DIFFERENT for o in scene.outputs)
    if (
        scene.a.program.kind not in ("torch", "exported")
        or model is None
        or model.proto.producer_name != "pytorch"
        or not wrong
    ):
        return []
    from driftscope.explain.blame.exporting import blame_export, torch_exporter

    scene.say("Exporting A with and without the exporter's optimisation")
    pairs = [(i, i) for i, _ in scene.evidence.pairs]
    evidence = Evidence(scene.evidence.a, scene.evidence.a, pairs)
    target = target_of(scene.values[0], evidence, "A", _function(scene.evidence.a, scene.seed))
    opset = next((o.version for o in model.proto.opset_import if o.domain in ("", "ai.onnx")), None)
    try:
        found = blame_export(scene.a, target, torch_exporter(scene.a, opset))
    except (RuntimeRefused, CannotLift):
        return []
    evidence_of = {"side": "B", "blame": timeless(found)}
    if not found.guilty:
        return [Finding("O018", found.answer, evidence=evidence_of, note=True)]
    return [
        Finding("O015", found.answer, operators_in_words(found.suspects[0].operators), f"Export with {found.paste}.",
                evidence=evidence_of, verified=found.verified)
    ]  # fmt: skip


def _unasked(bound: Bound) -> SearchBudget:
    if bound.program.kind == "compiled":
        return SearchBudget(runs=_COMPILATIONS)
    model = bound.program.onnx_model
    size = max(model.size if model is not None else 0, 1)
    return SearchBudget(runs=max(4, min(_SESSIONS, _WEIGHTS // size)))


def _function(lift: SideLift, seed: int) -> Any:
    return file_function(lift, seed) if lift.graph is not None else None


def _exchanged(scene: JudgedPair) -> tuple[Evidence, Sequence[Any]]:
    """The evidence with the sides exchanged, and B's results, for a search on side A."""
    given = scene.evidence
    return Evidence(given.b, given.a, [(j, i) for i, j in given.pairs]), scene.values[1]


def _is_optimised(bound: Bound) -> bool:
    if bound.program.kind == "compiled":
        return True
    return str(bound.program.settings.get("level", "disable")) != "disable"


def _error(scene: JudgedPair, side: str) -> float:
    sides: list[Side | None] = [o.b if side == "B" else o.a for o in scene.outputs]
    return max((s.error_floors or 0.0 for s in sides if s is not None), default=0.0)

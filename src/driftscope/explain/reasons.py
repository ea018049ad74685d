"""Findings: what a person should know, most important first, from the evidence of a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.causes import Cause, cause_of
from driftscope.explain.divergence import Parting, find_partings
from driftscope.lift.evidence import Evidence
from driftscope.lift.matching import Repair, as_stored
from driftscope.lift.reconcile import Pairing, measure
from driftscope.records.comparison import OutputRecord
from driftscope.records.finding import Finding, Where
from driftscope.records.verdict import Verdict

# Places named in full; the rest are counted.
_PLACES = 3


def output_findings(
    outputs: Sequence[OutputRecord], codes: Sequence[str], places: Mapping[str, Where]
) -> list[Finding]:
    """One finding per output whose verdict rests on a code, with its place where one was found."""
    found = []
    for output, code in zip(outputs, codes, strict=True):
        if code and code != "N001":
            note = output.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING) and code != "N016"
            why, fix = _ADVICE["cast" if code == "N003" and code in places else code] if code in _ADVICE else ("", "")
            where = dataclasses.replace(places.get(code, Where()), output=output.path)
            found.append(Finding(code, output.reason, why, fix, where, _numbers(output), note))
    return found


_ADVICE = {
    "N003": (
        "The kernels of this runtime multiply, accumulate or store in a cheaper format than the program declares.",
        "Ask the runtime for the declared arithmetic (torch.backends.*.allow_tf32, set_float32_matmul_precision, "
        "the provider's options), or accept it with the tolerance suggested for that format.",
    ),
    "cast": (
        "B passes a value through a format with fewer bits than any that A uses.",
        "Remove the cast, or accept it with the tolerance suggested for that format.",
    ),
    "N004": (
        "An intermediate value is larger than the largest number of its format.",
        "Keep the named operator in float32, or scale its inputs.",
    ),
    "N005": (
        "A result that is NaN everywhere compares equal to any other such result.",
        "Give inputs inside the program's domain, or find the operator that creates the first NaN.",
    ),
    "N007": ("", "Return the same outputs from both programs, in the same order."),
    "N008": ("", "Check shapes assumed at export: an axis was fixed, dropped or broadcast."),
    "N009": ("", "Cast one side, or export with the dtype the other side returns."),
    "N014": (
        "Two runs of A on the same inputs differ by more than rounding: it draws random numbers.",
        "Call .eval() on the module, or seed its generators.",
    ),
    "N016": (
        "The inputs do not reach the part in which the two functions differ, or rounding hides it.",
        "Compare on inputs from the real distribution before relying on it.",
    ),
    "R003": (
        "In float64 both graphs agree, so what differs is how a runtime's kernels compute them.",
        "Run B with graph optimisation disabled; if the drift goes, an optimiser or fused kernel caused it.",
    ),
    "R004": ("", "Compare another way round (the side that can be lifted as A), or use ds.compare_values."),
}


def _numbers(output: OutputRecord) -> dict[str, Any]:
    return {
        "floors": output.floors, "lifted": output.lifted, "limit": output.lifted_threshold,
        "max_abs": output.max_abs, "max_ulp": output.max_ulp,
    }  # fmt: skip


def function_findings(evidence: Evidence, outputs: Sequence[OutputRecord], explain: bool) -> list[Finding]:
    """Say where two programs that are not the same function part."""
    guilty = [o for o in outputs if o.verdict is Verdict.DIFFERENT and o.lifted is not None]
    guilty = [o for o in guilty if o.lifted_threshold is not None and not _within(o)]
    if not guilty:
        return []
    paths = ", ".join(o.path for o in guilty[:_PLACES])
    numbers = {o.path: {"lifted": o.lifted, "limit": o.lifted_threshold, "floors": o.floors} for o in guilty}
    if evidence.optimized is not None and not evidence.optimized.same_function and _file_agrees(evidence):
        return [_optimiser_finding(paths, numbers)]
    partings = _partings(evidence) if explain else []
    if not partings:
        return [Finding("N001", guilty[0].reason, where=Where(output=paths), evidence=numbers)]
    causes = _causes(evidence, partings[:_PLACES])
    return [_parting_finding(p, c, guilty[0], numbers) for p, c in zip(partings, causes, strict=False)]


def _within(output: OutputRecord) -> bool:
    return (output.lifted or 0.0) <= (output.lifted_threshold or THRESHOLDS.lifted)


def _file_agrees(evidence: Evidence) -> bool:
    return evidence.reconciled is not None and evidence.reconciled.same_function


def _optimiser_finding(paths: str, numbers: dict[str, Any]) -> Finding:
    return Finding(
        "O006",
        "the file is the same function as A, but the graph that the runtime's optimiser made of it is not",
        why="A graph transformer of the runtime rewrote the file into another function.",
        fix="Lower the graph optimisation level, or disable the transformer that fired, and report it.",
        where=Where(output=paths),
        evidence=numbers,
    )


def _partings(evidence: Evidence) -> list[Parting]:
    if evidence.a.graph is None or evidence.b.graph is None or evidence.reconciled is None:
        return []
    repaired = {r.name: r.value for r in evidence.reconciled.repairs_b}
    try:
        return find_partings(evidence.a.graph, evidence.b.graph, repaired)
    except CannotLift:
        return []


def _causes(evidence: Evidence, partings: Sequence[Parting]) -> list[Cause | None]:
    a, b, known = evidence.a.graph, evidence.b.graph, evidence.reconciled
    if a is None or b is None or known is None or not partings:
        return [None] * len(partings)
    repaired = {r.name: r.value for r in known.repairs_b}
    pairing = Pairing(evidence.pairs, [None] * len(evidence.pairs))

    def works(replace: Mapping[str, torch.Tensor]) -> bool:
        try:
            outputs = b.run(replace={**repaired, **replace})
        except (CannotLift, DriftscopeError):
            return False
        after = measure(known.outputs_a, outputs, pairing, THRESHOLDS)
        return all(now.value <= before.limit for now, before in zip(after, known.drifts, strict=True))

    constants = as_stored(a.constants()), as_stored(b.constants())
    # Only the first is worth runs of its own; the others often follow from it.
    return [cause_of(p, constants, works if k == 0 else lambda _replace: False) for k, p in enumerate(partings)]


def _parting_finding(parting: Parting, cause: Cause | None, output: OutputRecord, numbers: dict[str, Any]) -> Finding:
    step, other = parting.step if cause is None or cause.step is None else cause.step, parting.counterpart
    source = step.where if step.where.file or other is None else other.where
    module = step.where.module or (other.where.module if other is not None else None)
    where = Where(
        output=output.path, node=step.name, operator=step.operator, module=module, file=source.file,
        line=source.line, expression=source.expression,
    )  # fmt: skip
    what = (
        f"not the same function from {step.name} ({step.operator}) on: it takes the values A has and gives others "
        f"(lifted drift at the output {output.lifted:.1e})"
    )
    why = f"Its counterpart in A is {other.operator} ({other.name})." if other is not None else ""
    if cause is not None:
        why = f"{why} {cause.why[0].upper()}{cause.why[1:]}.".strip()
    fix, verified = (cause.fix, cause.verified) if cause is not None else ("", None)
    return Finding("N001", what, why, fix, where, numbers, verified=verified)


def repair_notes(repairs: Sequence[Repair], side: str) -> list[Finding]:
    """Notes on constants that one side stores rounded: one note per kind."""
    notes = []
    for kind, (code, words, why) in _REPAIR_NOTES.items():
        members = [r for r in repairs if r.kind in kind]
        if not members:
            continue
        first = members[0]
        others = f" and {len(members) - 1} more" if len(members) > 1 else ""
        notes.append(
            Finding(
                code,
                f"{len(members)} {words} in {side}: {first.name} is {first.partner}{others}",
                why,
                where=Where(node=first.constant.where.node, operator=first.constant.where.operator),
                evidence={"constants": [f"{r.name} = {r.partner}" for r in members[:20]], "count": len(members)},
                note=True,
            )
        )
    return notes


_REPAIR_NOTES = {
    ("scalar", "solved"): (
        "W001", "constant(s) rounded to storage", "Exporters store numbers in the model's dtype or in float32."
    ),
    ("table", "fold"): (
        "W002", "constant(s) computed natively", "A constant subgraph or a fold was evaluated in the model's dtype."
    ),
    ("weight",): (
        "W003", "weight(s) stored in a narrower format", "Each is the other side's weight, rounded once."
    ),
}  # fmt: skip


def lift_notes(evidence: Evidence) -> list[Finding]:
    """Notes on what could not be lifted."""
    notes = []
    for side, name in ((evidence.a, "A"), (evidence.b, "B")):
        if side.graph is None:
            notes.append(
                Finding(
                    "R004",
                    f"{name} cannot be evaluated in float64: {side.reason}",
                    "Without its lift, a bug smaller than the noise floor cannot be told from rounding.",
                    note=True,
                )
            )
    if evidence.optimized_reason:
        notes.append(
            Finding(
                "O007",
                f"the optimised graph cannot be evaluated in float64: {evidence.optimized_reason}",
                "The file itself was checked; what the optimiser made of it only by the floor.",
                note=True,
            )
        )
    return notes


# What was noticed before any number was computed is often the cause of what the numbers say.
_CAUSES = ("R001", "R002", "O003", "O004", "O005", "O013")


def ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings before notes, each once; causes seen beforehand first, then those with a place inside the graph."""
    distinct = list({(f.code, f.what, f.where): f for f in findings}.values())
    return tuple(
        sorted(distinct, key=lambda f: (f.note, f.code not in _CAUSES, f.where.node is None, f.code[0] != "N"))
    )

"""Findings: what a person should know, most important first, from the evidence of a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.lift.evidence import Evidence
from driftscope.lift.matching import Repair
from driftscope.records.comparison import OutputRecord
from driftscope.records.finding import Finding, Where
from driftscope.records.verdict import Verdict


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
    # A weight that is not the reference's is a cause; what it does downstream is not.
    return tuple(
        sorted(distinct, key=lambda f: (f.note, f.code not in _CAUSES, f.where.node is None, f.code[0] not in "WN"))
    )

"""Findings: what a person should know, most important first, from the evidence of a comparison."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.lift.evidence import Evidence
from driftscope.lift.reconcile.drifts import Reconciled
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.scalars import is_nobodys
from driftscope.lift.reconcile.subgraphs import GIVEN
from driftscope.lift.reconcile.uses import DECIMALS
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import BY_FLOOR
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.records.words import counted


def output_findings(outputs: Sequence[OutputRecord], codes: Sequence[str], evidence: Evidence) -> list[Finding]:
    """One finding per output whose verdict rests on a code, with its place and its replay where there are any."""
    places = evidence.places
    found = []
    for output, code in zip(outputs, codes, strict=True):
        if code and code != "N001":
            note = output.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING) and code != "N016"
            replay = evidence.replays.get(output.path, {})
            said = _said(code, output, places)
            why, fix = _ADVICE.get(_advice(said, output, replay, places), ("", ""))
            where = dataclasses.replace(places.get(said, Where()), output=output.path)
            fix = fix.replace("the named operator", where.node or "the operator that overflows")
            numbers = _numbers(output) | ({"replay": replay} if replay else {})
            found.append(Finding(code, output.reason, why, fix, where, numbers, note))
    return found


def _said(code: str, output: OutputRecord, places: Mapping[str, Where]) -> str:
    """The code whose place and advice a finding has: NaN that an overflow leads to is that overflow's."""
    at = places.get("N004", Where()).node
    return "N004" if code == "N006" and at and f" at {at} (" in output.reason else code


def _advice(code: str, output: OutputRecord, replay: Mapping[str, Any], places: Mapping[str, Where]) -> str:
    if code == "R003" and output.lifted is None:
        return "not lifted"
    if code == "N014" and code in places:
        return "random"
    shapes = [side.shape or () for side in (output.a, output.b) if side is not None]
    if code == "N004" and _BEYOND_32.search(output.reason):
        return "wide range"
    if code == "N004" and " is not finite" in output.reason:
        return "approximated end" if "approximation in " in output.reason else "end of a domain"
    if code == "N008" and len(shapes) == 2 and sorted(shapes[0]) == sorted(shapes[1]):
        return "permuted"
    if code == "N003" and output.reason.startswith(BY_FLOOR) and not replay:
        return "format fits"
    if code == "W013" and not replay.get("layers"):
        return "activations"
    if code != "N003":
        return "kernel off" if code == "R003" and replay else code
    if replay.get("way") == "constants as stored":
        return "constants"
    if replay.get("kind") == "kernel" and replay["correlation"] < THRESHOLDS.replay:
        return "kernel consistent"
    return "cast" if code in places else str(replay.get("kind", code))


# What float32 holds no better than a half format does.
_BEYOND_32 = re.compile(r"(largest|smallest) float(32|64),|e[+-]\d{3,} (exceeds|is below)")

_ADVICE = {
    "N003": (
        "A runtime computes in a cheaper format than the program declares.",
        "Ask it for the declared arithmetic, or accept it with the tolerance suggested for that format.",
    ),
    "format fits": (
        "Its numbers are in that format, and rounding in it is as large as this. A smaller bug would not be seen.",
        "Ask the runtime for the declared arithmetic, or accept it with the tolerance suggested for that format.",
    ),
    "format": (
        "Run again in float64 with that arithmetic, the program makes the very errors that it natively makes.",
        "Ask the runtime for the declared arithmetic (torch.backends.*.fp32_precision, set_float32_matmul_precision, "
        "the provider's options), or accept it with the tolerance suggested for that format.",
    ),
    "kernel": (
        "Put into a float64 run at their places, the errors of the kernels alone make the errors of the output.",
        "Accept it with the tolerance suggested, or compute this operator in float64.",
    ),
    "kernel consistent": (
        "Without what this kernel, run alone, is off by, the two results differ by rounding.",
        "Accept it with the tolerance suggested, or compute this operator in float64.",
    ),
    "kernel off": (
        "Put into a float64 run at its place, the error of this kernel alone makes the error of the output.",
        "Try the operator alone in another version of the runtime or with another provider; if it stays off, the "
        "values in the evidence show it to those who maintain the kernel.",
    ),
    "constants": (
        "The rounding of these constants alone, carried on in float64, is the drift that was measured.",
        "Compute them in float64 and round once, or accept it with this error.",
    ),
    "cast": (
        "One side passes a value through a format with fewer bits than any that the other uses.",
        "Remove the cast, or accept it with the tolerance suggested for that format.",
    ),
    "N004": (
        "An intermediate value is larger than the largest number of its format, or smaller than its smallest.",
        "Keep the named operator in float32, or scale its inputs.",
    ),
    "wide range": (
        "An intermediate value is larger than the largest number of its format, or smaller than its smallest.",
        "Compute the steps in one function that stays in range (logsumexp, log_softmax, logsigmoid, hypot), or scale "
        "the inputs of the named operator.",
    ),
    "end of a domain": (
        "A format rounds a value to the end of the domain of what is computed of it, such as the logarithm's zero.",
        "Compute both in one function that does not round between them (log_softmax, logsigmoid, log1p), or clamp the "
        "value inside the domain.",
    ),
    "approximated end": (
        "The kernel of a function gives the end of the domain of what is computed of it, where the function itself, "
        "rounded, lies inside.",
        "Compute both in one function (log_softmax, logsigmoid, log1p), or clamp the value inside the domain.",
    ),
    "N005": (
        "A result that is NaN everywhere compares equal to any other such result.",
        "Give inputs inside the program's domain, or find the operator that creates the first NaN.",
    ),
    "N007": ("", "Return the same outputs from both programs, in the same order."),
    "N008": ("", "Check shapes assumed at export: an axis was fixed, dropped or broadcast."),
    "permuted": ("", "Check the order of the axes: they are as long as A's, in another order."),
    "N009": ("", "Cast one side, or export with the dtype the other side returns."),
    "N014": (
        "It draws random numbers, or carries something over from one run to the next.",
        "Call .eval() on the module if that switches it off, or seed a generator inside the call.",
    ),
    "random": (
        "It draws random numbers there, others in every run.",
        "Pass the random numbers in as an input, or draw them from a generator that is seeded inside the call.",
    ),
    "N016": (
        "The inputs do not reach the part in which the two functions differ, or rounding hides it.",
        "Compare on inputs from the real distribution before relying on it.",
    ),
    "W007": (
        "Every element of these is the other side's, rounded once; with its numbers nothing else differs.",
        "If the rounding is meant, accept it with this error; else store them in full precision.",
    ),
    "W013": (
        "Each integer is the other side's weight divided by its scale, rounded to nearest.",
        "Keep the dearest layers in float, or give them a scale per channel or smaller blocks, if this is too much.",
    ),
    "activations": (
        "Integers stand for values on the way, and for no weights.",
        "Leave what is rounded too coarsely out of the quantisation, or calibrate on more inputs, if this is too much.",
    ),
    "R003": (
        "In float64 both graphs agree, so what differs is how a runtime's kernels compute them.",
        "Run B with graph optimisation disabled; if the drift goes, an optimiser or fused kernel caused it.",
    ),
    "not lifted": (
        "Without a run of B in float64 it is not known whether B computes something else, or the same more cheaply.",
        "Compare A with the model that B was made from: if they agree, the conversion did it (weights stored in "
        "float16 are a common cause), or the runtime.",
    ),
    "R004": ("", "If the other side can be lifted, give it as A; else compare the results with ds.compare_values."),
}


def _numbers(output: OutputRecord) -> dict[str, Any]:
    return {
        "floors": output.floors, "lifted": output.lifted_size, "limit": output.lifted_threshold,
        "max_abs": output.max_abs, "max_ulp": output.max_ulp,
    }  # fmt: skip


def repair_notes(repairs: Sequence[Repair], side: str) -> list[Finding]:
    """Notes on constants that one side stores rounded: one note per kind."""
    notes = []
    for kind, (code, words, why) in _REPAIR_NOTES.items():
        members = [r for r in repairs if r.kind in kind and not r.is_exact()]
        if not members:
            continue
        first = members[0]
        others = f" and {len(members) - 1} more" if len(members) > 1 else ""
        # A number that nobody wrote down (1/6, 0.01) is not the other side's: that may hold another one there.
        # What a program computes from its own constants is compared with that computation in float64.
        whose = "the number " if is_nobodys(first.partner) else f"{'A' if side == 'B' else 'B'}'s "
        own = first.partner.startswith((GIVEN, DECIMALS)) or first.kind in ("shortcut", "fitted")
        partner = first.partner if own else whose + first.partner
        notes.append(
            Finding(
                code,
                f"{side} {words.format(count=len(members), s='' if len(members) == 1 else 's')}: {first.name} is"
                f" {partner}{others}",
                why,
                where=Where(node=first.constant.where.node, operator=first.constant.where.operator),
                evidence={"constants": [f"{r.name} = {r.partner}" for r in members[:20]], "count": len(members)},
                note=True,
            )
        )
    return notes


_REPAIR_NOTES = {
    ("scalar", "solved"): (
        "W001", "stores {count} constant{s} rounded", "Exporters store numbers in the model's dtype or in float32."
    ),
    ("shortcut",): (
        "W001", "leaves {count} formula{s} where its format cannot tell",
        "A kernel returns a limit or its argument where the rest is less than half a unit in the last place.",
    ),
    ("table", "fold"): (
        "W002", "computed {count} constant{s} ahead of time, in its own format",
        "A constant subgraph or a fold was evaluated in the model's dtype.",
    ),
    ("fitted",): (
        "W002", "stores {count} tensor{s} rounded",
        "Something was computed ahead of time, here or on the other side.",
    ),
    ("weight",): (
        "W003", "stores {count} weight{s} in a narrower format", "Each is the other side's weight, rounded once."
    ),
}  # fmt: skip


def lift_notes(evidence: Evidence) -> list[Finding]:
    """Notes on what could not be lifted, and on what float64 itself could not decide."""
    notes = _loss_notes(evidence)
    for side, name in ((evidence.a, "A"), (evidence.b, "B")):
        if side.graph is None:
            told = bool(side.widened) and all(evidence.delta(p) is not None for p in range(len(evidence.pairs)))
            notes.append(
                Finding(
                    "R004",
                    f"{name} cannot be evaluated in float64: {side.reason}",
                    "Its own code was run on float64 inputs instead; a constant that it rounds to float32 is not seen."
                    if told
                    else "Without its lift, a bug smaller than the noise floor cannot be distinguished from rounding.",
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


# Digits lost at one step from which on it is worth a note.
_DIGITS = 3.0


def _loss_notes(evidence: Evidence) -> list[Finding]:
    """Notes on steps that lose digits by their formula: known where the programs were evaluated finer than float64."""
    known = evidence.reconciled
    if known is None or not known.finer:
        return _end_notes(known)
    proof = next(iter(known.finer.values()))
    notes = []
    for name, loss in zip("AB", known.losses, strict=True):
        if loss is None or loss.digits < _DIGITS:
            continue
        why = "it subtracts nearly equal numbers" if loss.subtracts else "its result changes far more than its operand"
        what = f"{name} loses {loss.digits:.0f} of float64's 16 digits at {loss.where.node}: {why}"
        lost = "A narrower format loses as many of its fewer digits. Both programs were evaluated again in "
        finer = f"they differ by {proof['finer']:.1e} relative" if proof["finer"] else "they are equal"
        proved = f"{lost}{proof['bits']} bits with proven bounds: there {finer}."
        notes.append(Finding("N012", what, proved, "", loss.where, dict(proof), note=True))
    return [*notes, *_end_notes(known)]


def _end_notes(known: Reconciled | None) -> list[Finding]:
    """Notes on arguments that lie at the end of a function's domain, where float64 itself cannot tell on which side."""
    return [
        Finding(
            "N012",
            f"{name} gives {held.where.node} ({held.where.operator}) {counted(held.count, 'argument')} within "
            f"float64's own rounding of {held.end:g}, where its domain ends",
            "Rounding carries such an argument to either side: the result is NaN, or another number, on one of them. "
            f"In float64 both programs were compared with {held.end:g} in its place.",
            "Clamp its input to the domain.",
            held.where,
            note=True,
        )
        for name, side in zip("AB", known.held if known is not None else (), strict=False)
        for held in side[:1]
    ]


def of_side(findings: Sequence[Finding], side: str, name: str) -> list[Finding]:
    """Say whose mode it is: both programs may bear one name."""
    return [
        dataclasses.replace(f, what=f.what.replace(name, f"{side} ({name})", 1)) if f.code in ("O003", "O004") else f
        for f in findings
    ]


# What was noticed before any number was computed is often the cause of what the numbers say.
_CAUSES = ("R001", "R002", "O003", "O004", "O005", "O013", "W012")


def ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings before notes, each once; causes seen beforehand first, then those with a place inside the graph."""
    distinct = list({(f.code, f.what, f.where): f for f in findings}.values())
    if any(f.code == "W012" and f.verified for f in distinct):
        # Where nothing but those numbers is wrong, other places show what they and honest quantisation do downstream.
        distinct = [f for f in distinct if f.note or f.code == "W012" or (f.code != "N001" and f.code[0] != "W")]
    # A weight that is not the reference's is a cause; what it does downstream is not.
    return tuple(
        sorted(distinct, key=lambda f: (f.note, f.code not in _CAUSES, f.where.node is None, f.code[0] not in "WN"))
    )

"""Findings of exporting: what torch refused and what it means, what no spec can say, what could not be asked at all."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.records.finding import Finding, Where
from driftscope.records.words import counted
from driftscope.shapes.attempts import Mode
from driftscope.shapes.capture.candidates import Candidate
from driftscope.shapes.capture.export import Refusal
from driftscope.shapes.capture.export_costs import ExportCosts
from driftscope.shapes.check import Check
from driftscope.shapes.conditions.expressions import Number, Operation, text
from driftscope.shapes.conditions.naming import Sources
from driftscope.shapes.conditions.parsing import Inexpressible, parse_text
from driftscope.shapes.conditions.phrasing import multiples, phrase
from driftscope.shapes.conditions.relations import Clause, SourceLine, clause
from driftscope.shapes.findings.domain import DomainFindings
from driftscope.shapes.probe.judging_runs import Refused

_DEVICE = re.compile(r"\b(cuda|CUDA|NVIDIA|mps|MPS|xpu|XPU|hip|HIP)\b")
_GUARD = re.compile(r"generated guard (?P<guard>.+?)\.?$", re.MULTILINE)
# torch writes "not larger than any integer" as a guard; it says nothing.
_VACUOUS = re.compile(r"(922337203685477580\d|2147483647|4611686018427387\d+)")


def explained(check: Check) -> list[Finding]:
    """Every finding of a check, most important first: what was found on the way, then what exporting shows."""
    found = DomainFindings(check).all() + list(check.findings)
    found += _refusals(check)
    found += _latent(check)
    found += _remarks(check)
    return sorted(found, key=lambda f: f.note)


def inputs_do_not_bind(error: InputError) -> Finding:
    """S007."""
    words = (
        str(error).removeprefix("the inputs do not fit ").removesuffix("; give a tuple in its order, or a dict by name")
    )
    return Finding(
        "S007",
        f"the inputs do not fit the model: {words}",
        fix="give a tuple in the order of the parameters, or a dict by their names",
    )


def example_fails(model: Callable[..., Any], answer: Refused) -> Finding:
    """S006, or S010 where a device is missing."""
    if _DEVICE.search(answer.words) and not torch.cuda.is_available():
        return Finding(
            "S010",
            f"the model needs a device that is not here: {answer.words}",
            fix="move the model and its inputs to the CPU: shapes do not depend on the device",
        )
    return Finding(
        "S006",
        f"the model fails on its own example: {answer.words}",
        why="nothing can be exported or probed before the model itself runs",
        fix="give inputs on which the model runs",
    )


# --- what torch refused ---------------------------------------------------------------------------------------


def _refusals(check: Check) -> Iterator[Finding]:
    if check.arguments is None:
        return
    sources = Sources(check.arguments)
    if check.candidates and check.capture is None:
        worst = check.candidates[0].repair
        refusal = worst.steps[0].refusal if worst.steps else worst.result
        if isinstance(refusal, Refusal):
            yield _nothing_accepted(refusal)
        return
    for candidate in check.candidates:
        if candidate.name in ("yours", "from the inputs") and candidate.repair.steps:
            yield _repaired(candidate, sources)
            yield from _not_followed(candidate, check)


def _nothing_accepted(refusal: Refusal) -> Finding:
    moved = refusal.kind == "Moved"
    line = _model_line(refusal)
    where = Where(file=line.file, line=line.line) if line else Where()
    if moved:
        return _moved(refusal.first_line)
    return Finding(
        "S005",
        f"torch.export refuses the model in every way tried: {refusal.first_line}",
        why=_reason(refusal),
        where=where,
        evidence={"error": refusal.kind, "words": refusal.without_stack},
    )


def _moved(words: str) -> Finding:
    return Finding(
        "S008",
        f"a private name of torch is not where it was: {words}",
        why="relations are read from places that torch does not promise to keep",
        fix="use the version of torch named here, or a newer driftscope",
    )


_REASONS = (
    ("Could not guard on data-dependent", "the model's Python decides by a value that is only known at run time"),
    ("Could not extract specialized integer from data-dependent", "a size depends on values, not on shapes"),
    ("data-dependent", "the model's Python decides by values of tensors, which a trace does not have"),
    ("Unsupported input type", "one of the inputs is not a container that torch can look into"),
)


#: By the class of exceptions whose words name the operator alone.
_KINDS = {
    "DataDependentOutputException": "what this operator returns follows from values of tensors, which a trace has not",
    "DynamicOutputShapeException": "the shape of what this operator returns follows from values, which a trace has not",
}


def _reason(refusal: Refusal) -> str:
    told = next((reason for words, reason in _REASONS if words in refusal.words), "")
    return told or _KINDS.get(refusal.kind, "")


def _model_line(refusal: Refusal) -> SourceLine | None:
    from driftscope.shapes.capture.source_lines import parse_line

    line = parse_line(refusal.words)
    return line if line is not None and line.user else refusal.line


def _repaired(candidate: Candidate, sources: Sources) -> Finding:
    first = candidate.repair.steps[0].refusal
    guards = list(_guards(first, sources))
    whose = "your spec" if candidate.name == "yours" else "the spec that the inputs suggest"
    done = "; then ".join(step.change for step in candidate.repair.steps)
    capture = candidate.capture
    traced = [c for g in guards for c in (capture.relations.recorded if capture else ()) if c.text == text(g.condition)]
    words = list(dict.fromkeys(g.text for g in guards))
    return Finding(
        "S001",
        f"torch.export refuses {whose}: {first.first_line.split(' For more information')[0]}",
        why=_why_refused(words),
        fix=f"{done}; accepted" if capture is not None else "",
        where=_where(traced[0]) if traced else Where(),
        evidence={
            "words": first.without_stack,
            "guards": words,
            "asked_by": [str(c.torch_line) for c in traced],
            "suggestions_not_followed": list(candidate.repair.rejected),
            "spec_code": capture.spec_code if capture is not None else "",
        },
        verified=True if capture is not None else None,
    )


_THINNED = re.compile(r"^(?:(?P<slope>\d+)\*\w+)?\s*(?P<offset>[+-]?\s*\d+)?$")


def _not_followed(candidate: Candidate, check: Check) -> Iterator[Finding]:
    """Suggestions that exclude sizes at which the model was seen to run; the others would only have been plainer."""
    for suggestion in candidate.repair.rejected:
        name, _, value = suggestion.partition(" = ")
        places = {
            place
            for step in candidate.repair.steps
            for place, size in enumerate(step.refusal.attempt.sizes)
            if getattr(size, "__name__", "") == name
        }
        excluded = [point for point in check.running if any(not _keeps(value, point[place]) for place in places)]
        if not excluded:
            continue
        freezes = value.strip().isdigit()
        yield Finding(
            "S002",
            f"torch suggests {suggestion}, which {'freezes' if freezes else 'thins out'} that axis and loses"
            f" {len(excluded)} of {counted(len(check.running), 'shape')} tried; not followed",
            why="a suggestion makes a spec acceptable, it does not keep the sizes at which the model runs",
            fix=f"{name} left to Dim.DYNAMIC",
            note=True,
            verified=candidate.capture is not None,
        )


def _keeps(suggestion: str, size: int) -> bool:
    """Whether a size satisfies ``7`` or ``4*_s - 2``."""
    found = _THINNED.match(suggestion.strip())
    if found is None:
        return True
    slope, offset = int(found["slope"] or 0), int((found["offset"] or "0").replace(" ", ""))
    return (size - offset) % slope == 0 and size >= offset if slope else size == offset


def _why_refused(guards: list[str]) -> str:
    if not guards:
        return ""
    return f"a Dim promises every size in its range, and the model was traced under {' and '.join(guards)}"


def _guards(refusal: Refusal, sources: Sources) -> Iterator[Clause]:
    """Guards quoted in a refusal, in the user's names."""
    for found in _GUARD.finditer(refusal.words):
        if _VACUOUS.search(found["guard"]):
            continue
        try:
            term = parse_text(found["guard"], sources.size)
        except Inexpressible:
            yield Clause("guard", Number(True), found["guard"])
            continue
        plain = phrase(clause("guard", term))
        if plain.text.endswith(" >= 1"):
            continue  # true of every size there is
        same = plain.text == text(term)
        yield plain if same else dataclasses.replace(plain, text=f"{plain.text} (torch: {text(term)})")


# --- what nothing checks --------------------------------------------------------------------------------------


def _latent(check: Check) -> Iterator[Finding]:
    """Answers given to the model's Python that no check of the program repeats."""
    if check.capture is None:
        return
    for one in check.capture.relations.unchecked:
        if one.kind == "decided" and one.user_line is not None:
            yield _decided(one)


def _decided(one: Clause) -> Finding:
    line = one.user_line
    return Finding(
        "S011",
        f"{text(one.condition)} was taken for granted while tracing and is checked by nothing",
        why="torch traces sizes as 2 or more by default; a comparison that this decides leaves no guard",
        fix="write the branch with torch.cond, export with backed_size_oblivious, or refuse such sizes in the caller",
        where=Where(file=line.file, line=line.line) if line else Where(),
        evidence={"condition": text(one.condition)},
        note=True,
    )


# --- remarks --------------------------------------------------------------------------------------------------


def _remarks(check: Check) -> Iterator[Finding]:
    capture = check.capture
    if capture is None:
        return
    yield from map(_moved, capture.relations.unread)
    yield from _unspeakable(check)
    yield from _mode_that_covers_more(check)
    if check.exports.left_out:
        yield _left_out(check.exports)
    by_data = [one for one in capture.relations if one.kind == "assert" and not one.names]
    if by_data:
        yield Finding(
            "S009",
            f"a size depends on values of the inputs, not on their shapes: {', '.join(c.text for c in by_data)}",
            why="which shapes are right does not follow from shapes alone there",
            where=_where(by_data[0]),
            note=True,
        )


def _left_out(costs: ExportCosts) -> Finding:
    return Finding(
        "S035",
        f"exporting this model takes {costs.fastest:.1f} s of processor time, so not all was tried; left out:"
        f" {', '.join(costs.left_out)}",
        why="each of them exports the model again",
        evidence={"seconds": costs.fastest, "left_out": list(costs.left_out)},
        note=True,
    )


def _where(one: Clause) -> Where:
    line = one.user_line
    return Where(file=line.file, line=line.line) if line is not None else Where()


def _unspeakable(check: Check) -> Iterator[Finding]:
    """Relations between three sizes and more, or with a negative slope: no Dim can say them."""
    if check.capture is None:
        return
    for one in check.capture.relations:
        tied = isinstance(one.condition, Operation) and one.condition.operator == "=="
        if one.kind in ("equal", "static", "decided") or len(one.names) < 2 or not tied:
            continue
        words = one.text.removesuffix(" (assumed, not checked)")
        if sum(name in words for name in one.names) < 2 or multiples(one.condition):
            continue  # said of one size alone, or of each by itself, as "is a multiple of 4": 4*d says it
        checked = "and the program checks it" if one.enforced else "but nothing checks it when the program is called"
        yield Finding(
            "S003",
            f"no Dim can say {words}",
            why="a Dim is an increasing line of one other Dim: a*d + b with whole a > 0; d1 + d2 is not one",
            fix=f"Dim.DYNAMIC or Dim.AUTO on these axes: torch finds the relation, {checked}",
            where=_where(one),
            note=True,
            verified=True,
        )


def _mode_that_covers_more(check: Check) -> Iterator[Finding]:
    """The chosen way needs more than a spec, because every plain spec loses shapes."""
    chosen = check.chosen
    plain = [c for c in check.candidates if c.capture is not None and c.capture.mode not in _BEYOND_SPECS]
    if chosen is None or chosen.capture is None or chosen.coverage is None or not plain:
        return
    best = plain[0]
    if chosen.capture.mode in _BEYOND_SPECS and best.coverage is not None and best.capture is not None:
        lost, wrong = best.coverage.lost, best.coverage.wrong
        yield Finding(
            "S004",
            f"of the {counted(chosen.coverage.probed, 'shape')} at which ways of exporting were compared"
            f" {chosen.capture.mode} is right at {chosen.coverage.right}; {best.capture.mode} loses {lost}"
            + (f" and is wrong at {wrong}" if wrong else ""),
            why="a plain spec traces sizes 0 and 1 apart and turns what torch's own analysis asks for into guards",
            fix="export by the function in spec_code",
            evidence={"spec_code": chosen.capture.spec_code},
            note=True,
            verified=True,
        )


_BEYOND_SPECS = (Mode.OBLIVIOUS, Mode.UNBACKED)

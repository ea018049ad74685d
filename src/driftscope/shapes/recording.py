"""From a check of shapes to its record: plain data, and the answer in one sentence."""

from __future__ import annotations

import linecache

import torch

from driftscope.records.environment import capture as environment_now
from driftscope.records.kinds.shape_report import ShapeCandidate, ShapePoint, ShapeRecord, ShapeRelation
from driftscope.records.words import all_of, counted
from driftscope.shapes.capture.candidates import Candidate
from driftscope.shapes.capture.export import Refusal
from driftscope.shapes.check import Check
from driftscope.shapes.conditions.relations import Clause
from driftscope.shapes.findings.broadcasting import broadcast_finding, broadcast_record
from driftscope.shapes.findings.exporting import explained
from driftscope.shapes.probe.domain import LOST, RIGHT, WRONG
from driftscope.shapes.targets import AOTI, EXPORTED, ONNX


def record_of(check: Check) -> ShapeRecord:
    """Make the record of a finished check."""
    capture = check.capture
    axes = check.arguments.axes if check.arguments is not None else ()
    targets = tuple(check.domain.seen)
    mode = capture.mode.value if capture is not None else ""
    found, broadcasts = explained(check), broadcast_record(check)
    return ShapeRecord(
        headline=headline(check),
        program=name_of(check.model),
        axes=tuple(axis.name for axis in axes),
        example=tuple(axis.size for axis in axes),
        free=check.wanted.free if check.wanted is not None else (),
        relations=tuple(map(relation_record, capture.relations)) if capture is not None else (),
        mode=mode,
        spec_code=capture.spec_code if capture is not None else "",
        candidates=tuple(_candidate(c, c is check.chosen) for c in check.candidates),
        points=tuple(
            ShapePoint(
                point,
                check.domain.valid[point],
                {name: check.domain.seen[name][point].outcome for name in targets if point in check.domain.seen[name]},
            )
            for point in check.domain.points
        ),
        targets=targets,
        findings=tuple(sorted([*found, *broadcast_finding(broadcasts, mode)], key=lambda f: f.note)),
        broadcasts=broadcasts,
        evidence={"inferred": str(check.wanted).splitlines()} if check.wanted is not None else {},
        environment=environment_now(),
        times={**check.times, **({"relations": capture.seconds["relations"]} if capture else {})},
    )


def name_of(model: object) -> str:
    """A model's class, or a function's name."""
    if isinstance(model, torch.nn.Module):
        return type(model).__name__
    return str(getattr(model, "__name__", type(model).__name__))


def headline(check: Check) -> str:
    """The answer in one sentence."""
    name = name_of(check.model)
    if check.original is None or not check.candidates:
        return f"{name} was not exported: {check.findings[0].what}" if check.findings else f"{name} was not exported"
    if check.capture is None:
        return f"torch.export refuses {name} in every way tried"
    right, lost, wrong = (check.domain.count(EXPORTED, outcome) for outcome in (RIGHT, LOST, WRONG))
    probed = right + lost + wrong
    if not probed:
        return f"{name} exported by {check.capture.mode} could not be tried at any shape"
    if not lost and not wrong:
        return f"{name} exported by {check.capture.mode} is right at {all_of(probed, 'shape')} tried{_elsewhere(check)}"
    parts = [f"{wrong} silently wrong"] if wrong else []
    parts += [f"{lost} lost"] if lost else []
    told = (
        f"{name} exported by {check.capture.mode}: {right} of {counted(probed, 'shape')} right, {' and '.join(parts)}"
    )
    return told + _elsewhere(check)


def _elsewhere(check: Check) -> str:
    """What goes wrong in what the program was converted to, so that no answer says less than its headline."""
    said = ""
    for target, title in ((ONNX, "the ONNX file"), (AOTI, "the compiled package")):
        wrong, lost = (check.domain.count(target, outcome) for outcome in (WRONG, LOST))
        said += f"; {title} is silently wrong at {wrong}" if wrong else ""
        said += f"{' and' if wrong else f'; {title}'} refuses {lost}" if lost else ""
    return said


def relation_record(clause: Clause) -> ShapeRelation:
    """A clause as plain data."""
    line = clause.user_line
    return ShapeRelation(
        text=clause.text,
        kind=clause.kind,
        enforced=clause.enforced,
        place=clause.place,
        file=line.file if line else None,
        line=line.line if line else None,
        function=line.function if line else None,
        expression=linecache.getline(line.file, line.line).strip() or None if line else None,
        asked_by=str(clause.torch_line) if clause.torch_line else "",
    )


def _candidate(candidate: Candidate, chosen: bool) -> ShapeCandidate:
    result = candidate.repair.result
    steps = candidate.repair.steps
    first = steps[0].refusal if steps else None
    refusal = first or (result if isinstance(result, Refusal) else None)
    words = refusal.without_stack if refusal is not None else ""
    coverage = candidate.coverage
    return ShapeCandidate(
        name=candidate.name,
        mode=result.attempt.mode.value,
        accepted=candidate.capture is not None,
        words=words,
        changes=tuple(step.change for step in steps),
        right=coverage.right if coverage else 0,
        lost=coverage.lost if coverage else 0,
        wrong=coverage.wrong if coverage else 0,
        chosen=chosen,
        spec_code=candidate.capture.spec_code if candidate.capture is not None else "",
    )

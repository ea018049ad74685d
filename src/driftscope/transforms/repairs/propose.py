"""Repairs: an edit of the user's file for a finding, tried on the examples and on its derivative before it is offered.

Each repair is a generator of edits with its condition of soundness in its docstring. The first edit that makes the
function equal to the plain program under the transform is offered; one that was tried and failed is never printed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from driftscope.records.words import agreeing, counted
from driftscope.transforms.batching.batched import vmap
from driftscope.transforms.repairs import autograd, flow, kept, values
from driftscope.transforms.repairs.source import Edit, Source, edited_code, edited_text, patch_of, source_of, swapped
from driftscope.transforms.repairs.trial import PlainAnswers, Trial, TrialOutcome
from driftscope.transforms.repairs.witnesses import Answers
from driftscope.transforms.subject import Proposal, Subject, Suspicion
from driftscope.transforms.torch_internals import name_of

Repair = Callable[[Source, Suspicion, Subject], Iterator[Edit]]

#: cause -> repairs, in the order in which they are tried.
REPAIRS: dict[str, tuple[Repair, ...]] = {
    "T001": (kept.returned_instead,),
    "T006": (values.batched_factory,),
    "T007": (values.batched_factory,),
    "T008": (values.without_out,),
    "T009": (flow.if_to_where, flow.if_to_guarded_where),
    "T010": (values.item_to_tensor, flow.if_to_where, flow.if_to_guarded_where),
    "T011": (flow.masked_fill, flow.masked_write),
    "T012": (autograd.functional_to_func, autograd.autograd_to_func),
    "T019": (autograd.no_grad_to_detach,),
    "T020": (values.item_to_tracked,),
    "T022": (values.deepcopy_to_clone,),
    "T024": (autograd.batch_norm_alone,),
}

#: Causes for which ``ds.vmap`` gives what the loop gives; offered when no edit does.
_BY_PATH = frozenset(
    {"T006", "T008", "T009", "T010", "T011", "T012", "T015", "T017", "T018", "T021", "T022", "T025", "T028"}
)

#: Causes whose edit leaves other state behind on purpose, and says so.
_MEANT_TO_CHANGE = frozenset({"T019", "T024"})

#: Edits tried for one finding: each costs up to four runs of the function.
MOST_EDITS = 16


def propose(subject: Subject, suspect: Suspicion, answers: PlainAnswers | None = None) -> Proposal | None:
    """Find and try a repair for what analysis found.

    Parameters
    ----------
    subject : Subject
        Its function may be run as often as wanted; the world is rewound after every run.
    suspect : Suspicion
    answers : PlainAnswers, optional
        Of the plain program, which all findings of a check share.

    Returns
    -------
    Proposal or None
        None when no repair fits the cause. ``verified`` is False when one was tried and withdrawn.
    """
    repairs = REPAIRS.get(suspect.cause, ())
    by_path = suspect.cause in _BY_PATH and suspect.transform == "vmap" and subject.randomness == "error"
    if not repairs and not by_path:
        return None
    trial = Trial(answers or PlainAnswers(subject), suspect.transform)
    failures: list[str] = []
    half_tried: list[Proposal] = []
    source = source_of(subject, suspect.place) or source_of(subject, suspect.birthplace)
    if source is not None:
        edits = (edit for repair in repairs for edit in repair(source, suspect, subject))
        same = suspect.cause not in _MEANT_TO_CHANGE
        found = _first_that_works(source, edits, trial, failures, half_tried, same=same)
        if found is not None:
            return found
    if suspect.cause == "T024" and isinstance(subject.function, torch.nn.Module):
        found = _without_statistics(subject.function, trial, failures)
        if found is not None:
            return found
    if by_path:
        found = _by_path(trial.subject, trial, failures)
        if found is not None:
            return found
    if half_tried:
        return half_tried[0]
    return Proposal("", verified=False, evidence={"withdrawn": failures[:3]}) if failures else None


def _first_that_works(
    source: Source, edits: Iterator[Edit], trial: Trial, failures: list[str], half_tried: list[Proposal], *, same: bool
) -> Proposal | None:
    tried: set[str] = set()
    for edit in edits:
        text = edited_text(source, edit)
        if text in tried or text == source.text:
            continue
        if len(tried) == MOST_EDITS:
            return None
        tried.add(text)
        code = edited_code(source, text)
        if code is None:
            continue
        trial.asked()
        with swapped(source.function, code):
            function = trial.subject.function
            verdict = trial.returning(function) if edit.returns else trial.of(function, edited=same)
            if verdict.works and edit.branches and not trial.branches_agree(trial.subject.function):
                verdict = replace(verdict, works=False, reason="the branches have other shapes or dtypes")
        if not verdict.works:
            failures.append(verdict.reason)
            continue
        condition = _one_sided(source, edit, trial.answers.decided(source.file))
        if not condition:
            return _offered(source, edit, text, verdict)
        half_tried.append(_half_tried(source, edit, text, verdict, condition))
    return None


def _one_sided(source: Source, edit: Edit, answers: Answers) -> str:
    """Return a line that the edit touches whose condition was the same for every example; "" where none was."""
    for replacement in edit.replacements:
        line = answers.one_sided(_line(replacement.first), replacement.last.end_lineno or 0)  # type: ignore[attr-defined]
        if line is not None:
            return source.text.splitlines()[line - 1].strip()
    return ""


def _half_tried(source: Source, edit: Edit, text: str, verdict: TrialOutcome, condition: str) -> Proposal:
    offered = _offered(source, edit, text, verdict)
    agree = f"{counted(verdict.examples, 'example')} tried {agreeing(verdict.examples, 'agrees', 'agree')}"
    fix = f"{offered.fix} (tried on one side alone: the {agree} on `{condition}`; give examples that take both)"
    return replace(offered, fix=fix, verified=None)


def _offered(source: Source, edit: Edit, text: str, verdict: TrialOutcome) -> Proposal:
    parts = []
    for replacement in sorted(edit.replacements, key=lambda r: _position(r.first)):
        first, last = _line(replacement.first), replacement.last.end_lineno or 0  # type: ignore[attr-defined]
        lines = f"line {first}" if first == last else f"lines {first}-{last}"
        before = source.segment(replacement.first) if replacement.first is replacement.last else "these statements"
        if first != last:
            parts.append(f"{lines}: `{_one_line(replacement.text)}`")
        else:
            parts.append(f"{lines}: `{_one_line(before)}` -> `{_one_line(replacement.text)}`")
    fix = "; ".join(parts) + (f" ({edit.caution})" if edit.caution else "")
    return Proposal(fix, verified=True, patch=patch_of(source, text), evidence=verdict.evidence)


def _position(node: Any) -> tuple[int, int]:
    return (node.lineno, node.col_offset)


def _line(node: Any) -> int:
    return int(node.lineno)


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip()).replace(":; ", ": ")


def _without_statistics(module: torch.nn.Module, trial: Trial, failures: list[str]) -> Proposal | None:
    """Offer torch's own replacement of BatchNorm layers, tried on a copy of the module."""
    other = copy.deepcopy(module)
    torch.func.replace_all_batch_norm_modules_(other)
    verdict = trial.of(other)
    if not verdict.works:
        failures.append(verdict.reason)
        return None
    fix = "call torch.func.replace_all_batch_norm_modules_ on the module (its running statistics are no longer updated)"
    return Proposal(fix, verified=True, evidence=verdict.evidence)


def _by_path(subject: Subject, trial: Trial, failures: list[str]) -> Proposal | None:
    """Offer ``ds.vmap``, which needs no edit of the function."""
    ragged = trial.ragged
    mapped = vmap(subject.function, subject.in_dims, randomness="error", ragged="list" if ragged else "error")
    verdict = trial.replacing(mapped)
    if verdict.works:
        name = name_of(subject.function)
        name = "" if "<" in name.rpartition(".")[2] else name.rpartition(".")[2]
        fix = f"driftscope.vmap({name or '...'}) instead of torch.vmap gives what the loop gives, without an edit"
        if ragged:
            fix = f"driftscope.vmap({name or '...'}, ragged='jagged'), 'pad' or 'list' holds results of several shapes"
        return Proposal(fix, verified=True, evidence=verdict.evidence | {"repair": "driftscope.vmap"})
    failures.append(f"driftscope.vmap: {verdict.reason}")
    return None

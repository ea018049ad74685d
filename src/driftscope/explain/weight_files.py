"""Two files of weights, tensor by tensor: the same bits, the same numbers stored in fewer bits, or other numbers.

Weights alone are no program: nothing runs, so there is neither a noise floor nor an output. What can be said is exact:
whether each tensor is the reference's, and what was done to it if it is not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.comparison.judge import Judgement, OutputEvidence, judge
from driftscope.comparison.leaves import LeafComparison, compare_leaves
from driftscope.comparison.recording import output_record
from driftscope.errors import ProgramError
from driftscope.explain.causes.alterations import Alteration, alteration_of
from driftscope.programs.protocol import Program
from driftscope.programs.value_trees import flatten
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.records.words import counted

_FEW = 3
_OUTPUTS = "model.py:Net@weights compares what that does to the outputs."
# Rounding of stored numbers loses precision; every other alteration makes another function.
_ROUNDED = ("W003", "W007")
_KEPT = "every number kept"


def both_weights(a: Program, b: Program) -> bool:
    """Whether both sides are files of weights.

    Raises
    ------
    ProgramError
        If one side is, and the other is a program: weights have no outputs to hold against it.
    """
    held = [bool(getattr(side, "holds_weights", False)) for side in (a, b)]
    if held[0] == held[1]:
        return held[0]
    weights, other = (a, b) if held[0] else (b, a)
    raise ProgramError(
        f"{weights.name} holds weights, not a program, and {other.name} is not a file of weights: put them into their"
        f" class as model.py:Net@{weights.name}, or give two files of weights"
    )


def compare_weights(a: Program, b: Program) -> tuple[list[OutputRecord], list[Finding]]:
    """Compare the tensors of two files by their names.

    Parameters
    ----------
    a, b : Program
        Files of weights (see :func:`both_weights`); ``a`` is the reference.

    Returns
    -------
    list of OutputRecord, list of Finding
        One record per name, at paths such as ``out['head.weight']``; a finding for each kind of change.
    """
    trees = flatten(a())[0], flatten(b())[0]
    records: list[OutputRecord] = []
    changes: list[tuple[LeafComparison, Alteration]] = []
    for leaf in compare_leaves(*trees, flat=False):
        change = _change(leaf, trees)
        evidence = OutputEvidence(
            leaf.kind, leaf.detail, leaf.floating, leaf.same_bits, leaf.all_nan,
            formats=(leaf.a_dtype or "", leaf.b_dtype or ""),
        )  # fmt: skip
        judgement = judge(evidence)
        if leaf.all_nan and leaf.same_bits:
            judgement = Judgement(Verdict.IDENTICAL, "the same bits")
        if change is not None:
            changes.append((leaf, change))
            judgement = Judgement(_verdict(change), f"it is A's tensor, {change.words}", change.code)
        records.append(output_record(leaf, evidence, judgement, ((), ()), (None, None)))
    missing = [o for o in records if o.verdict is Verdict.DIFFERENT and o.kind in ("structure", "kind", "shape")]
    fix = "Load both files with the class that each belongs to."
    found = [
        Finding("N008" if o.kind == "shape" else "N007", f"{_name(o.path)}: {o.reason}", "", fix, Where(output=o.path))
        for o in missing[:1]
    ]
    return records, [*found, *_findings(changes)]


def reason_of(records: Sequence[OutputRecord], findings: Sequence[Finding]) -> str:
    """The answer in one sentence, in words of tensors."""
    differing = sum(o.verdict is not Verdict.IDENTICAL for o in records)
    if not differing:
        return f"the same bits in {counted(len(records), 'tensor')}"
    said = findings[0].what if findings else next(o.reason for o in records if o.verdict is not Verdict.IDENTICAL)
    alike = len(records) - differing
    return (
        f"{said} ({differing} of {counted(len(records), 'tensor')}{'; the others have the same bits' if alike else ''})"
    )


def _change(leaf: LeafComparison, trees: Sequence[Sequence[tuple[object, object]]]) -> Alteration | None:
    """What was done to a tensor; None where it is the same, or where it is not tensor against tensor of one shape."""
    if leaf.same_bits or not leaf.floating or leaf.kind not in ("value", "dtype", "nan"):
        return None
    if leaf.index_a is None or leaf.index_b is None:
        return None
    one, other = trees[0][leaf.index_a][1], trees[1][leaf.index_b][1]
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return None
    if one.is_complex() or other.is_complex():
        return Alteration("W004", "with other numbers")
    if one.dtype != other.dtype and torch.equal(one.to(other.dtype), other):
        short = str(other.dtype).removeprefix("torch.")
        wider = torch.equal(other.to(one.dtype), one)
        return Alteration("W003", f"stored in {short}{f', {_KEPT}' if wider else ', rounded'}")
    return alteration_of(other.to(torch.float64), one.to(torch.float64), other.dtype)


def _verdict(change: Alteration) -> Verdict:
    if change.words.endswith(_KEPT):
        return Verdict.ROUNDING  # the same numbers, in a format that holds all of them
    return Verdict.PRECISION if change.code in _ROUNDED else Verdict.DIFFERENT


def _findings(changes: Sequence[tuple[LeafComparison, Alteration]]) -> list[Finding]:
    """One finding for each code, what makes another function first."""
    grouped: dict[str, list[tuple[LeafComparison, Alteration]]] = {}
    for change in changes:
        grouped.setdefault(change[1].code, []).append(change)
    found = []
    for code, members in sorted(grouped.items(), key=lambda item: (item[0] in _ROUNDED, item[0])):
        named = "; ".join(f"{_name(str(leaf.path))} is A's tensor, {done.words}" for leaf, done in members[:_FEW])
        more = f"; and {counted(len(members) - _FEW, 'more tensor')}" if len(members) > _FEW else ""
        rounded, kept = code in _ROUNDED, all(done.words.endswith(_KEPT) for _, done in members)
        why = "The two files hold other numbers." if not rounded else "Every number is A's, rounded once."
        found.append(
            Finding(
                code,
                f"{named}{more}",
                "Another format holds the same numbers." if kept else f"{why} {_OUTPUTS}",
                "",
                Where(output=str(members[0][0].path)),
                {"tensors": {_name(str(leaf.path)): done.words for leaf, done in members}, "count": len(members)},
                note=kept,
            )
        )
    return found


def _name(path: str) -> str:
    return path.removeprefix("out['").removesuffix("']")

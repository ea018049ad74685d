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
_ELSEWHERE = "W010"


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
        change = _moved(leaf, trees) or _change(leaf, trees)
        evidence = OutputEvidence.of(leaf)
        judgement = judge(evidence)
        if leaf.all_nan and leaf.same_bits:
            judgement = Judgement(Verdict.IDENTICAL, "the same bits")
        if change is not None:
            changes.append((leaf, change))
            whose = "it holds" if change.code == _ELSEWHERE else "it is A's tensor,"
            judgement = Judgement(_verdict(change), f"{whose} {change.words}", change.code)
        records.append(output_record(leaf, evidence, judgement))
    missing = [o for o in records if o.verdict is Verdict.DIFFERENT and o.kind in ("structure", "kind", "shape")]
    fix = "Load both files with the class that each belongs to."
    found = [
        Finding("N008" if o.kind == "shape" else "N007", f"{_name(o.path)}: {o.reason}", "", fix, Where(output=o.path))
        for o in missing[:1]
    ]
    return records, [*(_renamed(trees) or found), *_findings(changes)]


def _renamed(trees: Sequence[Sequence[tuple[object, object]]]) -> list[Finding]:
    """Say that all names of one side are the other's with something before them, as a wrapper of a module makes."""
    a, b = ({_name(str(path)): value for path, value in tree} for tree in trees)
    for short, long, whose, other in ((a, b, "B's", "A's"), (b, a, "A's", "B's")):
        first = next(iter(long), "")
        ahead = next((first.removesuffix(name) for name in short if first.endswith(f".{name}")), "")
        if not ahead or set(short) & set(long) or {ahead + name for name in short} != set(long):
            continue
        same = sum(_equal(value, long[ahead + name]) for name, value in short.items())
        numbers = "the numbers are the same" if same == len(short) else f"the same numbers in {same} of {len(short)}"
        return [
            Finding(
                "N007", f"{whose} names are {other} with {ahead!r} before each; {numbers}", "",
                f"Take {ahead!r} from the names, or load both files with the class that each belongs to.",
                evidence={"prefix": ahead, "same": same},
            )
        ]  # fmt: skip
    return []


def _equal(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def _moved(leaf: LeafComparison, trees: Sequence[Sequence[tuple[object, object]]]) -> Alteration | None:
    """Whether a tensor is one that A has under another name, which no tensor of one number repeated is told by."""
    if leaf.same_bits or leaf.index_a is None or leaf.index_b is None or leaf.kind not in ("value", "dtype", "nan"):
        return None
    value = trees[1][leaf.index_b][1]
    if not isinstance(value, torch.Tensor) or not value.numel() or bool((value == value.reshape(-1)[0]).all()):
        return None
    held = next((path for path, other in trees[0] if _equal(other, value)), None)
    return None if held is None else Alteration(_ELSEWHERE, f"A's {_name(str(held))}")


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
    lost = int((one.isfinite() & ~other.isfinite()).sum())
    if lost:
        return Alteration("W004", f"with NaN or infinity in {counted(lost, 'element')} where A has numbers")
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
        verb = "holds" if code == _ELSEWHERE else "is A's tensor,"
        named = "; ".join(f"{_name(str(leaf.path))} {verb} {done.words}" for leaf, done in members[:_FEW])
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

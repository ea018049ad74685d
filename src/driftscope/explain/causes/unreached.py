"""Weights that differ without a trace in the results: the inputs do not reach them.

Rows of an embedding whose tokens are not given, positions beyond the length, a unit that a ReLU holds at zero. The
results say nothing of them, so the stored tensors are held against each other; and so that nothing is said of tensors
that bear one name and are another's (a folded one), B must give the same bits in float64 with A's tensors in place.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec

import torch

from driftscope.errors import CannotLift
from driftscope.explain.causes.alterations import alteration_of
from driftscope.lift.evidence import Evidence
from driftscope.lift.readings import is_same
from driftscope.lift.steps import Constant, Origin
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.records.words import counted

P = ParamSpec("P")

_AGREE = (Verdict.IDENTICAL, Verdict.ROUNDING)
# Further draws, where the first does not reach what differs.
_DRAWS = 4
# Tensors told one by one; of more the first stands for all.
_TOLD = 3


def drawn_again(compare: Callable[P, Comparison]) -> Callable[P, Comparison]:
    """Have a comparison draw other inputs where those that it drew do not reach what differs."""

    @functools.wraps(compare)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Comparison:
        found = compare(*args, **kwargs)
        drawn = any("spec" in leaf for leaf in found.inputs.get("leaves", ()))
        if not drawn or kwargs.get("budget_seconds") or not any("unreached" in f.evidence for f in found.findings):
            return found
        again: Any = compare
        for seed in range(int(found.inputs["seed"]) + 1, int(found.inputs["seed"]) + 1 + _DRAWS):
            other: Comparison = again(*args, **{**kwargs, "seed": seed})
            if other.verdict not in _AGREE:
                return other
        return found

    return wrapper


def unreached_weights(evidence: Evidence, outputs: Sequence[OutputRecord]) -> list[Finding]:
    """Notes on stored tensors of B that are not A's, where the results agree and do not depend on what differs.

    Parameters
    ----------
    evidence : Evidence
    outputs : sequence of OutputRecord

    Returns
    -------
    list of Finding
        At most three; ``evidence["unreached"]`` of each counts all.
    """
    one, other = evidence.a.graph, evidence.b.graph
    if one is None or other is None or any(o.verdict not in _AGREE for o in outputs):
        return []
    repaired = [] if evidence.reconciled is None else evidence.reconciled.repairs_b
    pairs = list(_differing(one.constants(), other.constants(), {r.name for r in repaired}))
    if not pairs:
        return []
    tried = []
    with contextlib.suppress(CannotLift):  # another way through its control flow
        tried = other.run(replace={b.name: a.value.to(torch.float64) for a, b in pairs})
    if not tried or not all(_same_bits(x.value, y.value) for x, y in zip(evidence.b.clean, tried, strict=True)):
        return []
    more = f" (and {counted(len(pairs) - _TOLD, 'more tensor')})" if len(pairs) > _TOLD else ""
    return [_note(a, b, len(pairs), more if k == 0 else "") for k, (a, b) in enumerate(pairs[:_TOLD])]


def in_words(findings: Sequence[Finding]) -> str:
    """What the sentence of the verdict adds where a weight differs out of reach; empty where none does."""
    name = next((f.evidence["tensor"] for f in findings if "unreached" in f.evidence), "")
    return f" on these inputs, which do not reach where {name} differs" if name else ""


def _differing(a: Sequence[Constant], b: Sequence[Constant], repaired: set[str]) -> Iterator[tuple[Constant, Constant]]:
    """Tensors of one name, shape and format that hold other numbers; one's own tensor costs nothing to look at."""
    theirs = {c.name: c for c in a if c.origin is Origin.WEIGHT}
    for mine in b:
        other = theirs.get(mine.name)
        if other is None or mine.origin is not Origin.WEIGHT or not mine.frontier or mine.name in repaired:
            continue
        x, y = other.value, mine.value
        if x.dtype != y.dtype or x.shape != y.shape or not y.is_floating_point() or y.numel() < 2 or x is y:
            continue
        if not is_same(x.to(y.device), y):
            yield other, mine


def _same_bits(x: torch.Tensor | None, y: torch.Tensor | None) -> bool:
    if x is None or y is None:
        return x is y
    return x.shape == y.shape and torch.equal(torch.nan_to_num(x, nan=0.5), torch.nan_to_num(y, nan=0.5))


def _note(a: Constant, b: Constant, count: int, more: str) -> Finding:
    exact, stored = a.value.to(torch.float64), b.value.to(device=a.value.device, dtype=torch.float64)
    found = alteration_of(stored, exact, b.value.dtype)
    return Finding(
        found.code,
        f"{b.name} is not the reference's {a.name}: it is that tensor, {found.words}{more}; these inputs do not"
        " show it",
        "With the reference's tensor in its place B gives the same bits in float64.",
        "Give inputs that reach what differs, or load the same weights into both.",
        Where(node=b.where.node, operator=b.where.operator, module=b.where.module),
        {"unreached": count, "tensor": b.name},
        note=True,
    )

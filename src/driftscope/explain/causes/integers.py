"""Where integers, masks and other exact outputs part, and why.

An exact output has no drift that shrinks or stays: it is another number or it is not. Its place is found backwards:
from the output over every value that A does not have, to the steps that take only values A has and give another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.causes.counterparts import attribute_cause, changed_attributes, own_name
from driftscope.explain.causes.rewiring import Reason, told, where_of, with_attributes
from driftscope.explain.locate.divergence import counterpart_of
from driftscope.explain.locate.exact_parts import Parted, parted, peers_of
from driftscope.explain.locate.fingerprints import Trail, Visited
from driftscope.explain.locate.operators import MOVES, family
from driftscope.lift.evidence import Evidence
from driftscope.lift.reconcile.matching import as_stored
from driftscope.lift.steps import Constant, Lifted, LiftedOutput
from driftscope.records.finding import Finding
from driftscope.records.kinds.output import OutputRecord

# Runs of B spent on one output, and steps listed in a sentence.
_MOST_TRIALS = 10
_LISTED = 4


def integer_finding(evidence: Evidence, output: OutputRecord) -> Finding | None:
    """Say where an exact output (integers, booleans) parts from A's, and why; None when the graphs do not tell.

    Parameters
    ----------
    evidence : Evidence
    output : OutputRecord
        One whose values differ, with no tie to explain it.
    """
    a, b = evidence.a.graph, evidence.b.graph
    if a is None or b is None:
        return None
    try:
        return _Question(a, b, output, evidence.pairs).finding()
    except (CannotLift, DriftscopeError):
        return None


class _Question:
    """One exact output of two lifted programs."""

    def __init__(self, a: Lifted, b: Lifted, output: OutputRecord, pairs: Sequence[tuple[int, int]]):
        self.b, self.output, self.runs = b, output, 0
        self.constants = as_stored(a.constants()), as_stored(b.constants())
        self.a_run = Trail(frozenset(c.name for c in self.constants[0]), a.kind == "torch")
        self.b_run = Trail(frozenset(c.name for c in self.constants[1]), b.kind == "torch")
        outputs_a, outputs_b = a.run(observe=self.a_run), b.run(observe=self.b_run)
        found = next(((i, j) for i, j in pairs if str(outputs_a[i].path) == output.path), None)
        if found is None and len(pairs) == 1:
            found = pairs[0]
        if found is None:
            raise CannotLift("the output has no pair")
        self.slot, self.wanted, self.given = found[1], outputs_a[found[0]], outputs_b[found[1]]

    def finding(self) -> Finding | None:
        mine = parted(self.b_run, self.given.name, self.a_run)
        theirs = parted(self.a_run, self.wanted.name, self.b_run)
        if mine is None or self._right([self.given]):
            return None
        other = None if theirs is None else counterpart_of(mine.first, [theirs.first, *theirs.piece], 0)
        cause = self._cause(mine, theirs, other)
        step = mine.first
        what = f"{self.output.reason}; from {step.name} ({step.operator}) on: given A's values, it gives others"
        why, fix, verified = told(cause, other, seen=False)
        where = where_of(step, other, self.output.path)
        numbers = {"piece": [s.name for s in mine.piece], "counterpart": None if other is None else other.name,
                   **({"cause": cause.why} if cause is not None and cause.why else {})}  # fmt: skip
        return Finding("N010", what, why, fix, where, numbers, verified=verified)

    def _cause(self, mine: Parted, theirs: Parted | None, other: Visited | None) -> Reason | None:
        if theirs is None or other is None:
            return None
        for step, peer in peers_of(mine, theirs):
            changed = changed_attributes(step, peer)
            if changed:
                verified = self._set(step, changed)
                if verified or not isinstance(next(iter(changed.values())), float):
                    return attribute_cause(step, changed, verified or None, None)
        number = self._constant(mine, theirs)
        if number is not None:
            return number
        exchanged = _exchanged(mine.first, other)
        return exchanged or _operators(mine, theirs, other)

    # -- trials -------------------------------------------------------------------------------------------------

    def _right(self, outputs: Sequence[LiftedOutput]) -> bool:
        mine, theirs = outputs[0].value, self.wanted.value
        if mine is None or theirs is None or mine.shape != theirs.shape:
            return False
        return torch.equal(mine.cpu().to(torch.float64), theirs.cpu().to(torch.float64))

    def _runs_right(self, graph: Lifted, replace: Mapping[str, torch.Tensor]) -> bool:
        self.runs += 1
        try:
            return self._right([graph.run(replace=replace)[self.slot]])
        except (CannotLift, DriftscopeError, RuntimeError):
            return False

    def _set(self, step: Visited, changed: Mapping[str, object]) -> bool:
        try:
            graph = with_attributes(self.b, step.name, {own_name(step, name): v for name, v in changed.items()})
        except CannotLift:
            return False
        return self._runs_right(graph, {})

    def _constant(self, mine: Parted, theirs: Parted) -> Reason | None:
        """The one number of the piece that gives A's output when one of A's piece takes its place."""
        own = [c for c in self.constants[1] if _belongs(c, mine.piece) and c.value.numel() == 1]
        meant = [c for c in self.constants[0] if _belongs(c, theirs.piece) and c.value.numel() == 1]
        pairs = ((x, y) for x in own for y in meant if float(x.value) != float(y.value))
        for constant, partner in itertools.islice(pairs, _MOST_TRIALS):
            number = float(partner.value)
            value = torch.full(tuple(constant.value.shape), number, dtype=torch.float64)
            if self._runs_right(self.b, {constant.name: value}):
                words = f"the constant {constant.name} is {float(constant.value):g} here and {number:g} in A"
                return Reason(words, f"Set {constant.name} to {number:g}.", True)
        return None


def _belongs(constant: Constant, piece: Sequence[Visited]) -> bool:
    return any(s.reads(constant) for s in piece)


def _exchanged(step: Visited, other: Visited) -> Reason | None:
    """The same values, read in another order."""
    taken = [[t for t in s.taken if t is not None] for s in (step, other)]
    if family(step.operator) != family(other.operator) or len(taken[0]) < 2 or len(taken[0]) != len(taken[1]):
        return None
    if all(x.same(y) for x, y in zip(*taken, strict=True)):
        return None
    if all(any(x.same(y) for y in taken[1]) for x in taken[0]):
        return Reason(
            f"{step.name} and {other.operator} in A read the same values in another order",
            f"Exchange the inputs of {step.name}.",
        )
    return None


def _operators(mine: Parted, theirs: Parted, other: Visited) -> Reason | None:
    ours, wanted = ([s.operator for s in side.piece if family(s.operator) not in MOVES - {"cast"}][:_LISTED]
                    for side in (mine, theirs))  # fmt: skip
    if [family(name) for name in ours] == [family(name) for name in wanted] or not ours or not wanted:
        return None
    words = f"B computes {', '.join(ours)} where A computes {', '.join(wanted)}"
    step = mine.first
    same = [t is not None and w is not None and t.same(w) for t, w in zip(step.taken, other.taken, strict=False)]
    # Of the same values A's one operator gives A's integers: that is what A did.
    if len(ours) == len(wanted) == 1 and same and all(same) and wanted[0] == other.operator:
        return Reason(words, f"Compute {other.operator} in {step.name}, as A does.", True)
    return Reason(words, "")

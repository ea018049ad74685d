"""One of two programs that are reconciled: its constants, and which of them are nothing of the other's."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.lift.reconcile import matching, subgraphs
from driftscope.lift.reconcile.matching import Repair, WeightIndex
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Origin


class ReconciledSide:
    """One program's constants, and which of them are nothing of the other's."""

    def __init__(self, graph: Lifted, outputs: Sequence[LiftedOutput]):
        self.graph = graph
        floats = [o.format for o in outputs if o.format is not None and o.format.is_floating_point]
        self.single = bool(floats) and all(f.itemsize <= 4 for f in floats)
        self.constants = matching.as_stored(graph.constants())
        self.index = WeightIndex(self.constants)
        self.left: list[Constant] = []
        # Of constants that only constant subgraphs read: the outputs do not depend on them directly.
        self.inner: list[Repair] = []
        self.inner_left: list[Constant] = []

    def shared(self, repairs: Sequence[Repair]) -> list[Constant]:
        """Computed constants whose native values the other side has too."""
        settled = {c.name for c in self.left} | {r.name for r in repairs}
        floats = (c for c in self.constants if c.value.dtype.is_floating_point and c.name not in settled)
        return [c for c in floats if c.origin is Origin.COMPUTED and is_tensor(c)]

    def holding(self, tables: Sequence[Constant]) -> list[Constant]:
        """Stored tensors that are one of these, bit by bit."""
        index = WeightIndex(tables)
        floats = (c for c in self.constants if tables and c.frontier and c.value.dtype.is_floating_point)
        return [c for c in floats if is_tensor(c) and index.holds(c.value)]

    def own(self, other: ReconciledSide) -> list[Constant]:
        """Stored tensors of constant subgraphs that the other side lacks, and that are none of its tensors changed."""
        known = {name for repair in other.inner for name in repair.sources}
        theirs = [c for c in (*other.left, *other.inner_left) if c.origin is Origin.WEIGHT]
        changed = {c.name for c in self.inner_left if any(subgraphs.same_norms(c.value, t.value) for t in theirs)}
        return [c for c in self.inner_left if c.name not in known | changed]


def is_tensor(constant: Constant) -> bool:
    """Whether a constant is no single number, written once or many times."""
    return constant.value.numel() > 1 and matching.uniform(constant) is None

"""One of two programs that are reconciled: which of its constants are nothing of the other's; and it, repaired."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from driftscope.lift.readings import number_of
from driftscope.lift.reconcile import matching
from driftscope.lift.reconcile.arrangements import same_norms
from driftscope.lift.reconcile.maps import narrow
from driftscope.lift.reconcile.matching import Repair, WeightIndex
from driftscope.lift.reconcile.scalars import SIMPLE_BITS
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Observer, Origin

# By how many roundings of its format a tensor may move the outputs, and values on the way.
_AMPLIFIED = 64.0
# A tensor that is nearer to another one, in roundings of its format, is that one, changed; elements that are typed.
_NEAR, _FEW = 8.0, 4096
# Share of the numbers of a tensor that somebody changes in a copy; numbers that are too many to be solved for.
_CHANGED, _LARGE = 0.1, 1 << 22


class ReconciledSide:
    """One program's constants, and which of them are nothing of the other's."""

    def __init__(
        self, graph: Lifted, outputs: Sequence[LiftedOutput], like: ReconciledSide | None = None,
        constants: Sequence[Constant] | None = None,
    ):  # fmt: skip
        self.graph = graph
        floats = [o.format for o in outputs if o.format is not None and o.format.is_floating_point]
        self.single = bool(floats) and all(f.itemsize <= 4 for f in floats)
        self.narrow = [f for f in floats if f.itemsize < 4]
        self.constants = matching.as_stored(graph.constants() if constants is None else constants)
        self.index: WeightIndex = WeightIndex(self.constants, None if like is None else like.index)
        self.left: list[Constant] = []
        # The other's tensors that resemble no affine piece of this one, folded.
        self.unlike: set[str] = set()
        # Of constants that only constant subgraphs read: the outputs do not depend on them directly.
        self.inner: list[Repair] = []
        self.inner_left: list[Constant] = []
        self.inner_shared: list[Constant] = []
        # What is computed from constants, and inside fused operators, in float64.
        self.computed: Mapping[str, torch.Tensor] = {}

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
        """Stored tensors of constant subgraphs that the other side computes or lacks: none of its own, changed."""
        known = {name for repair in other.inner for name in repair.sources}
        theirs = [c for c in (*other.left, *other.inner_left) if c.origin is Origin.WEIGHT]
        changed = {c.name for c in self.inner_left if any(same_norms(c.value, t.value) for t in theirs)}
        computed = WeightIndex([c for c in other.constants if c.origin is Origin.COMPUTED] if self.inner_shared else [])
        lacking = [*self.inner_left, *(c for c in self.inner_shared if computed.holds(c.value))]
        return [c for c in lacking if c.name not in known | changed]


class RepairedGraph:
    """Implements :class:`driftscope.lift.steps.Lifted`: another one, run with repairs.

    Parameters
    ----------
    graph : Lifted
    repairs : sequence of Repair
        In force unless a run replaces the same constants by something else.
    """

    def __init__(self, graph: Lifted, repairs: Sequence[Repair]):
        self.kind = graph.kind
        values = {r.name: r.value for r in repairs}
        # One layer over the program as it is stored, whatever was repaired before.
        stored, before = graph.beneath({}) if type(graph) is RepairedGraph else (graph, {})
        self._graph: Lifted = stored
        self._values = {**before, **values}

    def beneath(self, replace: Mapping[str, torch.Tensor]) -> tuple[Lifted, Mapping[str, torch.Tensor]]:
        """The program as it is stored, and everything that is replaced in it."""
        return self._graph, {**self._values, **replace}

    def constants(self) -> Sequence[Constant]:
        """Its constants, as stored."""
        return self._graph.constants()

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        """Evaluate once in float64, with the repairs."""
        return self._graph.run(observe=observe, replace={**self._values, **(replace or {})})

    @property
    def largest(self) -> int:
        """Elements of its largest tensor."""
        return self._graph.largest

    def with_attribute(self, step: str, name: str, value: object) -> RepairedGraph:
        """Give it with another attribute of one step, and the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_attribute(step, name, value)
        return changed

    def with_inputs(self, step: str, order: Sequence[int]) -> RepairedGraph:
        """Give it with the inputs of one step in another order, and the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_inputs(step, order)
        return changed

    def with_operator(self, step: str, operator: str) -> RepairedGraph:
        """Give it with another operator in one step, and the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_operator(step, operator)
        return changed

    def with_values(self, change: Callable[[torch.Tensor], torch.Tensor]) -> RepairedGraph:
        """Give it on other inputs, with the repairs."""
        changed = copy.copy(self)
        changed._graph = self._graph.with_values(change)
        return changed

    def constant_values(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Evaluate the constant subgraphs alone, with the repairs."""
        return self._graph.constant_values(observe=observe, replace={**self._values, **(replace or {})})


def is_tensor(constant: Constant) -> bool:
    """Whether a constant is no single number, written once or many times."""
    return constant.value.numel() > 1 and matching.uniform(constant) is None


def has_twin(constant: Constant, others: Sequence[Constant]) -> bool:
    """Whether another program has a constant of the same bits."""
    return any(c.value.dtype == constant.value.dtype and torch.equal(c.value, constant.value) for c in others)


def may_be_rounded(constant: Constant) -> bool:
    """Whether a constant is a stored tensor of a narrower format than float64."""
    # Two numbers that a narrow format makes one are a tensor all the same.
    return constant.origin is Origin.WEIGHT and constant.value.numel() > 1 and constant.value.dtype != torch.float64


def has_more_digits(stored: torch.Tensor, fmt: torch.dtype | None) -> bool:
    """Whether a tensor of a wider format holds numbers that half precision, ``fmt``, does not."""
    if fmt is None or not (fmt.is_floating_point and stored.dtype.is_floating_point):
        return False
    return narrow(fmt) and not narrow(stored.dtype) and not torch.equal(stored.to(fmt).to(stored.dtype), stored)


def with_exact_scalars(constants: Sequence[Constant], repairs: Sequence[Repair]) -> list[Constant]:
    """Give constants with the numbers that they are known to be, rounded."""
    exact = {r.name: r.value for r in repairs if r.kind == "scalar"}
    return [dataclasses.replace(c, value=exact[c.name]) if c.name in exact else c for c in constants]


def one_side_only(repairs_a: list[Repair], repairs_b: list[Repair]) -> list[Repair]:
    """Drop repairs of tensors of A to which B was repaired: both at once would exchange the values."""
    sources = {name for repair in repairs_b for name in repair.sources}
    return [r for r in repairs_a if r.name not in sources]


@dataclass(slots=True)
class FittedSide:
    """One side of a pair: its program, what is repaired in it, and which of its tensors are solved for.

    Parameters
    ----------
    graph : Lifted
    fixed : mapping of str to Tensor
        Repairs in force.
    unknown : list of Constant
    """

    graph: Lifted
    fixed: Mapping[str, torch.Tensor]
    unknown: list[Constant] = field(default_factory=list)

    @classmethod
    def of(
        cls, side: ReconciledSide, other: ReconciledSide, repairs: Sequence[Repair], theirs: Sequence[Repair],
        far: float,
    ) -> FittedSide:  # fmt: skip
        """Solve for tensors whose rounding may move the outputs so far, and that are not the other's, changed.

        Of many numbers not for what tensors of the other's were found to be made of: a few may be that the other way
        round, as a scale is made of its reciprocal.
        """
        fixed, made = {r.name: r.value for r in repairs}, {name for r in theirs for name in r.sources}
        floats = (c for c in side.left if c.value.dtype.is_floating_point and c.value.dtype.itemsize < 8)
        coarse = [c for c in floats if c.frontier and c.name not in fixed and far <= reach_of(c.value)]
        if sum(c.value.numel() for c in coarse) > _FEW:
            coarse = [c for c in coarse if c.name not in made]
        if not coarse or sum(c.value.numel() for c in coarse) > _LARGE:
            return cls(side.graph, fixed)
        numbers, free = _Numbers(other), (c for c in coarse if bool(is_free(c.value).any()))
        return cls(side.graph, fixed, [c for c in free if not numbers.hold_copy(c.value)])

    def known(self) -> FittedSide:
        """The same, with nothing to solve for."""
        return FittedSide(self.graph, self.fixed)

    def run(
        self,
        change: Callable[[torch.Tensor], torch.Tensor] | None,
        at: Sequence[torch.Tensor],
        observe: Observer | None,
    ) -> list[LiftedOutput]:
        """Run it on changed inputs, with numbers for the unknown tensors."""
        graph = self.graph if change is None else self.graph.with_values(change)
        names = (c.name for c in self.unknown)
        return graph.run(replace={**self.fixed, **dict(zip(names, at, strict=True))}, observe=observe)


def reach_of(value: torch.Tensor) -> float:
    """How far the rounding of a tensor may carry outputs, and values on the way, of their size."""
    return _AMPLIFIED * torch.finfo(value.dtype).eps


class _Numbers:
    """The numbers of a program's tensors, by size: each tensor is sorted once, whatever is held against it."""

    def __init__(self, side: ReconciledSide):
        self._floats = [c.value for c in side.constants if c.value.dtype.is_floating_point]
        single = [n for v in self._floats if (n := number_of(v)) is not None]
        self._single = torch.tensor(single, dtype=torch.float64).abs()
        left = [_sizes(c.value) for c in side.left if c.value.numel() <= _LARGE]
        self._left = _in_order(torch.cat(left)) if left else self._single[:0]
        self._sorted: dict[int, list[torch.Tensor]] = {}

    def _of_count(self, count: int) -> list[torch.Tensor]:
        if count not in self._sorted:
            self._sorted[count] = [_in_order(_sizes(v)) for v in self._floats if v.numel() == count]
        return self._sorted[count]

    def hold_copy(self, value: torch.Tensor) -> bool:
        """Whether all but a few numbers of a tensor are this program's, or half are nearly: it is that one, changed.

        Nearly are those of one tensor, in order of size, and single numbers.
        """
        own = _in_order(_sizes(value))
        places = torch.searchsorted(self._left, own).clamp(max=max(len(self._left) - 1, 0))
        copied = int((self._left[places] == own).sum()) if len(self._left) else 0
        if len(own) - copied <= max(1.0, _CHANGED * len(own)):
            return True
        reach = _NEAR * torch.finfo(value.dtype).eps
        near = ((own[:, None] - self._single).abs() <= reach * own[:, None]).any(1) if len(own) <= _FEW else own[:0]
        theirs = (t for t in self._of_count(value.numel()) if t.shape == own.shape)
        alike = (((t - own).abs() <= reach * own) for t in theirs)
        return any(2 * int(n.sum()) >= own.numel() for n in (near, *alike))


def _sizes(value: torch.Tensor) -> torch.Tensor:
    """The sizes of the numbers of a tensor but for its zeros."""
    flat = value.to(torch.float64).reshape(-1).abs()
    return flat[flat != 0.0]


def _in_order(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers in ascending order; numpy's sort makes no indices, and is ten times faster than torch's."""
    return torch.from_numpy(np.sort(numbers.numpy()))


def is_free(stored: torch.Tensor) -> torch.Tensor:
    """Which elements of a tensor may be rounded: not those of few bits (0, 1, 0.5), which are what somebody meant."""
    wide = stored.to(torch.float64)
    if stored.dtype != torch.float32:
        return wide != 0.0
    mantissa, _ = torch.frexp(wide)
    return torch.remainder(mantissa * 2.0**SIMPLE_BITS, 1.0) != 0.0

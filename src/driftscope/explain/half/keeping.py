"""The smallest set of operators to keep in float32, so that everything else may be a half format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.measuring.spread import finite, rms
from driftscope.explain.blame.smallest_sets import Counted, smallest_set
from driftscope.explain.half.simulation import Anatomy, Simulation, anatomy_of, simulate
from driftscope.lift.steps import Lifted, LiftedOutput
from driftscope.records.kinds.half_precision import OperatorCost

# Rounds in which newly overflowing values are added to the set, and questions that making it smaller may cost.
_ROUNDS = 12
_QUESTIONS = 48


@dataclass(slots=True)
class HalfRuns:
    """A graph in its declared half formats: runs of it, and what they cost.

    Parameters
    ----------
    graph : Lifted
    narrow : torch.dtype or None
        Format that stands for float32, when a conversion is simulated; None when the graph declares it.
    """

    graph: Lifted
    narrow: torch.dtype | None = None
    anatomy: Anatomy = field(init=False)
    clean: list[LiftedOutput] = field(init=False)
    runs: int = 1

    def __post_init__(self) -> None:
        self.anatomy, self.clean = anatomy_of(self.graph, self.narrow)

    def simulate(self, keep: Sequence[str] = ()) -> Simulation:
        """Run once in the declared formats, some operators in float32."""
        self.runs += 1
        kept = frozenset(keep)
        return simulate(self.graph, self.anatomy, kept, self._constants(kept))

    def _constants(self, keep: frozenset[str]) -> Mapping[str, torch.Tensor] | None:
        """Constants as a conversion stores them: rounded, but for those that only operators kept in float32 read."""
        if self.narrow is None:
            return None
        rounded = {}
        for constant in self.graph.constants():
            value = constant.value
            readers = self.anatomy.readers.get(constant.name, set())
            if value.dtype == torch.float32 and constant.frontier and readers and not readers <= keep:
                rounded[constant.name] = value.to(self.narrow).to(torch.float64)
        return rounded

    def error(self, simulation: Simulation) -> float:
        """rms error of the worst output against float64, relative; infinite when it is not finite where that is."""
        worst = 0.0
        for before, after in zip(self.clean, simulation.outputs, strict=True):
            x, y = before.value, after.value
            if x is None or y is None or not x.is_floating_point():
                continue
            if x.shape != y.shape or bool((~torch.isfinite(y) & torch.isfinite(x)).any()):
                return math.inf
            size, gap = rms(finite(x)), rms(finite(y - x))
            worst = max(worst, gap / size if size else (math.inf if gap else 0.0))
        return worst


@dataclass(frozen=True, slots=True)
class Kept:
    """A set of operators to keep in float32.

    Parameters
    ----------
    names : tuple of str
        Nothing can be spared of them; empty when none is needed or none was found.
    error : float or None
        With them in float32.
    operators : tuple of str
        Their types.
    error_types : float or None
        With every operator of these types in float32.
    """

    names: tuple[str, ...] = ()
    error: float | None = None
    operators: tuple[str, ...] = ()
    error_types: float | None = None


def smallest_keep(runs: HalfRuns, first: Simulation) -> Kept:
    """Find operators which, kept in float32, leave no failure.

    A value that does not fit must not be stored narrowly: its writer and all its readers are kept. What comes out of
    them may be too large in turn, and is added. Then what can be spared is taken out again.

    Parameters
    ----------
    runs : HalfRuns
    first : Simulation
        With nothing kept; it has incidents.
    """
    candidates = _grow(runs, first)
    if candidates is None:
        return Kept()
    order = {name: k for k, name in enumerate(runs.anatomy.order)}
    items = sorted(candidates, key=lambda name: order.get(name, 0))
    good: Counted[str] = Counted(lambda names: _sound(runs, names), _QUESTIONS)
    names = smallest_set(items, good)
    types = tuple(dict.fromkeys(runs.anatomy.operators[n] for n in names))
    whole = [n for n in runs.anatomy.order if runs.anatomy.operators[n] in types]
    by_type = runs.simulate(whole)
    return Kept(
        names, runs.error(runs.simulate(names)), types, runs.error(by_type) if by_type.finite else None
    )  # fmt: skip


def _sound(runs: HalfRuns, keep: Sequence[str]) -> bool:
    found = runs.simulate(keep)
    return found.finite and math.isfinite(runs.error(found))


def _grow(runs: HalfRuns, first: Simulation) -> set[str] | None:
    """Add writers and readers of what fails until nothing does; None when that does not end."""
    anatomy, keep = runs.anatomy, set[str]()
    names = {*anatomy.beyond, *(i.output for i in first.incidents)}
    for _ in range(_ROUNDS):
        before = len(keep)
        for name in names:
            writer = anatomy.writers.get(name)
            keep |= {writer} if writer is not None else set()
            keep |= anatomy.readers.get(name, set())
        found = runs.simulate(tuple(keep))
        if found.finite and math.isfinite(runs.error(found)):
            return keep
        names = {i.output for i in found.incidents} | _feeding(anatomy, found) | anatomy.vanishing
        if len(keep) == before and not any(_neighbours(anatomy, n) - keep for n in names):
            return None
    return None


def _neighbours(anatomy: Anatomy, name: str) -> set[str]:
    writer = anatomy.writers.get(name)
    return anatomy.readers.get(name, set()) | ({writer} if writer is not None else set())


def _feeding(anatomy: Anatomy, found: Simulation) -> set[str]:
    """The values that lost results are computed from: one of them became zero."""
    guilty = {i.where.node for i in found.incidents if i.kind == "lost"}
    return {name for name, readers in anatomy.readers.items() if readers & guilty}


def operator_costs(
    runs: HalfRuns, base: float, kept: Sequence[str] = (), say: Callable[[str], None] = lambda _t: None
) -> tuple[OperatorCost, ...]:
    """Measure, type by type, the error that is left when all operators of one type are kept in float32.

    One run per type of operator; those first whose float32 helps most. Types that do not help are left out.
    """
    anatomy = runs.anatomy
    counted: dict[str, list[str]] = {}
    for name in anatomy.order:
        if name in anatomy.halves:
            counted.setdefault(anatomy.operators[name], []).append(name)
    rows = []
    for operator, names in counted.items():
        say(f"Keeping {operator} in float32")
        error = runs.error(runs.simulate((*kept, *names)))
        if error < base:
            rows.append(OperatorCost(operator, len(names), error))
    return tuple(sorted(rows, key=lambda row: row.error))

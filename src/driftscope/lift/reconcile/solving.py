"""Scalars that nobody wrote down: solved for, inside half an ulp of what is stored.

A fused kernel hides constants (the scale of an attention, split over query and key), an optimiser multiplies two
of them. No table of candidates holds such a number. What can be asked instead: *is there* a real number that
rounds to the stored constant and makes B the same function as A? If so the stored constant is its rounding. One
constant alone is tried first, then all that are left together; a solution outside half an ulp is no rounding and is
dropped. Tensors, of as many unknowns as equations, take other inputs too (``fitting``). A number that only constant
subgraphs read moves the tables that they compute.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.kept import look
from driftscope.lift.reconcile.matching import HALF_ULP, Repair, ulp, uniform
from driftscope.lift.reconcile.scalars import SIMPLE_BITS, SINGLE, significant_bits
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.reconcile.subgraphs import GIVEN, OWN
from driftscope.lift.steps import Constant, Lifted, LiftedOutput

# Groups of equal constants solved for at most: each costs one lifted run.
_MOST_UNKNOWNS = 16
# Equations wanted per unknown, so that a solution says something.
_EQUATIONS_PER_UNKNOWN = 8
# One constant alone explains a drift when it removes all but this share of it.
_EXPLAINED = 0.02
_ROUNDS = 4
# How many times its own relative size the rounding of a number may move an output.
_AMPLIFIED = 1e5
# Equations wanted for one number that is not a rounding, how far a straight line must lead at first, the share of the
# gap that may be left, and the steps taken.
_FEWEST, _LEADS, _LEFT, _STEPS = 8, 0.5, 1e-9, 8
# Relative step of a derivative: small beside the number, large beside float64's rounding.
_STEP = 1e-5


@dataclass(frozen=True, slots=True)
class _Unknown:
    """Constants of one stored value and format: an exporter writes the same number once per layer."""

    constants: tuple[Constant, ...]
    stored: float
    half_ulp: float

    def values(self, number: float) -> dict[str, torch.Tensor]:
        return {c.name: torch.full(c.value.shape, number, dtype=torch.float64) for c in self.constants}


def _unknowns(own: Sequence[Constant], others: Sequence[Constant], single: bool, inner: bool) -> list[_Unknown]:
    exact = {n for n in map(uniform, others) if n is not None}
    groups: dict[tuple[float, torch.dtype], list[Constant]] = {}
    for constant in own:
        number = uniform(constant)
        fmt = constant.value.dtype
        if number is None or not (constant.frontier or inner):
            continue
        if fmt == torch.float64 and single and significant_bits(number) <= SINGLE:
            fmt = torch.float32  # a literal that was rounded on its way through a kernel
        if fmt == torch.float64:
            continue
        if number in exact or significant_bits(number) <= SIMPLE_BITS:
            continue
        groups.setdefault((number, fmt), []).append(constant)
    found = []
    for (number, fmt), members in groups.items():
        spacing = float(ulp(torch.tensor(number, dtype=torch.float64), fmt))
        found.append(_Unknown(tuple(members), number, HALF_ULP * spacing))
    return found[:_MOST_UNKNOWNS]


# What is as large stands for minus infinity.
_MASK = 1e30


class Residual:
    """Outputs of two programs as one vector each, every pair scaled to the size of the other's (``a``'s) output."""

    def __init__(self, a: Sequence[LiftedOutput], pairs: Sequence[tuple[int, int]]):
        self._pairs = pairs
        self._a = a

    def vector(self, b: Sequence[LiftedOutput]) -> torch.Tensor:
        """``a - b`` over all float outputs of equal shape, finite elements only (others count as zero).

        Numbers as large as what masks are made of count only where there are no others.
        """
        pieces = []
        for i, j in self._pairs:
            x, y = self._a[i].value, b[j].value
            if x is None or y is None or x.shape != y.shape or not x.dtype.is_floating_point:
                continue
            keep = torch.isfinite(x) & torch.isfinite(y)
            small = keep & (x.abs() < _MASK)
            keep = small if bool(small.any()) else keep
            zero = torch.zeros((), dtype=torch.float64, device=x.device)
            scale = torch.where(keep, x, zero).square().mean().sqrt().clamp(min=1e-300)
            pieces.append((torch.where(keep, x - y, zero) / scale).reshape(-1))
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)


def solve_scalars(
    own: Sequence[Constant],
    others: Sequence[Constant],
    repaired: Mapping[str, torch.Tensor],
    outputs: Sequence[LiftedOutput],
    residual: Residual,
    tables: ConstantTables,
    single: bool = False,
) -> list[Repair]:
    """Find scalars of a program, each within half an ulp of what it stores, with which it equals the other one.

    Parameters
    ----------
    own, others : sequences of Constant
        Its constants and the other's. Numbers that the other holds exactly are not unknown.
    repaired : mapping
        Replacements already in force in it.
    outputs : sequence of LiftedOutput
        Its lifted outputs as they stand with those.
    residual : Residual
        What they are held against.
    tables : ConstantTables
        What it computes of its constants alone.
    single : bool
        Whether it computes in single precision at most, so that a literal may have been rounded to float32.

    Returns
    -------
    list of Repair
        A proposal, empty where there are none: the caller certifies it by the whole program.
    """
    unknowns = _unknowns(own, others, single, inner=bool(tables.own))
    start = residual.vector(outputs)
    if not unknowns or start.numel() == 0 or not bool(start.any()):
        return []
    if float(start.norm()) / math.sqrt(start.numel()) > _AMPLIFIED * max(u.half_ulp / abs(u.stored) for u in unknowns):
        return []  # no rounding of these numbers reaches so far
    unknowns = unknowns[: max(1, start.numel() // _EQUATIONS_PER_UNKNOWN)]

    def vector_at(numbers: Mapping[_Unknown, float]) -> torch.Tensor:
        moved = {name: value for unknown, number in numbers.items() for name, value in unknown.values(number).items()}
        return residual.vector(look(tables.graph, replace={**repaired, **moved, **tables.values(moved)}, keep=False))

    starts = {u: float(repaired[u.constants[0].name].reshape(-1)[0]) if u.constants[0].name in repaired else u.stored
              for u in unknowns}  # fmt: skip
    columns = {}
    for unknown in unknowns:
        step = unknown.half_ulp
        columns[unknown] = (start - vector_at({unknown: starts[unknown] + step})) / step
    alone = _best_alone(unknowns, columns, start)
    chosen = [alone] if alone is not None else [u for u in unknowns if bool(columns[u].any())]
    solution = _newton(chosen, columns, starts, start, vector_at)
    if solution is None:
        return []
    solved = [(unknown, number, constant) for unknown, number in solution.items() for constant in unknown.constants]
    numbers = {c.name: torch.full(c.value.shape, number, dtype=torch.float64) for _, number, c in solved}
    return [
        *tables.repairs({c.name: numbers[c.name] for _, _, c in solved if not c.frontier}),
        *(
            Repair(c.name, numbers[c.name], "solved", f"{number!r}, solved for", c)
            for _, number, c in solved
            if c.frontier
        ),
    ]


@dataclass(frozen=True, slots=True)
class ConstantTables:
    """What a program computes of its constants alone, repaired in whole.

    Parameters
    ----------
    graph : Lifted
    given : sequence of Repair
        Of constants that only constant subgraphs read.
    own : sequence of Repair
        Computed constants that are given their own float64 values.
    """

    graph: Lifted
    given: Sequence[Repair]
    own: Sequence[Repair]

    @classmethod
    def of(cls, side: ReconciledSide, repairs: Sequence[Repair]) -> ConstantTables:
        """Those of one side, with the repairs in force in it."""
        return cls(side.graph, side.inner, [r for r in repairs if r.partner == OWN])

    def values(self, moved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tables with other numbers in their subgraphs."""
        if not self.own:
            return {}
        found = self.graph.constant_values(replace={**{r.name: r.value for r in self.given}, **moved})
        return {r.name: found[r.name] for r in self.own if r.name in found}

    def repairs(self, moved: Mapping[str, torch.Tensor]) -> list[Repair]:
        """Repairs of the tables that these numbers change."""
        found = self.values(moved)
        said = {n: repr(float(v)) if v.numel() == 1 else "its numbers in decimals" for n, v in moved.items()}
        words = " and ".join(f"{number} for {name}" for name, number in said.items())
        return [
            dataclasses.replace(r, value=found[r.name], partner=f"{GIVEN}, with {words}")
            for r in self.own
            if r.name in found and not torch.equal(found[r.name], r.value)
        ]


def _best_alone(
    unknowns: Sequence[_Unknown], columns: Mapping[_Unknown, torch.Tensor], start: torch.Tensor
) -> _Unknown | None:
    size = float(start.norm())
    best: tuple[float, _Unknown] | None = None
    for unknown in unknowns:
        column = columns[unknown]
        weight = float(column @ column)
        if weight == 0.0:
            continue
        move = float(column @ start) / weight
        left = float((start - move * column).norm()) / size
        if left <= _EXPLAINED and abs(move) <= 2.5 * unknown.half_ulp and (best is None or left < best[0]):
            best = (left, unknown)
    return best[1] if best else None


def _newton(
    chosen: Sequence[_Unknown],
    columns: Mapping[_Unknown, torch.Tensor],
    starts: Mapping[_Unknown, float],
    start: torch.Tensor,
    vector_at: Callable[[Mapping[_Unknown, float]], torch.Tensor],
) -> dict[_Unknown, float] | None:
    """Gauss-Newton on the chosen unknowns; None when the solution leaves half an ulp of the stored values."""
    if not chosen:
        return None
    matrix = torch.stack([columns[u] for u in chosen], 1)
    sizes = matrix.norm(dim=0).clamp(min=1e-300)
    numbers = {u: starts[u] for u in chosen}
    residual = start
    for _ in range(_ROUNDS):
        move = torch.linalg.lstsq(matrix / sizes, residual.unsqueeze(1)).solution.squeeze(1) / sizes
        # So small steps are straight lines: what they leave of the gap, a run would leave too.
        if residual is start and float((start - matrix @ move).norm()) > _LEADS * float(start.norm()):
            return None
        numbers = {u: numbers[u] + float(m) for u, m in zip(chosen, move, strict=True)}
        if any(abs(numbers[u] - u.stored) > u.half_ulp for u in chosen):
            return None
        previous, residual = float(residual.norm()), vector_at(numbers)
        if float(residual.norm()) > 0.5 * previous:
            break
    return numbers


def solve_number(gap: Callable[[float], torch.Tensor], start: float) -> float | None:
    """Solve for the one number that closes a gap, by Gauss-Newton with many more equations than the one unknown.

    Parameters
    ----------
    gap : callable
        The difference that is left with a number, float64, always of one length.
    start : float

    Returns
    -------
    float or None
        None where no number closes the gap, or too few elements depend on it to say so.
    """
    found = _closing(gap, start)
    if found is not None or start == 0.0:
        return found
    # A divisor that is far off leads astray, and its reciprocal straight there.
    factor = _closing(lambda number: gap(1.0 / number if number else math.inf), 1.0 / start)
    return 1.0 / factor if factor else None


def _closing(gap: Callable[[float], torch.Tensor], start: float) -> float | None:
    number, left = start, gap(start)
    first = float(left.norm())
    for k in range(_STEPS):
        step = _STEP * (abs(number) or 1.0)
        column = (gap(number + step) - left) / step
        weight = float(column @ column)
        if int((column != 0).sum()) < _FEWEST or weight == 0.0 or first == 0.0:
            return None
        move = float(column @ left) / weight
        if k == 0 and float((left - move * column).norm()) > _LEADS * first:
            return None
        previous, number = float(left.norm()), number - move
        left = gap(number)
        now = float(left.norm())
        if not math.isfinite(now) or now > 0.5 * previous:
            break
    return number if float(left.norm()) <= _LEFT * first else None

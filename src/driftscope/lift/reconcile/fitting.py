"""Tensors that no formula gives: solved for on inputs of the same law, and held to inputs that they have not seen.

Whoever precomputes part of a program (two filters multiplied out, a projected table, centring in a weight) stores
numbers that are nowhere in the other one. What can be asked is: *are there* numbers, each the stored one but for
rounding, that make both programs the same function? With as many unknowns as equations there nearly always are, so
what is found counts only if it makes them the same on other inputs too: the inputs given, with their elements
shuffled, are of the same range and kind, and give as many equations as are wanted. Values on the way that are nearly
equal in both programs give equations too.
"""

from __future__ import annotations

import bisect
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from driftscope.errors import DriftscopeError
from driftscope.lift.reconcile.maps import narrow
from driftscope.lift.reconcile.matching import HALF_ULP, Repair, ulp
from driftscope.lift.reconcile.sides import FittedSide, ReconciledSide, is_free, reach_of
from driftscope.lift.reconcile.solving import Residual
from driftscope.lift.reconcile.uses import as_decimals
from driftscope.lift.steps import Constant, Kind, LiftedOutput, Step
from driftscope.numerics.least_squares import column_sizes, least_change
from driftscope.records.words import counted

# Equations wanted for each unknown at first, and where they were too few; shuffles of the inputs at most.
_EQUATIONS, _SHUFFLES = (2.0, 8.0), 40
# Operations of all passes together, elements of all values that gradients need, at most; what a step costs besides,
# and how much more a convolution does, whose second derivatives are slow.
_OPERATIONS, _ELEMENTS, _STEP_COST, _CONVOLVED = 8e10, 5e7, 3e4, 8.0
# A step of conjugate gradients passes so often through every run; how many of them are worth a beginning.
_PASSES, _FEWEST = 4, 50
# Unknown numbers at most, runs at least, and roundings of an element that must show in them.
_MOST, _LEAST, _SHOWN = 1_000_000, 4, 16.0
# Numbers of a tensor, and the share of them, that several roundings have to have moved by more than one does.
_SEVERAL, _MANY = 2, 0.05
# Steps of conjugate gradients at most, rounds of them, and a gap that is none.
_ITERATIONS, _ROUNDS, _NOTHING = 400, 4, 1e-14
# Shuffles of numbers of both signs are multiplied by these in turn: what is seldom on is then often on.
_FACTORS = (1.0, -2.0)
# Binades above the usual number in which one would hide what the others say.
_OUTLYING = 10

# A step without a derivative, or one that these inputs do not suit.
_UNSUITED = (DriftscopeError, RuntimeError, LookupError, ValueError)

_Change = Callable[[torch.Tensor], torch.Tensor]
_Place = tuple[int, int]


def shuffled(seed: int) -> _Change:
    """Shuffle the elements of tensors: equal numbers in equal ways, whichever program's input they are."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor
        real = tensor.dtype.is_floating_point
        wide = tensor.detach().to(torch.float64 if real else torch.int64)
        content = zlib.crc32(wide.cpu().contiguous().numpy().tobytes(), seed)
        order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(content))
        mixed = _tame(tensor.detach().reshape(-1))[order.to(tensor.device)].reshape(tensor.shape)
        both = real and bool((wide < 0).any()) and bool((wide > 0).any())
        return mixed * _FACTORS[seed % len(_FACTORS)] if both else mixed

    return change


def _tame(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers without what is no number, and without outliers: beside those, equations for all else drown."""
    if not numbers.dtype.is_floating_point or not numbers.numel():
        return numbers
    finite = numbers[torch.isfinite(numbers)]
    if not len(finite):
        return numbers
    if len(finite) < len(numbers):
        numbers = torch.where(
            torch.isfinite(numbers), numbers, finite.repeat(-(-len(numbers) // len(finite)))[: len(numbers)]
        )
    if not bool(finite.any()):
        return numbers
    usual = float(finite[finite != 0].abs().to(torch.float64).median())
    # A power of two is the same number in every format, and inputs that are equal stay so.
    limit = min(math.ldexp(1.0, math.frexp(usual)[1] + _OUTLYING), torch.finfo(numbers.dtype).max)
    return numbers.clamp(-limit, limit)


def _tamed(tensor: torch.Tensor) -> torch.Tensor:
    return _tame(tensor.detach().reshape(-1)).reshape(tensor.shape)


class _Values:
    """Watches a run: what it costs, and its float values, or those that are asked for."""

    def __init__(self, wanted: set[_Place] | None = None):
        self.operations, self.elements = 0.0, 0
        self.values: dict[_Place, torch.Tensor] = {}
        self._wanted = wanted

    def __call__(self, step: Step) -> None:
        for k, value in enumerate(step.outputs):
            if value is None:
                continue
            slower = _CONVOLVED if "conv" in step.operator.lower() else 1.0
            self.operations += _STEP_COST + slower * value.numel() * max(1, step.rounding.length)
            self.elements += value.numel()
            # A view, or an activation that cuts off, says nothing that its argument does not.
            made = value.dtype == torch.float64 and value.numel() > 1 and not step.constant
            rounds = step.rounding.kind is not Kind.EXACT
            asked = rounds if self._wanted is None else (step.index, k) in self._wanted
            if made and asked and self.elements <= _ELEMENTS:
                self.values[step.index, k] = value


def is_rounded(stored: torch.Tensor, exact: torch.Tensor, ulps: float) -> bool:
    """Whether a tensor holds other numbers, rounded: once and on the way to them.

    A narrow format is what a tensor was stored in at the end, and so is the format of a single number, and of decimals
    that somebody typed: half an ulp. In float32 it was computed too, and nothing tells of how large terms: one ulp of
    each element; or, where several are off by more, ``ulps`` of the largest of its row, or of its column where that is
    smaller.
    """
    wide, fmt = stored.to(torch.float64), stored.dtype
    gap, once = (wide - exact).abs(), narrow(fmt) or stored.numel() == 1 or as_decimals(stored) is not None
    far = gap > (1.0 if once else 2.0) * HALF_ULP * ulp(wide, fmt)
    if not bool(far.any()):
        return True
    if once or int(far.sum()) < max(_SEVERAL, _MANY * gap.numel()):
        return False
    size, axes = wide.abs(), range(wide.ndim)
    lines = [size.amax([k for k in axes if k != axis], keepdim=True) for axis in axes[:2]] if wide.ndim > 1 else []
    least = torch.minimum(*(line.expand_as(size) for line in lines)) if lines else size.max().expand_as(size)
    return bool((gap <= ulps * ulp(torch.maximum(size, least), fmt)).all())


_Judge = Callable[[Sequence[LiftedOutput], Sequence[LiftedOutput]], bool]


@dataclass(slots=True)
class _Budget:
    """What all attempts together may cost, counted in operations, so that no answer depends on a machine's load.

    Parameters
    ----------
    left : float
    """

    left: float = _OPERATIONS
    _operations: float = 0.0
    _elements: int = 0

    def weigh(self, seen: tuple[_Values, _Values]) -> None:
        """Take the cost of one run of both sides from what watched them."""
        self._operations = sum(side.operations for side in seen)
        self._elements = sum(side.elements for side in seen)

    def steps(self, runs: int) -> int:
        """How many steps of conjugate gradients that many runs can afford."""
        if self._elements * runs > _ELEMENTS:
            return 0
        return min(_ITERATIONS, int(self.left / (_PASSES * runs * self._operations)))

    def spend(self, passes: int, runs: int) -> None:
        """Pay for passes through so many runs."""
        self.left -= passes * runs * self._operations


def proposals(
    sides: tuple[ReconciledSide, ReconciledSide], repairs: tuple[Sequence[Repair], Sequence[Repair]],
    far: float, pairs: Sequence[tuple[int, int]], same: _Judge, ulps: float,
) -> Iterator[tuple[list[Repair], list[Repair]]]:  # fmt: skip
    """Propose repairs of B, of A, then of both, so that both are one function on shuffled inputs.

    Parameters
    ----------
    sides : pair of ReconciledSide
    repairs : pair of sequences of Repair
        In force.
    far : float
        How far the two are apart.
    pairs : sequence of (int, int)
        Which outputs are judged against each other.
    same : callable
        Says of two runs whether they are of one function.
    ulps : float
        As for :func:`is_rounded`.

    Yields
    ------
    pair of lists of Repair
        The caller certifies them on the inputs given.
    """
    a, b = (
        FittedSide.of(side, other, own, theirs, far)
        for side, other, own, theirs in zip(sides, reversed(sides), repairs, reversed(repairs), strict=True)
    )
    # What moves both at once moves one more easily than anything else does: where that fails, all else would.
    budget = _Budget()
    both = Fit(a, b, pairs, same, ulps, budget).repairs() if a.unknown and b.unknown else None
    if both is None or any(both):
        for one, other in ((a.known(), b), (a, b.known())):
            yield Fit(one, other, pairs, same, ulps, budget).repairs() or ([], [])
    if both is not None:
        yield both


@dataclass
class Fit:
    """Two sides of which some tensors are solved for; the parameters are those of :func:`proposals`."""

    a: FittedSide
    b: FittedSide
    pairs: Sequence[tuple[int, int]]
    same: _Judge
    ulps: float
    budget: _Budget

    @cached_property
    def unknown(self) -> list[Constant]:
        """What is solved for."""
        return [*self.a.unknown, *self.b.unknown]

    @cached_property
    def _free(self) -> list[torch.Tensor]:
        return [is_free(c.value) for c in self.unknown]

    def repairs(self) -> tuple[list[Repair], list[Repair]] | None:
        """Propose repairs of both sides; the caller certifies them on the inputs given.

        Empty where nothing that these tensors could hold makes both one function; None where what does is not what
        they hold but for rounding, or does not do so on other inputs, or where it would take too long.
        """
        stored = [c.value.to(torch.float64) for c in self.unknown]
        if not stored:
            return [], []
        seen = _Values(), _Values()
        outputs = self._run(None, stored, seen)[0]
        made = [value for i, _ in self.pairs if (value := outputs[i].value) is not None]
        results = sum(value.numel() for value in made)
        # Through what is no number every derivative is none.
        given = None if all(bool(torch.isfinite(value).all()) for value in made) else _tamed
        self.budget.weigh(seen)
        if self.budget.steps(_LEAST) < _FEWEST or sum(s.numel() for s in stored) > _MOST:
            return None
        reached = self._reached(stored)
        if not reached:
            return [], []
        reach = max(reach_of(c.value) for c in self.unknown)
        closes = False
        for inner in (_nearly_equal(seen[0].values, seen[1].values, reach), {}):
            equations = results + sum(seen[1].values[place].numel() for place in inner)
            for wanted in _EQUATIONS:
                shuffles = max(_LEAST, math.ceil(wanted * reached / max(equations, 1)))
                steps = self.budget.steps(shuffles)
                if shuffles > _SHUFFLES or steps < _FEWEST:
                    return None
                ways = [given, *map(shuffled, range(1, shuffles))]
                numbers = self._solved(stored, ways, inner, steps)
                if numbers is None:
                    break
                closes = True
                if self.same(*self._run(shuffled(0), numbers)):
                    if not self._are_rounded(numbers):
                        return None
                    if self._are_told(stored, ways, inner):
                        return self._repaired(numbers, shuffles)
            if not inner:
                break
        return None if closes else ([], [])

    def _reached(self, stored: Sequence[torch.Tensor]) -> int:
        """How many unknown elements the outputs depend on: of a table few rows may be read."""
        at = [s.clone().requires_grad_() for s in stored]
        try:
            with torch.enable_grad():
                back = torch.autograd.grad(self._gap(at, [None], {}).square().sum(), at, materialize_grads=True)
        except _UNSUITED:
            return sum(s.numel() for s in stored)
        return sum(int((b != 0).sum()) for b in back)

    def _are_told(
        self, stored: Sequence[torch.Tensor], ways: Sequence[_Change | None], inner: Mapping[_Place, _Place]
    ) -> bool:
        """Whether every unknown element, some roundings off, would have shown: in a channel that is off none would."""
        at = [s.clone().requires_grad_() for s in stored]
        with torch.enable_grad():
            gap = self._gap(at, ways, inner)
        least = _NOTHING * math.sqrt(gap.numel())
        known = zip(stored, column_sizes(gap, at), self.unknown, strict=True)
        sizes = (_SHOWN * size * ulp(s, c.value.dtype) for s, size, c in known)
        return all(bool(((s > least) | ~f).all()) for s, f in zip(sizes, self._free, strict=True))

    def _are_rounded(self, numbers: Sequence[torch.Tensor]) -> bool:
        return all(is_rounded(c.value, n, self.ulps) for c, n in zip(self.unknown, numbers, strict=True))

    def _repaired(self, numbers: Sequence[torch.Tensor], shuffles: int) -> tuple[list[Repair], list[Repair]]:
        tried = counted(shuffles, "input")
        words = f"the rounding of what makes both one function (solved for on {tried}, tested on another)"
        found = [Repair(c.name, n, "fitted", words, c) for c, n in zip(self.unknown, numbers, strict=True)]
        return found[: len(self.a.unknown)], found[len(self.a.unknown) :]

    def _run(
        self, change: _Change | None, at: Sequence[torch.Tensor], seen: tuple[_Values, _Values] | None = None
    ) -> tuple[list[LiftedOutput], list[LiftedOutput]]:
        first = len(self.a.unknown)
        one, other = seen or (None, None)
        return self.a.run(change, at[:first], one), self.b.run(change, at[first:], other)

    def _solved(
        self, stored: Sequence[torch.Tensor], ways: Sequence[_Change | None], inner: Mapping[_Place, _Place],
        steps: int,
    ) -> list[torch.Tensor] | None:  # fmt: skip
        """Gauss-Newton: programs are straight lines in what rounding moves, so one or two rounds are enough."""
        numbers, before = list(stored), math.inf
        for tried in range(_ROUNDS):
            at = [n.clone().requires_grad_() for n in numbers]
            try:
                with torch.enable_grad():
                    gap = self._gap(at, ways, inner)
                    size = float(gap.detach().norm()) / math.sqrt(max(1, gap.numel()))
                    move, passes = least_change(gap, at, steps, 0.1 * _NOTHING) if size > _NOTHING else (None, 0)
                self.budget.spend(passes, len(ways))
            except _UNSUITED:
                return None
            if size > max(before, 100.0 * _NOTHING):  # far from a straight line
                return None
            if move is None:
                return numbers if tried else None
            numbers = self._free_alone([n + m for n, m in zip(numbers, move, strict=True)], numbers)
            before = size
        return numbers

    def _free_alone(self, moved: Sequence[torch.Tensor], still: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Numbers of which only those that may be rounded are moved."""
        return [torch.where(f, m, s) for f, m, s in zip(self._free, moved, still, strict=True)]

    def _gap(
        self, at: Sequence[torch.Tensor], ways: Sequence[_Change | None], inner: Mapping[_Place, _Place]
    ) -> torch.Tensor:
        """What is left on all inputs between outputs, and values on the way, each in units of its own size."""
        at, pieces = self._free_alone(at, [t.detach() for t in at]), []
        for change in ways:
            seen = _Values(set(inner.values())), _Values(set(inner))
            outputs = self._run(change, at, seen if inner else None)
            pairs = ((seen[0].values[theirs], seen[1].values[own]) for own, theirs in inner.items())
            pieces += [Residual(outputs[0], self.pairs).vector(outputs[1]), *(_scaled(x, y) for x, y in pairs)]
        return torch.cat(pieces)


def _scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    gap, size = x.reshape(-1) - y.reshape(-1), x.detach().nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    return torch.where(torch.isfinite(gap), gap, 0.0) / size.clamp(min=1e-300)


def _nearly_equal(
    a: Mapping[_Place, torch.Tensor], b: Mapping[_Place, torch.Tensor], reach: float
) -> dict[_Place, _Place]:
    """For values of B the value of A that is nearest, as far as rounding of weights may have parted the two."""
    norms = sorted((float(v.norm()), place) for place, v in a.items())
    found = {}
    for own, value in b.items():
        size = float(value.norm())
        if not 0.0 < size < math.inf:
            continue
        first = bisect.bisect_left(norms, (size * (1.0 - reach), (-1, -1)))
        last = bisect.bisect_right(norms, (size * (1.0 + reach), (-1, -1)))
        alike = [p for _, p in norms[first:last] if a[p].numel() == value.numel()]
        near = [(float((a[p].reshape(-1) - value.reshape(-1)).norm()), p) for p in alike]
        if near and min(near)[0] <= reach * size:
            found[own] = min(near)[1]
    return found

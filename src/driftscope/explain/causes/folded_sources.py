"""Which of the numbers that one program holds apart is not what the other program's folded tensor was made of.

An exporter folds a batch norm into the convolution before it. Where the two programs part at such a piece, the fold
can be read backwards: each tensor that the fold is computed from is solved for, alone, so that the fold gives what the
other side stores. One unknown per channel meets all weights of that channel and its bias, so that it fits to the last
digit or is not the cause. What can be told only together (a norm's weight and the variance it is divided by) is named
together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.causes.alterations import FOLD_ULPS
from driftscope.explain.causes.fold_findings import FoldSource, OtherFold
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.operators import family
from driftscope.explain.locate.rerunning import Reruns
from driftscope.lift.outline import Chains, tell_steps
from driftscope.lift.reconcile.affine import AffinePieces
from driftscope.lift.reconcile.arrangements import rearrangements
from driftscope.lift.reconcile.maps import Map, narrow
from driftscope.lift.reconcile.matching import ulp
from driftscope.lift.reconcile.sides import is_tensor
from driftscope.lift.steps import Constant, Lifted, Observer, Step

# Newton steps for what does not enter a fold linearly (a variance, an epsilon), and what each has to leave of the
# squared distance at most to be followed by another.
_STEPS, _SHRINKS = 12, 0.5
# Tensors that are tried of one fold: a sum of three branches with a batch norm each has 17.
_MOST = 18


@dataclass(frozen=True, slots=True)
class FoldSide:
    """One program at a place where two part.

    Parameters
    ----------
    runs : Reruns
        Its runs, repairs in force.
    step : Visited
        The step at the place.
    constants : sequence of Constant
    chains : Chains
        What was noted of a run without repairs: one that replaces constants does not say that they are.
    """

    runs: Reruns
    step: Visited
    constants: Sequence[Constant]
    chains: Chains

    def read(self, names: Sequence[str]) -> list[Constant]:
        """Constants that the step reads, by their names or through views."""
        known = {*names, *self.step.stored}
        return [c for c in self.constants if c.name in known or c.where.node == self.step.name]

    def path(self) -> _Path:
        """What is known of the way to the place before any map is followed."""
        return _Path(frozenset(self.chains.held), self.chains.leading_to(self.step.outputs[0]))


def chains_of(graph: Lifted) -> Chains:
    """Note the chains of affine steps of a program, in one run."""
    chains = Chains()
    with contextlib.suppress(CannotLift, DriftscopeError, RuntimeError):
        tell_steps(graph, chains)
    return chains


def other_fold(apart: FoldSide, folded: FoldSide, held: Collection[str] = ()) -> OtherFold | None:
    """Find the tensors of ``apart`` that ``folded`` was not made of; None where nothing fits to the last digit.

    Parameters
    ----------
    apart : FoldSide
        The program that computes the piece step by step.
    folded : FoldSide
        The one that stores it in one weight and one bias.
    held : collection of str
        Its constants that ``apart`` holds as well: they were never folded, and what the other one does to them is
        left out here. Of one number written many times (zeros) that tells nothing, unless both steps are alike.
    """
    alike = family(apart.step.operator) == family(folded.step.operator)

    def are_held(constants: Sequence[Constant]) -> bool:
        return all(c.name in held and (alike or is_tensor(c)) for c in constants)

    target = _maps(folded, folded.path())[:1]
    if not target or narrow(_format(folded, target[0])):
        return None
    if are_held(folded.read(target[0].sources)):
        return None
    path = apart.path()
    for piece in _maps(apart, path):
        if len(piece.steps) > 1 and _shape(piece) == _shape(target[0]):
            found = _Fold(apart, folded, piece, target[0], path).solve()
            if found is not None:
                return None if are_held(found.stored) else found
    return None


class _Found(Exception):
    """Ends a run at the place."""


@dataclass(frozen=True, slots=True)
class _Path:
    """The way to a place.

    Parameters
    ----------
    held : frozenset of str
        Names of constants, and of what is computed from them alone.
    values : frozenset of str
        Those whose maps may lead to the place; a map of each weight of a program would take several times its memory.
    """

    held: frozenset[str]
    values: frozenset[str]


def _ending(observe: Callable[[Step], object], name: str) -> Observer:
    """Let an observer see a run up to a value."""

    def see(step: Step) -> None:
        observe(step)
        if name in step.output_names:
            raise _Found

    return see


def _maps(side: FoldSide, path: _Path, values: Mapping[str, torch.Tensor] | None = None) -> list[Map]:
    """The affine maps that end at the place, the shortest first."""
    pieces, held = AffinePieces.of(side.constants), set(path.held)

    def follow(step: Step) -> None:
        held.update(n for n, is_held in zip(step.input_names, step.held, strict=False) if is_held)
        step.held = [n in held for n in step.input_names]
        if path.values.intersection(step.output_names):
            pieces(step)

    with contextlib.suppress(_Found, CannotLift, DriftscopeError, RuntimeError):
        side.runs.run(_ending(follow, side.step.outputs[0]), {}, values)
    return pieces.maps.get(side.step.outputs[0], [])


def _shape(piece: Map) -> tuple[tuple[int, ...], int]:
    return tuple(_rows(piece).shape), piece.bias.numel()


def _rows(piece: Map) -> torch.Tensor:
    """The weight with the result's channels first."""
    return piece.weight if piece.out_axis is None else piece.weight.movedim(piece.out_axis, 0)


def _format(side: FoldSide, piece: Map) -> torch.dtype:
    held = [c.value.dtype for c in side.constants if c.name in (*piece.sources, *side.step.stored)]
    floats = [fmt for fmt in held if fmt.is_floating_point]
    return max(floats, key=lambda fmt: torch.finfo(fmt).eps, default=torch.float32)


class _Fold:
    """One fold, evaluated with other numbers in its sources."""

    def __init__(self, apart: FoldSide, folded: FoldSide, piece: Map, target: Map, path: _Path):
        self.apart, self.folded, self.piece, self.target, self.path = apart, folded, piece, target, path
        self.wanted = (_rows(target), target.bias)
        self.fmt = _format(folded, target)
        sources = [
            c for c in apart.constants
            if c.value.dtype.is_floating_point and (c.name in piece.sources or c.where.node in piece.steps)
        ]  # fmt: skip
        # Of what fits as well, the fewest numbers are told: epsilons stand before what they cannot be told from.
        self.sources = sorted(sources, key=lambda c: c.value.numel())[:_MOST]

    def solve(self) -> OtherFold | None:
        """The one source that explains weight and bias, else one that explains the weight and one for the bias."""
        if self._fits(self.piece):
            return None
        if self._fits(self.piece, bias=False):  # a weight that every source fits as it is: none is to be changed for it
            of_bias = self._of_bias({})
            return self._told([self._named(of_bias)]) if of_bias else None
        alone: list[tuple[Constant, torch.Tensor]] = []
        partly: list[tuple[Constant, torch.Tensor]] = []
        for constant in self.sources:
            if alone and constant.value.numel() > alone[0][0].value.numel():
                break
            for value, whole in self._solved(constant, {}, True):
                (alone if whole else partly).append((constant, value))
        if alone:
            return self._told([self._named(alone)])
        for constant, value in partly[:1]:
            if second := self._of_bias({constant.name: value}):
                return self._told([self._named(partly), self._named(second)])
        return None

    def _of_bias(self, held: Mapping[str, torch.Tensor]) -> list[tuple[Constant, torch.Tensor]]:
        """The sources of which each explains the bias, where those held explain the weight."""
        others = (c for c in self.sources if c.name not in held)
        return [(c, value) for c in others for value, whole in self._solved(c, held, False) if whole]

    # -- evaluation -----------------------------------------------------------------------------------------------

    def _at(self, values: Mapping[str, torch.Tensor]) -> Map | None:
        return next((m for m in _maps(self.apart, self.path, values) if m.steps == self.piece.steps), None)

    def _fits(self, piece: Map, *, bias: bool = True) -> bool:
        """Whether the other program stores this fold, rounded."""
        size = piece.size if piece.out_axis is None else piece.size.movedim(piece.out_axis, 0)
        pairs = [(_rows(piece), self.wanted[0], size), (piece.bias, self.wanted[1], piece.magnitude)]
        return all(
            bool(((mine - theirs).abs() <= FOLD_ULPS * ulp(torch.maximum(of, theirs.abs()), self.fmt)).all())
            for mine, theirs, of in pairs[: 2 if bias else 1]
        )

    # -- solving --------------------------------------------------------------------------------------------------

    def _solved(
        self, constant: Constant, held: Mapping[str, torch.Tensor], weights: bool
    ) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yield what a source must be, and whether the bias fits as well; at most one of each kind of solution."""
        start = constant.value.to(torch.float64)
        base = self._at({**held, constant.name: start})
        if base is None:
            return
        for spread in _spreads(constant, _rows(self.piece) if weights else self.piece.bias):
            value, now, left = start, base, math.inf
            for _ in range(_STEPS):
                move = self._move(constant.name, value, now, held, spread, weights)
                if move is None or not bool(torch.isfinite(move).all()):
                    break
                value, after = self._moved(constant.name, value, move, held)
                if after is None:
                    break
                now, before = after, left
                left = float((self.wanted[0] - _rows(now) if weights else self.wanted[1] - now.bias).square().sum())
                if self._fits(now, bias=not weights) or not left <= _SHRINKS * before:
                    break
            if self._fits(now, bias=not weights):
                value, now = self._tidy(constant, value, now, held)
                yield value, self._fits(now)
                return

    def _move(
        self, name: str, value: torch.Tensor, now: Map, held: Mapping[str, torch.Tensor], spread: _Spread, weights: bool
    ) -> torch.Tensor | None:
        """The least-squares step of a source towards the stored fold, by its slope at this value."""
        by = float(value.abs().max()) * 2.0**-20 or 2.0**-20
        beside = self._at({**held, name: value + by})
        if beside is None:
            return None
        parts = [(_rows(beside) - _rows(now), self.wanted[0] - _rows(now))] if weights else []
        if not weights:
            parts.append((beside.bias - now.bias, self.wanted[1] - now.bias))
        top = sum(spread.gathered(slope * rest) for slope, rest in parts)
        below = sum(spread.gathered(slope * slope) for slope, _ in parts)
        if not isinstance(top, torch.Tensor) or not isinstance(below, torch.Tensor) or not bool((below > 0).any()):
            return None
        step = torch.where(below > 0, by * top / below.clamp(min=1e-300), torch.zeros_like(top))
        return spread.placed(step, value.shape)

    def _moved(
        self, name: str, value: torch.Tensor, move: torch.Tensor, held: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Map | None]:
        """A source after a step, and the fold there; a variance stays positive where a step leads behind zero."""
        short = torch.where((value > 0) & (value + move <= 0), -0.75 * value, move)
        for by in (move, short):
            after = self._at({**held, name: value + by})
            if after is not None and bool(torch.isfinite(after.weight).all()):
                return value + by, after
        return value, None

    def _tidy(
        self, constant: Constant, value: torch.Tensor, now: Map, held: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, Map]:
        """The program's own numbers in another order, or most of them as they are, where those fit as well."""
        own = constant.value.to(torch.float64)
        order, sorted_own = value.reshape(-1).argsort(), own.reshape(-1).sort().values
        moved = torch.empty_like(sorted_own)
        moved[order] = sorted_own
        near = 64.0 * ulp(torch.maximum(value.abs(), own.abs()), self.fmt)
        kept = torch.where((value - own).abs() <= near, own, value)
        rounded = torch.where(kept == own, own, value.to(constant.value.dtype).to(torch.float64))
        # One number was written in few digits.
        written = [torch.full_like(own, float(f"{float(value):.{n}g}")) for n in (2, 4, 6) if own.numel() == 1]
        for tidy in (*written, moved.reshape(own.shape), rounded, kept):
            after = self._at({**held, constant.name: tidy})
            if after is not None and self._fits(after, bias=self._fits(now)) and self._fits(after, bias=False):
                return tidy, after
        return value, now

    # -- what is told ---------------------------------------------------------------------------------------------

    def _named(self, found: Sequence[tuple[Constant, torch.Tensor]]) -> FoldSource:
        """The source with the fewest numbers; those with as many (but one alone explains more than several)."""
        least = min(c.value.numel() for c, _ in found)
        fewest = [(c, v) for c, v in found if c.value.numel() == least]
        (first, value), others = fewest[0], fewest[1:]
        return FoldSource(first, value, tuple(dict.fromkeys(c.name for c, _ in others)))

    def _told(self, found: Sequence[FoldSource]) -> OtherFold | None:
        # In the order in which they run: of several, the first is where a reader starts.
        order = {c.name: k for k, c in enumerate(self.apart.constants)}
        sources = sorted(found, key=lambda source: order[source.constant.name])
        end = self._at({s.constant.name: s.value for s in sources})
        if end is None:
            return None
        stored, exact = [], {}
        for constant in self.folded.read(self.target.sources):
            for have, want in ((self.target.weight, _rows(end)), (self.target.bias, end.bias)):
                if have is self.target.weight and self.target.out_axis is not None:
                    want = want.movedim(0, self.target.out_axis)
                value = _as_stored(constant, have, want)
                if value is not None and constant.name not in exact:
                    stored.append(constant)
                    exact[constant.name] = value
        return OtherFold(tuple(sources), tuple(stored), exact) if stored else None


@dataclass(frozen=True, slots=True)
class _Spread:
    """How the numbers of a source enter a weight whose first axis is the result's: one for each index of ``axis``.

    ``axis`` is None where each enters one element of its own, in rows or (``turned``) columns, and -1 for one number.
    """

    axis: int | None
    turned: bool = False

    def gathered(self, terms: torch.Tensor) -> torch.Tensor:
        """Terms of a weight or a bias added up over what one number of the source enters."""
        if self.axis is None:
            return terms
        if self.axis == -1:
            return terms.sum().reshape(1)
        return terms.movedim(self.axis, 0).reshape(terms.shape[self.axis], -1).sum(1)

    def placed(self, step: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """One number each, in the source's own shape."""
        return (step.T if self.turned else step).reshape(shape)


def _spreads(constant: Constant, rows: torch.Tensor) -> list[_Spread]:
    """The ways in which a source of this size can enter the weight, or the bias."""
    count = constant.value.numel()
    if count == 1:
        return [_Spread(-1)]
    if count == rows.numel() and rows.ndim > 1:
        return [_Spread(None), _Spread(None, turned=True)] if rows.ndim == 2 else [_Spread(None)]
    return [_Spread(axis) for axis in range(min(rows.ndim, 2)) if rows.shape[axis] == count]


def _as_stored(constant: Constant, have: torch.Tensor, want: torch.Tensor) -> torch.Tensor | None:
    """``want`` laid out as a constant stores ``have``; None where it stores something else."""
    if constant.value.numel() != have.numel():
        return None
    stored = constant.value.to(torch.float64)
    both = zip(rearrangements(have, stored.shape), rearrangements(want, stored.shape), strict=True)
    return next((new for old, new in itertools.islice(both, 24) if torch.equal(old, stored)), None)

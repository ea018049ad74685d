"""Why two programs that are the same function round differently: the orders in which their sums are added.

The sums of both lifted graphs are paired by what they add. The kernels behind the longest pairs are asked for their
order, each in the shape, format and thread count in which the program runs it, within a budget and never twice in a
process (:func:`driftscope.accumulation.in_passing.ask_once`). What differs becomes a note, and where rounding is close
to a verdict the noise floor is measured again with the trees that were found.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.contrast import difference
from driftscope.comparison.leaves import LeafComparison
from driftscope.comparison.measuring.spread import drift_in_floors
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.native.sum_sites import Site, SumsOfProgram, has_known_kernels
from driftscope.lift.evidence import Evidence
from driftscope.lift.side_lift import add_noise
from driftscope.lift.steps import Kind, Lifted, Step
from driftscope.numerics.groupings import Growth, growth, sequential
from driftscope.numerics.trees.growth import growth_of
from driftscope.programs.protocol import Bound
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.paths import Path
from driftscope.records.verdict import Verdict
from driftscope.records.words import floors

Leaves = Sequence[tuple[Path, Any]]

#: Pairs that are asked in passing, and the multiplications that asking may cost.
_PAIRS = 2
_WORK = 1.5e9
#: Relative difference of two operands' sizes up to which they are the same operand, rounded, or a row of it.
_ALIKE = 0.15
#: Relative difference of growths up to which a tree is the usual one, and its floor the one that was measured.
_USUAL = 1e-6


@dataclass(slots=True)
class Sums:
    """What was found about the sums of two programs.

    Parameters
    ----------
    notes : list of Finding
        One per pair of sums that are added otherwise.
    reaches : list of set of int
        For each note, the pairs of outputs that depend on the sum.
    """

    notes: list[Finding] = field(default_factory=list)
    reaches: list[set[int]] = field(default_factory=list)

    def explaining(self, outputs: Sequence[OutputRecord], slots: Mapping[int, int]) -> list[Finding]:
        """Return the notes that explain rounding, or cheaper arithmetic, of an output."""
        rounded = (Verdict.ROUNDING, Verdict.PRECISION)
        explained = {slots[k] for k, output in enumerate(outputs) if k in slots and output.verdict in rounded}
        return [note for note, reach in zip(self.notes, self.reaches, strict=True) if reach & explained]


@dataclass(frozen=True, slots=True)
class Natively:
    """What the native runs gave.

    Parameters
    ----------
    a, b : sequence of (Path, leaf)
    leaves : sequence of LeafComparison
    slots : mapping of int to int
        For each leaf that both sides have, its pair in the evidence.
    """

    a: Leaves
    b: Leaves
    leaves: Sequence[LeafComparison]
    slots: Mapping[int, int]

    def drifts(self) -> dict[int, torch.Tensor]:
        """Return B - A, by pair, of floating outputs whose bits differ."""
        found = {}
        for k, leaf in enumerate(self.leaves):
            if leaf.same_bits or not leaf.floating or leaf.kind in ("shape", "structure", "kind"):
                continue
            one, other = self.a[leaf.index_a or 0][1], self.b[leaf.index_b or 0][1]
            tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
            plain = tensors and one.layout is other.layout is torch.strided and not (one.is_nested or other.is_nested)
            if k in self.slots and plain and not one.is_complex():
                drift = other.detach().cpu().double() - one.detach().cpu().double()
                found[self.slots[k]] = torch.where(torch.isfinite(drift), drift, 0.0)
        return found


def sums_seen(bounds: tuple[Bound, Bound]) -> tuple[SumsOfProgram, SumsOfProgram] | None:
    """Give an observer of each side's sums; None where the kernels behind them are not known."""
    sides = SumsOfProgram(bounds[0]), SumsOfProgram(bounds[1])
    return sides if all(side.askable for side in sides) else None


def ask_sums(sides: tuple[SumsOfProgram, SumsOfProgram], evidence: Evidence, natively: Natively, seed: int) -> Sums:
    """Ask the sums of both programs for their order; measure floors again where an order decides.

    Parameters
    ----------
    sides : pair of SumsOfProgram
        What was seen of A and of B (:func:`sums_seen`).
    evidence : Evidence
        Its floors may change.
    natively : Natively
    seed : int
        Names the noise.
    """
    drifts = natively.drifts()
    pairs = {pair for pair in drifts if _same_function(evidence, pair)}
    found = Sums()
    if not pairs or evidence.a.graph is None or evidence.b.graph is None:
        return found
    known = _Trees(), _Trees()
    for one, other in _chosen(sides[0].sites, sides[1].sites):
        reach = {p for p in pairs if sides[1].feeds(other, evidence.b.clean[evidence.pairs[p][1]].name)}
        answers = [side.ask(site) for side, site in zip(sides, (one, other), strict=True)] if reach else []
        for answer, site, trees in zip(answers, (one, other), known, strict=False):
            if isinstance(answer, Accumulation) and site.usual is not None:
                told = growth_of(answer.tree, products=answer.arithmetic.product)
                trees.add(site.step, site.usual, told, site.coherence)
        a, b = answers or ("", "")
        if isinstance(a, Accumulation) and isinstance(b, Accumulation):
            note = _note(one, other, a, b)
            if note is not None:
                found.notes.append(note)
                found.reaches.append(reach)
    if any(_decides(evidence, pair, drifts[pair], known) for pair in pairs):
        for side, trees, offset in zip((evidence.a, evidence.b), known, (0, 1000), strict=True):
            if trees.growths:
                add_noise(side, seed + offset, revealed=trees.growths)
    return found


def in_one_chain(
    bounds: tuple[Bound, Bound], evidence: Evidence, drifts: Sequence[tuple[int, torch.Tensor]], seed: int
) -> str:
    """Say which sides' sums, added in one chain each, would round by as much as these drifts; empty where none do.

    Asked of kernels that are not known: a compiler may add in any order, and the longest chain is one of them.

    Parameters
    ----------
    bounds : pair of Bound
    evidence : Evidence
        Its floors stay as they are.
    drifts : sequence of (pair index, native B - A)
    seed : int
        Names the noise.
    """
    chained, sides = dataclasses.replace(evidence), []
    for name, bound, offset in (("a", bounds[0], 0), ("b", bounds[1], 1000)):
        side = dataclasses.replace(getattr(evidence, name))
        chains = {} if has_known_kernels(bound) or side.graph is None else _chains(side.graph)
        if chains:
            add_noise(side, seed + offset, revealed=chains)
            setattr(chained, name, side)
            sides.append(name.upper())
    if not sides:
        return ""
    left = max(drift_in_floors(d, [*chained.noise_a(pair), *chained.noise_b(pair)]).value for pair, d in drifts)
    if left > THRESHOLDS.large:  # terms that repeat are rounded alike, again and again
        return ""
    return f"sums in one chain in {' and '.join(sides)}, whose order is not known, {floors(left)} of that order"


def _chains(graph: Lifted) -> dict[str, Growth]:
    """What one running sum over all terms does to rounding, for each step of a graph that adds up values."""
    found: dict[str, Growth] = {}

    def see(step: Step) -> None:
        if step.rounding.kind is Kind.SUM and not step.constant:
            found[step.name] = growth(sequential(step.rounding.length))

    graph.run(observe=see)
    return found


@dataclass(slots=True)
class _Trees:
    """The trees found on one side that are not the usual ones, and what they can make of its floor at the least.

    Noise adds up in squares, so a floor shrinks by no more than the noise of the one step that shrinks most.
    """

    growths: dict[str, Growth] = field(default_factory=dict)
    least: float = 1.0

    def add(self, step: str, usual: Growth, found: Growth, coherence: float | None = None) -> None:
        pairs = [(usual.terms, found.terms), (usual.total, found.total)]
        if all(math.isclose(old, new, rel_tol=_USUAL) for old, new in pairs):
            return
        self.growths[step] = found
        if coherence is not None:  # how much of each part its noise is made of
            pairs = [(usual.terms + coherence * usual.total, found.terms + coherence * found.total)]
        self.least = min(self.least, *(math.sqrt(new / old) for old, new in pairs if old))


def _same_function(evidence: Evidence, pair: int) -> bool:
    delta = evidence.delta(pair)
    return delta is not None and delta.value <= delta.limit


def _decides(evidence: Evidence, pair: int, drift: torch.Tensor, known: tuple[_Trees, _Trees]) -> bool:
    """Whether a drift is more than ordinary rounding with the least floors that the trees found allow."""
    if not any(trees.growths for trees in known):
        return False
    sides = zip((evidence.noise_a(pair), evidence.noise_b(pair)), known, strict=True)
    noises = [noise * trees.least for side, trees in sides for noise in side]
    fits = bool(noises) and noises[0].shape == drift.shape
    return fits and drift_in_floors(drift, noises, THRESHOLDS.rounding).value > THRESHOLDS.rounding


def _chosen(ours: list[Site], theirs: list[Site]) -> list[tuple[Site, Site]]:
    """Pair sums that add the same things; keep the longest few that differ and fit the budget."""
    left, seen, work = defaultdict[tuple[Any, ...], list[Site]](list), set(), 0.0
    for site in theirs:
        left[_shape_of(site)].append(site)
    pairs: list[tuple[Site, Site]] = []
    chosen: list[tuple[Site, Site]] = []
    for site in ours:
        alike = left[_shape_of(site)]
        apart, place = min(((_unlike(site, other), k) for k, other in enumerate(alike)), default=(math.inf, 0))
        if apart <= _ALIKE:
            pairs.append((site, alike.pop(place)))
    for one, other in sorted(pairs, key=lambda pair: -pair[0].n):
        key = tuple((s.operator, s.shapes, s.dtype) for s in (one, other))
        if key in seen or len(chosen) == _PAIRS or work + one.work + other.work > _WORK:
            continue
        seen.add(key)
        work += one.work + other.work
        chosen.append((one, other))
    return chosen


def _shape_of(site: Site) -> tuple[Any, ...]:
    """What two sums that are the same have in common."""
    return site.n, site.kind, len(site.sizes)


def _unlike(one: Site, other: Site) -> float:
    """Return by how much the operands of two such sums differ in size."""
    return max(abs(x - y) / max(x, y, 1e-300) for x, y in zip(one.sizes, other.sizes, strict=True))


def _note(one: Site, other: Site, a: Accumulation, b: Accumulation) -> Finding | None:
    told = difference(a, b)
    if told is None:
        return None
    what, why = told
    place = Where(node=other.step, operator=other.operator, module=other.where.module or one.where.module,
                  file=one.where.file, line=one.where.line, expression=one.where.expression)  # fmt: skip
    return Finding("N031", f"{other.operator} {what} ({one.operator})", why, where=place, note=True,
                   evidence={"n": a.n, "a": _facts(a), "b": _facts(b)})  # fmt: skip


def _facts(a: Accumulation) -> dict[str, Any]:
    return {
        "kernel": a.kernel, "shape": list(a.shape or ()), "dtype": a.dtype, "library": a.library, "threads": a.threads,
        "pattern": a.pattern, "family": a.family, "accumulator": a.accumulator, "fma": a.fma, "depth": a.depth,
        "rows_replayed": a.verified.rows, "miss": a.verified.miss,
    }  # fmt: skip

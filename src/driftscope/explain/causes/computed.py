"""Constants that a program computes from no input: where in their computation programs part, and by which number."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.causes.weights import ChangedWeight
from driftscope.explain.locate.exact_parts import parted, peers_of
from driftscope.explain.locate.fingerprints import Trail, Visited, steps_to
from driftscope.explain.locate.operators import MOVES, family
from driftscope.lift.evidence import Evidence
from driftscope.lift.reconcile.drifts import OutputPairing, measure, within
from driftscope.lift.reconcile.matching import Repair, as_stored, uniform
from driftscope.lift.reconcile.sides import RepairedGraph
from driftscope.lift.steps import Constant, Lifted, Origin, Step, plain_name

# Numbers of an index shown in a sentence.
_SHOWN = 4

# Numbers of each side that are tried.
_MOST = 6

# Drift that deep programs make in float64, and the share of what was that may be left of it.
_DEEP, _LEFT = 1e-10, 1e-3

# Share of what a constant is apart at its end from which on a step is no longer rounding.
_SHARE = 0.1

# Terms up to this keep a divisor or a root from zero.
_SMALL = 1e-5


@dataclass(frozen=True, slots=True)
class OtherIndices:
    """A step of a constant's computation that reads other integers than its counterpart.

    Parameters
    ----------
    step : Visited or None
        The step that reads them; None where B stores what was looked up.
    place : Visited
        The step that makes them, or the reader where they are stored.
    given, wanted : str
        The first of B's and of A's.
    table : str
        Where B stores the rows that were looked up, and not the step: A's name of the table.
    """

    step: Visited | None
    place: Visited
    given: str
    wanted: str
    table: str = ""


@dataclass(slots=True)
class _ValueTrail:
    """A trail that keeps the integers every step reads, and the floats it makes."""

    trail: Trail
    integers: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    floats: dict[int, torch.Tensor] = field(default_factory=dict)  # by the index of the step

    def __call__(self, step: Step) -> list[torch.Tensor | None] | None:
        step.constant = False
        read = [v for v in step.inputs if v is not None and not v.dtype.is_floating_point and v.numel()]
        self.integers[step.name] = [v.detach().cpu().clone() for v in read]
        made = step.outputs[0] if step.outputs else None
        if made is not None and made.dtype.is_floating_point:
            self.floats[step.index] = made.detach().cpu().to(torch.float64)
        return self.trail(step)


def computed_otherwise(a: Lifted, b: Lifted, change: ChangedWeight) -> tuple[OtherIndices | None, Visited | None]:
    """The step of a computed constant that looks up other positions than A's does; None where it is another thing.

    Second is the step from which on B computes another constant, or makes it; where B stores it, the one that makes
    A's.

    Parameters
    ----------
    a, b : Lifted
    change : ChangedWeight
        A constant of B that is not A's.
    """
    if change.partner.origin is not Origin.COMPUTED:
        return None, _made(_watched(b), change.constant.name) if change.constant.origin is Origin.COMPUTED else None
    if change.constant.origin is not Origin.COMPUTED:
        return _stored_rows(a, change)
    of_a, of_b = _watched(a), _watched(b)
    mine = parted(of_b.trail, change.constant.name, of_a.trail)
    theirs = parted(of_a.trail, change.partner.name, of_b.trail)
    if mine is None or theirs is None:
        return None, None
    # Integers that are scaled or counted with are numbers, and no positions.
    for step, peer in (pair for pair in peers_of(mine, theirs) if all(family(s.operator) == "gather" for s in pair)):
        pairs = list(zip(of_b.integers.get(step.name, ()), of_a.integers.get(peer.name, ()), strict=False))
        for given, wanted in pairs:
            if given.numel() == wanted.numel() and not torch.equal(given.reshape(-1), wanted.reshape(-1)):
                return OtherIndices(step, _maker(of_b.trail, step), _words(given), _words(wanted)), None
    return None, _first_other(mine.piece, theirs.piece, of_b.floats, of_a.floats)


def _first_other(
    mine: Sequence[Visited],
    theirs: Sequence[Visited],
    own: Mapping[int, torch.Tensor],
    meant: Mapping[int, torch.Tensor],
) -> Visited | None:
    """The first step of B behind all of A's values, but for rounding: they are as far apart there as at the end."""
    values = [meant[s.index].reshape(-1) for s in theirs if s.index in meant]
    if not values or mine[-1].index not in own:
        return None

    def apart(step: Visited) -> float:
        value = own[step.index].reshape(-1)
        gaps = (torch.linalg.vector_norm(value - v) for v in values if v.numel() == value.numel())
        return min(map(float, gaps), default=math.inf) / (float(torch.linalg.vector_norm(value)) or 1.0)

    least = _SHARE * apart(mine[-1])
    makers = {n: s for s in mine if s.index not in own or apart(s) >= least for n in s.outputs}
    behind = steps_to(mine[-1], makers, lambda _: False, len(mine)).values()
    computed = (s for s in behind if s.index in own and family(s.operator) not in MOVES)
    return min(computed, key=lambda s: s.index, default=None)


def _watched(graph: Lifted) -> _ValueTrail:
    watch = _ValueTrail(Trail(frozenset(), graph.kind == "torch"))
    with contextlib.suppress(CannotLift, DriftscopeError):
        graph.constant_values(observe=watch)
    return watch


def _stored_rows(a: Lifted, change: ChangedWeight) -> tuple[OtherIndices | None, Visited | None]:
    """A lookup that an exporter carried out: the stored rows are those of A's table, at other positions."""
    watch = _watched(a)
    reader = _made(watch, change.partner.name)
    if reader is None or family(reader.operator) != "gather":
        return None, reader
    indices, mine = watch.integers.get(reader.name, []), change.constant.value
    for table in (c for c in a.constants() if c.value.ndim == 2 and c.value.shape[-1] == mine.shape[-1]):
        # By a number that nearly always tells rows apart, then by the rows themselves.
        rows, held = table.value.to(torch.float64).cpu(), mine.reshape(-1, mine.shape[-1]).to(torch.float64).cpu()
        found = (rows[:, 0] - held[:, :1]).abs().argmin(1)
        if indices and torch.equal(rows[found], held) and not torch.equal(found, indices[0].reshape(-1)):
            return OtherIndices(None, _maker(watch.trail, reader), _words(found), _words(indices[0]), table.name), None
    return None, reader


def _made(watch: _ValueTrail, name: str) -> Visited | None:
    return next((s for s in watch.trail.steps if name in s.outputs), None)


def _maker(trail: Trail, step: Visited) -> Visited:
    """The step that makes the integers a step reads, itself where they are stored."""
    makers = {name: s for s in trail.steps for name in s.outputs}
    for name in step.inputs:
        maker = makers.get(name)
        if maker is not None and maker.sketches and maker.sketches[0] is not None and maker.sketches[0].plain:
            return maker
    return step


def _words(values: torch.Tensor) -> str:
    flat = values.reshape(-1)
    shown = ", ".join(str(v) for v in flat[:_SHOWN].tolist())
    return f"{shown}, ..." if flat.numel() > _SHOWN else shown


def computed_from(graph: Lifted, constants: Sequence[Constant]) -> str:
    """Name the one stored tensor that a program computes all of these constants from; empty where there is none.

    Parameters
    ----------
    graph : Lifted
    constants : sequence of Constant
        Of that program.
    """
    if any(c.origin is not Origin.COMPUTED for c in constants):
        return ""
    makers = {name: step for step in _watched(graph).trail.steps for name in step.outputs}
    left, names = [c.name for c in constants], set[str]()
    while left:
        name = left.pop()
        if name in names:
            continue
        names.add(name)
        if name in makers:
            names.add(makers[name].name)
            left += [*makers[name].inputs, *makers[name].stored]
    weights = (c for c in graph.constants() if c.origin is Origin.WEIGHT and c.value.is_floating_point())
    sources = [c.name for c in weights if not names.isdisjoint((c.name, *c.readers))]
    return sources[0] if len(sources) == 1 else ""


@dataclass(frozen=True, slots=True)
class OtherNumber:
    """Constants of B that hold one number, and the number of A's with which B is the same function."""

    constants: Sequence[Constant]
    held: float
    number: float


def other_number(
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    graph: Lifted | None,
    whole: Callable[[Mapping[str, torch.Tensor]], bool],
) -> OtherNumber | None:
    """Find the number that only B writes and that makes B the same function when it is one that only A writes.

    Parameters
    ----------
    constants : pair of sequences of Constant
        A's and B's.
    graph : Lifted or None
        B; where it computes a table from such a number, the table follows.
    whole : callable
        Whether B's outputs are A's with constants replaced.
    """
    ours, own = ({c.name: n for c in side if (n := uniform(c)) is not None} for side in constants)
    missing = [n for n in dict.fromkeys(ours.values()) if n not in own.values()][:_MOST]
    strange = [n for n in dict.fromkeys(own.values()) if n not in ours.values()][:_MOST]
    for held, number in itertools.product(strange, missing):
        concerned = [c for c in constants[1] if own.get(c.name) == held]
        if whole(_made_with(concerned, number, constants[1], graph)):
            return OtherNumber(concerned, held, number)
    return None


def _made_with(
    concerned: Sequence[Constant], number: float, constants: Sequence[Constant], graph: Lifted | None
) -> dict[str, torch.Tensor]:
    given = {c.name: torch.full(c.value.shape, number, dtype=torch.float64) for c in concerned}
    if graph is None or all(c.frontier for c in concerned):
        return given
    with contextlib.suppress(CannotLift, DriftscopeError, RuntimeError):
        made = {**graph.constant_values(replace=given), **given}
        return {c.name: made[c.name] for c in constants if c.frontier and c.name in made}
    return {}


@dataclass(frozen=True, slots=True)
class Lacking:
    """Small terms that one side adds and the other never writes, and the pair of programs without them.

    Parameters
    ----------
    terms : sequence of Constant
    side : str
        The one that adds them.
    evidence : Evidence
        The pair with zeros in their place.
    alone : float
        By how much they move the outputs of their side, relative: the most.
    """

    terms: Sequence[Constant]
    side: str
    evidence: Evidence
    alone: float


def lacking_terms(evidence: Evidence) -> Iterator[Lacking]:
    """Yield the small terms that only one side adds, all together and number by number: exporters take x + 1e-12 for x.

    Nothing where the other side adds one of its own, which may stand in its place.
    """
    a, b = evidence.a.graph, evidence.b.graph
    if a is None or b is None:
        return
    sides = as_stored(a.constants()), as_stored(b.constants())
    found = _small_terms(*sides), _small_terms(*reversed(sides))
    if bool(found[0]) == bool(found[1]):
        return
    k = 0 if found[0] else 1
    groups = list(found[k].values())
    graph, lifted = (a, b)[k], (evidence.a, evidence.b)[k]
    for some in ([c for group in groups for c in group], *(groups if len(groups) > 1 else ())):
        zeros = [Repair(c.name, torch.zeros(c.value.shape, dtype=torch.float64), "scalar", "0", c) for c in some]
        with contextlib.suppress(CannotLift, DriftscopeError, RuntimeError):
            rest = evidence.with_side("AB"[k], RepairedGraph(graph, zeros), evidence.without)
            moved = (rest.a, rest.b)[k].clean
            same = OutputPairing([(i, i) for i in range(len(moved))], [None] * len(moved))
            alone = max(
                (d.overall for d in measure(lifted.clean, moved, same, THRESHOLDS) if not within(d)), default=0.0
            )
            yield Lacking(some, "AB"[k], rest, alone)


def drifts_of(evidence: Evidence) -> Sequence[Ratio]:
    """How far apart the outputs of two programs are in float64; nothing where that is not known."""
    return [] if evidence.reconciled is None else evidence.reconciled.drifts


def next_to_nothing(drifts: Sequence[Ratio], before: Sequence[Ratio]) -> bool:
    """Whether outputs are the same, or next to nothing is left of how far apart they were.

    Deep programs round in float64 by more than the limit, and a number that is stored rounded is reconciled only
    where nothing else is other.
    """
    pairs = zip(drifts, before, strict=True)
    return all(now.value <= max(was.limit, min(_DEEP, was.value * _LEFT)) for now, was in pairs)


def _small_terms(own: Sequence[Constant], others: Sequence[Constant]) -> dict[float, list[Constant]]:
    """The small terms that a program adds and the other never writes, by their numbers."""
    written = [n for c in others if (n := uniform(c)) is not None]
    terms: dict[float, list[Constant]] = {}
    for constant in own:
        number = uniform(constant) if plain_name(constant.where.operator or "") == "add" else None
        if number and abs(number) <= _SMALL and not any(math.isclose(number, n, rel_tol=1e-6) for n in written):
            terms.setdefault(number, []).append(constant)
    return terms

"""Lifted drifts: how far the outputs of two lifted programs lie apart, each held against its own limit; or finer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.measuring.spread import Ratio, lifted_drift
from driftscope.comparison.thresholds import Thresholds
from driftscope.lift.domains import HeldAt, held_at_ends
from driftscope.lift.finer import evaluate as finer
from driftscope.lift.finer.ends import Lost
from driftscope.lift.finer.evaluate import Loss
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.sides import is_tensor
from driftscope.lift.steps import Constant, Lifted, LiftedOutput, Origin


@dataclass(frozen=True, slots=True)
class OutputPairing:
    """Which lifted output of B is judged against which of A, with the float64 floor of both sides there.

    ``indices`` are pairs (index in A's outputs, index in B's); ``floor64`` has one noise sample (or None) per pair.
    """

    indices: Sequence[tuple[int, int]]
    floor64: Sequence[torch.Tensor | None]


def within(drift: Ratio) -> bool:
    """Whether a lifted drift is within its own limit."""
    return drift.value <= drift.limit


#: A limit above this hides more than rounded constants do.
WEAK = 1e-11


def is_disputed(drift: Ratio) -> bool:
    """Whether float64 does not decide: a drift beyond its limit, or within one that hides rounded constants too."""
    return bool(drift.value) and (drift.limit > WEAK or drift.value > drift.limit)


def measure(
    a: Sequence[LiftedOutput], b: Sequence[LiftedOutput], pairing: OutputPairing, thresholds: Thresholds
) -> list[Ratio]:
    """Return delta64 per pair; pairs whose shapes differ or that are not floats get ratio 0 (judged elsewhere)."""
    found = []
    for (i, j), floor64 in zip(pairing.indices, pairing.floor64, strict=True):
        x, y = a[i].value, b[j].value
        if x is None or y is None or x.shape != y.shape or not _is_float(x) or not _is_float(y):
            found.append(Ratio(0.0, limit=thresholds.lifted))
            continue
        found.append(
            lifted_drift(x, y.to(x.device), floor64, relative=thresholds.lifted, multiple=thresholds.lifted_floor64)
        )
    return found


@dataclass(slots=True)
class Reconciled:
    """Two lifted programs with their constants reconciled.

    Parameters
    ----------
    outputs_a, outputs_b : list of LiftedOutput
        Lifted outputs with the repairs in force.
    plain_a, plain_b : list of LiftedOutput
        Lifted outputs with every constant as stored.
    repairs_a, repairs_b : list of Repair
    drifts : list of Ratio
        Per pair: delta64 and its limit after the repairs.
    before : list of Ratio
        The same before them.
    finer : dict
        By pair: what an evaluation finer than float64 gave, where float64 could not decide.
    losses : pair of Loss or None
        Of each side: where its formula loses most digits, known from that evaluation.
    lost : dict
        By pair: of each side, where float64 leaves its range on the way to that output, known from that evaluation.
    held : pair of sequences of HeldAt
        Of each side: steps whose arguments were taken as the ends of their domains.
    inner_b : list of Repair
        Of constants that only constant subgraphs of B read.
    """

    outputs_a: list[LiftedOutput]
    outputs_b: list[LiftedOutput]
    plain_a: list[LiftedOutput]
    plain_b: list[LiftedOutput]
    drifts: list[Ratio]
    before: list[Ratio]
    repairs_a: list[Repair] = field(default_factory=list)
    repairs_b: list[Repair] = field(default_factory=list)
    finer: dict[int, dict[str, float]] = field(default_factory=dict)
    losses: tuple[Loss | None, Loss | None] = (None, None)
    lost: dict[int, tuple[Lost | None, Lost | None]] = field(default_factory=dict)
    held: tuple[Sequence[HeldAt], Sequence[HeldAt]] = ((), ())
    inner_b: list[Repair] = field(default_factory=list)

    @property
    def same_function(self) -> bool:
        """Whether every pair of outputs is certified."""
        return all(within(d) for d in self.drifts)


# A drift above this is seldom float64's own rounding (all of `log(1 + x)` at 1e-38 is): less work is spent on the
# question.
SMALL = 1e-6
_LITTLE = 100_000


def decide_finer(result: Reconciled, a: Lifted, b: Lifted, pairing: OutputPairing, thresholds: Thresholds) -> None:
    """Where float64 cannot decide, evaluate both programs finer: rounding shrinks, another function stays."""
    disputed = [k for k, d in enumerate(result.drifts) if is_disputed(d)]
    if not disputed:
        return
    near = any(d.limit > WEAK or d.value < SMALL for d in (result.drifts[k] for k in disputed))
    work = finer.MOST if near else _LITTLE
    fine_a = finer.evaluate(a, result.repairs_a, work, result.outputs_a)
    fine_b = finer.evaluate(b, result.repairs_b, work, result.outputs_b) if fine_a else []
    drifts = list(result.drifts)
    known = (a, result.repairs_a, fine_a), (b, result.repairs_b, fine_b)
    chaotic = any(d.limit > thresholds.chaotic for d in (*result.before, *drifts))
    floor64 = floors_of_tables(known, pairing, chaotic, work)
    for k in disputed:
        i, j = pairing.indices[k]
        one, two = (fine[n] if n < len(fine) else None for fine, n in ((fine_a, i), (fine_b, j)))
        if one is None or two is None or max(one.bound, two.bound) > finer.PROVEN:
            continue
        # A literal is off by 1e-16 where it stands, and a few of those add up on the way; so is every element of a
        # table that a program computes, and where these cancel nothing else may be left.
        drift = lifted_drift(one.value, two.value, floor64[k], relative=10.0 * thresholds.lifted, multiple=_TABLES)
        result.finer[k] = {
            "bits": max(one.bits, two.bits), "float64": drifts[k].value, "finer": drift.value,
            "bound": max(one.bound, two.bound),
        }  # fmt: skip
        drifts[k] = drift
        result.losses = (one.loss, two.loss)
        result.lost[k] = (one.lost, two.lost)
    result.drifts = drifts


def decide_at_ends(result: Reconciled, a: Lifted, b: Lifted, pairing: OutputPairing, thresholds: Thresholds) -> None:
    """Where float64's rounding carries an argument across the end of a domain, take it as the end on both sides."""
    found_a, found_b = (
        held_at_ends(g, {r.name: r.value for r in repairs})
        for g, repairs in ((a, result.repairs_a), (b, result.repairs_b))
    )
    if found_a is None and found_b is None:
        return
    (outputs_a, held_a), (outputs_b, held_b) = found_a or (result.outputs_a, []), found_b or (result.outputs_b, [])
    drifts = measure(outputs_a, outputs_b, pairing, thresholds)
    if (held_a or held_b) and all(within(d) for d in drifts):
        result.outputs_a, result.outputs_b, result.drifts, result.held = outputs_a, outputs_b, drifts, (held_a, held_b)


# Rounding of float64 that tables make of an output, in floors.
_TABLES = 10.0


_Evaluated = tuple[Lifted, Sequence[Repair], Sequence[finer.Fine | None]]


def floors_of_tables(
    sides: tuple[_Evaluated, _Evaluated], pairing: OutputPairing, chaotic: bool, work: int
) -> list[torch.Tensor | None]:
    """What float64's rounding of the tables that programs compute does to their outputs, all else evaluated finer.

    Parameters
    ----------
    sides : pair of (Lifted, sequence of Repair, sequence of Fine or None)
        Each with its repairs, and its outputs evaluated finer with these.
    pairing : OutputPairing
    chaotic : bool
        Whether the noise of all float64 rounding, which is taken for it, hides everything: then the tables are moved.
    work : int
        As for :func:`~driftscope.lift.finer.evaluate.evaluate`.

    Returns
    -------
    list of Tensor or None
        Per pair; None where neither computes a table.
    """
    if not any(map(_is_table, (c for graph, _, _ in sides for c in graph.constants()))):
        return [None] * len(pairing.indices)
    if not chaotic:
        return list(pairing.floor64)
    one, other = (_moved(*side, work, seed) for seed, side in enumerate(sides))
    pairs = [(one[i] if i < len(one) else None, other[j] if j < len(other) else None) for i, j in pairing.indices]
    known = zip(pairs, pairing.floor64, strict=True)
    return [floor if x is None or y is None or x.shape != y.shape else torch.hypot(x, y) for (x, y), floor in known]


def _moved(
    graph: Lifted, repairs: Sequence[Repair], fine: Sequence[finer.Fine | None], work: int, seed: int
) -> list[torch.Tensor | None]:
    """By how much the outputs move when every element of every table does, by up to half an ulp."""
    values, generator = graph.constant_values(replace={r.name: r.value for r in repairs}), torch.Generator()
    generator.manual_seed(seed)
    tables = list(repairs)
    for c in filter(_is_table, graph.constants()):
        if c.name in values:
            by = torch.rand(values[c.name].shape, generator=generator, dtype=torch.float64) * 2.0 - 1.0
            tables.append(Repair(c.name, values[c.name] * (1.0 + by * 2.0**-53), "table", "", c))
    again = finer.evaluate(graph, tables, work) if len(tables) > len(repairs) else fine
    return [None if x is None or y is None else y.value - x.value for x, y in zip(fine, again, strict=False)]


def _is_table(constant: Constant) -> bool:
    return constant.origin is Origin.COMPUTED and constant.frontier and is_tensor(constant)


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex

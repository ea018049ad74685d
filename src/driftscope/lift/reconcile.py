"""Make constants that are the same number, rounded, the same number again; then certify the whole program.

Order (DESIGN section 2, step 2): nothing if the lifted programs agree as they stand; else exact matches of
scalars, weights, tables and folds, on whichever side stores the narrower one; else the few scalars left are solved
for inside half an ulp. What counts in the end is one number, the lifted drift of the *whole* of B with the
repaired constants: no repair is believed on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.spread import Ratio, lifted_drift
from driftscope.comparison.thresholds import THRESHOLDS, Thresholds
from driftscope.lift import folds, matching
from driftscope.lift.matching import Repair, WeightIndex
from driftscope.lift.scaling import match_scaled
from driftscope.lift.solving import solve_scalars
from driftscope.lift.steps import Constant, Lifted, LiftedOutput


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which lifted output of B is judged against which of A, with A's float64 floor there.

    ``indices`` are pairs (index in A's outputs, index in B's); ``floor64`` has one noise sample (or None) per pair.
    """

    indices: Sequence[tuple[int, int]]
    floor64: Sequence[torch.Tensor | None]


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
    """

    outputs_a: list[LiftedOutput]
    outputs_b: list[LiftedOutput]
    plain_a: list[LiftedOutput]
    plain_b: list[LiftedOutput]
    drifts: list[Ratio]
    before: list[Ratio]
    repairs_a: list[Repair] = field(default_factory=list)
    repairs_b: list[Repair] = field(default_factory=list)

    @property
    def same_function(self) -> bool:
        """Whether every pair of outputs is certified."""
        return all(within(d) for d in self.drifts)


def within(drift: Ratio) -> bool:
    """Whether a lifted drift is within its own limit."""
    return drift.value <= drift.limit


def measure(
    a: Sequence[LiftedOutput], b: Sequence[LiftedOutput], pairing: Pairing, thresholds: Thresholds
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


def _is_float(x: torch.Tensor) -> bool:
    return x.dtype.is_floating_point or x.dtype.is_complex


def reconcile(
    a: Lifted,
    b: Lifted,
    plain: tuple[list[LiftedOutput], list[LiftedOutput]],
    pairing: Pairing,
    thresholds: Thresholds = THRESHOLDS,
) -> Reconciled:
    """Reconcile the constants of two lifted programs and certify, or not, that they are the same function.

    Parameters
    ----------
    a, b : Lifted
    plain : pair of lists of LiftedOutput
        The outputs of ``a.run()`` and ``b.run()``, constants as stored.
    pairing : Pairing
    thresholds : Thresholds

    Returns
    -------
    Reconciled
        ``same_function`` says whether it succeeded. When it did not, the repairs that are exact matches stay in
        force, so that what is left of the drift is not due to rounded constants.
    """
    plain_a, plain_b = plain
    before = measure(plain_a, plain_b, pairing, thresholds)
    result = Reconciled(plain_a, plain_b, plain_a, plain_b, before, before)
    if result.same_function:
        return result
    consts_a, consts_b = matching.as_stored(a.constants()), matching.as_stored(b.constants())
    repairs_a = _exact_matches(consts_a, consts_b, b, thresholds)
    # A number that A itself stores rounded is traced first, so that B is traced to the same exact number.
    repairs_b = _exact_matches(consts_b, _with_exact_scalars(consts_a, repairs_a), a, thresholds)
    repairs_a = _one_side_only(repairs_a, repairs_b)
    if repairs_a:
        result.repairs_a = repairs_a
        result.outputs_a = a.run(replace=_values(repairs_a))
    if repairs_b:
        result.repairs_b = repairs_b
        result.outputs_b = b.run(replace=_values(repairs_b))
    result.drifts = measure(result.outputs_a, result.outputs_b, pairing, thresholds)
    if not result.same_function:
        _refold(result, a, b, consts_a, consts_b, pairing, thresholds)
    if not result.same_function:
        _solve(result, b, consts_b, consts_a, pairing, thresholds)
    return result


def _values(repairs: Sequence[Repair]) -> Mapping[str, torch.Tensor]:
    return {r.name: r.value for r in repairs}


def _exact_matches(
    own: Sequence[Constant], others: Sequence[Constant], other_graph: Lifted, thresholds: Thresholds
) -> list[Repair]:
    """Every constant of ``own`` that stores, rounded, a constant of ``others``."""
    pool = matching.numbers(others)
    index = WeightIndex(others)
    repairs: list[Repair] = []
    left: list[Constant] = []
    for constant in own:
        if not constant.frontier or not constant.value.dtype.is_floating_point:
            continue
        candidates = matching.scalar_candidates(constant, pool)
        if len(candidates) == 1 or (candidates and not candidates[0].derived):
            value = torch.full(constant.value.shape, candidates[0].value, dtype=torch.float64)
            repairs.append(Repair(constant.name, value, "scalar", candidates[0].words, constant))
        elif constant.value.numel() > 1 and matching.uniform(constant) is None:
            if index.holds(constant.value):
                continue
            found = _match_tensor(constant, index, thresholds)
            if found is None:
                left.append(constant)
            elif not torch.equal(found.value, constant.value.to(torch.float64)):
                repairs.append(found)
    if left:
        scaled = [match_scaled(c, index, pool, thresholds.constant_ulps) for c in left]
        repairs += [r for r in scaled if r is not None]
        left = [c for c, r in zip(left, scaled, strict=True) if r is None]
    if left:
        repairs += folds.match_folds(left, other_graph, others, thresholds.constant_ulps)
    return repairs


def _match_tensor(constant: Constant, index: WeightIndex, thresholds: Thresholds) -> Repair | None:
    return (
        matching.match_weight(constant, index)
        or matching.match_table(constant, index, thresholds.constant_ulps)
        or matching.match_joined(constant, index)
    )


def _with_exact_scalars(constants: Sequence[Constant], repairs: Sequence[Repair]) -> list[Constant]:
    exact = {r.name: r.value for r in repairs if r.kind == "scalar"}
    return [dataclasses.replace(c, value=exact[c.name]) if c.name in exact else c for c in constants]


def _one_side_only(repairs_a: list[Repair], repairs_b: list[Repair]) -> list[Repair]:
    """Drop repairs of tensors of A to which B was repaired: both at once would exchange the values."""
    sources = {name for repair in repairs_b for name in repair.sources}
    return [r for r in repairs_a if r.name not in sources]


def _refold(
    result: Reconciled,
    a: Lifted,
    b: Lifted,
    consts_a: Sequence[Constant],
    consts_b: Sequence[Constant],
    pairing: Pairing,
    thresholds: Thresholds,
) -> None:
    """Try folds for weights that look untouched: in a narrow format a factor close to 1 changes no bit of them."""
    settled = {r.name for r in result.repairs_b}
    held = [c for c in consts_b if c.frontier and c.name not in settled and _is_narrow_tensor(c)]
    refolded = folds.match_folds(held, a, consts_a, thresholds.constant_ulps) if held else []
    refolded = [r for r in refolded if not torch.equal(r.value, r.constant.value.to(torch.float64))]
    _keep_if_certified(result, b, refolded, pairing, thresholds)


def _keep_if_certified(
    result: Reconciled, b: Lifted, proposed: Sequence[Repair], pairing: Pairing, thresholds: Thresholds
) -> None:
    """Run the whole of B with further repairs; keep them only when that makes it A's function."""
    if not proposed:
        return
    names = {r.name for r in proposed}
    repairs = [*(r for r in result.repairs_b if r.name not in names), *proposed]
    outputs_b = b.run(replace=_values(repairs))
    drifts = measure(result.outputs_a, outputs_b, pairing, thresholds)
    if all(within(d) for d in drifts):
        result.repairs_b, result.outputs_b, result.drifts = repairs, outputs_b, drifts


def _is_narrow_tensor(constant: Constant) -> bool:
    return constant.value.numel() > 1 and constant.value.dtype in (torch.float16, torch.bfloat16)


def _solve(
    result: Reconciled,
    b: Lifted,
    consts_b: Sequence[Constant],
    consts_a: Sequence[Constant],
    pairing: Pairing,
    thresholds: Thresholds,
) -> None:
    """Look for the scalars of B, each within half an ulp of what is stored, that make B equal to A."""
    repaired = {r.name: r.value for r in result.repairs_b}
    solved = solve_scalars(b, consts_b, consts_a, repaired, result.outputs_a, result.outputs_b, pairing.indices)
    _keep_if_certified(result, b, solved, pairing, thresholds)

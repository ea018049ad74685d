"""Make constants that are the same number, rounded, the same number again; then certify the whole program.

Order (DESIGN section 2, step 2): nothing if the lifted programs agree as they stand; else exact matches of scalars
and weights, on whichever side stores the narrower one; else constant subgraphs, in their own floors, on either side;
else affine pieces that were folded; else the few scalars left are solved for inside half an ulp, and tensors that no
formula gives, if they hold on other inputs too; else shortcuts that no format shows. What counts in the end is one
number, the lifted drift of the *whole* of B with the repaired constants: no repair is believed on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS, Thresholds
from driftscope.lift.kept import look
from driftscope.lift.readings import readings_kept
from driftscope.lift.reconcile import folds, matching, subgraphs, uses
from driftscope.lift.reconcile.drifts import (
    SMALL,
    OutputPairing,
    Reconciled,
    decide_at_ends,
    decide_finer,
    measure,
    within,
)
from driftscope.lift.reconcile.exact import exact_repairs
from driftscope.lift.reconcile.fitting import proposals
from driftscope.lift.reconcile.matching import Repair, merged, moves
from driftscope.lift.reconcile.scalars import factors_of
from driftscope.lift.reconcile.sides import ReconciledSide, is_tensor
from driftscope.lift.reconcile.solving import ConstantTables, Residual, solve_scalars
from driftscope.lift.steps import Lifted, LiftedOutput, Origin


@readings_kept()
def reconcile(
    a: Lifted,
    b: Lifted,
    plain: tuple[list[LiftedOutput], list[LiftedOutput]],
    pairing: OutputPairing,
    thresholds: Thresholds = THRESHOLDS,
) -> Reconciled:
    """Reconcile the constants of two lifted programs and certify, or not, that they are the same function.

    Parameters
    ----------
    a, b : Lifted
    plain : pair of lists of LiftedOutput
        The outputs of ``a.run()`` and ``b.run()``, constants as stored.
    pairing : OutputPairing
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
    for weak in (result.same_function, False):  # a weak limit may hide what rounded constants make: balls do not
        if not result.same_function:
            attempt = _Attempt(a, b, result, pairing, thresholds)
            for step in _STEPS:
                step(attempt)
                if result.same_function:
                    break
        decide_finer(result, a, b, pairing, thresholds)
        if not weak or result.same_function:
            break
    if not result.same_function or any(d.value and d.limit > thresholds.chaotic for d in result.drifts):
        decide_at_ends(result, a, b, pairing, thresholds)
    return result


class _Attempt:
    """One attempt at making two programs the same function, step by step."""

    def __init__(self, a: Lifted, b: Lifted, result: Reconciled, pairing: OutputPairing, thresholds: Thresholds):
        self.a = ReconciledSide(a, result.plain_a)
        self.b = ReconciledSide(b, result.plain_b, like=self.a)
        self.result, self.pairing, self.thresholds = result, pairing, thresholds
        # Rounded constants seldom make as much: the place will be looked for, by running this again.
        self.far = any(d.value > SMALL for d in result.before)

    def take(self, repairs_a: Sequence[Repair], repairs_b: Sequence[Repair]) -> None:
        """Put further repairs in force, in the place of earlier ones of the same constants."""
        result = self.result
        moved_a, moved_b = moves(result.repairs_a, repairs_a), moves(result.repairs_b, repairs_b)
        result.repairs_a = merged(result.repairs_a, repairs_a)
        result.repairs_b = merged(result.repairs_b, repairs_b)
        self._run(moved_a, moved_b)
        # A number that is what is stored, but for the last bits of float64, seldom needs a run of its own.
        if not result.same_function and (moved_a, moved_b) != (bool(repairs_a), bool(repairs_b)):
            self._run(bool(repairs_a) and not moved_a, bool(repairs_b) and not moved_b)

    def _run(self, run_a: bool, run_b: bool) -> None:
        """Evaluate one side or both with the repairs in force, and measure how far they are apart then."""
        result = self.result
        if run_a:
            result.outputs_a = look(self.a.graph, replace=_values(result.repairs_a), keep=self.far)
        if run_b:
            result.outputs_b = look(self.b.graph, replace=_values(result.repairs_b), keep=self.far)
        if run_a or run_b:
            result.drifts = measure(result.outputs_a, result.outputs_b, self.pairing, self.thresholds)

    def are_same(self, a: Sequence[LiftedOutput], b: Sequence[LiftedOutput]) -> bool:
        """Whether two runs are of one function."""
        return all(map(within, measure(a, b, self.pairing, self.thresholds)))

    def take_if_certified(self, repairs_a: Sequence[Repair], repairs_b: Sequence[Repair]) -> None:
        """Put further repairs in force only when that makes both the same function; a limit of chaos tells nothing."""
        chaotic = self.thresholds.chaotic
        self._take_if(lambda _, after: all(within(d) and d.limit <= chaotic for d in after), repairs_a, repairs_b)

    def either(self) -> Iterator[_Turn]:
        """Go through B and then A, until they are one function: a side, the other, its repairs, and how to add some."""
        result = self.result
        if not result.same_function:
            yield self.b, self.a, result.repairs_b, lambda found: self.take_if_certified([], found)
        if not result.same_function:
            yield self.a, self.b, result.repairs_a, lambda found: self.take_if_certified(found, [])

    def take_if_closer(self, repairs_a: Sequence[Repair], repairs_b: Sequence[Repair]) -> None:
        """Put further repairs in force unless they carry the programs apart: then they were no repairs."""
        self._take_if(lambda before, after: _furthest(after) <= _APART * _furthest(before), repairs_a, repairs_b)

    def _take_if(
        self, wanted: Callable[[list[Ratio], list[Ratio]], bool], repairs_a: Sequence[Repair],
        repairs_b: Sequence[Repair],
    ) -> None:  # fmt: skip
        if not repairs_a and not repairs_b:
            return
        kept = dataclasses.replace(self.result)
        self.take(repairs_a, repairs_b)
        if not wanted(kept.drifts, self.result.drifts):
            for each in dataclasses.fields(kept):
                setattr(self.result, each.name, getattr(kept, each.name))


_Turn = tuple[ReconciledSide, ReconciledSide, list[Repair], Callable[[Sequence[Repair]], None]]
# Of two roundings that happened to cancel, mending one alone may show the other.
_APART = 2.0


def _furthest(drifts: Sequence[Ratio]) -> float:
    return max((d.value / d.limit if d.limit else d.value for d in drifts), default=0.0)


def _values(repairs: Sequence[Repair]) -> Mapping[str, torch.Tensor]:
    return {r.name: r.value for r in repairs}


# --- exact matches ---------------------------------------------------------------------------------------------


def _exact(attempt: _Attempt) -> None:
    """Every constant of one side that stores, rounded, a constant of the other."""
    a, b, ulps = attempt.a, attempt.b, attempt.thresholds.constant_ulps
    repairs_a, repairs_b = exact_repairs(a, b)
    attempt.result.inner_b = b.inner
    # Where all that is left of B is folded, one run nearly always shows both.
    if folded := folds.all_folded(b.left, a, ulps):
        attempt.take_if_certified(repairs_a, [*repairs_b, *folded])
    if not attempt.result.same_function:
        attempt.take(repairs_a, repairs_b)


# --- constant subgraphs ----------------------------------------------------------------------------------------


def _constant_subgraphs(attempt: _Attempt) -> None:
    """Constant subgraphs in float64, on the side that computes them and on the side that stores their results."""
    limit = attempt.thresholds.large
    both = (attempt.a, attempt.b)
    sides = both, (attempt.result.repairs_a, attempt.result.repairs_b)

    def given(k: int) -> Mapping[str, torch.Tensor]:
        return _values([*(r for r in sides[1][k] if r.constant.origin is Origin.WEIGHT), *both[k].inner])

    found = [subgraphs.evaluate(both[k].graph, given(k), k, both[k].own(both[1 - k])) for k in (0, 1)]

    def computes(k: int) -> list[Repair]:
        own = [*both[k].left, *(r.constant for r in sides[1][k])]
        return subgraphs.computed_repairs(own, found[k], limit)

    # What both sides natively have in common may stay as it is, if nothing that it is computed from is repaired.
    computed = [computes(0), computes(1)]
    remade = [subgraphs.remade(both[k].inner, computed[1 - k], found[1 - k], limit) for k in (0, 1)]
    for k in (k for k in (0, 1) if remade[k]):
        both[k].inner[:] = merged(both[k].inner, remade[k])
        found[k].meant = subgraphs.computed(both[k].graph, given(k), asked=found[k].exact)
        computed[k] = computes(k)
    shared = [side.shared(repairs) if any(computed) else [] for side, repairs in zip(*sides, strict=True)]
    computed = [
        [*c, *subgraphs.computed_repairs(s, own, limit)] for c, s, own in zip(computed, shared, found, strict=True)
    ]
    factors = [factors_of(side.constants, repairs) for side, repairs in zip(*sides, strict=True)]
    # Where both have folded something, what B computes is taken for what A computes, and not the other way round.
    paired = subgraphs.paired_repairs(computed[1], found[1], found[0], limit, factors[0])
    computed[1] = merged(computed[1], paired)
    tensors: list[list[Repair]] = []
    for k, side in enumerate(both):
        side.computed = found[k].meant
        # An exact match to a native value that is replaced now has to be made anew.
        again = subgraphs.made_of(sides[1][k], computed[1 - k])
        held = [*side.left, *again, *side.holding(shared[1 - k])]
        own = found[k] if k or not paired else None
        tensors.append([*computed[k], *subgraphs.stored_repairs(held, found[1 - k], limit, factors[1 - k], own)])
        names = {r.name for r in tensors[-1]}
        side.left = [c for c in side.left if c.name not in names and not c.value.is_complex()]
    single = [[c for c in side.constants if not is_tensor(c)] for side in both]
    numbers = [
        [*subgraphs.computed_repairs(c, own, limit), *subgraphs.stored_repairs(c, other, limit, own=own)]
        for c, own, other in zip(single, found, reversed(found), strict=True)
    ]
    attempt.take(*tensors)
    if not attempt.result.same_function:
        # Single numbers match by chance more easily than tables; but others may still be in the way of a proof.
        attempt.take_if_closer(*numbers)
    if not attempt.result.same_function and not any(shared):
        # Bits in another order may be another table: natively, one of i * (j / n) is one of j * (i / n), transposed.
        alike = zip(*sides, found, strict=True)
        attempt.take_if_certified(*(subgraphs.computed_repairs(s.shared(r), own, limit) for s, r, own in alike))


def _affine(attempt: _Attempt) -> None:
    """Stored tensors that are another program's affine piece, folded."""
    a, b, result, ulps = attempt.a, attempt.b, attempt.result, attempt.thresholds.constant_ulps
    repairs_b = folds.match_folds(b.left, a, ulps, result.repairs_a, joined=True, keep=attempt.far)
    sources = {name for repair in repairs_b for name in repair.sources}
    left = [c for c in a.left if c.name not in sources]
    repairs_a = folds.match_folds(left, b, ulps, result.repairs_b, joined=True, keep=attempt.far)
    # A tensor of B that is a fold of A's is no original: both at once would exchange the values.
    mended = {r.name for r in repairs_b}
    attempt.take_if_closer([r for r in repairs_a if mended.isdisjoint(r.sources)], repairs_b)


def _refold(attempt: _Attempt) -> None:
    """Try folds for weights that look untouched: in a narrow format a factor close to 1 changes no bit of them."""
    ulps = attempt.thresholds.constant_ulps
    for side, other, repairs, put in attempt.either():
        settled = {r.name for r in repairs}
        held = [c for c in side.constants if c.frontier and c.name not in settled and matching.is_narrow_tensor(c)]
        refolded = folds.match_folds(held, other, ulps)
        put([r for r in refolded if not torch.equal(r.value, r.constant.value.to(torch.float64))])


def _parts(attempt: _Attempt) -> None:
    """Try folds for what a side computes from tensors that are folded themselves, and for those that it subtracts."""
    result, ulps = attempt.result, attempt.thresholds.constant_ulps
    for side, other, repairs, put in attempt.either():
        parts = [*side.left, *side.inner_left, *(r.constant for r in repairs if r.partner == subgraphs.OWN)]
        theirs = result.repairs_a if side is attempt.b else result.repairs_b
        put(folds.match_parts(parts, other, ulps, theirs))


def _solve(attempt: _Attempt) -> None:
    """Look for the scalars of one side, each within half an ulp of what is stored, that make it equal to the other."""
    result, pairs = attempt.result, attempt.pairing.indices
    for side, other, repairs, put in attempt.either():
        own, wanted = result.outputs_b, Residual(result.outputs_a, pairs)
        if side is attempt.a:
            own, wanted = result.outputs_a, Residual(result.outputs_b, [(j, i) for i, j in pairs])
        made = ConstantTables.of(side, repairs)
        put(solve_scalars(side.constants, other.constants, _values(repairs), own, wanted, made, side.single))


def _shared(attempt: _Attempt) -> None:
    """Try other numbers for some of the steps that read one stored number."""
    for side, other, repairs, put in attempt.either():
        if side.graph.kind != "onnx":
            continue
        for proposal in uses.shared_numbers(side.graph, side.constants, other.constants, repairs):
            put([r for r in proposal if not attempt.result.same_function])


def _written_short(attempt: _Attempt) -> None:
    """Take numbers that were written with fewer digits for the other program's, on one side or both."""
    for side, other, _repairs, put in attempt.either():
        put(uses.written_short(side, other.constants))


def _shortcuts(attempt: _Attempt) -> None:
    """Let a kernel's formula go on where the kernel leaves it because no format shows the difference."""
    for side, _other, _repairs, put in attempt.either():
        put(uses.without_thresholds(side))


def _divisors(attempt: _Attempt) -> None:
    """Give both sides the divisors of remainders that they natively read: half an ulp of one moves everything."""
    a, b, result = attempt.a, attempt.b, attempt.result
    for formats in ((torch.float32,), (*a.narrow, *b.narrow)) if a.single and b.single else ():
        if formats and not result.same_function:
            found = (uses.divisors_read_in(formats, s, r) for s, r in ((a, result.repairs_a), (b, result.repairs_b)))
            attempt.take_if_certified(*found)


def _decimals(attempt: _Attempt) -> None:
    """Take numbers that are short decimals for these, on both sides."""
    sides = (attempt.a, attempt.result.repairs_a), (attempt.b, attempt.result.repairs_b)
    attempt.take_if_certified(*(uses.decimals(side, repairs) for side, repairs in sides))


def _fit(attempt: _Attempt) -> None:
    """Solve for stored tensors that no formula gives."""
    result, sides = attempt.result, (attempt.a, attempt.b)
    known, far = (result.repairs_a, result.repairs_b), max((d.value for d in result.drifts), default=0.0)
    pairs, ulps = attempt.pairing.indices, 2.0 * attempt.thresholds.constant_ulps
    for proposal in proposals(sides, known, far, pairs, attempt.are_same, ulps):
        attempt.take_if_certified(*proposal)
        if result.same_function:
            break


_STEPS: tuple[Callable[[_Attempt], None], ...] = (
    _exact, _written_short, _constant_subgraphs, _affine, _parts, _refold, _solve, _fit, _shared, _shortcuts,
    _divisors, _decimals,
)  # fmt: skip

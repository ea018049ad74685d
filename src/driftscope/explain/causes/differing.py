"""Findings about two programs that are not the same function: weights first, then the pieces that part, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.causes import missing, telling
from driftscope.explain.causes.computed import (
    OtherNumber,
    computed_from,
    computed_otherwise,
    drifts_of,
    lacking_terms,
    next_to_nothing,
    other_number,
)
from driftscope.explain.causes.edits.of_reference import exact, roles_exchanged, with_edits_of_a
from driftscope.explain.causes.edits.trying import PieceTrials
from driftscope.explain.causes.fold_findings import fold_ends, fold_finding
from driftscope.explain.causes.folded_sources import FoldSide, chains_of, other_fold
from driftscope.explain.causes.pieces import cause_of
from driftscope.explain.causes.rewiring import Reason, where_of
from driftscope.explain.causes.telling import Telling, ambiguous, cause_step, of_one_kind, optimiser_finding
from driftscope.explain.causes.weights import ChangedWeight, Matched, exchanged_names, match_weights, misread
from driftscope.explain.locate.divergence import piece_of, unsound_after
from driftscope.explain.locate.fingerprints import Visited, sketch
from driftscope.explain.locate.locating import Search, TriedPlace
from driftscope.lift.choices import exact_choices
from driftscope.lift.evidence import Evidence
from driftscope.lift.outline import Chains
from driftscope.lift.reconcile.drifts import OutputPairing, measure
from driftscope.lift.reconcile.folds import folded_values
from driftscope.lift.reconcile.matching import as_stored, uniform
from driftscope.lift.reconcile.sides import RepairedGraph
from driftscope.lift.reconcile.solving import Residual
from driftscope.lift.reconcile.subgraphs import OWN
from driftscope.lift.steps import Lifted, LiftedOutput, Origin
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict

# Outputs named in a finding, and changed weights tried one by one.
_PATHS = 3
_MOST_ALONE = 6
# Changed tensors up to which each is told by itself.
_MOST_TOLD = 12
# A place that parts by this much less than the first may be a number that is stored rounded.
_BESIDE = 1e-3
# What is left once choices are made in float64, as a share, below which the rest came of these.
_LESS = 0.5


def function_findings(evidence: Evidence, outputs: Sequence[OutputRecord], explain: bool) -> list[Finding]:
    """Say where two programs that are not the same function part, and why."""
    guilty = [o for o in outputs if o.verdict is Verdict.DIFFERENT and o.lifted is not None]
    guilty = [o for o in guilty if o.lifted_threshold is not None and not _within(o)]
    if not guilty:
        return []
    paths = ", ".join(o.path for o in guilty[:_PATHS])
    numbers = {o.path: {"lifted": o.lifted_size, "limit": o.lifted_threshold, "floors": o.floors} for o in guilty}
    if evidence.optimized is not None and not evidence.optimized.same_function and _file_agrees(evidence):
        return [optimiser_finding(paths, guilty, numbers)]
    found: list[Finding] = []
    if explain and evidence.a.graph is not None and evidence.b.graph is not None and evidence.reconciled is not None:
        try:
            found = _mended(evidence, guilty[0], numbers)
        except CannotLift:  # an operator that only an observed run takes apart
            found = []
    return found or [Finding("N001", guilty[0].reason, where=Where(output=paths), evidence=numbers)]


def _mended(evidence: Evidence, output: OutputRecord, numbers: Mapping[str, Any]) -> list[Finding]:
    """What differs; what is known to differ besides, and small terms that one side leaves out, are taken away."""
    if (undone := evidence.undone) is not None:
        left = max((d.overall for d in drifts_of(undone)), default=math.nan)
        came_of_it = left < _LESS * (output.lifted_size or 0.0)
        told: Mapping[str, Any] = {**numbers, "without": undone.without, "left": left}
        if undone.exact and not came_of_it:
            undone, told, left = replace(undone, without=""), numbers, output.lifted_size or 0.0
        with exact_choices(undone.exact):
            found = _mended(undone, replace(output, lifted=left, lifted_whole=None), told)
        if found and (exact(found) or (undone.exact and came_of_it)):
            return found
    lacking = None  # all terms together, which come first
    for less in lacking_terms(evidence):
        lacking = lacking or less
        if next_to_nothing(drifts_of(less.evidence), drifts_of(evidence)):
            return [Telling(output, numbers, (), without=evidence.without).term(less)]
    found = _searched(evidence, output, numbers)
    if (exact(found) and len(found) == 1) or lacking is None or not lacking.alone:
        return found
    rest = _searched(lacking.evidence, output, numbers)
    if not rest or not exact(rest) or (exact(found) and len(rest) >= len(found)):
        return found
    return [*rest, Telling(output, numbers, ()).term(lacking, beside=True)]


def _searched(evidence: Evidence, output: OutputRecord, numbers: Mapping[str, Any]) -> list[Finding]:
    found = _Case(evidence, output, numbers).findings()
    return with_edits_of_a(found, lambda: _Case(roles_exchanged(evidence), output, numbers, of_a=True).findings())


def _within(output: OutputRecord) -> bool:
    return (output.lifted or 0.0) <= (output.lifted_threshold or THRESHOLDS.lifted)


def _file_agrees(evidence: Evidence) -> bool:
    return evidence.reconciled is not None and evidence.reconciled.same_function


_NOT_ASKED = object()


class _Case:
    """One pair of programs that differ, with everything that is tried on them."""

    def __init__(self, evidence: Evidence, output: OutputRecord, numbers: Mapping[str, Any], of_a: bool = False):
        self.numbers = dict(numbers)
        self.a, self.b, known = evidence.a.graph, evidence.b.graph, evidence.reconciled
        if self.a is None or self.b is None or known is None:
            raise CannotLift("a side cannot be lifted")
        self.known, self.plain_a = known, self.a
        if known.repairs_a:
            self.a = RepairedGraph(self.a, known.repairs_a)
        self.pairing = OutputPairing(evidence.pairs, [None] * len(evidence.pairs))
        self.repaired = {r.name: r.value for r in known.repairs_b}
        # A tensor that B fills with one number is what that number gives, which may not be A's.
        filled = {r.name for r in known.repairs_b if r.partner == OWN and uniform(r.constant) is not None}
        # What A stores folded of these was seen to be right.
        settled = {*self.repaired, *(name for r in known.repairs_a for name in r.sources)} - filled
        # What A computes ahead of time is rounded in its format; B's outputs are held against the exact values.
        exact = {r.name: r.value for r in known.repairs_a}
        theirs = [
            replace(c, value=exact[c.name]) if c.origin is Origin.COMPUTED and c.name in exact else c
            for c in as_stored(self.a.constants())
        ]
        self.constants = theirs, as_stored(self.b.constants())
        self.tell = Telling(output, self.numbers, self.constants[1], of_a, evidence.without, self.constants[0])
        self.matched: Matched = match_weights(
            *self.constants, settled, lambda sizes: {} if self.a is None else folded_values(self.a, sizes)
        )
        inside = [replace(c, frontier=True) for c in self.constants[1] if not c.frontier and c.origin is Origin.WEIGHT]
        self.inner = match_weights(self.constants[0], inside, settled).changed if inside else []
        self.search = Search(self.a, self.b, self._agrees, self.repaired, self.matched.same)
        self.chains: tuple[Chains, Chains] | None = None
        self.number: OtherNumber | object | None = _NOT_ASKED
        self.alone = False
        self.placed: list[ChangedWeight] = []  # changed tensors that mend a place, in the order of the places

    def findings(self) -> list[Finding]:
        """Weights that explain everything, else the places where B parts, weights among them first."""
        if self.tell.of_a and ambiguous(self.search.follow({})[0], *self.constants):
            return []
        changed = self._guilty_weights()
        if changed:
            if len(changed) > 1:
                changed = telling.in_reading_order(changed, self.search.follow({})[0].b.steps)
            known = {c.name for c in self.constants[0]}
            # A fold has a weight and a bias: what it was made of says of both at once what is other.
            if len(changed) > 1 and all(c.partner.name not in known for c in changed):
                refolded = next(filter(None, (self._refolded(p, most=1) for p in self.search.places())), None)
                if refolded is not None:
                    return [refolded]
            strange = [c for c in changed if c.strange]
            together = self._together(changed) if len(changed) > 1 else None
            if together is not None:
                return [together]
            if len(changed) > _MOST_TOLD:
                return [self.tell.other_weights(changed, len(strange))]
            if len(strange) > 1:
                return [
                    self.tell.other_weights(strange, len(strange)),
                    *(self._weight_finding(c) for c in changed if not c.strange),
                ]
            return [self._weight_finding(c) for c in changed]
        placed: list[Finding] = []
        for place in self.search.places():
            placed.append(self._placed(place))
            if self.alone:  # what other places show comes of this one
                return placed[-1:]
        together = self._together(self.placed) if len(self.placed) == len(placed) > 1 else None
        if together is not None and self._works(self.placed):
            return [together]
        placed.sort(key=lambda f: (f.code[0] != "W", -_decade(f.evidence.get("created"))))
        placed = [f for f in placed if not self._rounds_a_number(f, placed[0])]
        return of_one_kind(list({(f.code, f.where): f for f in placed}.values()))

    def _rounds_a_number(self, found: Finding, first: Finding) -> bool:
        """Whether a place parts by no more than a number that one side stores rounded, beside one that is really other.

        Such numbers are reconciled only where the programs are else the same function.
        """
        most, size = (f.evidence.get("created") or 0.0 for f in (first, found))
        formats = [o.format for o in (*self.known.outputs_a, *self.known.outputs_b) if o.format is not None]
        widths = [torch.finfo(fmt).eps for fmt in formats if fmt.is_floating_point]
        return found.code == "N001" and 0.0 < size < min(most * _BESIDE, max(widths, default=0.0))

    # -- weights ------------------------------------------------------------------------------------------------

    def _together(self, changed: Sequence[ChangedWeight]) -> Finding | None:
        """What several changed tensors have in common: they hold each other's numbers, or are made of one tensor."""
        names = exchanged_names(changed)
        if names:
            return self.tell.exchanged_weights(changed, names)
        sides = ((self.a, True, [c.partner for c in changed]), (self.b, False, [c.constant for c in changed]))
        for graph, theirs, constants in sides:
            source = "" if graph is None else computed_from(graph, constants)
            if source:
                return self.tell.tables(changed, source, theirs)
        return None

    def _agrees(self, outputs: Sequence[LiftedOutput]) -> bool:
        # An edit may change shapes, and values that do not stand against each other are not measured.
        for i, j in self.pairing.indices:
            values = self.known.outputs_a[i].value, self.known.outputs_b[j].value, outputs[j].value
            wanted, was, now = (None if value is None else value.shape for value in values)
            if wanted == was != now:
                return False
        return self._nothing_left(self.known.outputs_a, outputs)

    def _nothing_left(self, one: Sequence[LiftedOutput], other: Sequence[LiftedOutput]) -> bool:
        return next_to_nothing(measure(one, other, self.pairing, THRESHOLDS), self.known.drifts)

    def _works(self, changed: Sequence[ChangedWeight]) -> bool:
        """Whether B is the same function with A's tensors in these places; what is computed from them follows."""
        given = {c.constant.name: c.value for c in changed}
        tables = [r.name for r in self.known.repairs_b if r.constant.origin is Origin.COMPUTED and r.name not in given]
        if not tables:
            return self._whole(given)
        given = {**{r.name: r.value for r in self.known.inner_b}, **given}
        stored = {n: v for n, v in self.repaired.items() if n not in tables}
        try:
            # A's own tables are made of what its numbers mean, not of what they are once they are rounded.
            meant = self.plain_a.constant_values() if any(c.partner.origin is Origin.COMPUTED for c in changed) else {}
            exact = {c.constant.name: meant[c.partner.name] for c in changed if c.partner.name in meant}
            exact = {name: value for name, value in exact.items() if value.shape == given[name].shape}
            values = {} if self.b is None else self.b.constant_values(replace={**stored, **given, **exact})
        except (CannotLift, DriftscopeError, RuntimeError):
            return False
        return self._whole({**given, **{n: values[n] for n in tables if n in values}})

    def _whole(self, replace: Mapping[str, torch.Tensor], graph: Lifted | None = None) -> bool:
        """Whether the outputs of B, or of an edited B, are A's with these constants."""
        try:
            return self._agrees(self.search.runs_b.outputs({}, replace, graph))
        except (CannotLift, DriftscopeError, RuntimeError):
            return False

    def _left(self, replace: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """By how much the outputs of B differ from A's with these constants, each relative to its size."""
        outputs = self.search.runs_b.outputs({}, replace)
        return Residual(self.known.outputs_a, self.pairing.indices).vector(outputs)

    def _guilty_weights(self) -> list[ChangedWeight]:
        """The changed weights that make B the same function when A's take their places; [] when they do not."""
        # A table that is computed from another weight is not A's either: the weight comes first.
        for changed in (self.inner, self.matched.changed):
            alone = [[c] for c in changed] if 1 < len(changed) <= _MOST_ALONE else []
            found = next((some for some in ([*changed], *alone) if some and self._works(some)), [])
            if found:
                return self._needed(found) if 1 < len(found) <= _MOST_ALONE else found
        return []

    def _needed(self, changed: Sequence[ChangedWeight]) -> list[ChangedWeight]:
        """Those without which B is not the same function: a mask's limit may be another one to no effect."""
        left = list(changed)
        for each in sorted(changed, key=lambda c: c.constant.origin is not Origin.COMPUTED):
            rest = [c for c in left if c is not each]
            if rest and self._works(rest):
                left = rest
        # An exchange is one edit, though one of its tensors has no effect, as the bias of keys has none.
        whole = [c for c in changed if c in left or any(exchanged_names([c, each]) for each in left)]
        return whole if exchanged_names(whole) and self._works(whole) else left

    def _weight_finding(
        self, change: ChangedWeight, place: TriedPlace | None = None, more: Sequence[ChangedWeight] = ()
    ) -> Finding:
        if place is not None and not more:
            self.placed.append(change)
        moved, first = (None, None) if self.a is None or self.b is None else computed_otherwise(self.a, self.b, change)
        if moved is not None:
            return self.tell.index(change, moved)
        return self.tell.weight(change, place, more, first)

    # -- places -------------------------------------------------------------------------------------------------

    def _placed(self, place: TriedPlace) -> Finding:
        parting = place.parting
        names = {n for s in (*parting.piece, *parting.followers) for n in s.stored}
        nodes = {s.name for s in (*parting.piece, *parting.followers)}
        here = [c for c in self.matched.changed if c.constant.name in names or c.constant.where.node in nodes]
        # One tensor, or all together: a layer folded with other numbers has another weight and another bias.
        for changed in [[c] for c in here] + ([here] if len(here) > 1 else []):
            if self.search.piece_heals(place, {c.constant.name: c.value for c in changed}, {}):
                return self._weight_finding(changed[0], place, changed[1:])
        refolded = self._refolded(place)
        if refolded is not None:
            # A fold from other numbers can stand for any factor: one that both programs write is the simpler cause.
            return self._other_number() or refolded
        strange = misread(parting.piece, self.matched.same, *self.constants)
        if strange is not None:
            right = {strange.constant.name: strange.value}
            if self.search.piece_heals(place, right, {}) or self._whole(right):
                return self._weight_finding(strange, place)
        theirs: list[Visited] = []
        view = self.search.view
        if view is not None and parting.counterpart is not None:
            theirs = piece_of(view, parting.counterpart, inner=True)
            if not parting.paired:
                theirs += unsound_after(view.a.steps, parting.counterpart, view.sound_a)
        trying = PieceTrials(self.search, place, self.constants, self._whole, self._left)
        cause = cause_of(parting, theirs, self.constants, trying.trials())
        if cause is not None and cause.changed is not None:
            return self._weight_finding(cause.changed, place)
        if cause is None or not cause.verified:
            number = self._other_number()
            cause = missing.whole_piece(parting, theirs, trying.trials(), cause)
            if number is None and place.force and view is not None and parting.counterpart is not None:
                near = piece_of(view, parting.counterpart, True, map(sketch, place.force.values()))
                again = cause_of(parting, near, self.constants, trying.trials())
                cause = again if again is not None and again.verified and again.changed is None else cause
        else:
            number = None
        # A's value behind a later piece hides what an earlier one did.
        edited = {} if number is not None or cause is None else cause.values
        hides = bool(place.force) and parting.step.outputs[0] in edited
        self.alone = bool(edited) and not hides and self.search.heals(edited)
        return number or self.tell.parting(place, cause, self._counterpart(place, cause))

    def _counterpart(self, place: TriedPlace, cause: Reason | None) -> Visited | None:
        """The step of A that stands for the one that a finding names: its own, or that of the end of the piece."""
        view, step = self.search.view, cause_step(place, cause)
        end = place.parting.counterpart
        known = None if view is None else view.alignment.partner.get(step.index)
        if cause is not None and cause.other is not None:
            return cause.other
        if view is None or end is None or step.index == place.parting.step.index:
            return end
        if known is not None:
            return view.a.steps[known]
        alike = [s for s in piece_of(view, end) if s.operator == step.operator]
        return alike[0] if len(alike) == 1 else end

    def _refolded(self, place: TriedPlace, most: int = 2) -> Finding | None:
        """What one side holds apart and the other side's fold was not made of, whichever side folds."""
        ends = () if self.search.view is None else fold_ends(self.search.view, place.parting)
        return next(filter(None, (self._refolded_at(place, *pair, most) for pair in ends)), None)

    def _refolded_at(self, place: TriedPlace, step: Visited, other: Visited, most: int) -> Finding | None:
        parting = place.parting
        if self.plain_a is None or self.b is None:
            return None
        self.chains = self.chains or (chains_of(self.plain_a), chains_of(self.b))
        a = FoldSide(self.search.runs_a, other, self.constants[0], self.chains[0])
        b = FoldSide(self.search.runs_b, step, self.constants[1], self.chains[1])
        for apart, folded in ((b, a), (a, b)):
            held = self.matched.same if folded is b else {n for names in self.matched.same.values() for n in names}
            found = other_fold(apart, folded, held)
            if found is None or len(found.sources) > most:
                continue
            # The solved sources on one side and their exact fold on the other.
            values = (found.solved(), found.exact)
            if self._same_with(*(values if apart is a else values[::-1])):
                where = where_of(step, other, self.tell.output.path)
                told = fold_finding(found, folded.step, where, apart is a, self.tell.at_the_end())
                return replace(told, evidence={**self.numbers, "created": place.created,
                                               "piece": [s.name for s in parting.piece], **told.evidence})  # fmt: skip
        return None

    def _other_number(self) -> Finding | None:
        if self.number is _NOT_ASKED:  # whatever the place, the whole program is asked
            self.number = other_number(self.constants, self.b, self._whole)
        found = self.number
        if not isinstance(found, OtherNumber):
            return None
        return self.tell.number(found)

    def _same_with(self, of_a: Mapping[str, torch.Tensor], of_b: Mapping[str, torch.Tensor]) -> bool:
        """Whether the outputs are the same with these constants in A and in B."""
        try:
            one = self.search.runs_a.outputs({}, of_a) if of_a else self.known.outputs_a
            two = self.search.runs_b.outputs({}, of_b) if of_b else self.known.outputs_b
        except (CannotLift, DriftscopeError, RuntimeError):
            return False
        return self._nothing_left(one, two)


def _decade(created: float | None) -> int:
    """The size of a created error in powers of ten: errors of one size are told in the order in which they run."""
    return math.floor(math.log10(created)) if created else -400

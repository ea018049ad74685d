"""Where and how often: partings tried one after another, by putting A's value where B's is wrong.

A place is not believed because it looks like one. A's value is put in its place and the rest of B runs on: if that
makes more of B's values A's values, the error was created there, and the search goes on from there for the next one.
So programs with several independent bugs show each of them, and a value that only passes an error on is never named.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.locate.alignment import align, gap, order_of_axes, orders
from driftscope.explain.locate.alike import alike_steps, in_order, reaching
from driftscope.explain.locate.divergence import Parting, View, find_partings, turned
from driftscope.explain.locate.fingerprints import Sketch, Trail, Visited, reached_from, sketch, steps_to
from driftscope.explain.locate.rerunning import Reruns, Values
from driftscope.lift.steps import Lifted, LiftedOutput

# Places named at most, and runs of B spent on looking for them.
_MOST_PLACES = 5
_MOST_RUNS = 16

# How much nearer another order of the axes must be.
_MUCH_NEARER = 0.7

# Whether outputs of B are those of A.
Agrees = Callable[[Sequence[LiftedOutput]], bool]


@dataclass(frozen=True, slots=True)
class TriedPlace:
    """A parting that was tried.

    Parameters
    ----------
    parting : Parting
    created : float or None
        rms(B - A) / rms(A) that the piece creates when it takes A's values.
    tried : bool
        Whether putting A's value there brought the rest of B back to A's values.
    force : mapping of str to Tensor
        A's values in the places found before this one.
    wanted : Sketch or None
        A's value at the end of the piece, laid out as B has it.
    """

    parting: Parting
    created: float | None = None
    tried: bool = False
    force: Mapping[str, torch.Tensor] = field(default_factory=dict)
    wanted: Sketch | None = None


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of B with A's values at the end of one piece: what was forced, and how far off B was there."""

    parting: Parting
    values: Values
    created: float | None
    view: View
    healed: bool


@dataclass(slots=True)
class Search:
    """Two lifted programs, and what is already known of them.

    Parameters
    ----------
    a, b : Lifted
    agrees : callable
        Told B's outputs, says whether they are A's.
    replace : mapping of str to Tensor
        Repaired constants of B, so that rounded constants are not found again.
    same_weights : mapping of str to sequence of str
        For constants of B the names of A's constants with the same elements.
    """

    a: Lifted
    b: Lifted
    agrees: Agrees
    replace: Mapping[str, torch.Tensor] = field(default_factory=dict)
    same_weights: Mapping[str, Sequence[str]] = field(default_factory=dict)
    runs: int = 0  # of B
    view: View | None = None
    latest: View | None = None
    runs_a: Reruns = field(init=False)
    runs_b: Reruns = field(init=False)
    _trail_a: Trail | None = None
    _ends_a: tuple[str, ...] = ()  # names of the outputs
    _ends_b: tuple[str, ...] = ()
    _layouts: dict[tuple[tuple[int, ...], tuple[int, ...]], int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runs_a, self.runs_b = Reruns(self.a, {}), Reruns(self.b, self.replace)

    def trail_a(self) -> Trail:
        """A's run, once."""
        if self._trail_a is None:
            self._trail_a, outputs = self.runs_a.kept({}, {})
            self._ends_a = tuple(o.name for o in outputs)
        return self._trail_a

    def follow(
        self, force: Mapping[str, torch.Tensor], extra: Mapping[str, torch.Tensor] | None = None
    ) -> tuple[View, bool]:
        """Run B with forced values and further replaced constants; say whether its outputs are A's."""
        self.runs += 1
        trail, outputs = self.runs_b.kept(force, extra or {})
        known = None if self.view is None else self.view.alignment
        known = known or align(self.trail_a(), trail, self.same_weights)
        view = View.of(self.trail_a(), trail, known, (o.name for o in outputs if o.name))
        self._ends_b = tuple(o.name for o in outputs)
        self.view = self.view or view
        self.latest = view
        return view, self.agrees(outputs)

    def places(self) -> list[TriedPlace]:
        """Find the places where B parts from A, in the order in which they run."""
        view, healed = self.follow({})
        found: list[TriedPlace] = []
        force: dict[str, torch.Tensor] = {}
        forced_by: list[Values] = []
        fallback: Parting | None = None
        endings = self._endings(view)
        while not healed and len(found) < _MOST_PLACES and self.runs < _MOST_RUNS:
            partings = find_partings(view)
            ending = None if force or any(p.paired for p in partings) else next(endings, None)
            partings = partings if ending is None else [ending, *partings]
            if not partings:
                break
            parting = self._ended(view, partings[0]) if found else partings[0]
            fallback = fallback or next((p for p in partings if not p.paired), parting)
            outcome = self._try(parting, force)
            # What was forced is A's by construction: only what is computed from it says something, and its views only
            # where the pair is no guess.
            after, views = parting.step.index, parting.paired and not view.guessed(parting)
            better = outcome is not None and (
                outcome.healed or outcome.view.lost(after, views) < view.lost(after, views)
            )
            if outcome is not None and not better:
                self.runs_b.forget({**force, **outcome.values})
            if outcome is None or not better:
                if ending is None and not _forget(view, parting):
                    break
                continue
            view, healed = outcome.view, outcome.healed
            outcomes = [outcome]
            more = [] if healed else self._together(parting, view, {**force, **outcome.values}, len(found) + 1)
            if more:
                view, healed, outcomes = more[-1].view, more[-1].healed, [outcome, *more]
            for each in outcomes:
                wanted = sketch(each.values[each.parting.step.outputs[0]])
                found.append(TriedPlace(each.parting, each.created, True, dict(force), wanted))
                forced_by.append(each.values)
                force |= each.values
        if healed:
            self._as_one(found, forced_by)
            found = self._needed(found, forced_by)
        return found or ([TriedPlace(fallback)] if fallback is not None else [])

    def _endings(self, view: View) -> Iterator[Parting]:
        """Where one program returns a value of the other, which computes more of it: no step of B parts there."""
        made_a, made_b = view.makers_a(), view.makers_b()
        wanted, given = (
            [m[n].sketches[0] for n in e if n in m] for m, e in ((made_a, self._ends_a), (made_b, self._ends_b))
        )
        for theirs, mine in dict.fromkeys(zip(self._ends_a, self._ends_b, strict=False)):
            other, step = made_a.get(theirs), made_b.get(mine)
            if other is None or step is None or (other.outputs[0], step.outputs[0]) != (theirs, mine):
                continue
            own, meant = step.sketches[0], other.sketches[0]
            if own is None or meant is None:
                continue
            # Results that are all there, in another order, are another matter: not so one whose elements are.
            there = (any(s is not None and s.agrees(v) for s in some) for v, some in ((own, wanted), (meant, given)))
            if own.same(meant) or (not own.agrees(meant) and all(there)):
                continue
            if view.in_a.holds_in_order(own):
                yield Parting(step, other, piece=(step,), paired=True)
            elif view.in_b.holds_in_order(meant):
                members = steps_to(step, made_b, meant.same, len(made_b))
                yield Parting(step, other, piece=in_order(members), paired=True)

    def _ended(self, view: View, parting: Parting) -> Parting:
        """The piece up to a result that is known to be wrong, where a parting leads to one; else itself."""
        if parting.paired:
            return parting
        made_a, made_b = view.makers_a(), view.makers_b()
        for theirs, mine in zip(self._ends_a, self._ends_b, strict=False):
            other, step = made_a.get(theirs), made_b.get(mine)
            if other is None or step is None or step.shapes[:1] != other.shapes[:1]:
                continue
            if whole := reaching(view, parting, step, other):
                return whole
        return parting

    def _as_one(self, places: list[TriedPlace], forced_by: list[Values]) -> None:
        """Join each two places that end where one step of A does: what that step does is done in several steps of B.

        A convolution adds its bias. Where B adds it in a step of its own, A's value behind B's product makes that step
        look like one too many.
        """
        for k in reversed(range(1, len(places))):
            one, two = places[k - 1], places[k]
            theirs, whole = two.parting.counterpart, None
            if self.view is not None and theirs is not None and one.parting.counterpart == theirs:
                whole = reaching(self.view, one.parting, two.parting.step, theirs)
            outcome = None if whole is None else self._try(whole, one.force)
            rest = [v for n, v in enumerate(forced_by) if n not in (k - 1, k)]
            if whole is not None and outcome is not None and self.heals(_all_of([*rest, outcome.values])):
                places[k - 1 : k + 1] = [replace(two, parting=whole, created=outcome.created, force=one.force)]
                forced_by[k - 1 : k + 1] = [outcome.values]

    def _needed(self, places: list[TriedPlace], forced_by: list[Values]) -> list[TriedPlace]:
        """The places without which the outputs are not A's: the others only pass on what an earlier one creates.

        What is forced behind a place hides what the place creates, so it is left out where the place is asked about.
        """
        kept = list(range(len(places)))
        for k in reversed(range(1, len(places))):
            behind = reached_from(self.view.b.steps, places[k].parting.step.outputs) if self.view else set()
            rest = [forced_by[n] for n in kept if n != k and behind.isdisjoint(forced_by[n])]
            with contextlib.suppress(CannotLift):
                self.runs += 1
                if self.agrees(self.runs_b.outputs(_all_of(rest))):
                    kept.remove(k)
        return [places[k] for k in kept]

    def _try(self, parting: Parting, force: Values) -> _Outcome | None:
        """Put A's value where the piece ends; None when that cannot be done."""
        if parting.counterpart is None:
            return None
        theirs = self.runs_a.values(parting.counterpart.outputs, {})
        mine = self.runs_b.values(parting.step.outputs, force)
        values = self._meant(parting.step, parting.counterpart, mine, theirs)
        first = parting.step.outputs[0]
        if first not in values:
            return None
        try:
            view, healed = self.follow({**force, **values})
        except (CannotLift, DriftscopeError, RuntimeError):
            return None  # a value of another shape than the rest of B can use
        return _Outcome(parting, values, _relative(mine[first], values[first]), view, healed)

    def _meant(self, step: Visited, other: Visited, mine: Values, theirs: Values) -> dict[str, torch.Tensor]:
        """A's values for the results of a step, as B has them laid out."""
        # Where the order of the elements is what is wrong, B's own tells nothing.
        one, other_one = step.sketches[0], other.sketches[0]
        moved = one is not None and other_one is not None and one.agrees(other_one)
        found = {
            own: theirs[name]
            if moved and theirs[name].shape == mine[own].shape
            else self.laid_out(theirs[name], mine[own])
            for own, name in zip(step.outputs, other.outputs, strict=False)
            if own in mine and name in theirs and theirs[name].numel() == mine[own].numel()
        }
        # A fused step gives besides what A's step is given: a norm, the sum that it normalises.
        for own in mine.keys() - found.keys() if found else ():
            near = functools.partial(gap, mine[own])
            nearest = min(self.runs_a.values(other.inputs, {}).values(), key=near, default=mine[own])
            if near(nearest) < (1.0 - _MUCH_NEARER) * near(torch.zeros_like(mine[own])):
                found[own] = self.laid_out(nearest, mine[own])
        return found

    def _together(self, parting: Parting, view: View, force: Values, known: int) -> list[_Outcome]:
        """Put A's values in every place that looks like one that was found, and keep those that part there.

        A change is often the same in every layer. All are tried in one run: where B parts from A from one of them on,
        it takes A's values in up to there, and that is a place as if each had been tried alone. [] where the next
        place is not one of them, or they do not bring more of B's values back to A's.
        """
        alike = alike_steps(view, parting)[: _MOST_PLACES - known]
        following = next((p for p in find_partings(view) if p.paired), None) if len(alike) > 1 else None
        if following is None or following.step.index != alike[0][0].index:
            return []
        theirs = self.runs_a.values([n for _, other in alike for n in other.outputs], {})
        mine = self.runs_b.values([n for step, _ in alike for n in step.outputs], force)
        values = {step.outputs[0]: self._meant(step, other, mine, theirs) for step, other in alike}
        try:
            after, healed = self.follow({**force, **{n: v for each in values.values() for n, v in each.items()}})
        except (CannotLift, DriftscopeError, RuntimeError):
            return []
        names = [name for name, each in values.items() if name in each and name in after.b.replaced]
        parted = [p for p in find_partings(after.before_forcing(names)) if p.paired]
        last = alike[-1][0].index
        if [p.step.outputs[0] for p in parted if p.step.index <= last] != list(values):
            return []  # something else parts between them, or one of them does not
        if not healed and after.lost(last) >= view.lost(last):
            return []
        own = after.b.replaced
        made = ((p, values[p.step.outputs[0]]) for p in parted if p.step.index <= last)
        return [_Outcome(p, v, _relative(own[p.step.outputs[0]], v[p.step.outputs[0]]), after, healed) for p, v in made]

    def laid_out(self, theirs: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """A's value with its axes in the order in which B has them.

        A layer may compute (batch, sequence, features) and its export (sequence, batch, features). Equal values of
        the same two shapes tell the order; where there are none, B's own value does, if another order than A's
        brings the two much nearer to each other.
        """
        if not mine.dtype.is_floating_point or theirs.ndim < 2:
            return theirs
        known = self._known_order(theirs, mine)
        if known is not None:
            return next(itertools.islice(orders(theirs, mine), known, None))
        best, nearest = theirs, _MUCH_NEARER * gap(mine, theirs)
        for moved in orders(theirs, mine):
            distance = gap(mine, moved)
            if distance < nearest:
                best, nearest = moved, distance
        return best

    def heals(
        self, force: Mapping[str, torch.Tensor], replace: Mapping[str, torch.Tensor] | None = None,
        graph: Lifted | None = None,
    ) -> bool:  # fmt: skip
        """Whether B's outputs are A's when these values and constants are in it, or in an edited B (``graph``)."""
        self.runs += 1
        try:
            return self.agrees(self.runs_b.outputs(force, replace, graph))
        except (CannotLift, DriftscopeError, RuntimeError):
            return False

    def _known_order(self, theirs: torch.Tensor, mine: torch.Tensor) -> int | None:
        """Which order of A's axes B has in a pair of equal values with these shapes; None where there is no pair."""
        key = (tuple(theirs.shape), tuple(mine.shape))
        if key not in self._layouts:
            view = self.view
            pairs = (
                () if view is None else ((view.a.steps[i], view.b.steps[k]) for k, i in view.alignment.partner.items())
            )
            self._layouts[key] = order_of_axes(pairs, key, (self.runs_a, self.runs_b))
        return self._layouts[key]

    def piece_heals(
        self, place: TriedPlace, replace: Mapping[str, torch.Tensor], force: Mapping[str, torch.Tensor],
        graph: Lifted | None = None,
    ) -> bool:  # fmt: skip
        """Whether the piece gives A's value with these constants or values in it; stops where the piece ends.

        ``graph`` is an edited B. Where nobody saw that A's value there mends anything, B's outputs decide: two steps
        that are paired by mistake may well be made to give one value.
        """
        if not place.tried:
            return self.heals({**place.force, **force}, replace, graph)
        other = place.parting.counterpart
        if other is None or not other.sketches or other.sketches[0] is None:
            return False
        wanted, ordered = place.wanted or other.sketches[0], not turned(place.parting.step, other)

        def right(value: Sketch | None) -> bool:
            return value is not None and (value.same(wanted) if ordered else value.agrees(wanted))

        if right(place.parting.step.sketches[0]):
            return False  # only the order of its axes is wrong, which sketches do not tell
        end = place.parting.step.outputs[0]
        self.runs += 1
        try:
            value = self.runs_b.values((end,), {**place.force, **force}, replace, graph).get(end)
        except (CannotLift, DriftscopeError, RuntimeError):
            return False
        if value is None or not right(sketch(value)):
            return False
        # Zeros, or any one number, many edits make: there B's outputs decide as well.
        one = value.numel() > 1 and not bool((value != value.reshape(-1)[0]).any())
        return not one or self.heals({**place.force, **force}, replace, graph)


def _all_of(forced: Sequence[Values]) -> dict[str, torch.Tensor]:
    return {name: value for values in forced for name, value in values.items()}


def _forget(view: View, parting: Parting) -> bool:
    """Stop believing that the two steps of a parting correspond; False when there is nothing to forget."""
    known = view.alignment
    if parting.paired and known.partner.pop(parting.step.index, None) is not None:
        known.by.pop(parting.step.index, None)
        return True
    return False


def _relative(mine: torch.Tensor, theirs: torch.Tensor) -> float | None:
    if not mine.dtype.is_floating_point:
        return None
    x, y = mine.reshape(-1), theirs.reshape(-1).to(mine)
    keep = torch.isfinite(x) & torch.isfinite(y) & (x.abs() < 1e30) & (y.abs() < 1e30)
    size = float(torch.linalg.vector_norm(y[keep]))
    return float(torch.linalg.vector_norm((x - y)[keep])) / size if size else None

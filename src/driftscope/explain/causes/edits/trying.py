"""What is tried on a piece of B before a fix is called tried: other attributes, wires, operators and numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.explain.causes.counterparts import odd_step
from driftscope.explain.causes.rewiring import Reason, Trials, with_attributes
from driftscope.explain.locate.fingerprints import Sketch, Visited
from driftscope.explain.locate.locating import Search, TriedPlace
from driftscope.lift.reconcile.solving import solve_number
from driftscope.lift.steps import Constant, Lifted, Origin


@dataclass(frozen=True, slots=True)
class PieceTrials:
    """A piece of B that gives other values than A does, and how it is asked what would mend it.

    Parameters
    ----------
    search : Search
    place : TriedPlace
    constants : pair of sequences of Constant
        A's and B's.
    whole : callable
        Whether B's outputs are A's with constants replaced, or those of an edited B.
    left : callable
        By how much B's outputs differ from A's with constants replaced, as one vector.
    """

    search: Search
    place: TriedPlace
    constants: tuple[Sequence[Constant], Sequence[Constant]]
    whole: Callable[[Mapping[str, torch.Tensor], Lifted | None], bool]
    left: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]

    def trials(self) -> Trials:
        """Everything that can be asked, as the search for a cause takes it."""
        search, place = self.search, self.place
        return Trials(
            lambda replace: (
                search.piece_heals(place, replace, {}) or (not place.parting.paired and self.whole(replace, None))
            ),
            lambda name, source: search.piece_heals(place, {}, self._bypass(name, source)),
            self.attributes,
            self._peers,
            {} if search.view is None else search.view.makers_b(),
            lambda replace: self.whole(replace, None),
            self._substitute,
            self._solve,
            self._exchange,
            self._captured,
            self._forced,
            lambda values: search.heals({**place.force, **values}),
            self._held,
            self._ends,
            self.reconnected,
            {} if search.view is None else search.view.makers_a(),
            lambda names: search.runs_a.values(names, {}),
            self._reading,
            self.operator,
            self.place.tried,
            lambda value: [] if search.latest is None else list(search.latest.in_b.names_of(value)),
        )

    def attributes(self, step: str, attributes: Mapping[str, object]) -> bool:
        """Whether the piece gives A's value with other attributes of one of its steps."""
        return self._edited(lambda: with_attributes(self.search.b, step, attributes))

    def operator(self, step: str, operator: str) -> bool:
        """Whether the piece gives A's value with another operator in one of its steps.

        Where A has a value at its end the outputs do not decide: of zeros, many operators lead to the same ones.
        """
        return self._edited(lambda: self.search.b.with_operator(step, operator), not self.place.parting.paired)

    def _edited(self, edit: Callable[[], Lifted], by_outputs: bool = True) -> bool:
        try:
            graph = edit()
        except CannotLift:
            return False
        return self.search.piece_heals(self.place, {}, {}, graph) or (by_outputs and self.whole({}, graph))

    def reconnected(self, step: Visited, meant: Mapping[str, Sketch]) -> bool | None:
        """Whether the piece gives A's value when one of its steps reads what A reads, all else as it is.

        None where that cannot be tried, as its shape is another one.
        """
        view = self.search.latest
        sources = {} if view is None else {n: view.in_b.names_of(wanted) for n, wanted in meant.items()}
        if not all(sources.values()):
            return False
        values = self._captured([*step.inputs, *(names[0] for names in sources.values())])
        pairs = {n: (values.get(n), values.get(names[0])) for n, names in sources.items()}
        # The other values that it reads stay, whatever is computed from the one that is exchanged.
        force = {n: v for n, v in values.items() if n in step.inputs}
        for name, (own, other) in pairs.items():
            if own is None or other is None or own.numel() != other.numel():
                return None
            force[name] = other.reshape(own.shape)
        return self.search.piece_heals(self.place, {}, force)

    def _exchange(self, step: str, order: Sequence[int]) -> bool:
        return self._edited(lambda: self.search.b.with_inputs(step, order))

    def _forced(self, values: Mapping[str, torch.Tensor]) -> bool:
        end = self.place.parting.step.outputs[0]
        if end not in values and self.search.piece_heals(self.place, {}, values):
            return True
        return self.search.heals({**self.place.force, **values})

    def _captured(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        return self.search.runs_b.values(names, self.place.force)

    def _bypass(self, name: str, source: str) -> Mapping[str, torch.Tensor]:
        values = self._captured((source,))
        return {name: values[source]} if source in values else {}

    def _held(self, names: Collection[str]) -> bool:
        """Whether B stores what A does under these names; numbers, and tables made of numbers, are a program's own."""
        same = {name for others in self.search.same_weights.values() for name in others}
        own = (c for c in self.constants[0] if c.name in names and c.origin is not Origin.COMPUTED)
        stored = (c for c in own if c.value.numel() > 1)
        return all(c.name in same or not c.value.dtype.is_floating_point for c in stored)

    def _reading(self, name: str, theirs: str, readers: Sequence[Visited]) -> Mapping[str, torch.Tensor]:
        """What steps give where a value that they read is one of A's, for a run in which all else reads B's."""
        own, meant = self._captured((name,)).get(name), self.search.runs_a.values((theirs,), {}).get(theirs)
        if own is None or meant is None or own.numel() != meant.numel():
            return {}
        force = {**self.place.force, name: self.search.laid_out(meant, own).reshape(own.shape)}
        try:
            return self.search.runs_b.values([n for s in readers for n in s.outputs], force)
        except (CannotLift, DriftscopeError, RuntimeError):
            return {}

    def _peers(self) -> Reason | None:
        view = self.search.latest
        if view is None:
            return None
        by_name = tuple({c.name: c.value for c in side} for side in self.constants)
        odd = odd_step(view, self.place.parting, (by_name[0], by_name[1]))
        if odd is None or not (odd.attributes or odd.constants):
            return None if odd is None else Reason(odd.words, odd.fix, None, odd.step)
        # Another layer may have other settings and be right: it is a cause if setting them makes this one right.
        if odd.constants:
            works = self.search.piece_heals(self.place, odd.constants, {}) or self.whole(odd.constants, None)
        else:
            works = self.attributes(odd.step.name, odd.attributes)
        return Reason(odd.words, odd.fix, True, odd.step) if works else None

    def _substitute(self, step: Visited, other: Visited) -> bool:
        """Whether B is mended where a step gives what A's operator makes of the same values.

        At the end of the piece A's value is right by construction: there the outputs decide, or what was seen of the
        rest of B once it had that value, where other places part as well.
        """
        name = step.outputs[0]
        mine = self._captured((name,)).get(name)
        theirs = self.search.runs_a.values(other.outputs[:1], {}).get(other.outputs[0])
        if mine is None or theirs is None or mine.numel() != theirs.numel():
            return False
        # Values of another function do not tell in which order their axes stand: as they are, they may be right.
        orders = [theirs] if theirs.shape == mine.shape else []
        for value in (*orders, self.search.laid_out(theirs, mine)):
            if step.index != self.place.parting.step.index:
                works = self.search.piece_heals(self.place, {}, {name: value})
            else:
                works = self.search.heals({**self.place.force, name: value})
            if works:
                return True
        return self.place.tried and (step, other) == (self.place.parting.step, self.place.parting.counterpart)

    def _solve(self, constant: Constant) -> float | None:
        """The number with which the piece gives A's value, or the outputs do where it has no known end."""
        gap = self._gap() if self.place.parting.paired else self.left
        if gap is None:
            return None

        def at(number: float) -> torch.Tensor:
            return gap({constant.name: torch.full(constant.value.shape, number, dtype=torch.float64)})

        try:
            return solve_number(at, float(constant.value.reshape(-1)[0]))
        except (CannotLift, DriftscopeError, RuntimeError, KeyError):
            return None

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What the piece gives at its end and what A has there, in B's layout."""
        end, other = self.place.parting.step.outputs[0], self.place.parting.counterpart
        known = None if other is None else self.search.runs_a.values(other.outputs[:1], {}).get(other.outputs[0])
        mine = self._captured((end,)).get(end)
        if known is None or mine is None or not mine.is_floating_point() or known.numel() != mine.numel():
            return None
        return mine, self.search.laid_out(known, mine).reshape(mine.shape).to(mine)

    def _gap(self) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None:
        """By how much the end of the piece differs from A's value with constants replaced."""
        end, ends = self.place.parting.step.outputs[0], self._ends()
        if ends is None:
            return None
        wanted = ends[1].reshape(-1)

        def gap(replace: Mapping[str, torch.Tensor]) -> torch.Tensor:
            got = self.search.runs_b.values((end,), self.place.force, replace)[end]
            return torch.nan_to_num(got.reshape(-1) - wanted, posinf=0.0, neginf=0.0)

        return gap

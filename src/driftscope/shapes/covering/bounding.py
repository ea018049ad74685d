"""Conditions under which a program without checks is right, held against points that they were not chosen by.

Conditions are chosen from what the program was made under (``separating``). Then they are tried: beside the points
that were asked before, and far away. What is wrong there joins the evidence, and the conditions are chosen again.
Where that does not end, everything that the trace assumed is kept, then sizes are fixed; where nothing holds, there are
no conditions, and nothing is promised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftscope.shapes.conditions.expressions import Number, Operation, Size, Term
from driftscope.shapes.conditions.predicates import all_of
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.conditions.separating import UncheckedRuns, distinct, separate
from driftscope.shapes.covering.rounded_sizes import rounded_sizes_of
from driftscope.shapes.probe.directions import Direction
from driftscope.shapes.probe.domain import CRASH, MORE, RIGHT, WRONG, Domain, outcome, probe
from driftscope.shapes.probe.exploration import held_out
from driftscope.shapes.probe.original import Original, Point, fits
from driftscope.shapes.probe.runners import ExportTarget, OnnxRunner

#: Most points that conditions are held against in one round, the fewest, and the seconds of the original that it may
#: take; the rounds after which choosing again is given up.
HELD_OUT, _FEWEST, _SECONDS, _ROUNDS = 72, 16, 1.5, 4

#: Sizes at each of which a program that rounds sizes is asked, and the seconds of the original that it may take.
SWEPT, _SWEEP = 160, 4.0
#: Most sizes of one axis that are kept away one by one.
_EXCEPTIONS = 24

#: Small shapes, and draws of values at each, by which it is seen whether values decide.
_SMALLEST, _DRAWS = 6, 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """Conditions that keep a program away from where it is wrong.

    Parameters
    ----------
    conditions : tuple of Term
    tried : int
        Points that they were held against after they had been chosen, without finding one that is wrong.
    """

    conditions: tuple[Term, ...]
    tried: int


class Bounding:
    """Finds bounds of one program.

    Parameters
    ----------
    original : Original
    runner : ExportTarget
        The program without its checks.
    relations : Relations
        What it was made under.
    directions : sequence of Direction
        How sizes may move.
    most : int
        Most points that conditions are held against in one round.
    """

    def __init__(
        self,
        original: Original,
        runner: ExportTarget,
        relations: Relations,
        directions: Sequence[Direction],
        most: int = HELD_OUT,
    ):
        self.most = most
        self.original = original
        self.runner = runner
        self.relations = relations
        self.directions = directions
        known = {axis.name for axis in relations.axes}
        #: Single sizes at which the program is wrong, which every choice keeps away.
        self.exceptions: list[Term] = []
        self.recorded = [c.condition for c in relations.recorded if c.names and c.names <= known]

    def find(self, domain: Domain, first: Sequence[Term] | None = None) -> Bounds | None:
        """Choose conditions and try them.

        Parameters
        ----------
        domain : Domain
            What the program did at the points asked so far; it is not changed.
        first : sequence of Term, optional
            Conditions to begin with.

        Returns
        -------
        Bounds or None
            None where nothing that was tried keeps the program from being wrong.
        """
        seen = Domain(
            list(domain.points), dict(domain.valid), {}, {self.runner.name: dict(domain.seen.get(self.runner.name, {}))}
        )
        if self._values_decide(seen):
            return None
        self.exceptions = self._sweep(seen)
        ways: list[Callable[[Domain], Sequence[Term] | None]] = [self._chosen] * _ROUNDS
        ways = [lambda _: first, *ways] if first is not None else ways
        for number, choose in enumerate((*ways, self._all_recorded, self._fixed)):
            conditions = choose(seen)
            if conditions is None:
                continue
            conditions = [*conditions, *self.exceptions]
            if not self._let_pass(conditions, seen.of(self.runner.name, RIGHT)):
                continue
            if self._let_pass(conditions, seen.of(self.runner.name, WRONG, CRASH)):
                continue
            tried = self._wrong_beyond(conditions, seen, number)
            if tried:
                return Bounds(tuple(conditions), tried)
        return None

    def _sweep(self, seen: Domain) -> list[Term]:
        """Ask at every small size of each direction where the program rounds sizes: it may round a few otherwise.

        Nearest-neighbour resizing from 28 to 8 rows takes other rows in a file than in torch, from 27 the same ones.

        Returns
        -------
        list of Term
            The exceptions found, and for an axis that has any or whose size is rounded, that nothing is known beyond
            the sizes asked.
        """
        axes, runner = self.relations.axes, self.runner
        rounding = rounded_sizes_of(runner.path, runner.feeder.places, axes) if isinstance(runner, OnnxRunner) else None
        if rounding is None:
            return []
        found, asked = list(rounding.ties), dict[str, list[int]]()
        for direction in self.directions:
            points = self._along(direction)
            probe(self.original, [runner], points, seen)
            wrong = [p[direction.lead] for p in points if seen.seen[runner.name][p].outcome in (WRONG, CRASH)]
            single = 0 < len(wrong) <= _EXCEPTIONS and len(direction.steps) == 1
            if single:
                axis = Size(axes[direction.lead].name)
                found += [Operation("!=", (axis, Number(size))) for size in wrong]
            for number, _ in direction.steps:
                name, sizes = axes[number].name, [point[number] for point in points if seen.valid[point]]
                if (single or name in rounding.axes) and len(sizes) > len(asked.get(name, [])):
                    asked[name] = sizes
        for name, sizes in asked.items():
            found.append(Operation("<=", (Size(name), Number(max(sizes)))))
            found += [Operation(">=", (Size(name), Number(min(sizes))))] if min(sizes) > 1 else []
        return found

    def _along(self, direction: Direction) -> list[Point]:
        """Every small size of a direction, or as many about the example's as the original allows in the time."""
        example = self.original.example
        size = example[direction.lead]
        most = min(SWEPT, max(_FEWEST, int(_SWEEP / self.original.cost) // max(len(self.directions), 1)))
        first = 1 if size <= most else size - most // 2
        points = [direction.moved(example, wanted - size) for wanted in range(first, first + most)]
        return [point for point in points if min(point) >= 0 and fits(self.original.builder, point)]

    def _outcomes(self, seen: Domain, points: Sequence[Point]) -> list[str]:
        return [seen.seen[self.runner.name][point].outcome for point in points]

    def _values_decide(self, seen: Domain) -> bool:
        """Whether a program whose inner sizes follow from values is right or wrong at one shape by its values.

        Nothing may be found in a small input and all of a large one, so small shapes are tried with several values.
        """
        if self.original.random or not any(c.kind == "assert" and not c.names for c in self.relations):
            return False
        small = sorted((p for p in seen.running if min(p, default=0) > 0), key=lambda p: (math.prod(p), p))
        for point in small[:_SMALLEST]:
            outcomes = {self._outcome(point, seed) for seed in range(_DRAWS)}
            if outcomes & {WRONG, CRASH} and RIGHT in outcomes:
                return True
        return False

    def _outcome(self, point: Point, seed: int) -> str:
        calls = [self.original.builder.at(point, seed=seed) for _ in range(2)]
        reference = self.original.ask(self.original.model, *calls[0])
        return outcome(reference, self.runner.answers(calls[1:])[0]).outcome

    def _wrong_beyond(self, conditions: Sequence[Term], seen: Domain, seed: int) -> int:
        """At how many new points the conditions hold and the program is right; 0 if it is wrong at one."""
        count = max(_FEWEST, min(self.most, int(_SECONDS / self.original.cost)))
        points = held_out(self.original, self.directions, self._admitting(conditions), count, seed)
        probe(self.original, [self.runner], points, seen)
        wrong = any(outcome in (WRONG, CRASH) for outcome in self._outcomes(seen, points))
        # Conditions that admit nothing new (every size is fixed) were tried at what they admit.
        return 0 if wrong else len(points) or len(self._let_pass(conditions, seen.of(self.runner.name, RIGHT)))

    def _let_pass(self, conditions: Sequence[Term], points: Sequence[Point]) -> list[Point]:
        admits = self._admitting(conditions)
        return [point for point in points if admits(point)]

    def _admitting(self, conditions: Sequence[Term]) -> Callable[[Point], bool]:
        holds = all_of(conditions)
        names = [axis.name for axis in self.relations.axes]
        return lambda point: holds(dict(zip(names, point, strict=True)))

    # --- ways of choosing, from the widest to the narrowest -----------------------------------------------------

    def _chosen(self, seen: Domain) -> list[Term] | None:
        return separate(self.recorded, self._evidence(seen))

    def _evidence(self, seen: Domain) -> UncheckedRuns:
        """What is left to explain once the exceptions are kept away."""
        known = evidence_of(self.relations, seen, self.runner.name)
        kept = (self._let_pass(self.exceptions, points) for points in (known.right, known.wrong, known.unwanted))
        return UncheckedRuns(self.relations.axes, *kept)

    def _all_recorded(self, seen: Domain) -> list[Term] | None:
        """Everything that was assumed, checked or not, and what the evidence asks for beyond it."""
        more = separate(self.recorded, self._evidence(seen)) or []
        return distinct([*self.recorded, *more])

    def _fixed(self, seen: Domain) -> list[Term] | None:
        """The same, with every size fixed that differs from the example wherever the program is still wrong."""
        conditions = [*distinct(self.recorded), *self.exceptions]
        example = self.original.example
        left = self._let_pass(conditions, seen.of(self.runner.name, WRONG, CRASH))
        while left:
            moved = [sum(point[i] != example[i] for point in left) for i in range(len(example))]
            axis = self.relations.axes[moved.index(max(moved))]
            if not max(moved):
                return None
            conditions.append(Operation("==", (Size(axis.name), Number(axis.size))))
            left = self._let_pass(conditions, left)
        return conditions


def evidence_of(relations: Relations, domain: Domain, target: str) -> UncheckedRuns:
    """What a program without checks did, as conditions are chosen by it."""
    return UncheckedRuns(
        relations.axes,
        right=domain.of(target, RIGHT),
        wrong=domain.of(target, WRONG, CRASH),
        unwanted=domain.of(target, MORE),
    )

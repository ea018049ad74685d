"""The smallest set of programs that is right wherever the original is, found by trying and by filling holes.

Every capture is asked, without its checks, at every probed point. What it gets right and wrong there decides which of
its recorded conditions are needed (``separating``). If one capture is right at every point, it alone is the cover;
otherwise captures are chosen greedily, and further ones are made with the example moved into what is still uncovered.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from torch.export import Dim

from driftscope.errors import RuntimeRefused
from driftscope.programs.feeding.feeds import Inputs
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.capture.export_costs import ExportCosts, TraceWork, counting
from driftscope.shapes.conditions.expressions import Term
from driftscope.shapes.conditions.predicates import all_of
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.conditions.separating import UncheckedRuns, distinct, separate
from driftscope.shapes.covering.bounding import HELD_OUT, Bounding, evidence_of
from driftscope.shapes.probe.axes import Arguments, arguments_of
from driftscope.shapes.probe.directions import Direction
from driftscope.shapes.probe.domain import CRASH, UNASKED, Domain, probe
from driftscope.shapes.probe.exploration import pattern
from driftscope.shapes.probe.original import Original, Point
from driftscope.shapes.probe.runners import ExportTarget

#: Holes at larger sizes are filled last.
_SMALL = 9
#: Fewest points that a program among several is held against.
_FEWEST_HELD_OUT = 12

MakeRunner = Callable[[Capture], tuple[ExportTarget, Relations]]


@dataclass(frozen=True, slots=True)
class CoverEffort:
    """How much a search for a cover may cost.

    Parameters
    ----------
    programs : int
        Most programs in a cover.
    seconds : float
        Of exporting, as counted, for filling holes; the captures that are there are always looked at.
    failures: int
        Holes that may stay open before the search gives up.
    """

    programs: int = 12
    seconds: float = 20.0
    failures: int = 6


@dataclass(frozen=True, slots=True)
class Option:
    """A capture, the conditions under which it is right, and the probed points they admit.

    Parameters
    ----------
    capture : Capture
    runner : ExportTarget
    relations : Relations
        What the program was made under: the trace's, and what converting it added.
    conditions : tuple of Term
    covers : frozenset of Point
        Points at which the conditions hold and the program gave the original's answer.
    domain : Domain
        What the program did without its checks, everywhere.
    """

    capture: Capture
    runner: ExportTarget
    relations: Relations
    conditions: tuple[Term, ...]
    covers: frozenset[Point]
    domain: Domain


@dataclass(frozen=True, slots=True)
class Choice:
    """Programs chosen for a cover, and what they leave uncovered."""

    options: tuple[Option, ...]
    running: tuple[Point, ...]
    uncovered: tuple[Point, ...]


class CoverSearch:
    """Looks for a cover of one model.

    Parameters
    ----------
    original : Original
    points : sequence of Point
        Points to be judged at, those included at which the original refuses.
    free : sequence of int
        Axes that may vary.
    directions : sequence of Direction
        How sizes may move.
    make_runner : callable
        Runs a capture without its checks; may raise :class:`RuntimeRefused`.
    effort : CoverEffort
    costs : ExportCosts, optional
        What exports took so far: where one takes long, holes stay open.
    not_wanted : collection of Point, optional
        Points where an answer is held against the original's, but need not be given.
    """

    def __init__(
        self,
        original: Original,
        points: Sequence[Point],
        free: Sequence[int],
        directions: Sequence[Direction],
        make_runner: MakeRunner,
        effort: CoverEffort = CoverEffort(),
        costs: ExportCosts | None = None,
        not_wanted: Collection[Point] = (),
    ):
        self.original = original
        self.points = list(points)
        self.running = [p for p in points if p not in not_wanted and original.runs(p)]
        self.free = frozenset(free)
        self.directions = directions
        self.make_runner = make_runner
        self.effort = effort
        self.costs = costs or ExportCosts()
        self.hopeless: set[Point] = set()

    def search(self, captures: Iterable[Capture]) -> Choice:
        """Choose among captures, then fill what they leave."""
        options: list[Option] = []
        for made in captures:
            judged = self.judged(made)
            options += judged
            whole = [option for option in judged if option.covers.issuperset(self.running)]
            kept = self._bounded(whole[:1])
            if kept and kept[0].covers.issuperset(self.running):
                return self._choice(kept)
        chosen = _greedy(options, self.running, self.effort.programs)
        return self._choice(self._bounded(self._filled(options, chosen)))

    def judged(self, made: Capture) -> list[Option]:
        """Ask a capture everywhere; nothing if it cannot run or nothing keeps it away from where it is wrong.

        Two choices of conditions: the fewest that keep it right, and those that the exported program itself checks,
        where they admit a shape that the first do not.
        """
        try:
            runner, relations = self.make_runner(made)
        except RuntimeRefused:
            return []
        domain = probe(self.original, [runner], self.points, Domain())
        self.hopeless.update(domain.of(runner.name, CRASH, UNASKED))
        evidence = evidence_of(relations, domain, runner.name)
        known = {axis.name for axis in relations.axes}
        recorded = [c.condition for c in relations.recorded if c.names <= known]
        checked = distinct([c.condition for c in relations.recorded if c.enforced and c.names and c.names <= known])
        found: list[Option] = []
        for conditions in (separate(recorded, evidence), checked):
            if conditions is None or _admitted(conditions, evidence, evidence.wrong):
                continue
            covers = frozenset(_admitted(conditions, evidence, evidence.right))
            if covers and not any(covers <= other.covers for other in found):
                found.append(Option(made, runner, relations, tuple(conditions), covers, domain))
        return found

    def _bounded(self, chosen: list[Option]) -> list[Option]:
        """Hold the conditions of each option against points that they were not chosen by."""
        found = []
        for option in chosen:
            most = max(_FEWEST_HELD_OUT, HELD_OUT // len(chosen))
            bounding = Bounding(self.original, option.runner, option.relations, self.directions, most)
            bounds = bounding.find(option.domain, option.conditions)
            if bounds is not None:
                evidence = evidence_of(option.relations, option.domain, option.runner.name)
                covers = frozenset(_admitted(bounds.conditions, evidence, evidence.right))
                found.append(dataclasses.replace(option, conditions=bounds.conditions, covers=covers))
        return found

    def _filled(self, options: list[Option], chosen: list[Option]) -> list[Option]:
        """Capture again with the example moved to a point that nothing covers, while that gains anything."""
        work = TraceWork()
        dead: set[tuple[int, ...]] = set()
        while (
            len(chosen) < self.effort.programs
            and work.seconds < self.effort.seconds
            and len(dead) < self.effort.failures
            and not self.costs.dear
        ):
            hole = self._hole(chosen, dead)
            if hole is None:
                break
            with counting(work):
                found = [option for option in self._captured_at(hole) if hole in option.covers]
            if not found:
                dead.add(pattern(hole, self.original.example) + hole)
                continue
            options += found
            chosen = _greedy(options, self.running, self.effort.programs)
        return chosen

    def _hole(self, chosen: list[Option], dead: set[tuple[int, ...]]) -> Point | None:
        """An uncovered point of the pattern of zeros and ones that most of them share; sizes small, as users' are."""
        example = self.original.example
        covered = frozenset().union(*(option.covers for option in chosen))
        wanted = [p for p in self.running if p not in covered and p not in self.hopeless]
        open_points = [p for p in wanted if pattern(p, example) + p not in dead]
        if not open_points:
            return None
        # Where every size wants a program of its own, the small ones are worth more.
        small = [p for p in open_points if max(p) <= max(_SMALL, *example)]
        open_points = small or open_points
        kinds: dict[tuple[int, ...], list[Point]] = {}
        for point in open_points:
            kinds.setdefault(_kind(point), []).append(point)
        # What failed once at a kind of shapes mostly fails at all of them: the others are tried first.
        failed = Counter(_kind(point) for point in wanted if pattern(point, example) + point in dead)
        most = max(kinds, key=lambda kind: (-failed[kind], len(kinds[kind])))
        return min(kinds[most], key=lambda point: (abs(sum(point) - sum(example)), point))

    def _captured_at(self, point: Point) -> Iterable[Option]:
        arguments = self._arguments(point)
        for mode in (Mode.AUTO, Mode.OBLIVIOUS):
            sizes = tuple(Dim.AUTO if i in self.free else None for i in range(len(arguments.axes)))
            made = capture(self.original.model, arguments, Attempt(mode, sizes))
            if isinstance(made, Capture):
                yield from self.judged(made)

    def _arguments(self, point: Point) -> Arguments:
        args, kwargs = self.original.inputs(point)
        return arguments_of(self.original.model, Inputs(args=args, kwargs=kwargs))

    def _choice(self, chosen: list[Option]) -> Choice:
        covered = frozenset().union(*(option.covers for option in chosen))
        return Choice(tuple(chosen), tuple(self.running), tuple(p for p in self.running if p not in covered))


def _kind(point: Point) -> tuple[int, ...]:
    """Which sizes are 0, which 1, which more."""
    return tuple(min(size, 2) for size in point)


def _admitted(conditions: Sequence[Term], evidence: UncheckedRuns, points: Iterable[Point]) -> list[Point]:
    admits = all_of(conditions)
    names = [axis.name for axis in evidence.axes]
    return [point for point in points if admits(dict(zip(names, point, strict=True)))]


def _greedy(options: Sequence[Option], points: Sequence[Point], most: int) -> list[Option]:
    """Choose the option that covers most of what is left, until nothing is left or nothing helps."""
    left = set(points)
    chosen: list[Option] = []
    while left and len(chosen) < most:
        best = max(options, key=lambda option: (len(option.covers & left), -len(option.conditions)), default=None)
        if best is None or not best.covers & left:
            break
        chosen.append(best)
        left -= best.covers
    return chosen

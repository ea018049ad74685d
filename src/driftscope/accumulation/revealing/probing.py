"""From counts to a tree.

The spine of a pivot is the chain of partial sums from that term to the root. One question to all other terms gives it:
terms that meet the pivot at the same height are one group, and groups are the subtrees that the spine adds one after
another. A group with the shape of something known, moved, is taken for a copy of it; the others are asked in turn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.revealing.probes import MeetingQuestion, Prober
from driftscope.accumulation.revealing.refusal import RevealError
from driftscope.accumulation.revealing.spines import Member, Spine, TermGroup, TreeBuilder, shape_of
from driftscope.numerics.trees.tree import SumTree

Ints = npt.NDArray[np.int64]

_CANDIDATES = 24  # known shapes of one size that a group is held against


@dataclass(eq=False)
class _SpineTask:
    """A group whose spine is asked for.

    Parameters
    ----------
    group : TermGroup
    pivot : int
    level : list of Member, or None
        Where the group stands in the spine above.
    context : int or None
        Pivot of the spine above.
    """

    group: TermGroup
    pivot: int
    level: list[Member] | None = None
    context: int | None = None
    settled: dict[tuple[int, ...], Ints] = field(default_factory=dict)
    outer: Ints | None = None


@dataclass(eq=False)
class _Tie:
    """Terms of a task that meet the pivot at heights not told apart yet."""

    task: _SpineTask
    terms: Ints
    place: tuple[int, ...] = ()
    unsplit: int = 0

    @property
    def counted(self) -> Ints:
        """Terms that tell the members of this tie apart."""
        return self.terms if self.place else self.task.group.terms


class TreeFinder:
    """Finds the tree of a kernel.

    Parameters
    ----------
    prober : Prober
    rng : numpy.random.Generator
        Draws pivots and carriers.
    copying : bool
        Whether groups may be taken for copies.
    refinements : int
        How often a tie is asked again where not all of its terms can be carriers.
    """

    def __init__(self, prober: Prober, rng: np.random.Generator, *, copying: bool = True, refinements: int = 2):
        self.prober = prober
        self.rng = rng
        self.copying = copying
        self.refinements = refinements
        self.n = prober.kernel.n
        self._known: dict[int, list[tuple[Spine, int]]] = defaultdict(list)
        self._shapes: dict[tuple[int, int], bytes] = {}

    def find(self) -> SumTree:
        """Return the tree.

        Raises
        ------
        RevealError
            If counts contradict each other.
        """
        whole = TermGroup(np.arange(self.n))
        tasks = [_SpineTask(whole, 0)] if self.n > 1 else []
        while tasks:
            tasks = self._wave(tasks)
        return TreeBuilder(self.n).tree(whole)

    def _wave(self, tasks: list[_SpineTask]) -> list[_SpineTask]:
        """Find the spines of these groups; return the groups that are to be asked next."""
        self._ask(tasks)
        following: list[_SpineTask] = []
        for task in tasks:
            if task.outer is not None:
                following += self._part(task)
            levels = [task.settled[place] for place in sorted(task.settled)]
            spine = Spine(task.pivot, [[Member(TermGroup(terms))] for terms in levels])
            task.group.take(spine, len(levels))
            self._remember(spine)
        asked: dict[bytes, TermGroup] = {}
        for task in following:
            asked[shape_of(task.group.terms)] = task.group
        for task in tasks:
            following += self._unknown(task, asked)
        return following

    def _remember(self, spine: Spine) -> None:
        size = 1
        for height, level in enumerate(spine.levels, 1):
            size += len(level[0].group.terms)
            known = self._known[size]
            if len(known) < _CANDIDATES:
                known.append((spine, height))

    def _unknown(self, task: _SpineTask, asked: dict[bytes, TermGroup]) -> list[_SpineTask]:
        spine = task.group.spine
        found = []
        for level in spine.levels if spine is not None else ():
            group = level[0].group
            if len(group.terms) == 1:
                continue
            shape = shape_of(group.terms)
            if self.copying and (self._is_copy(group, shape) or shape in asked):
                group.like = asked.get(shape)
                continue
            asked[shape] = group
            found.append(_SpineTask(group, self._next_pivot(group, task), level, task.pivot))
        return found

    def _next_pivot(self, group: TermGroup, task: _SpineTask) -> int:
        # The lowest term is at the bottom of nearly every kernel's spine; where it was not, chance is safer:
        # a chain that runs backwards would cost n**2 rows.
        if 4 * len(group.terms) > 3 * len(task.group.terms):
            return int(self.rng.choice(group.terms))
        return int(group.terms[0])

    def _is_copy(self, group: TermGroup, shape: bytes) -> bool:
        for spine, height in self._known.get(len(group.terms), ()):
            key = (id(spine), height)
            if key not in self._shapes:
                self._shapes[key] = shape_of(spine.terms(height))
            if self._shapes[key] == shape:
                group.take(spine, height)
                return True
        return False

    def _part(self, task: _SpineTask) -> list[_SpineTask]:
        """Give the terms that turned out not to be below the others of their group a place of their own.

        Either a step of the kernel adds more than two numbers, or a subset of carriers had not told two heights
        apart. Two rows say which.
        """
        if task.outer is None or task.level is None or task.context is None:
            raise RevealError("counts contradict each other: a term lies outside of all terms")
        stranger = int(task.outer[0])
        pivots = np.asarray([task.pivot]), np.asarray([stranger])
        # Both with the spine's pivot: is the one below the point where it meets the other?
        over, under = self.prober.ask(
            [MeetingQuestion(task.context, pivots[1], pivots[0]), MeetingQuestion(task.context, pivots[0], pivots[1])]
        )
        together = bool(over[0]) and bool(under[0])
        task.group.terms = np.setdiff1d(task.group.terms, task.outer)
        rest = TermGroup(task.outer)
        place = next(i for i, member in enumerate(task.level) if member.group is task.group)
        if over[0]:
            task.level.insert(place + 1, Member(rest, joined=together))
        else:
            # It comes first, and what was there follows; whether that was joined moves along with it.
            task.level.insert(place, Member(rest, joined=task.level[place].joined))
            task.level[place + 1].joined = False
        if len(rest.terms) == 1:
            return []
        return [_SpineTask(rest, int(rest.terms[0]), task.level, task.context)]

    # --- heights --------------------------------------------------------------------------------------------

    def _ask(self, tasks: list[_SpineTask]) -> None:
        """Sort the terms of every task by the height at which they meet its pivot."""
        ties = [_Tie(task, task.group.terms[task.group.terms != task.pivot]) for task in tasks]
        ties = [tie for tie in ties if len(tie.terms)]
        while ties:
            questions = [self._question(tie) for tie in ties]
            answers = self.prober.ask(questions)
            ties = [
                again
                for tie, question, under in zip(ties, questions, answers, strict=True)
                for again in self._split(tie, question, under)
            ]

    def _question(self, tie: _Tie) -> MeetingQuestion:
        task, most = tie.task, self.prober.units.most
        context = None if tie.place else task.context
        room = most - (context is not None)
        carriers = tie.counted
        if len(carriers) > room:
            carriers = self.rng.choice(carriers, room, replace=False)
        return MeetingQuestion(task.pivot, tie.terms, carriers, context)

    def _split(self, tie: _Tie, question: MeetingQuestion, under: Ints) -> list[_Tie]:
        """Order the terms of a tie by what was counted; return the ties that are to be asked again."""
        task, complete = tie.task, len(question.carriers) == len(tie.counted)
        if question.context is not None:
            outside = under == len(question.carriers) + 1
            if outside.any():
                task.outer = tie.terms[outside]
                tie = _Tie(task, tie.terms[~outside])
                under = under[~outside]
        values, inverse, counts = np.unique(under, return_inverse=True, return_counts=True)
        if complete and not np.array_equal(np.cumsum(counts) + (not tie.place), values):
            raise RevealError(
                f"{self.prober.kernel.name}: no tree of additions was found: terms that meet at one height are not as"
                " many as were counted there"
            )
        order = np.argsort(inverse, kind="stable")
        again = []
        for value, part in zip(values.tolist(), np.split(tie.terms[order], np.cumsum(counts)[:-1]), strict=False):
            place = (*tie.place, value)
            unsplit = tie.unsplit + 1 if len(values) == 1 else 0
            if complete or len(part) == 1 or unsplit >= self.refinements:
                task.settled[place] = np.sort(part)
            else:
                again.append(_Tie(task, part, place, unsplit))
        return again

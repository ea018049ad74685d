"""Where two lifted programs part: the first pieces of B that take A's values in and give others out.

Both programs have run once in float64 and every value left a sketch. A value of B is *sound* when A computes it too,
or when something computed from it is: a graph that computes the same function in other pieces passes through values
A never has and comes back. A *piece* of B is what lies between two values known to correspond to values of A. A piece
that takes only A's values and gives another value than A does at its end is where the programs part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from driftscope.explain.locate.alignment import Alignment
from driftscope.explain.locate.fingerprints import Sketch, Trail, ValueIndex, Visited, common_values, sketch, steps_to
from driftscope.explain.locate.operators import MOVES, family

# Pieces that only select or join elements.
_SELECTS = frozenset({"gather", "slice", "split", "cat"})
# A piece longer than this is none: too little of the two graphs could be paired.
_LONGEST = 48


@dataclass(frozen=True, slots=True)
class Parting:
    """A place where the programs part.

    Parameters
    ----------
    step : Visited
        The step of B at which the piece ends, or the first whose value A does not have.
    counterpart : Visited or None
        The step of A whose result B should have there.
    reads : tuple of str
        For each input of ``step`` the value of A that it is, "" for none.
    followers : tuple of Visited
        The steps of B that read its result: a fused piece of A may end with them.
    piece : tuple of Visited
        The steps of B between aligned values; the last is ``step``.
    paired : bool
        Whether the two steps are known to correspond; otherwise the counterpart is the likeliest.
    first : Visited or None
        The first step of the piece whose value leads to nothing that A has; the likeliest of the piece.
    """

    step: Visited
    counterpart: Visited | None
    reads: tuple[str, ...] = ()
    followers: tuple[Visited, ...] = ()
    piece: tuple[Visited, ...] = ()
    paired: bool = False
    first: Visited | None = None


@dataclass(slots=True)
class View:
    """Two runs side by side, as the search for partings sees them."""

    a: Trail
    b: Trail
    alignment: Alignment
    in_a: ValueIndex
    in_b: ValueIndex
    sound_a: set[str] = field(default_factory=set)
    sound_b: set[str] = field(default_factory=set)
    results: frozenset[str] = frozenset()

    @classmethod
    def of(cls, a: Trail, b: Trail, alignment: Alignment, results: Iterable[str] = ()) -> View:
        """Index both runs and find the values of each that lead to a value of the other; ``results`` are B's."""
        in_a, in_b = ValueIndex(a), ValueIndex(b)
        return cls(a, b, alignment, in_a, in_b, _sound(a.steps, in_b), _sound(b.steps, in_a), frozenset(results))

    def before_forcing(self, names: Collection[str]) -> View:
        """The same runs with what B computed itself where these values were forced: each parts from A there again."""
        own = {name: sketch(self.b.replaced[name]) for name in names}
        steps = [
            s if own.keys().isdisjoint(s.outputs)
            else replace(s, sketches=tuple(own.get(n, was) for n, was in zip(s.outputs, s.sketches, strict=False)))
            for s in self.b.steps
        ]  # fmt: skip
        b = replace(self.b, steps=steps)
        in_b = ValueIndex(b)
        sound = _sound(self.a.steps, in_b), _sound(steps, self.in_a, own)
        return View(self.a, b, self.alignment, self.in_a, in_b, *sound, self.results)

    def unused_b(self) -> set[int]:
        """Steps of B from which none of its results is computed, where it is known what these are."""
        computed = {name for step in self.b.steps for name in step.outputs}
        if not self.results or not self.results <= computed:
            return set()
        needed, unused = set(self.results), set()
        for step in reversed(self.b.steps):
            if needed.intersection(step.outputs):
                needed.update(step.inputs)
            else:
                unused.add(step.index)
        return unused

    def makers_a(self) -> dict[str, Visited]:
        """The step of A that computes each value."""
        return _makers(self.a.steps)

    def makers_b(self) -> dict[str, Visited]:
        """The step of B that computes each value."""
        return _makers(self.b.steps)

    def lost(self, after: int, views: bool = True) -> int:
        """How many values of B, computed after a step, lead to nothing that A has; with or without mere views."""
        later = (s for s in self.b.steps if s.index > after and not s.inside and (views or not _moves(s)))
        return sum(1 for s in later for n in s.outputs if n and n not in self.sound_b)

    def guessed(self, parting: Parting) -> bool:
        """Whether two steps are paired by where they stand alone, and are not of one kind."""
        step, other = parting.step, parting.counterpart
        by_order = self.alignment.by.get(step.index) == "order"
        return by_order and other is not None and family(step.operator) != family(other.operator)

    def misplaced(self, parting: Parting) -> bool:
        """Whether a mere view is paired by where it stands alone with another value than the one of A that it is."""
        step, other = parting.step, parting.counterpart
        alone = self.alignment.by.get(step.index) == "order" and _moves(step) and self.in_a.holds(step.sketches[0])
        return alone and other is not None and _compare(step, other) == "other"


def _makers(steps: Sequence[Visited]) -> dict[str, Visited]:
    return {name: step for step in steps if not step.inside for name in step.outputs if name}


def find_partings(view: View) -> list[Parting]:
    """Find the pieces of B, in order, that take A's values and give others; empty when there are none."""
    search, unused = _Search(view), view.unused_b()
    for step in view.b.steps:
        if not step.inside and step.outputs and step.index not in unused:
            search.visit(step)
    if not search.found:
        # The outputs themselves: nothing that is computed from them shows that their order is another one.
        search.add_moved(view.results)
    partings = search.found
    covered = unused.union(s.index for p in partings for s in p.piece)
    frontier = [s for s in _frontier(view.b.steps, view.sound_b) if s.index not in covered]
    candidates = _frontier(view.a.steps, view.sound_a)
    for k, step in enumerate(frontier):
        search.add_moved(step.inputs)
        parting = _parting(view, step, counterpart_of(step, candidates, k), (step,), False)
        partings.append(replace(parting, followers=unsound_after(view.b.steps, step, view.sound_b)))
    # What only selects from A's values is seldom where they part, if something else takes them as well.
    return sorted(
        partings, key=lambda p: (not p.paired, view.misplaced(p) if p.paired else _selects(p.step), p.step.index)
    )


def _parting(view: View, step: Visited, counterpart: Visited | None, piece: Sequence[Visited], paired: bool) -> Parting:
    reads = tuple(view.in_a.name_of(taken) for taken in step.taken)
    followers = tuple(s for s in view.b.steps if set(step.outputs) & set(s.inputs))
    lost = [s for s in piece if _loses(s, view.sound_b)]
    # A fused step of A has no values for what B only selects and moves on the way: nothing is lost there.
    known = {family(s.operator) for s in view.a.steps}
    telling = [s for s in lost if family(s.operator) in known or family(s.operator) not in MOVES | _SELECTS]
    first = next(iter(telling or lost), None)
    return Parting(step, counterpart, reads, followers, tuple(piece), paired, first)


def unsound_after(steps: Sequence[Visited], step: Visited, sound: set[str]) -> tuple[Visited, ...]:
    """The steps from one to what the other program has again, or to the end: a fused step there shows no part of them.

    Parameters
    ----------
    steps : sequence of Visited
        The whole run that ``step`` is one of.
    step : Visited
    sound : set of str
        Values from which something is computed that the other program has.
    """
    reached, found = set(step.outputs), list[Visited]()
    for later in steps[step.index + 1 :]:
        if not later.inside and reached.intersection(later.inputs) and len(found) < _LONGEST:
            found.append(later)
            reached.update(name for name in later.outputs if name not in sound)
    return tuple(found)


def _loses(step: Visited, sound: set[str]) -> bool:
    pairs = list(zip(step.outputs, step.sketches, strict=False))[:1]
    return any(name not in sound and s is not None and not s.plain for name, s in pairs)


@dataclass(slots=True)
class _Search:
    """One pass over B's steps in order."""

    view: View
    found: list[Parting] = field(default_factory=list)
    tainted: set[str] = field(default_factory=set)
    pieces: dict[str, frozenset[int]] = field(default_factory=dict)
    begins: dict[str, int] = field(default_factory=dict)  # where what leads to a value was lost, however long ago
    moved: dict[str, int] = field(default_factory=dict)
    starts: dict[int, frozenset[int]] = field(default_factory=dict)

    def visit(self, step: Visited) -> None:
        view = self.view
        inputs = [n for n in step.inputs if n]
        dirty = any(n in self.tainted for n in inputs)
        members = frozenset({step.index}).union(*(self.pieces.get(n, frozenset()) for n in inputs))
        partner = view.alignment.partner.get(step.index)
        state = _compare(step, view.a.steps[partner]) if partner is not None else ""
        if state == "equal":
            # Equal elements under another number of axes: how they are broadcast is still open.
            unsettled = partner is not None and step.rank != view.a.steps[partner].rank and _moves(step)
            self._clean(step, members if unsettled else frozenset())
        elif state == "moved":
            self._clean(step, frozenset())
            self._remember_moved(step, inputs, members)
        elif state == "plain" or (state == "other" and dirty):
            self._after(step, dirty, members)
        elif state == "other" and partner is not None:
            self._part(step, partner, members, inputs)
        elif any(view.in_a.holds(s) for s in step.sketches):
            if not any(view.in_a.holds_in_order(s) for s in step.sketches):
                self._pass_on_moved(step, inputs)
            self._clean(step, members if _moves(step) else frozenset())
        else:
            self._pass_on_moved(step, inputs)
            self._after(step, dirty, members)

    def _pass_on_moved(self, step: Visited, inputs: Sequence[str]) -> None:
        first = next((self.moved[n] for n in inputs if n in self.moved), None)
        if first is not None:
            self.moved.update((name, first) for name in step.outputs)

    def _clean(self, step: Visited, members: frozenset[int]) -> None:
        for name in step.outputs:
            self.tainted.discard(name)
            self.begins.pop(name, None)
            self.pieces[name] = members

    def _after(self, step: Visited, dirty: bool, members: frozenset[int]) -> None:
        begin = self._begin(step)
        for name in step.outputs:
            self.begins |= {} if begin is None else {name: begin}
            self.pieces[name] = members if len(members) <= _LONGEST else frozenset()
            if dirty:
                self.tainted.add(name)

    def _begin(self, step: Visited) -> int | None:
        """The first step of those that lead here whose value A does not have; views and selections do not tell."""
        told = _loses(step, self.view.sound_b) and not _selects(step)
        return min([*(self.begins[n] for n in step.inputs if n in self.begins), *([step.index] if told else [])],
                   default=None)  # fmt: skip

    def _remember_moved(self, step: Visited, inputs: Sequence[str], members: frozenset[int]) -> None:
        first = next((self.moved[n] for n in inputs if n in self.moved), step.index)
        self.starts.setdefault(first, members)
        for name in step.outputs:
            self.moved[name] = first

    def _part(self, step: Visited, partner: int, members: frozenset[int], inputs: Sequence[str]) -> None:
        view = self.view
        piece = [view.b.steps[k] for k in sorted(members)]
        self.add_moved([n for s in piece for n in s.inputs])
        parting, begin = _parting(view, step, view.a.steps[partner], piece, True), self._begin(step)
        if begin is not None and begin < min(members):  # the piece was too long to be kept whole
            parting = replace(parting, first=view.b.steps[begin])
        self.found.append(parting)
        for name in step.outputs:
            self.tainted.add(name)
            self.begins.pop(name, None)
            self.pieces[name] = frozenset()

    def add_moved(self, names: Iterable[str]) -> None:
        """Add where the elements of values are A's and their order begins not to be: that may be the place."""
        view = self.view
        for first in dict.fromkeys(self.moved[n] for n in names if n in self.moved):
            other = view.a.steps[view.alignment.partner[first]]
            whole = [view.b.steps[k] for k in sorted(self.starts[first])]
            self.found.append(_parting(view, view.b.steps[first], other, whole, True))


def _selects(step: Visited) -> bool:
    return family(step.operator) in MOVES | _SELECTS


def _moves(step: Visited) -> bool:
    return family(step.operator) in MOVES


def _compare(mine: Visited, theirs: Visited) -> str:
    """How two steps that correspond compare: "equal", "moved", "other", "plain" (other, but no floats) or ""."""
    states = [_state(x, y) for x, y in zip(mine.sketches, theirs.sketches, strict=False)]
    if len(mine.sketches) != len(theirs.sketches):
        states = states[:1]
    states = [s for s in states if s]
    if states and set(states) == {"equal"} and turned(mine, theirs):
        return "moved"
    for state in ("other", "plain", "moved", "equal"):
        if state in states:
            return state
    return ""


def turned(mine: Visited, theirs: Visited) -> bool:
    """Whether the axes of two results of equal elements stand in another order."""
    shapes = list(zip(mine.shapes, theirs.shapes, strict=False))[:1]
    return any(len(x) == len(y) and x != y and sorted(x) == sorted(y) for x, y in shapes)


def _state(mine: Sketch | None, theirs: Sketch | None) -> str:
    if mine is None or theirs is None:
        return ""
    if mine.same(theirs):
        return "equal"
    if mine.plain and theirs.plain:
        # Masks and positions have many spellings; what is wrong with one shows in the first float made of it.
        return "plain" if mine.size and theirs.size else "other"
    return "moved" if mine.agrees(theirs) else "other"


def _sound(steps: Sequence[Visited], other: ValueIndex, alone: Collection[str] = ()) -> set[str]:
    """Names of values that the other program has or that lead to one; what comes of those ``alone`` tells nothing."""
    sound: set[str] = set()
    for step in reversed(steps):
        pairs = zip(step.outputs, step.sketches, strict=False)
        # Integers and masks are not looked for; they are judged by what becomes of them.
        found = {name for name, s in pairs if (name in sound and name not in alone) or other.holds(s)}
        if found:
            sound.update(found)
            sound.update(n for n in step.inputs if n)
        sound.difference_update(name for name in step.outputs if name in alone and name not in found)
    return sound


def _frontier(steps: Sequence[Visited], sound: set[str]) -> list[Visited]:
    """Steps that take only sound values (or inputs and constants) and give an unsound float.

    An integer that is computed from sound values passes for sound here: what is wrong with it shows in the first
    float computed from it.
    """
    computed = {name for step in steps for name in step.outputs}
    read = {name for step in steps for name in step.inputs}
    passing = set(sound)
    found = []
    for step in steps:
        # What nobody reads is a by-product (a norm's mean), unless it is all there is: then it is an output.
        live = [k for k, name in enumerate(step.outputs) if name in read] or [0]
        wrong = [k for k in live if k < len(step.outputs) and step.outputs[k] not in sound]
        if step.inside or not wrong:
            continue
        if all(name in passing or name not in computed for name in step.inputs if name):
            sketches = [step.sketches[k] for k in wrong]
            if any(s is not None and not s.plain for s in sketches):
                found.append(step)
            else:
                passing.update(step.outputs)
    return found


def counterpart_of(step: Visited, candidates: Sequence[Visited], position: int) -> Visited | None:
    """The step of A that does what ``step`` does: of its family if there is one, taking the most of its values."""
    same = [c for c in candidates if family(c.operator) == family(step.operator)]
    if same:
        return max(same, key=lambda c: common_values(step, c))
    return candidates[position] if position < len(candidates) else (candidates[0] if candidates else None)


def _inside_of(view: View, end: Visited) -> dict[int, Visited]:
    """What a fused step of A computes between the last value that B has as well and one of its parts."""
    whole = end.name.rpartition(".")[0]
    found: dict[int, Visited] = {}
    for step in reversed(view.a.steps[: end.index] if whole else []):
        if not step.name.startswith(f"{whole}.") or any(view.in_b.holds(s) for s in step.sketches):
            break
        found[step.index] = step
    return found


def piece_of(view: View, end: Visited, inner: bool = False, forced: Iterable[Sketch | None] = ()) -> list[Visited]:
    """The steps of A that lead to ``end`` from values B has as well; with what fused ones consist of, if asked.

    ``forced`` are values of A that were put into B before.
    """
    given = [s for s in forced if s is not None]
    members = steps_to(end, view.makers_a(), lambda v: view.in_b.holds(v) or any(v.agrees(s) for s in given), _LONGEST)
    members |= _inside_of(view, end)
    found = [members[k] for k in sorted(members)]
    if inner:
        fused = tuple(f"{s.name}{mark}" for s in found for mark in "./")
        found += [s for s in view.a.steps if s.inside and s.name.startswith(fused)]
    return found

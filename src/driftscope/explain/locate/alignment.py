"""Which step of one program does what a step of the other does.

Three sources, the surest first: names (an exporter writes the name of its graph's node into the file, a runtime's
optimiser keeps the names of values), module paths and operators in order, and values: two results with the same
elements. What a name says is only believed while the values do not contradict it.
"""

from __future__ import annotations

import bisect
import difflib
import itertools
import math
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.explain.locate.fingerprints import Sketch, Trail, ValueIndex, Visited
from driftscope.explain.locate.operators import MOVES, family
from driftscope.explain.locate.rerunning import Reruns

# Share of names that may be contradicted by values, and that must be common, for names to be believed.
_CONTRADICTED = 0.2
# Contradictions up to which a bug that exchanges values may have caused them.
_FEW = 3
_COMMON = 0.8


@dataclass(slots=True)
class Alignment:
    """Pairs of steps, by their positions.

    Parameters
    ----------
    partner : dict of int to int
        For steps of B the step of A that does the same.
    by : dict of int to str
        What says so: "name", "place", "order" or "value".
    """

    partner: dict[int, int] = field(default_factory=dict)
    by: dict[int, str] = field(default_factory=dict)

    def add(self, pairs: Mapping[int, int], reason: str) -> None:
        """Add pairs of steps that are not paired yet."""
        taken = set(self.partner.values())
        for k, i in pairs.items():
            if k not in self.partner and i not in taken:
                self.partner[k] = i
                self.by[k] = reason
                taken.add(i)


def align(a: Trail, b: Trail, same_weights: Mapping[str, Sequence[str]]) -> Alignment:
    """Pair the steps of two runs.

    Parameters
    ----------
    a, b : Trail
    same_weights : mapping of str to sequence of str
        For constants of B the names of A's constants with the same elements.
    """
    found = Alignment()
    steps_a, steps_b = _shown(a), _shown(b)
    found.add(_believed(_by_name(steps_a, steps_b), a, b), "name")
    weighted = _by_weights(steps_a, steps_b, same_weights, [s.name for s in (*a.steps, *b.steps) if s.inside])
    found.add(_believed(_by_place(steps_a, steps_b, found, weighted), a, b), "place")
    anchors = {**_by_value(a, b, steps_a, steps_b), **weighted}
    found.add(_by_order(steps_a, steps_b, found, anchors), "order")
    found.add(anchors, "value")
    return found


def _shown(trail: Trail) -> list[Visited]:
    return [step for step in trail.steps if not step.inside and step.outputs]


def _believed(pairs: dict[int, int], a: Trail, b: Trail) -> dict[int, int]:
    """Drop pairs that the values contradict: names of two exporters may mean different things.

    Names are counted for each operator (``sub_5``), and one more operator of a kind shifts all of that kind: too many
    contradictions in one kind drop that kind, too many in all drop all.
    """
    in_a, in_b = ValueIndex(a), ValueIndex(b)
    votes: dict[str, list[bool]] = {}
    passed_on = set[str]()
    for k, i in sorted(pairs.items()):
        mine, theirs = _main(b.steps[k]), _main(a.steps[i])
        if mine is None or theirs is None or mine.plain or theirs.plain:
            continue
        if _equal(b.steps[k], a.steps[i]):
            votes.setdefault(_piece(b.steps[k]), []).append(True)
        elif in_a.holds(mine) and in_b.holds(theirs):
            # A view of what is contradicted is no further witness.
            if family(b.steps[k].operator) not in MOVES or passed_on.isdisjoint(b.steps[k].inputs):
                votes.setdefault(_piece(b.steps[k]), []).append(False)
            passed_on.update(b.steps[k].outputs)
    if _contradicted([vote for own in votes.values() for vote in own]):
        return {}
    shifted = {piece for piece, own in votes.items() if _contradicted(own)}
    return {k: i for k, i in pairs.items() if _piece(b.steps[k]) not in shifted}


def _contradicted(votes: Sequence[bool]) -> bool:
    against = len(votes) - sum(votes)
    return against >= _FEW and against > _CONTRADICTED * len(votes)


def _main(step: Visited) -> Sketch | None:
    return step.sketches[0] if step.sketches else None


# --- names -----------------------------------------------------------------------------------------------------


def _label(step: Visited) -> str:
    return step.traced[0] or (step.outputs[0] if step.outputs else "")


def _ends(steps: Sequence[Visited]) -> dict[str, Visited]:
    """The last step made of each node of the exporter's graph, by that node's name; others by their output."""
    ends: dict[str, Visited] = {}
    for step in steps:
        if step.traced[0] and step.traced[0] in step.outputs:
            ends[step.traced[0]] = step  # the exporter gives the result the name of its node
        elif step.traced[0] and not (step.traced[0] in ends and step.traced[0] in ends[step.traced[0]].outputs):
            ends[step.traced[0]] = step
    for step in steps:
        if step.outputs[0]:
            ends.setdefault(step.outputs[0], step)
    return ends


def _by_name(a: Sequence[Visited], b: Sequence[Visited]) -> dict[int, int]:
    ends_a, ends_b = _ends(a), _ends(b)
    common = len(ends_a.keys() & ends_b.keys())
    # A tape counts its operators as an exporter does, but counts other operators.
    if common < _COMMON * min(len(ends_a), len(ends_b)):
        return {}
    pairs = {}
    for name, step in ends_b.items():
        other = ends_a.get(name)
        if other is not None and _plausible(other, step):
            pairs[step.index] = other.index
    # What stands on the way to the end of a node has a name too, in two files of one exporter the same one.
    inner_a, inner_b = ({s.outputs[0]: s for s in steps if s.outputs[0]} for steps in (a, b))
    taken = set(pairs.values())
    for name in inner_a.keys() & inner_b.keys() if _mostly(inner_a, inner_b) else ():
        other, step = inner_a[name], inner_b[name]
        if step.operator == other.operator and other.index not in taken and _plausible(other, step):
            pairs.setdefault(step.index, other.index)
    return pairs


def _mostly(one: Collection[str], other: Collection[str]) -> bool:
    """Whether nearly all of these names are common."""
    return len(set(one) & set(other)) >= _COMMON * max(len(one), len(other))


def _plausible(one: Visited, other: Visited) -> bool:
    """Whether two steps of one name may be the same: a tape numbers its steps, as exporters do, but not alike."""
    if _module(one) != _module(other) and one.where.module and other.where.module:
        return False
    if one.where.line and other.where.line and one.where.file == other.where.file:
        return one.where.line == other.where.line and _piece(one) == _piece(other)
    return _same_count(one, other)


def _same_count(one: Visited, other: Visited) -> bool:
    x, y = _main(one), _main(other)
    return x is None or y is None or x.count == y.count


def _piece(step: Visited) -> str:
    return family(step.traced[1] or step.operator)


def _module(step: Visited) -> str:
    return step.where.module or ""


# --- places ----------------------------------------------------------------------------------------------------


def _by_place(
    a: Sequence[Visited], b: Sequence[Visited], found: Alignment, weighted: Mapping[int, int]
) -> dict[int, int]:
    """Pair steps by module path and operator, in the order in which they run.

    Between steps that are known already: one more addition on one side would shift all that follow it.
    """
    if not (any(s.where.module for s in a) and any(s.where.module for s in b)):
        return {}
    tokens_a, tokens_b, pairs = _tokens(a), _tokens(b), dict[int, int]()
    for key, others in ((_on_its_line, False), (lambda step: (_module(step), _piece(step)), True)):
        known = {**found.partner, **pairs}
        taken = set(known.values())
        for left, right in _between(tokens_a, tokens_b, _chain({**weighted, **known})):
            own_a = [s for s in left if s.index not in taken]
            own_b = [s for s in right if s.index not in known]
            pairs.update(_matched(own_a, own_b, key, others))
    return pairs


def _on_its_line(step: Visited) -> Hashable:
    """A step by the line that it was written in; one of which no line is known is like no other."""
    where = step.where
    return (_module(step), _piece(step), where.file, where.line) if where.line is not None else id(step)


def _tokens(steps: Sequence[Visited]) -> list[Visited]:
    """One step per node of the exporter's graph, its last; every step where nothing is known of that graph."""
    ends = {step.index for step in _ends([s for s in steps if s.traced[0]]).values() if step.traced[0]}
    named = _ends([s for s in steps if s.traced[0]])
    ends = {named[s.traced[0]].index for s in steps if s.traced[0]}
    return [s for s in steps if not s.traced[0] or s.index in ends]


def _matched(
    a: Sequence[Visited], b: Sequence[Visited], key: Callable[[Visited], Hashable], others: bool = True
) -> dict[int, int]:
    """Pair steps of equal keys; with ``others`` two alone in one place as well, whatever they compute."""
    matcher = difflib.SequenceMatcher(None, [key(s) for s in a], [key(s) for s in b], autojunk=False)
    pairs = {}
    for tag, i0, i1, k0, k1 in matcher.get_opcodes():
        # Another operator in the same place; but a view is in nobody's place.
        other = others and tag == "replace" and i1 - i0 == k1 - k0 == 1 and _piece(a[i0]) not in MOVES - {"cast"}
        if tag == "equal" or other:
            both = zip(a[i0:i1], b[k0:k1], strict=True)
            pairs.update({s.index: t.index for t, s in both if _same_count(t, s)})
    return pairs


# --- values, weights, neighbours ---------------------------------------------------------------------------------


def _by_value(a: Trail, b: Trail, steps_a: Sequence[Visited], steps_b: Sequence[Visited]) -> dict[int, int]:
    index = ValueIndex(a)
    makers = {name: step.index for step in steps_a for name in step.outputs}
    pieces = {step.index: _piece(step) for step in steps_a}
    pairs = {}
    for step in steps_b:
        names = [n for n in index.names_of(_main(step)) if n in makers]
        if names:
            alike = [n for n in names if pieces[makers[n]] == _piece(step)]
            pairs[step.index] = makers[(alike or names)[0]]
    return pairs


def _by_weights(
    a: Sequence[Visited], b: Sequence[Visited], same: Mapping[str, Sequence[str]], parts: Sequence[str]
) -> dict[int, int]:
    """Pair steps that read the same weights; of several of B's for one of A's one that gives A's value, or the last.

    One that is fused with what follows, of which ``parts`` are named, is of another kind and gives another value.

    Layers that begin as copies of one another hold the same elements, and an exporter may write these once: where both
    programs read them as often, the order in which they run tells which is which.
    """
    pairs: dict[int, tuple[bool, int]] = {}
    fused = {part.rpartition("/")[0] for part in parts}
    for names in dict.fromkeys(tuple(names) for names in same.values()):
        own = {name for name, others in same.items() if tuple(others) == names}
        mine, theirs = _readers(b, own), _readers(a, set(names))
        if len(theirs) == 1:
            found = [(step, theirs[0]) for step in mine]
        elif len(mine) == len(theirs):
            found = list(zip(mine, theirs, strict=True))
        else:
            named = {name: (_readers(b, {name}), _readers(a, {name})) for name in sorted(own & set(names))}
            found = [(step, other[0]) for steps, other in named.values() if len(other) == 1 for step in steps]
        for step, other in found:
            other_kind = _piece(step) != _piece(other) and not {step.name, other.name}.isdisjoint(fused)
            if _same_count(other, step) and (not other_kind or _equal(step, other)):
                pairs[other.index] = max(pairs.get(other.index, (False, -1)), (_equal(step, other), step.index))
    return {k: i for i, (_, k) in pairs.items()}


def _equal(one: Visited, other: Visited) -> bool:
    mine, theirs = _main(one), _main(other)
    return mine is not None and theirs is not None and mine.agrees(theirs)


def _readers(steps: Sequence[Visited], names: set[str]) -> list[Visited]:
    """The steps that read one of these weights; of a fused one its parts, which say more."""
    readers = [s for s in steps if not names.isdisjoint(s.stored)]
    parted = {s.name.rpartition(".")[0] for s in readers}
    return [s for s in readers if s.name not in parted]


def _by_order(
    a: Sequence[Visited], b: Sequence[Visited], found: Alignment, anchors: Mapping[int, int]
) -> dict[int, int]:
    """Pair what is left between anchors, by operators in the order in which they run."""
    fixed = {**anchors, **found.partner}
    chain = _chain(fixed)
    pairs = {k: i for k, i in chain if k not in found.partner}
    taken = set(fixed.values())
    for stretch_a, stretch_b in _between(a, b, chain):
        left = [s for s in stretch_a if _piece(s) not in MOVES and s.index not in taken]
        right = [s for s in stretch_b if _piece(s) not in MOVES and s.index not in fixed]
        if left and not right:
            right = [s for s in stretch_b if s.operator == "Identity" and s.index not in fixed]
        if left and right:
            pairs.update(_matched(left, right, _piece))
    return pairs


def _chain(pairs: Mapping[int, int]) -> list[tuple[int, int]]:
    """The pairs of steps (of B and of A) that run in one order on both sides."""
    return _increasing(sorted(pairs.items()))


def _between(
    a: Sequence[Visited], b: Sequence[Visited], chain: Sequence[tuple[int, int]]
) -> Iterator[tuple[Sequence[Visited], Sequence[Visited]]]:
    """Yield the steps of A and of B that stand between two pairs of a chain."""
    index = operator.attrgetter("index")
    borders = [(-1, -1), *chain, (b[-1].index + 1 if b else 0, a[-1].index + 1 if a else 0)]
    for (k0, i0), (k1, i1) in itertools.pairwise(borders):
        yield (a[bisect.bisect_right(a, i0, key=index) : bisect.bisect_left(a, i1, key=index)],
               b[bisect.bisect_right(b, k0, key=index) : bisect.bisect_left(b, k1, key=index)])  # fmt: skip


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest chain of pairs that increases on both sides."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for k, (_, i) in enumerate(pairs):
        at = bisect.bisect_left(tails, i)
        if at == len(tails):
            tails.append(i)
            ends.append(k)
        else:
            tails[at], ends[at] = i, k
        before.append(ends[at - 1] if at else -1)
    chain = []
    k = ends[-1] if ends else -1
    while k >= 0:
        chain.append(pairs[k])
        k = before[k]
    return chain[::-1]


# Axes whose orders are tried, and elements up to which they are.
_MOST_AXES, _MOST_ELEMENTS = 4, 1 << 22
# Relative difference of two values of equal sketches that are laid out alike.
_SAME = 1e-8


def orders(theirs: torch.Tensor, mine: torch.Tensor) -> Iterator[torch.Tensor]:
    """A's value with its axes in every order, in the shape of B's."""
    if 2 <= theirs.ndim <= _MOST_AXES and mine.numel() <= _MOST_ELEMENTS:
        for order in itertools.permutations(range(theirs.ndim)):
            yield theirs.permute(order).reshape(mine.shape)


def gap(own: torch.Tensor, value: torch.Tensor) -> float:
    """Sum of the absolute differences of two values with as many elements; infinite where they have not."""
    if own.numel() != value.numel():
        return math.inf
    return float(torch.nan_to_num(own.reshape(-1) - value.reshape(-1).to(own), posinf=0.0, neginf=0.0).abs().sum())


def order_of_axes(
    pairs: Iterable[tuple[Visited, Visited]], shapes: tuple[tuple[int, ...], ...], runs: tuple[Reruns, Reruns]
) -> int | None:
    """Which order of A's axes B has in a pair of equal values of two shapes; None where there is no such pair."""
    for other, step in pairs:
        one, two = step.sketches[:1], other.sketches[:1]
        if (other.shapes[:1], step.shapes[:1]) != ((shapes[0],), (shapes[1],)) or one[0] is None or two[0] is None:
            continue
        if one[0].plain or not one[0].agrees(two[0]) or one[0].same(two[0]):
            continue
        theirs, mine = (
            run.values(s.outputs[:1], {}).get(s.outputs[0]) for run, s in zip(runs, (other, step), strict=True)
        )
        if mine is None or theirs is None:
            continue
        size = float(mine.abs().max())
        close = (float((mine - moved.to(mine)).abs().max()) <= _SAME * size for moved in orders(theirs, mine))
        return next((n for n, equal in enumerate(close) if equal), None)
    return None

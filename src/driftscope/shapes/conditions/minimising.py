"""The fewest clauses that say the same: equalities become classes, fixed sizes are put in, the rest is chosen."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from driftscope.shapes.conditions.expressions import (
    Number,
    Operation,
    Size,
    Term,
    holds,
    operation,
    substitute,
    text,
    walk,
)
from driftscope.shapes.conditions.linear import Linear, linear_of, term_of
from driftscope.shapes.conditions.phrasing import phrase
from driftscope.shapes.conditions.relations import Clause, Relations, size_of
from driftscope.shapes.probe.axes import Axis, AxisClasses

# Sizes tried per class, by the number of classes that clauses tie together: about 10,000 points each.
_TRIED = {1: 160, 2: 48, 3: 22}
# Points tried where four classes or more are tied together.
_RANDOM_POINTS = 12_000


def minimised(recorded: Sequence[Clause], axes: tuple[Axis, ...]) -> tuple[tuple[Clause, ...], AxisClasses]:
    """Choose and word the clauses to show.

    Returns
    -------
    clauses : tuple of Clause
        Chains of equal axes, fixed sizes, then the others; enforced ones first within each kind.
    classes : AxisClasses
        Axes that must be equal.
    """
    pairs = [(c, pair) for c in recorded if (pair := _equal_pair(c.condition)) is not None]
    classes = _classes(axes, [pair for _, pair in pairs])
    first = {axes[i].name: axes[group[0]].name for group in classes.groups for i in group}
    to_first: dict[str, Term] = {name: Size(other) for name, other in first.items() if name != other}
    fixed = _fixed(recorded, to_first)
    known = {**to_first, **{name: Number(c) for name, c in fixed.items()}}
    known.update({name: Number(fixed[other]) for name, other in first.items() if other in fixed})
    rest = []
    for one in recorded:
        condition = substitute(one.condition, known)
        if one.names and isinstance(condition, Number):
            continue
        rest.append(dataclasses.replace(one, condition=condition))
    chains = _chains(classes, [c for c, _ in pairs])
    return (*chains, *_fixed_clauses(recorded, fixed, to_first), *_chosen(rest, axes)), classes


def with_more(relations: Relations, more: Relations) -> Relations:
    """What a program was made under when a trace and then a conversion assumed something; the trace knows the lines."""
    known = {one.text for one in relations.recorded}
    added = [one for one in more.recorded if one.text not in known]
    if not added:
        return relations
    recorded = (*relations.recorded, *added)
    clauses, classes = minimised(recorded, relations.axes)
    return Relations(relations.axes, recorded, clauses, classes, relations.unread)


def _equal_pair(condition: Term) -> tuple[str, str] | None:
    if isinstance(condition, Operation) and condition.operator == "==":
        left, right = condition.terms
        if isinstance(left, Size) and isinstance(right, Size):
            return left.name, right.name
    return None


def _classes(axes: tuple[Axis, ...], pairs: Sequence[tuple[str, str]]) -> AxisClasses:
    """Group equal axes (union-find); groups and their members keep the order of the axes."""
    place = {axis.name: number for number, axis in enumerate(axes)}
    parent = list(range(len(axes)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for left, right in pairs:
        a, b = sorted((root(place[left]), root(place[right])))
        parent[b] = a
    groups: dict[int, list[int]] = {}
    for number in range(len(axes)):
        groups.setdefault(root(number), []).append(number)
    return AxisClasses(axes, tuple(tuple(group) for group in groups.values()))


def _fixed(recorded: Sequence[Clause], to_first: Mapping[str, Term]) -> dict[str, int]:
    """Sizes that must be one number, by the first axis of their class."""
    found: dict[str, int] = {}
    for one in recorded:
        condition = substitute(one.condition, to_first)
        if isinstance(condition, Operation) and condition.operator == "==":
            numbers = [t.value for t in condition.terms if isinstance(t, Number)]
            names = [t.name for t in condition.terms if isinstance(t, Size)]
            if len(numbers) == len(names) == 1:
                found.setdefault(names[0], int(numbers[0]))
    return found


def _fixed_clauses(recorded: Sequence[Clause], fixed: Mapping[str, int], to_first: Mapping[str, Term]) -> list[Clause]:
    """One clause per fixed size, with the best of what was recorded of it."""
    found: dict[str, Clause] = {}
    for one in recorded:
        condition = substitute(one.condition, to_first)
        for name, number in fixed.items():
            if condition in (operation("==", Size(name), number), operation("==", number, Size(name))):
                before = found.get(name)
                made = Clause("static", condition, f"{name} == {number}", one.enforced, one.torch_line, one.user_line)
                made = dataclasses.replace(made, place=one.place)
                better = before is None or (made.enforced, made.line is not None) > (
                    before.enforced,
                    before.line is not None,
                )
                found[name] = made if better else found[name]
    return list(found.values())


def _chains(classes: AxisClasses, equalities: Sequence[Clause]) -> list[Clause]:
    """``x.shape[0] == y.shape[0] == z.shape[0]`` as one clause."""
    found = []
    for group in classes.groups:
        if len(group) < 2:
            continue
        terms = [size_of(classes.axes[i]) for i in group]
        names = {t.name for t in terms}
        of_group = [c for c in equalities if c.names <= names]
        condition = operation("and", *(operation("==", terms[0], other) for other in terms[1:]))
        lined = [c for c in of_group if c.line] or of_group
        enforced = _connected([_equal_pair(c.condition) for c in of_group if c.enforced], names)
        words = " == ".join(t.name for t in terms)
        origin = lined[0]
        found.append(Clause("equal", condition, words, enforced, origin.torch_line, origin.user_line, origin.place))
    return found


def _connected(pairs: Sequence[tuple[str, str] | None], names: set[str]) -> bool:
    """Whether these equalities alone tie all the names together."""
    reached = {min(names)}
    for _ in names:
        for pair in pairs:
            if pair and reached & set(pair):
                reached |= set(pair)
    return reached == names


def _chosen(rest: Sequence[Clause], axes: tuple[Axis, ...]) -> list[Clause]:
    """Choose among clauses that are neither chains nor fixed sizes."""
    by_data = [c for c in rest if not c.names]
    conditions = [c for c in rest if c.names]
    found: list[Clause] = []
    example = {axis.name: axis.size for axis in axes}
    for group in _tied_together(conditions):
        group = _with_equations(group)
        sizes, count = _points(group, example)
        checked = _cover([c for c in group if c.enforced], sizes, count)
        assumed = _unimplied([c for c in group if not c.enforced], checked, sizes, count)
        decided = [c for c in assumed if c.kind == "decided"]
        ranges = _cover([c for c in assumed if c.kind != "decided"], sizes, count)
        found += [phrase(c) for c in (*checked, *ranges, *decided)]
    return found + by_data


def _with_equations(clauses: Sequence[Clause]) -> list[Clause]:
    """Add ``a == b`` where both ``a <= b`` and ``a >= b`` are checked."""
    seen: set[str] = set()
    found: list[Clause] = []
    for one in clauses:
        line = _never_positive(one.condition) if one.enforced else None
        if line is None:
            continue
        if str(line.times(-1)) in seen:
            condition = operation("==", term_of(line), 0)
            found.append(dataclasses.replace(one, condition=condition, kind="guard", text=text(condition)))
        seen.add(str(line))
    return [*clauses, *found]


def _never_positive(condition: Term) -> Linear | None:
    """``a <= b`` and ``b >= a`` as the line ``a - b``, which is at most 0."""
    if not (isinstance(condition, Operation) and condition.operator in ("<=", ">=")):
        return None
    left, right = linear_of(condition.terms[0]), linear_of(condition.terms[1])
    if left is None or right is None or len(left.minus(right).slopes) < 2:
        return None
    return left.minus(right) if condition.operator == "<=" else right.minus(left)


def _unimplied(
    assumed: Sequence[Clause], checked: Sequence[Clause], sizes: Mapping[str, np.ndarray], count: int
) -> list[Clause]:
    """Assumptions that what is checked does not imply, size 0 included."""
    # Zero is left out where clauses are chosen: it makes most of them look independent of each other.
    with_zero = {name: np.concatenate([column, np.where(column == 1, 0, column)]) for name, column in sizes.items()}
    found = []
    for one in assumed:
        tried, number = (with_zero, 2 * count) if one.kind == "decided" else (sizes, count)
        if not holds(one.condition, tried, number)[_truth(checked, tried, number)].all():
            found.append(one)
    return found


def _tied_together(clauses: Sequence[Clause]) -> Iterator[list[Clause]]:
    """Clauses that share an axis, directly or through others, belong together."""
    waiting = list(clauses)
    while waiting:
        group, names = [waiting.pop(0)], set[str]()
        names |= group[0].names
        while near := [c for c in waiting if c.names & names]:
            group += near
            names |= set().union(*(c.names for c in near))
            waiting = [c for c in waiting if not any(c is n for n in near)]
        yield group


def _points(clauses: Sequence[Clause], example: Mapping[str, int]) -> tuple[dict[str, np.ndarray], int]:
    """Points on which clauses are told apart: every combination of small sizes and of those the clauses mention."""
    names = sorted(set().union(*(c.names for c in clauses)))
    numbers = {
        int(part.value)
        for one in clauses
        for part in walk(one.condition)
        if isinstance(part, Number) and abs(part.value) < 2**31
    }
    tried = _TRIED.get(len(names), 16)
    values = [_sizes_to_try(example[name], numbers, tried) for name in names]
    if len(names) <= 3:
        grid = np.stack([axis.ravel() for axis in np.meshgrid(*values, indexing="ij")], axis=1).astype(np.int64)
    else:
        generator = np.random.default_rng(len(names))
        grid = np.stack([generator.choice(v, _RANDOM_POINTS) for v in values], axis=1)
        grid = np.concatenate([grid, [[example[name] for name in names]]])
    return {name: grid[:, i] for i, name in enumerate(names)}, len(grid)


def _sizes_to_try(example: int, numbers: set[int], count: int) -> list[int]:
    near = {example + d for d in (-1, 0, 1)} | {n + d for n in sorted(numbers) for d in (-1, 0, 1)}
    chosen = [n for n in sorted(near) if n > 0][: count // 2]
    fill = (n for n in itertools.count(1) if n not in chosen)
    return sorted({*chosen, *itertools.islice(fill, count - len(chosen))})


def _truth(clauses: Sequence[Clause], sizes: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    result = np.ones(count, bool)
    for one in clauses:
        result &= holds(one.condition, sizes, count)
    return result


def _cover(clauses: Sequence[Clause], sizes: Mapping[str, np.ndarray], count: int) -> list[Clause]:
    """Choose clauses that together refuse what all refuse: most refused first, then the shortest; none superfluous."""
    refused = [~holds(c.condition, sizes, count) for c in clauses]
    left = np.any(refused, axis=0) if refused else np.zeros(count, bool)
    chosen: list[int] = []
    while left.any():
        kills = [int((r & left).sum()) for r in refused]
        # Equalities first: they are what a person must know, and they refuse nearly everything.
        best = max(range(len(clauses)), key=lambda i: (kills[i], -len(text(clauses[i].condition))))
        chosen.append(best)
        left = left & ~refused[best]
    for one in sorted(chosen, key=lambda i: int(refused[i].sum())):
        others = [refused[i] for i in chosen if i != one]
        if others and not (refused[one] & ~np.any(others, axis=0)).any():
            chosen.remove(one)
    return [clauses[i] for i in sorted(chosen)]

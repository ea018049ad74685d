"""Which leaf of one output tree belongs to which of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.records.paths import Attribute, Path

Leaves = Sequence[tuple[Path, Any]]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Positions of two leaves that belong together; None where a side lacks it.

    Parameters
    ----------
    index_a, index_b : int or None
    dispensable : bool
        The leaf is None and the other side is flat: it has no way to return None.
    """

    index_a: int | None
    index_b: int | None
    dispensable: bool = False


def pair_leaves(a: Leaves, b: Leaves, *, flat: bool = False) -> list[Pairing]:
    """Pair the leaves of two trees.

    Parameters
    ----------
    a, b : sequence of (Path, leaf)
    flat : bool
        Whether one side is a flat list of named outputs; see :func:`driftscope.comparison.leaves.compare_leaves`.

    Returns
    -------
    list of Pairing
        Every leaf of either side once: ``a``'s in order, then those only ``b`` has.
    """
    names_a, names_b = ([_steps(path) for path, _ in side] for side in (a, b))
    if set(names_a) == set(names_b) or not flat:
        return _by_name(names_a, names_b)
    if len(a) == len(b):
        return [Pairing(i, i) for i in range(len(a))]
    kept_a, kept_b = ([i for i, (_, leaf) in enumerate(side) if leaf is not None] for side in (a, b))
    some_a, some_b = [names_a[i] for i in kept_a], [names_b[i] for i in kept_b]
    if len(kept_a) == len(kept_b):
        by_order = [Pairing(i, i) for i in range(len(kept_a))]
        inner = _by_name(some_a, some_b) if set(some_a) == set(some_b) else by_order
        return _with_nones(inner, kept_a, kept_b, len(a), len(b))
    return _by_name(names_a, names_b)


def _with_nones(
    inner: Sequence[Pairing], kept_a: list[int], kept_b: list[int], count_a: int, count_b: int
) -> list[Pairing]:
    partner = {kept_a[p.index_a]: kept_b[p.index_b] for p in inner if p.index_a is not None and p.index_b is not None}
    found = [Pairing(i, partner[i]) if i in partner else Pairing(i, None, True) for i in range(count_a)]
    return found + [Pairing(None, j, True) for j in range(count_b) if j not in kept_b]


Steps = tuple[str | int, ...]


def _steps(path: Path) -> Steps:
    # A field and an item of one name are the same place: a model output is both, and runtimes return either.
    return tuple(key.name if isinstance(key, Attribute) else key for key in path.keys)


def _by_name(a: Sequence[Steps], b: Sequence[Steps]) -> list[Pairing]:
    place = {name: j for j, name in enumerate(b)}
    found = [Pairing(i, place.get(name)) for i, name in enumerate(a)]
    known = set(a)
    return found + [Pairing(None, j) for j, name in enumerate(b) if name not in known]

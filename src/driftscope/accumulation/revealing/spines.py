"""What probing has learned, and the tree it makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.revealing.refusal import RevealError
from driftscope.numerics.trees.tree import SumTree

Ints = npt.NDArray[np.int64]


def shape_of(terms: Ints) -> bytes:
    """Return what a sorted set of terms has in common with its translated copies."""
    return bytes((terms - terms[0]).tobytes())


@dataclass(eq=False)
class TermGroup:
    """Terms that are added up before a spine takes their sum.

    Parameters
    ----------
    terms : ndarray of int, sorted
    spine, height
        What its subtree is, up to a translation: the lowest ``height`` levels of a spine.
    like : TermGroup or None
        Another group of the same shape, asked at the same time.
    """

    terms: Ints
    spine: Spine | None = None
    height: int = 0
    like: TermGroup | None = None

    def take(self, spine: Spine, height: int) -> None:
        """Let this group be a part of a spine."""
        self.spine, self.height = spine, height


@dataclass(eq=False)
class Member:
    """A group in its place; ``joined`` when it is added in the same step as the member before it."""

    group: TermGroup
    joined: bool = False


@dataclass(eq=False)
class Spine:
    """The chain of partial sums from a pivot up.

    Parameters
    ----------
    pivot : int
    levels : list of list of Member
        What is added, from the pivot up. A level that probing had taken for one group has several members.
    """

    pivot: int
    levels: list[list[Member]]

    def terms(self, height: int) -> Ints:
        """Return the terms under the partial sum above a number of levels, sorted."""
        below = [member.group.terms for level in self.levels[:height] for member in level]
        return np.sort(np.concatenate([np.asarray([self.pivot]), *below]))


@dataclass(frozen=True, slots=True)
class _Built:
    node: int
    first: int  # first addition of the subtree
    start: int  # its smallest term


class TreeBuilder:
    """Writes the additions of a tree, subtree after subtree, copying known ones.

    Parameters
    ----------
    n : int
        Number of terms.
    """

    def __init__(self, n: int):
        self.n = n
        self._left: Any = np.zeros(max(n - 1, 0), np.int64)
        self._right: Any = np.zeros(max(n - 1, 0), np.int64)
        self._joined: Any = np.zeros(max(n - 1, 0), np.bool_)
        self._next = 0
        self._built: dict[tuple[int, int], _Built] = {}

    def tree(self, whole: TermGroup) -> SumTree:
        """Return the tree of all terms.

        Raises
        ------
        RevealError
            If the groups do not make a tree.
        """
        try:
            self._group(whole, 0)
        except (IndexError, RecursionError, ValueError) as error:
            raise RevealError("the groups of terms that were found do not fit together") from error
        leaves = np.concatenate([self._left, self._right])
        if self._next != self.n - 1 or len(np.unique(leaves)) != len(leaves) or leaves.min(initial=0) < 0:
            raise RevealError("the groups of terms that were found do not make a tree")
        return SumTree(self.n, self._left, self._right, self._joined)

    def _group(self, group: TermGroup, moved: int) -> int:
        """Build a group, moved by a number of terms; return its node."""
        start = int(group.terms[0]) + moved
        if len(group.terms) == 1:
            return start
        source = group
        while source.spine is None and source.like is not None:
            source = source.like
        if source.spine is None:
            raise RevealError("the order of a group of terms was never probed")
        key = (id(source.spine), source.height)
        if key in self._built:
            return self._copy(self._built[key], start)
        origin = int(source.spine.terms(source.height)[0])
        first = self._next
        node = self._spine(source.spine, source.height, start - origin)
        self._built[key] = _Built(node, first, start)
        return node

    def _spine(self, spine: Spine, height: int, moved: int) -> int:
        first = self._next
        node, lowest = spine.pivot + moved, spine.pivot + moved
        for number, level in enumerate(spine.levels[:height], 1):
            for member in level:
                lowest = min(lowest, int(member.group.terms[0]) + moved)
                node = self._add(node, self._group(member.group, moved), member.joined)
            # What is being built now may be what its next group is a copy of.
            self._built.setdefault((id(spine), number), _Built(node, first, lowest))
        return node

    def _add(self, a: int, b: int, joined: bool) -> int:
        k = self._next
        self._left[k], self._right[k], self._joined[k] = a, b, joined
        self._next += 1
        return self.n + k

    def _copy(self, built: _Built, start: int) -> int:
        past = built.node - self.n + 1
        source, size = slice(built.first, past), past - built.first
        target = slice(self._next, self._next + size)
        if target.stop > self.n - 1:
            raise IndexError("more additions than terms")
        terms, nodes = start - built.start, self._next - built.first
        for operands in (self._left, self._right):
            operands[target] = np.where(operands[source] < self.n, operands[source] + terms, operands[source] + nodes)
        self._joined[target] = self._joined[source]
        self._next += size
        return built.node + nodes

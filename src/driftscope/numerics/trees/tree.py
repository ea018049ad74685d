"""The order of a sum as data: which partial sums are added to which.

A :class:`SumTree` over ``n`` terms is ``n - 1`` additions of two nodes each. Leaves are the nodes ``0 .. n - 1``, the
result of addition ``k`` is node ``n + k``, and an addition only uses nodes before it. Hardware that adds several
terms in one step is written as a chain of additions of which all but the first are ``joined`` to the one before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class AddLevel:
    """Additions that do not depend on each other: ``sum[into] += sum[of]``.

    Parameters
    ----------
    into, of : ndarray of int, shape (m,)
        Slots. A slot holds a term first, then the partial sums that grow from it. Where a partial sum and a single
        term meet, the term is ``of``.
    leaf, both : ndarray of bool, shape (m,)
        Whether ``of`` is a term and not a partial sum; whether both are.
    fused : tuple of tuple of int
        Further additions of more than two slots in one step; the result is left in the first.
    """

    into: Ints
    of: Ints
    leaf: Flags
    both: Flags
    fused: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class SumTree:
    """A summation tree; two are equal when they add the same groups of terms, whatever the order of writing.

    Parameters
    ----------
    n : int
        Number of terms, at least 1.
    left, right : ndarray of int, shape (n - 1,)
        Operands of every addition.
    joined : ndarray of bool, shape (n - 1,)
        True where an addition is part of the same step as its left operand.
    """

    n: int
    left: Ints
    right: Ints
    joined: Flags

    @classmethod
    def of(cls, nested: Any) -> SumTree:
        """Make a tree of nested tuples of term numbers.

        Parameters
        ----------
        nested : int or tuple
            ``((0, 1), 2)`` adds terms 0 and 1, then term 2. A tuple of more than two is added in one step.

        Raises
        ------
        ValueError
            If the terms are not ``0 .. n - 1``, each once.
        """
        order: list[tuple[Any, bool]] = []
        leaves: list[int] = []
        _postorder(nested, order, leaves)
        if sorted(leaves) != list(range(len(leaves))):
            raise ValueError("a summation tree uses each of its terms 0 .. n - 1 once")
        return cls._from_postorder(order, len(leaves))

    @classmethod
    def _from_postorder(cls, order: list[tuple[Any, bool]], n: int) -> SumTree:
        left, right, joined, stack = [], [], [], []
        for item, continued in order:
            if item is not None:
                stack.append(item)
                continue
            b, a = stack.pop(), stack.pop()
            left.append(a)
            right.append(b)
            joined.append(continued)
            stack.append(n + len(left) - 1)
        return cls.from_additions(n, left, right, joined)

    @classmethod
    def from_additions(
        cls, n: int, left: Iterable[int], right: Iterable[int], joined: Iterable[bool] | None = None
    ) -> SumTree:
        """Make a tree of its additions in order; ``joined`` defaults to none."""
        a, b = np.asarray(list(left), np.int64), np.asarray(list(right), np.int64)
        flags = np.zeros(len(a), np.bool_) if joined is None else np.asarray(list(joined), np.bool_)
        return cls(n, a, b, flags)

    @classmethod
    def sequential(cls, n: int) -> SumTree:
        """Return ``((x0 + x1) + x2) + ...``."""
        return cls.from_additions(n, [0, *range(n, 2 * n - 2)][: n - 1], range(1, n))

    @property
    def root(self) -> int:
        """The node of the whole sum."""
        return 0 if self.n == 1 else 2 * self.n - 2

    @functools.cached_property
    def has_fused(self) -> bool:
        """Whether any step adds more than two numbers at once."""
        return bool(self.joined.any())

    @functools.cached_property
    def heights(self) -> Ints:
        """Number of dependent roundings from a term up to each node, shape ``(2 n - 1,)``; 0 for terms."""
        height = [0] * (2 * self.n - 1)
        triples = zip(self.left.tolist(), self.right.tolist(), self.joined.tolist(), strict=True)
        for node, (a, b, joined) in enumerate(triples, self.n):
            # A joined addition happens in the step of its left operand, which may have to wait for the right one.
            height[node] = max(height[a] - 1 if joined else height[a], height[b]) + 1
        return np.asarray(height, np.int64)

    @property
    def depth(self) -> int:
        """Longest chain of dependent additions."""
        return int(self.heights[self.root])

    @property
    def additions(self) -> int:
        """Number of roundings: additions, a fused one counted once."""
        return self.n - 1 - int(self.joined.sum())

    @functools.cached_property
    def sizes(self) -> Ints:
        """Number of terms under each node, shape ``(2 n - 1,)``."""
        return self._accumulated(np.ones(self.n, np.int64))

    def _accumulated(self, of_leaves: npt.NDArray[Any]) -> npt.NDArray[Any]:
        values = of_leaves.tolist()
        mask = (1 << 64) - 1
        for a, b in zip(self.left.tolist(), self.right.tolist(), strict=True):
            values.append((values[a] + values[b]) & mask)
        return np.asarray(values, np.uint64 if of_leaves.dtype == np.uint64 else np.int64)

    @functools.cached_property
    def groups(self) -> npt.NDArray[np.uint64]:
        """One number per step for the set of terms it has added: equal sets, equal numbers."""
        names = np.random.default_rng(20_241).integers(0, 2**64, self.n, np.uint64)
        sums = self._accumulated(names)[self.n :]
        inner = np.zeros(self.n - 1, np.bool_)
        inner[self.left[self.joined] - self.n] = True
        return np.sort(sums[~inner])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SumTree):
            return NotImplemented
        return self.n == other.n and np.array_equal(self.groups, other.groups)

    def __hash__(self) -> int:
        return hash((self.n, self.groups.tobytes()))

    def __repr__(self) -> str:
        return f"<SumTree of {self.n} terms, depth {self.depth}>"

    @functools.cached_property
    def steps(self) -> tuple[AddLevel, ...]:
        """The additions in an order in which they can be done, as few steps as possible."""
        if self.n == 1:
            return ()
        left, right, slot = self._slots()
        last = self._ends_of_fused()
        height = self.heights[self.n :]
        order = np.argsort(height, kind="stable")
        order = order[~last.inner[order]]
        bounds = np.flatnonzero(np.diff(height[order])) + 1
        return tuple(self._step(group, left, right, slot, last.members) for group in np.split(order, bounds))

    @property
    def last_slot(self) -> int:
        """The slot that holds the whole sum after the last step."""
        if not self.steps:
            return 0
        last = self.steps[-1]
        return int(last.into[0]) if len(last.into) else last.fused[0][0]

    def _step(self, group: Ints, left: Ints, right: Ints, slot: Ints, members: dict[int, tuple[int, ...]]) -> AddLevel:
        fused = tuple(tuple(int(slot[m]) for m in members[k]) for k in group.tolist() if k in members)
        if fused:
            group = np.asarray([k for k in group.tolist() if k not in members], np.int64)
        of = right[group]
        return AddLevel(slot[left[group]], slot[of], of < self.n, (of < self.n) & (left[group] < self.n), fused)

    def _slots(self) -> tuple[Ints, Ints, Ints]:
        """Return operands with single terms on the right, and the slot in which each node lies."""
        alone = (self.left < self.n) & (self.right >= self.n)
        both = (self.left < self.n) & (self.right < self.n) & (self.left > self.right)
        exchange = (alone | both) & ~self.joined
        left = np.where(exchange, self.right, self.left)
        right = np.where(exchange, self.left, self.right)
        slot = list(range(self.n))
        for a in left.tolist():
            slot.append(slot[a])
        return left, right, np.asarray(slot, np.int64)

    def _ends_of_fused(self) -> _Fused:
        inner = np.zeros(self.n - 1, np.bool_)
        members: dict[int, tuple[int, ...]] = {}
        for k in np.flatnonzero(self.joined).tolist():
            before = int(self.left[k]) - self.n
            inner[before] = True
            first = members.pop(before, (int(self.left[before]), int(self.right[before])))
            members[k] = (*first, int(self.right[k]))
        return _Fused(inner, members)

    def leaves_under(self, node: int) -> list[int]:
        """Return the terms under a node, in ascending order."""
        found, stack = [], [node]
        while stack:
            top = stack.pop()
            if top < self.n:
                found.append(top)
            else:
                stack += (int(self.left[top - self.n]), int(self.right[top - self.n]))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class _Fused:
    inner: Flags  # additions whose result never leaves the step they belong to
    members: dict[int, tuple[int, ...]]  # last addition of a fused step -> all its operands


def _postorder(nested: Any, order: list[tuple[Any, bool]], leaves: list[int]) -> None:
    # Explicit stack: a chain of thousands of terms is a tuple nested as deep.
    stack: list[tuple[Any, bool, bool]] = [(nested, False, False)]
    while stack:
        item, visited, continued = stack.pop()
        if visited:
            order.append((None, continued))
        elif isinstance(item, Sequence):
            if len(item) < 2:
                raise ValueError("every group of a summation tree has at least two members")
            for position in range(len(item) - 1, 0, -1):
                stack.append((None, True, position > 1))
                stack.append((item[position], False, False))
            stack.append((item[0], False, False))
        else:
            leaves.append(int(item))
            order.append((int(item), False))

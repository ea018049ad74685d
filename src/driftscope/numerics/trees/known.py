"""Orders that libraries are known to add in, for any number of terms.

Each was read in the library's source or revealed by probing over many lengths; nothing here is believed without a
replay. Trees are made by whole arrays, so that thousands of terms take about a millisecond.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.numerics.trees.tree import SumTree

Nodes = npt.NDArray[np.int64]


class Additions:
    """Additions written down one after another, many at a time.

    Parameters
    ----------
    n : int
        Number of terms; nodes ``0 .. n - 1`` are the terms.
    """

    def __init__(self, n: int):
        self.n = n
        self._left: list[Nodes] = []
        self._right: list[Nodes] = []
        self._next = n

    def _take(self, shape: Any) -> Nodes:
        ids: Nodes = self._next + np.arange(math.prod(shape)).reshape(shape)
        self._next += ids.size
        return ids

    def add(self, a: Any, b: Any) -> Nodes:
        """Add nodes to nodes of the same shape, element by element."""
        left, right = np.atleast_1d(a), np.atleast_1d(b)
        self._left.append(left.ravel())
        self._right.append(right.ravel())
        return self._take(left.shape)

    def chain(self, nodes: Nodes) -> Nodes:
        """Add along the first axis, one after another."""
        if len(nodes) == 1:
            return np.asarray(nodes[0])
        ids = self._take((len(nodes) - 1, *nodes.shape[1:]))
        self._left.append(np.concatenate([nodes[:1], ids[:-1]]).ravel())
        self._right.append(nodes[1:].ravel())
        return np.asarray(ids[-1])

    def halves(self, nodes: Nodes) -> Nodes:
        """Add neighbours along the first axis, and their sums, down to one; its length is a power of two."""
        while len(nodes) > 1:
            nodes = self.add(nodes[::2], nodes[1::2])
        return np.asarray(nodes[0])

    def tree(self) -> SumTree:
        """Return the tree of what was written."""
        empty = np.zeros(0, np.int64)
        left, right = (np.concatenate([empty, *parts]) for parts in (self._left, self._right))
        return SumTree(self.n, left, right, np.zeros(len(left), np.bool_))


@functools.lru_cache(maxsize=64)
def sequential(n: int) -> SumTree:
    """Return one chain, from the first term to the last."""
    sums = Additions(n)
    sums.chain(np.arange(n))
    return sums.tree()


@functools.lru_cache(maxsize=64)
def blocks(n: int, sizes: tuple[int, ...]) -> SumTree:
    """Return chains over consecutive blocks, and a chain of their sums: a matrix product cut along K.

    Parameters
    ----------
    n : int
    sizes : tuple of int
        Of the blocks; they add up to n.
    """
    sums, at, parts = Additions(n), 0, []
    for size in sizes:
        parts.append(np.atleast_1d(sums.chain(np.arange(at, at + size)))[0])
        at += size
    sums.chain(np.asarray(parts))
    return sums.tree()


def even_blocks(n: int, size: int) -> tuple[int, ...]:
    """Return blocks of one size and what is left."""
    return (*([size] * (n // size)), *([n % size] if n % size else []))


def split_tail(n: int, size: int, multiple: int) -> tuple[int, ...]:
    """Return blocks of one size; what is left, between one and two blocks, in two halves.

    Parameters
    ----------
    n, size : int
    multiple : int
        The first half is rounded up to a multiple of this.
    """
    whole = max((n - 1) // size - 1, 0) if n % size else n // size
    rest = n - whole * size
    if rest <= size:
        return (*([size] * whole), *([rest] if rest else []))
    first = -(-rest // (2 * multiple)) * multiple
    return (*([size] * whole), first, rest - first)


@functools.lru_cache(maxsize=64)
def numpy_pairwise(n: int) -> SumTree:
    """Return ``numpy.sum`` of a contiguous row: halves down to 128 terms, 8 lanes in each (``pairwise_sum``)."""
    sums = Additions(n)
    if n < 8:
        return sequential(n)
    runs: list[tuple[int, int]] = []
    # A plan of halves, left to right: the place of a run, or the two plans below it.
    plan = _halved(0, n, runs)
    done: dict[int, int] = {}
    for size in {size for _, size in runs}:
        starts = np.asarray([start for start, length in runs if length == size])
        done.update(zip(starts.tolist(), _eight_lanes(sums, starts, size).tolist(), strict=True))
    _joined(sums, plan, done)
    return sums.tree()


def _halved(start: int, n: int, runs: list[tuple[int, int]]) -> Any:
    if n <= 128:
        runs.append((start, n))
        return start
    half = n // 2
    half -= half % 8
    return _halved(start, half, runs), _halved(start + half, n - half, runs)


def _joined(sums: Additions, plan: Any, done: dict[int, int]) -> int:
    if isinstance(plan, int):
        return done[plan]
    left, right = (_joined(sums, part, done) for part in plan)
    return int(sums.add(left, right)[0])


def _eight_lanes(sums: Additions, starts: Nodes, size: int) -> Nodes:
    """Add several runs of one size, each in 8 lanes that are joined pairwise, then the rest one by one."""
    if size < 8:
        return np.atleast_1d(sums.chain(starts[None, :] + np.arange(size)[:, None]))
    rounds = size // 8
    lanes = np.arange(rounds)[:, None, None] * 8 + np.arange(8)[:, None] + starts
    total = np.atleast_1d(sums.halves(sums.chain(lanes)))
    rest = np.arange(8 * rounds, size)[:, None] + starts
    return np.atleast_1d(sums.chain(np.concatenate([total[None], rest])))


@functools.lru_cache(maxsize=64)
def torch_cascade(n: int, lanes: int, pairs: bool = False) -> SumTree:
    """Return ``torch.sum`` of a contiguous row on a CPU (``aten/native/cpu/SumKernel.cpp``).

    Parameters
    ----------
    n : int
    lanes : int
        Accumulators in a vector register: 8 of float32, 4 of float64.
    pairs : bool
        Whether a load brings two registers that are added first, as for float16 and bfloat16.
    """
    sums, wide = Additions(n), lanes * (2 if pairs else 1)
    count = n // wide
    if count == 0:
        return _scalar_cascade(n)
    vectors = np.arange(count * wide).reshape(count, wide)
    if pairs:
        vectors = sums.add(vectors[:, :lanes], vectors[:, lanes:])
    total = _row_sum(sums, vectors)
    tail = np.arange(count * wide, n)
    first = np.atleast_1d(sums.chain(tail)) if len(tail) else tail
    sums.chain(np.concatenate([first, total]))
    return sums.tree()


def _scalar_cascade(n: int) -> SumTree:
    sums = Additions(n)
    _row_sum(sums, np.arange(n)[:, None])
    return sums.tree()


def _row_sum(sums: Additions, vectors: Nodes) -> Nodes:
    """Four chains over every fourth vector, the rest to the first of them, then the four one after another."""
    count, lanes = vectors.shape
    whole = count // 4
    if whole == 0:
        return sums.chain(vectors)
    four = _levels(sums, vectors[: 4 * whole].reshape(whole, 4, lanes))
    first = sums.chain(np.concatenate([four[:1], vectors[4 * whole :]]))
    return sums.chain(np.concatenate([first[None], four[1:]]))


def _levels(sums: Additions, rows: Nodes) -> Nodes:
    """Add rows in four levels of running sums; a level is emptied into the next when it has taken a whole step."""
    size = len(rows)
    power = max(4, math.ceil(math.log2(size)) // 4) if size > 1 else 4
    step, mask = 1 << power, (1 << power) - 1
    level: list[Nodes | None] = [None] * 4
    done = 0
    while done + step <= size:
        level[0] = sums.chain(rows[done : done + step])
        done += step
        for j in range(1, 4):
            level[j] = _plus(sums, level[j], level[j - 1])
            level[j - 1] = None
            if done & (mask << (j * power)):
                break
    if done < size:
        level[0] = sums.chain(rows[done:])
    total = level[0]
    for j in range(1, 4):
        total = _plus(sums, total, level[j])
    if total is None:
        raise ValueError("a sum has at least one term")
    return total


def _plus(sums: Additions, a: Nodes | None, b: Nodes | None) -> Nodes | None:
    if a is None or b is None:
        return b if a is None else a
    return sums.add(a, b)


@functools.lru_cache(maxsize=64)
def packets(n: int, lanes: int) -> SumTree:
    """Return Eigen's sum of an aligned row: two packets at a time, a last single one, lanes joined by halves, the rest.

    Parameters
    ----------
    n : int
    lanes : int
        Terms of a packet: 4 of float32, 2 of float64.
    """
    sums, twos = Additions(n), n // (2 * lanes)
    whole = n // lanes * lanes
    if whole == 0:
        return sequential(n)
    if twos:
        both = sums.chain(np.arange(twos * 2 * lanes).reshape(twos, 2 * lanes))
        total = sums.add(both[:lanes], both[lanes:])
        if whole > twos * 2 * lanes:
            total = sums.add(total, np.arange(twos * 2 * lanes, whole))
    else:
        total = np.arange(lanes)
    # Neighbours at the largest distance meet last.
    one = np.atleast_1d(sums.halves(total))
    sums.chain(np.concatenate([one, np.arange(whole, n)]))
    return sums.tree()


@functools.lru_cache(maxsize=64)
def interleaved(n: int, lanes: int) -> SumTree:
    """Return ``lanes`` interleaved chains joined by halves, the rest of the terms after them."""
    sums, rounds = Additions(n), n // lanes
    if rounds == 0:
        return sequential(n)
    total = sums.chain(np.arange(rounds * lanes).reshape(rounds, lanes))
    one = np.atleast_1d(sums.halves(total))
    sums.chain(np.concatenate([one, np.arange(rounds * lanes, n)]))
    return sums.tree()


@functools.lru_cache(maxsize=64)
def narrow_dot(n: int, lanes: int) -> SumTree:
    """Return torch's product of 16-bit numbers on a CPU (its ``ReducedPrecisionFloatGemvFastPathKernel``).

    Parameters
    ----------
    n : int
    lanes : int
        Floats in a vector: eight vectors are added to at a time, then two by two to one, then single numbers.
    """
    sums, parts = Additions(n), []
    whole = n // (8 * lanes) * 8 * lanes
    vectors = whole + (n - whole) // (2 * lanes) * 2 * lanes
    for start, stop, width in ((0, whole, 8 * lanes), (whole, vectors, lanes)):
        if start < stop:
            total = sums.chain(np.arange(start, stop).reshape(-1, width))
            while len(total) > 1:
                total = sums.add(total[: len(total) // 2], total[len(total) // 2 :])
            parts.append(total)
    sums.chain(np.concatenate([*parts, np.arange(vectors, n)]))
    return sums.tree()


@functools.lru_cache(maxsize=64)
def tiles(n: int, size: int) -> SumTree:
    """Return a matrix unit's sum: in every tile the even terms and the odd ones, each in a chain; tile after tile.

    Parameters
    ----------
    n : int
    size : int
        Terms of a tile: 32 of bfloat16 in AMX.
    """
    sums = Additions(n)
    parts = []
    whole = n // size
    if whole:
        pairs = np.arange(whole * size).reshape(whole, size // 2, 2).transpose(1, 2, 0)
        both = sums.chain(pairs)
        parts += sums.add(both[0], both[1]).tolist()
    rest = np.arange(whole * size, n)
    if len(rest):
        even, odd = (np.atleast_1d(sums.chain(part)) if len(part) else part for part in (rest[::2], rest[1::2]))
        parts += (sums.add(even, odd) if len(odd) else even).tolist()
    sums.chain(np.asarray(parts))
    return sums.tree()


def twice(n: int, half: SumTree) -> SumTree:
    """Return a sum split between two threads: the order of the first half, and the same for the second.

    Parameters
    ----------
    n : int
        Even.
    half : SumTree
        Of ``n / 2`` terms.
    """
    m = half.n
    operands: Sequence[Nodes] = []
    for part in (half.left, half.right):
        first = np.where(part < m, part, part - m + n)
        second = np.where(part < m, part + m, part - m + n + m - 1)
        operands = [*operands, np.concatenate([first, second])]
    left = np.append(operands[0], n + m - 2 if m > 1 else 0)
    right = np.append(operands[1], n + 2 * m - 3 if m > 1 else 1)
    return SumTree(n, left, right, np.zeros(n - 1, np.bool_))

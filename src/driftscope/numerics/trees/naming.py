"""A tree in words: the regularities of a summation tree written as nested folds and pairs.

The grammar: ``x`` is a term. ``pair(+s: X)`` is X added to its copy s terms further on; pairs of pairs are written
``tree8[+s1,+s2,+s3](X)``, the last addition first. ``fold(k × +s: X)`` adds k copies of X, each s further on, one after
another; ``fold(k)`` is ``fold(k × +1: x)``. ``fused(k × +s: X)`` does so in one step. ``(H then m × X@o+s)`` adds to H
m copies of X that begin o terms after H's first one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from driftscope.numerics.trees.tree import SumTree


class Term:
    """A part of a description."""


@dataclass(frozen=True)
class Leaf(Term):
    """One term."""

    def __str__(self) -> str:
        return "x"


@dataclass(frozen=True)
class Fold(Term):
    """``count`` copies of ``inner`` added one after another (``fused``: in one step), ``stride`` terms apart."""

    count: int
    stride: int
    inner: Term
    fused: bool = False

    def __str__(self) -> str:
        if self.fused:
            return f"fused({self.count} × {self.stride:+d}: {self.inner})"
        if self.count == 2:
            return self._pairs()
        if isinstance(self.inner, Leaf) and self.stride == 1:
            return f"fold({self.count})"
        return f"fold({self.count} × {self.stride:+d}: {self.inner})"

    def _pairs(self) -> str:
        strides, inner = self.pairs()
        if len(strides) == 1:
            return f"pair({strides[0]:+d}: {inner})"
        return f"tree{2 ** len(strides)}[{','.join(f'{s:+d}' for s in strides)}]({inner})"

    def pairs(self) -> tuple[list[int], Term]:
        """Return the strides of directly nested pairs, outermost first, and what is inside them."""
        strides, inner = [], Term()
        term: Term = self
        while isinstance(term, Fold) and term.count == 2 and not term.fused:
            strides.append(term.stride)
            term = inner = term.inner
        return strides, inner


@dataclass(frozen=True)
class Copies:
    """``count`` copies of ``inner``, the first ``offset`` from the head, ``stride`` apart."""

    count: int
    inner: Term
    offset: int
    stride: int
    fused: bool = False

    def __str__(self) -> str:
        many = f"{self.count} × " if self.count > 1 else ""
        step = f"{self.stride:+d}" if self.count > 1 else ""
        return f"{'with' if self.fused else 'then'} {many}{self.inner}@{self.offset:+d}{step}"


@dataclass(frozen=True)
class Chain(Term):
    """``head``, and what is added to it that is not its own copy."""

    head: Term
    runs: tuple[Copies, ...]

    def __str__(self) -> str:
        words, at = [str(self.head)], 0
        while at < len(self.runs):
            run, (many, step) = self.runs[at], _progression(self.runs, at)
            if many < _PROGRESSION or run.count == 1:
                many = 1
                words.append(str(run))
            else:  # a hundred like runs are one thing, not a hundred
                copies = f"{many} × ({run.count} × {run.inner}{run.stride:+d})@{run.offset:+d}{step:+d}"
                words.append(f"{'with' if run.fused else 'then'} {copies}")
            at += many
        return f"({' '.join(words)})"


_PROGRESSION = 3  # like runs that are written as one


def _progression(runs: tuple[Copies, ...], at: int) -> tuple[int, int]:
    """Return how many runs from here on differ in nothing but a constant step of their offset, and that step."""
    like = [runs[at]]
    for run in runs[at + 1 :]:
        step = run.offset - like[-1].offset
        even = len(like) == 1 or step == like[-1].offset - like[-2].offset
        if not even or dataclasses.replace(run, offset=0) != dataclasses.replace(runs[at], offset=0):
            break
        like.append(run)
    return len(like), like[1].offset - like[0].offset if len(like) > 1 else 0


@dataclass(frozen=True)
class _Part:
    term: Term
    first: int  # the term that a description counts offsets from
    joined: bool = False


def describe(tree: SumTree) -> Term:
    """Describe a tree by its regularities."""
    return _described(tree, tree.root).term


def _described(tree: SumTree, node: int) -> _Part:
    """Follow the heavier operand down and describe what is added to it on the way; nesting is then at most log2 n."""
    spine: list[tuple[int, bool]] = []
    while node >= tree.n:
        k = node - tree.n
        a, b = int(tree.left[k]), int(tree.right[k])
        # A fused step has its first operands at the bottom of the chain that writes it.
        if tree.sizes[b] > tree.sizes[a] and not tree.joined[k]:
            a, b = b, a
        spine.append((b, bool(tree.joined[k])))
        node = a
    return _folded(node, [_Part(p.term, p.first, j) for b, j in reversed(spine) for p in (_described(tree, b),)])


def _folded(first: int, parts: list[_Part]) -> _Part:
    """Fold a head and what is added to it, from the bottom up."""
    head: Term = Leaf()
    runs: list[Copies] = []
    at = 0
    while at < len(parts):
        part = parts[at]
        stride = part.first - first
        if stride and _is_whole(part.term, head, runs):
            fused = at + 1 < len(parts) and parts[at + 1].joined
            count = _copies(parts, at, part.term, first, stride, fused)
            head, runs = Fold(count + 1, stride, part.term, fused), []
        else:
            count, step = _run(parts, at)
            runs.append(Copies(count, part.term, stride, step, part.joined))
        at += count
    return _Part(Chain(head, tuple(runs)) if runs else head, first)


def _is_whole(term: Term, head: Term, runs: list[Copies]) -> bool:
    """Whether a term is what is written so far; counted first, or a chain of n runs would be compared n times."""
    if not runs:
        return term == head
    return isinstance(term, Chain) and len(term.runs) == len(runs) and term == Chain(head, tuple(runs))


def _copies(parts: list[_Part], at: int, head: Term, first: int, stride: int, fused: bool) -> int:
    count = 1
    while (
        at + count < len(parts)
        and parts[at + count].term == head
        and parts[at + count].first == first + (count + 1) * stride
        and parts[at + count].joined == fused
    ):
        count += 1
    return count


def _run(parts: list[_Part], at: int) -> tuple[int, int]:
    if at + 1 == len(parts):
        return 1, 0
    step = parts[at + 1].first - parts[at].first
    count = 1
    while (
        at + count < len(parts)
        and parts[at + count].term == parts[at].term
        and parts[at + count].joined == parts[at].joined
        and parts[at + count].first == parts[at].first + count * step
    ):
        count += 1
    return count, step if count > 1 else 0


def spine_words(tree: SumTree, terms: npt.NDArray[np.int64], most: int = 8) -> str:
    """Say what joins the first term on the way up: of a few terms of a longer sum, where they stand in it.

    Parameters
    ----------
    tree : SumTree
        Of the few terms.
    terms : ndarray of int, shape (tree.n,)
        Their places in the longer sum.
    most : int
        Steps that are named; the largest and last one always is.
    """
    parent = np.full(2 * tree.n - 1, -1)
    parent[tree.left], parent[tree.right] = (tree.n + np.arange(tree.n - 1),) * 2
    node, joined = 0, []
    while node != tree.root:
        above = int(parent[node])
        left, right = int(tree.left[above - tree.n]), int(tree.right[above - tree.n])
        places = terms[tree.leaves_under(right if left == node else left)]
        joined.append(f"{places[0]}" if len(places) == 1 else f"{places[0]}..{places[-1]} ({len(places)})")
        node = above
    shown = joined if len(joined) <= most else [*joined[: most - 1], "...", joined[-1]]
    return f"term {terms[0]} is joined by {', '.join(shown)}"

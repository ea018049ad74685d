"""The order of a sum inside a kernel: what was revealed, and what follows from it."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.revealing.dependence import Opener
from driftscope.accumulation.revealing.verification import Verified
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.trees.families import MIXED, family_of
from driftscope.numerics.trees.naming import Term, describe, spine_words
from driftscope.numerics.trees.replay import SumArithmetic
from driftscope.numerics.trees.tree import SumTree


@dataclass(frozen=True, eq=False)
class RevealedOrder:
    """The order of a sum inside a kernel, verified: what is known of it.

    Parameters
    ----------
    kernel : str
    n : int
        Number of terms.
    dtype, output : str
        Formats of the terms and of the result.
    shape : tuple of int or None
    threads : int or None
        As asked for; None when they were left alone.
    library : str
        Name and version of what computed.
    tree : SumTree
    arithmetic : SumArithmetic
    products : bool
        Whether terms are products of two numbers.
    applies : str
        For which elements of the result this is the order; others have other ones.
    calls, rows : int
        What it took: calls of the kernel, and rows in them.
    verified : Verified
    subnormals : str
        ``"kept"``, ``"taken for zero"`` (DAZ) or ``"set to zero in results"`` (FTZ); empty where it cannot be seen.
    seconds : float
        Time spent on it.
    terms : ndarray of int, or None
        For a sketch: the terms that were asked; the tree is theirs, all others being zero.
    known : str
        What the order is called in the library of known ones; empty where it has no name there.
    elements : ndarray of bool, or None
        The elements of the result that are added in this order; None for all of them.
    others : tuple
        The orders of the other elements, where a result has several.
    opener : callable, optional
        Opens the kernel again with other rows and threads.
    """

    kernel: str
    n: int
    dtype: str
    output: str
    shape: tuple[int, ...] | None
    threads: int | None
    library: str
    tree: SumTree
    arithmetic: SumArithmetic
    products: bool
    applies: str
    calls: int
    rows: int
    verified: Verified
    subnormals: str = ""
    seconds: float = 0.0
    terms: npt.NDArray[np.int64] | None = None
    known: str = ""
    elements: npt.NDArray[np.bool_] | None = None
    others: tuple[Self, ...] = ()
    opener: Opener | None = field(default=None, repr=False)

    @functools.cached_property
    def structure(self) -> Term:
        """The tree as nested folds and pairs."""
        return describe(self.tree)

    @property
    def pattern(self) -> str:
        """The tree in one line: ``fold(16 × +256: fold(256))``; of a sketch, its terms numbered from 0."""
        if self.terms is None:
            return str(self.structure)
        return f"{len(self.terms)} of {self.n} terms: {self.structure}"

    @property
    def family(self) -> str:
        """The pattern in words."""
        if self.terms is None:
            # A pattern with loose ends names its largest part; a known order has a better name.
            words = family_of(self.structure)
            return self.known if self.known and ("uneven" in words or words.startswith(MIXED)) else words
        return f"a sketch: {spine_words(self.tree, self.terms)}"

    @property
    def accumulator(self) -> str:
        """Format of partial sums; ``"exact"`` where none is rounded."""
        whole = self.tree.has_fused and self.tree.depth == 1 and self.arithmetic.fused == "exact"
        return "exact" if whole else self.arithmetic.accumulator

    @property
    def fma(self) -> bool | str | None:
        """Whether products are added unrounded; ``"mixed"`` where some are; None where there is nothing to round."""
        exact = 2 * FORMATS[self.dtype].p <= FORMATS[self.arithmetic.accumulator].p
        if not self.products or exact:
            return None
        return {"fma": True, "rounded": False}.get(self.arithmetic.product, self.arithmetic.product)

    @property
    def fma_terms(self) -> list[int] | None:
        """Terms whose product is added unrounded, where only some are."""
        flags = self.arithmetic.fma_terms
        return None if flags is None else np.flatnonzero(flags).tolist()

    @property
    def depth(self) -> int:
        """Longest chain of dependent additions."""
        return self.tree.depth

    @property
    def classes(self) -> tuple[Self, ...]:
        """All orders of the result, that of the first element first; this one alone where there are no others."""
        return (dataclasses.replace(self, others=()), *self.others)

    @property
    def applies_to(self) -> npt.NDArray[np.bool_]:
        """The elements of the result that are added in this order, in its shape; ``True`` where all are."""
        return np.ones((), np.bool_) if self.elements is None else self.elements

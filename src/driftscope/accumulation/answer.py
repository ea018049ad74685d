"""What was revealed about a sum."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.dependence import Dependence, Opener, dependence_of
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.verification import Verified
from driftscope.errors import InputError
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.trees import SumTree
from driftscope.numerics.trees_families import family_of
from driftscope.numerics.trees_naming import Term, describe, spine_words
from driftscope.numerics.trees_replay import Arithmetic, numpy_dtype
from driftscope.records.accumulation_record import AccumulationRecord, Replayed

_MEANS = {
    "divide": "the sum divided by n",
    "reciprocal": "the sum times 1/n",
    "divide-last": "the rounded sum divided by n",
    "divide-first": "every term times 1/n",
}


@dataclass(frozen=True, eq=False)
class Accumulation:
    """The order of a sum inside a kernel, verified.

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
    arithmetic : Arithmetic
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
    arithmetic: Arithmetic
    products: bool
    applies: str
    calls: int
    rows: int
    verified: Verified
    subnormals: str = ""
    seconds: float = 0.0
    terms: npt.NDArray[np.int64] | None = None
    known: str = ""
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
            return self.known if self.known and "uneven" in words else words
        return f"a sketch: {spine_words(self.tree, self.terms)}"

    @property
    def accumulator(self) -> str:
        """Format of partial sums."""
        return self.arithmetic.accumulator

    @property
    def fma(self) -> bool | str | None:
        """Whether products are added unrounded; ``"mixed"`` where some are; None where there is nothing to round."""
        exact = 2 * FORMATS[self.dtype].p <= FORMATS[self.accumulator].p
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

    def replay(self, x: Any, weights: Any = None) -> npt.NDArray[Any]:
        """Add rows in this order: the kernel's own bits, without the kernel.

        Parameters
        ----------
        x : array or tensor, shape (rows, n)
        weights : array or tensor, shape (n,), optional
            For products: the other factor; ones by default.

        Returns
        -------
        ndarray, shape (rows,), in the output dtype
        """
        if self.terms is not None:
            raise InputError(f"only {len(self.terms)} of the {self.n} terms were asked; a sketch cannot be replayed")
        terms, factors = _array(x, self.dtype), None if weights is None else _array(weights, self.dtype)
        if terms.ndim != 2 or terms.shape[1] != self.n:
            raise InputError(f"replay takes (rows, {self.n}), not {terms.shape}")
        if factors is not None and not self.products:
            raise InputError(f"{self.kernel} adds its terms as they are; it takes no weights")
        if factors is None and self.products:
            factors = np.ones(self.n, terms.dtype)
        if factors is not None and factors.shape != (self.n,):
            raise InputError(f"weights are ({self.n},), not {factors.shape}")
        return replayed(self.tree, terms, self.arithmetic, self.output, factors)

    def draw(self, path: str | FilePath) -> FilePath:
        """Write the tree as a picture, term by term for short sums and folded for long ones.

        Parameters
        ----------
        path : path
            Ends with ``.svg`` or ``.png`` (which needs matplotlib).
        """
        from driftscope.accumulation.drawing import draw_tree

        target = FilePath(path)
        if target.suffix.lower() == ".png":
            from driftscope.accumulation.rastering import write_png

            write_png(draw_tree(self), target)
        elif target.suffix.lower() == ".svg":
            target.write_text(draw_tree(self), encoding="utf-8")
        else:
            raise InputError(f"{path}: a tree is drawn as .svg or .png")
        return target

    def dependence(self, *, rows: Sequence[int] | None = None, threads: Sequence[int] | None = None) -> Dependence:
        """Run the kernel with other numbers of rows (M) and of threads, and say where the order is the same.

        Parameters
        ----------
        rows, threads : sequence of int, optional
            What to try: 1, 2, 8, 32 and 128 rows, and 1, 2 and all threads by default.

        Raises
        ------
        InputError
            If this is the record of an order, without its kernel, or a sketch.
        """
        if self.opener is None or self.terms is not None:
            raise InputError("only what reveal() returned for all terms knows its kernel; reveal it again")
        asked = None if self.shape is None else self.shape[0], self.threads
        return dependence_of(self.opener, self.tree, self.arithmetic, asked, rows=rows, threads=threads)

    def explain(self, other: Accumulation) -> str:
        """Say in two sentences how this sum and another one differ."""
        from driftscope.accumulation.contrast import contrast

        return contrast(self, other)

    def record(self, *, drawn: bool = True) -> AccumulationRecord:
        """Return what is kept: plain data, with the drawing if it is asked for, without the kernel."""
        from driftscope.accumulation.drawing import draw_tree

        return AccumulationRecord(
            kernel=self.kernel, n=self.n, dtype=self.dtype, output=self.output, library=self.library,
            pattern=self.pattern, family=self.family, accumulator=self.accumulator, fma=self.fma,
            mean=self.arithmetic.mean, depth=self.depth, additions=self.tree.additions, applies=self.applies,
            calls=self.calls, rows=self.rows, verified=Replayed(self.verified.rows, self.verified.miss),
            shape=self.shape, threads=self.threads, seconds=self.seconds, subnormals=self.subnormals,
            terms=None if self.terms is None else tuple(self.terms.tolist()), drawing=draw_tree(self) if drawn else "",
        )  # fmt: skip

    def save(self, path: str | FilePath) -> FilePath:
        """Write the record: a page for ``.html``, JSON for ``.json``, a summary for ``.md``."""
        return self.record().save(path)

    def _repr_html_(self) -> str:
        return self.record()._repr_html_()

    def _repr_markdown_(self) -> str:
        return self.record()._repr_markdown_()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the tree as its pattern."""
        return self.record(drawn=False).to_dict()

    def __str__(self) -> str:
        shape = "" if self.shape is None else f", shape {'x'.join(map(str, self.shape))}"
        threads = "" if self.threads is None else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        fma = {True: ", products added unrounded (FMA)", False: ", products rounded first", None: ""}
        product = fma[self.fma] if not isinstance(self.fma, str) else ", some products added unrounded (FMA)"
        flushed = f"; subnormals {self.subnormals}" if self.subnormals not in ("", "kept") else ""
        mean = "" if self.arithmetic.mean == "none" else f"; the mean: {_MEANS[self.arithmetic.mean]}"
        return "\n".join(
            (
                f"{self.kernel}, {self.n} terms of {self.dtype}{shape}{threads} ({self.library})",
                f"  order        {self.family}",
                f"  pattern      {self.pattern}",
                f"  arithmetic   accumulator {self.accumulator}{product}, result {self.output}{mean}{flushed}",
                f"  applies to   {self.applies}",
                f"  depth        {self.depth} additions in a row, of {self.tree.additions}",
                f"  verified     {self.verified}",
                f"  asked        {self.calls} calls, {self.rows} rows, {self.seconds * 1e3:.3g} ms",
            )
        )

    def __repr__(self) -> str:
        return (
            f"<Accumulation of {self.kernel}, n={self.n}, {self.dtype}: {self.pattern}, in {self.accumulator},"
            f" depth {self.depth}>"
        )


def _array(value: Any, dtype: str) -> npt.NDArray[Any]:
    from driftscope.programs.arrays import array_of

    array = np.asarray(array_of(value))
    if array.dtype != numpy_dtype(dtype):
        raise InputError(f"this sum was revealed in {dtype}, the values are {array.dtype}; convert them")
    return array

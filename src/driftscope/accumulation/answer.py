"""What was revealed about a sum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.contrast import MEANS, contrast
from driftscope.accumulation.drawing import draw_tree
from driftscope.accumulation.order import RevealedOrder
from driftscope.accumulation.order_maps import letter, map_lines
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.dependence import Dependence, dependence_of
from driftscope.errors import InputError
from driftscope.numerics.formats import numpy_dtype
from driftscope.records.kinds.accumulation import AccumulationRecord, OtherOrder, Replayed
from driftscope.records.words import counted


class Accumulation(RevealedOrder):
    """The order of a sum inside a kernel, verified; it replays, draws, compares and saves itself.

    Its fields are those of :class:`~driftscope.accumulation.order.RevealedOrder`.
    """

    def replay(self, x: Any, weights: Any = None) -> npt.NDArray[Any]:
        """Add rows in this order: the kernel's own bits, without the kernel.

        Parameters
        ----------
        x : array or tensor, shape (rows, n)
        weights : array or tensor, shape (n,) or (n, columns), optional
            For products: the other factor; ones by default.

        Returns
        -------
        ndarray, shape (rows,) or (rows, columns), in the output dtype
            With weights for every column, and for a sum, each element in its own order; where a result has several
            orders, ``x`` and ``weights`` have the shape that was asked for. With one column of weights, all rows in
            this order.

        Raises
        ------
        InputError
            If shapes or dtypes do not fit, or the order of an element is not known.
        """
        if self.terms is not None:
            raise InputError(f"only {len(self.terms)} of the {self.n} terms were probed; a sketch cannot be replayed")
        terms, factors = _array(x, self.dtype), None if weights is None else _array(weights, self.dtype)
        if terms.ndim != 2 or terms.shape[1] != self.n:
            raise InputError(f"replay takes (rows, {self.n}), not {terms.shape}")
        if factors is not None and not self.products:
            raise InputError(f"{self.kernel} adds its terms as they are; it takes no weights")
        if factors is None and self.products:
            factors = np.ones(self.n, terms.dtype)
        if factors is not None and (factors.shape[:1] != (self.n,) or factors.ndim > 2):
            raise InputError(f"weights are ({self.n},) or ({self.n}, columns), not {factors.shape}")
        if not self.others if factors is None else factors.ndim == 1:
            return replayed(self.tree, terms, self.arithmetic, self.output, factors)
        return self._each_in_its_order(terms, factors)

    def _each_in_its_order(self, x: npt.NDArray[Any], w: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        columns = [None] if w is None else [np.ascontiguousarray(w[:, j]) for j in range(w.shape[1])]
        out = np.empty((len(x), len(columns)), numpy_dtype(self.output))
        known = np.zeros(out.shape, np.bool_)
        for one in self.classes:
            mine = one.applies_to.reshape(-1, 1) if one.applies_to.ndim == 1 else one.applies_to
            if one.elements is not None and mine.shape != out.shape:
                raise InputError(f"this result has several orders: replay one of shape {mine.shape}, not {out.shape}")
            mine = np.broadcast_to(mine, out.shape)
            known |= mine
            for j, weights in enumerate(columns):
                rows = mine[:, j]
                if rows.any():
                    out[rows, j] = replayed(one.tree, x[rows], one.arithmetic, one.output, weights)
        if not known.all():
            raise InputError(f"the order of {int((~known).sum())} of {counted(known.size, 'element')} is not known")
        return out[:, 0] if w is None else out

    def draw(self, path: str | FilePath) -> FilePath:
        """Write the tree as a picture, term by term for short sums and folded for long ones.

        Parameters
        ----------
        path : path
            Ends with ``.svg`` or ``.png`` (which needs matplotlib).
        """
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
        return contrast(self, other)

    def record(self, *, drawn: bool = True) -> AccumulationRecord:
        """Return what is kept: plain data, with the drawing if it is asked for, without the kernel."""
        return AccumulationRecord(
            kernel=self.kernel, n=self.n, dtype=self.dtype, output=self.output, library=self.library,
            pattern=self.pattern, family=self.family, accumulator=self.accumulator, fma=self.fma,
            mean=self.arithmetic.mean, depth=self.depth, additions=self.tree.additions, applies=self.applies,
            calls=self.calls, rows=self.rows, verified=Replayed(self.verified.rows, self.verified.miss),
            shape=self.shape, threads=self.threads, seconds=self.seconds, subnormals=self.subnormals,
            terms=None if self.terms is None else tuple(self.terms.tolist()), drawing=draw_tree(self) if drawn else "",
            others=tuple(OtherOrder(o.pattern, o.family, o.accumulator, o.fma, o.applies) for o in self.others),
            map=tuple(map_lines(self.classes)),
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
        mean = "" if self.arithmetic.mean == "none" else f"; the mean: {MEANS[self.arithmetic.mean]}"
        return "\n".join(
            (
                f"{self.kernel}, {counted(self.n, 'term')} of {self.dtype}{shape}{threads} ({self.library})",
                f"  order        {self.family}",
                f"  pattern      {self.pattern}",
                f"  arithmetic   accumulator {self.accumulator}{product}, result {self.output}{mean}{flushed}",
                f"  applies to   {self.applies}{', called A' if self.elements is not None else ''}",
                *(
                    f"  other order  {letter(number)}, {other.applies}: {other.family}: {other.pattern}"
                    for number, other in enumerate(self.others, start=1)
                ),
                *(f"  {'map' if not i else '':12} {line}" for i, line in enumerate(map_lines(self.classes))),
                f"  depth        {counted(self.depth, 'addition')} in a row, of {self.tree.additions}",
                f"  verified     {self.verified}",
                f"  probed       {counted(self.calls, 'call')}, {counted(self.rows, 'row')},"
                f" {self.seconds * 1e3:.3g} ms",
            )
        )

    def __repr__(self) -> str:
        return (
            f"<Accumulation of {self.kernel}, n={self.n}, {self.dtype}: {self.pattern}, in {self.accumulator},"
            f" depth {self.depth}>"
        )


def _array(value: Any, dtype: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any]
    if isinstance(value, np.ndarray):  # numpy's user does not wait for torch
        array = value
    else:
        from driftscope.programs.arrays import array_of

        array = np.asarray(array_of(value))
    if array.dtype != numpy_dtype(dtype):
        raise InputError(f"this sum was revealed in {dtype}, the values are {array.dtype}; convert them")
    return array

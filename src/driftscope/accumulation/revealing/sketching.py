"""Sums too long to ask about every term: a few of the terms, the others zero.

Zeros change no partial sum, so what is seen is the tree of all terms with everything but those few cut away. It is
found and verified as any other, by rows that hold nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

#: Above so many terms a sum is sketched unless its order is a known one: one row per term would take minutes.
LONGEST = 50_000
_FIRST = 64
_LAST = 8


def sketched_terms(n: int) -> Ints:
    """Return the terms of a sketch: the first ones, powers of two and halves between, around the middle, the last."""
    powers = 2 ** np.arange(max(n.bit_length(), 1))
    middle = n // 2 + np.arange(-2, 3)
    chosen = [np.arange(_FIRST), powers, powers + powers // 2, powers - 1, middle, n // 4 + middle - n // 2,
              middle + n // 4, n - 1 - np.arange(_LAST)]  # fmt: skip
    terms = np.unique(np.concatenate(chosen))
    return terms[(terms >= 0) & (terms < n)].astype(np.int64)


class SketchKernel(Kernel):
    """Some terms of a longer sum.

    Parameters
    ----------
    whole : Kernel
    terms : ndarray of int, ascending
    """

    def __init__(self, whole: Kernel, terms: Ints):
        super().__init__(whole.name, len(terms), whole.dtype, whole.meter)
        self._whole, self.terms = whole, terms
        self.products, self.rows, self.library = whole.products, whole.rows, whole.library
        self.shape, self.output, self.length = whole.shape, whole.output, whole.n

    def run(self, x: Array) -> Array:
        result = self._whole.run(self._spread(x))
        self.columns = self._whole.columns
        return result

    def run_columns(self, x: Array) -> Array:
        return self._whole.run_columns(self._spread(x))

    def _spread(self, x: Array) -> Array:
        wide = np.zeros((len(x), self._whole.n), x.dtype)
        wide[:, self.terms] = x
        return wide

    def use_weights(self, weights: Array | None) -> None:
        if weights is None:
            self._whole.use_weights(None)
            return
        wide = np.ones((self._whole.n, *weights.shape[1:]), weights.dtype)
        wide[self.terms] = weights
        self._whole.use_weights(wide)

"""Whether a kernel keeps subnormal numbers, or takes them for zero (DAZ) and returns zero for them (FTZ)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel
from driftscope.numerics.formats import FORMATS, numpy_dtype

Array = npt.NDArray[Any]

#: Rows of the question.
ROWS = 2


def subnormal_rows(kernel: Kernel) -> Array:
    """Return two rows: a single subnormal number; two normal numbers whose difference is subnormal.

    Their bits are written down: in a process that flushes subnormal numbers, computing them would give zero.
    """
    form = FORMATS[kernel.dtype]
    dtype = numpy_dtype(kernel.dtype)
    bits = np.zeros((ROWS, kernel.n), np.dtype(f"u{dtype.itemsize}"))
    normal = 1 << (form.p - 1)  # the smallest normal number; half of it is the largest power of two below
    sign = 1 << (8 * dtype.itemsize - 1)
    bits[0, 0] = normal >> 1
    bits[1, 0], bits[1, -1] = normal | normal >> 1, normal | sign
    return bits.view(dtype)


def subnormal_words(kernel: Kernel, results: Array, gain: float) -> str:
    """Say what happened to subnormal numbers.

    Parameters
    ----------
    kernel : Kernel
    results : ndarray, shape (2,)
    gain : float
        1 for a sum, 1/n for a mean.

    Returns
    -------
    str
        ``"kept"``, ``"taken for zero"``, ``"set to zero in results"``, or ``""`` where it cannot be seen: a single
        term, a mean, whose own result is too small, or partial sums in a wider format.
    """
    if kernel.n < 2 or gain != 1 or FORMATS[kernel.output].emin < FORMATS[kernel.dtype].emin:
        return ""
    given, made = (results.view(np.dtype(f"u{results.dtype.itemsize}")) << 1).tolist()
    return "kept" if given and made else "taken for zero" if not given else "set to zero in results"

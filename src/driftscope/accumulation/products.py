"""Matrix products as kernels: every row of A is a row of terms, B's columns are the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels import CONVERSIONS, Kernel, Meter, library_words, unit_weights

Array = npt.NDArray[Any]


def _torch_matmul(a: Any, b: Any) -> Any:
    return a @ b


def _torch_linear(a: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.linear(a, b)


def _torch_bmm(a: Any, b: Any) -> Any:
    import torch

    return torch.bmm(a[None], b[None])[0]


def _numpy_matmul(a: Any, b: Any) -> Any:
    return np.matmul(a, b)


#: name -> (framework, function, whether B is stored transposed)
PRODUCTS: dict[str, tuple[str, Callable[[Any, Any], Any], bool]] = {
    "torch.matmul": ("torch", _torch_matmul, False),
    "torch.linear": ("torch", _torch_linear, True),
    "torch.bmm": ("torch", _torch_bmm, False),
    "numpy.matmul": ("numpy", _numpy_matmul, False),
}


class ProductKernel(Kernel):
    """A product (M, K) by (K, N) in exactly that shape.

    Parameters
    ----------
    shape : tuple of int
        ``(M, K, N)``.
    """

    products = True

    def __init__(self, name: str, n: int, dtype: str, shape: tuple[int, int, int], meter: Meter):
        super().__init__(name, n, dtype, meter)
        framework, self._function, self._transposed = PRODUCTS[name]
        self._into, self._out_of = CONVERSIONS[framework]()
        self.library = library_words(framework)
        self.shape = shape
        self.rows = shape[0]
        self.use_weights(None)

    def use_weights(self, weights: Array | None) -> None:
        self._b = self._into(
            weight_matrix(self.n, self.shape[2] if self.shape else 1, self.dtype, weights, self._transposed)
        )

    def run(self, x: Array) -> Array:
        return first_column(self, self._out_of(self._function(self._into(x), self._b)))


def weight_matrix(n: int, columns: int, dtype: str, weights: Array | None, transposed: bool) -> Array:
    """Return a matrix with the same weights in every column, ``(n, columns)`` or its transpose."""
    column = unit_weights(n, dtype) if weights is None else weights
    return np.ascontiguousarray(
        np.repeat(column[None, :], columns, axis=0) if transposed else np.repeat(column[:, None], columns, axis=1)
    )


def first_column(kernel: Kernel, out: Array) -> Array:
    """Return the first column of a result; note which of the others, with the same weights, have the same bits."""
    same = ((out == out[:, :1]) | ((out != out) & (out != out)[:, :1])).all(axis=0)
    kernel.columns = same if kernel.columns is None else kernel.columns & same
    return np.ascontiguousarray(out[:, 0])

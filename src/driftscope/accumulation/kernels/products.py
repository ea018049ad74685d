"""Matrix products by name: every row of A is a row of terms, B's columns are the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import CONVERSIONS, Kernel, Meter, library_words
from driftscope.accumulation.kernels.operand_layouts import PlacedKernel, TurnedLayout, product_layout

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


def product_kernel(
    name: str, dtype: str, shape: tuple[int, int, int], meter: Meter, *, device: str | None = None
) -> Kernel:
    """Make a kernel of a product (M, K) by (K, N) in exactly that shape.

    Parameters
    ----------
    name : str
        A key of :data:`PRODUCTS`.
    dtype : str
    shape : tuple of int
        ``(M, K, N)``.
    meter : Meter
    device : str, optional
        Where torch computes.
    """
    framework, function, transposed = PRODUCTS[name]
    into, out_of = CONVERSIONS[framework](device)
    m, k, columns = shape
    layout = product_layout((m, k), (columns, k) if transposed else (k, columns), transposed=transposed)
    turned = isinstance(layout, TurnedLayout)

    def make(weights: Array | None) -> Callable[[Array], Array]:
        fixed = None if weights is None else into(weights)
        return lambda x: out_of(function(fixed, into(x)) if turned else function(into(x), fixed))

    return PlacedKernel(name, layout, make, dtype, library_words(framework, device), meter)

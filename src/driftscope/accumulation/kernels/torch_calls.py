"""Sums inside torch operators, in the shape of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.operand_layouts import (
    AxesLayout,
    Layout,
    PlacedKernel,
    TurnedLayout,
    WindowLayout,
    product_layout,
)
from driftscope.errors import InputError
from driftscope.programs.arrays import array_of, tensor_of

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]

#: Operators whose order can be asked, by their ATen names.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear")
REDUCTIONS = ("sum", "mean")


def torch_call(
    operator: str, shapes: list[Sizes], attributes: Mapping[str, Any], dtype: str, meter: Meter, *, device: str = "cpu"
) -> Kernel:
    """Make a kernel of one call of an ATen operator.

    Parameters
    ----------
    operator : str
        Without its namespace: ``"mm"``, ``"addmm"``, ``"linear"``, ``"sum"``, ``"mean"``, ``"convolution"``, ...
    shapes : list of tuple of int
        Of the operands, in the operator's order.
    attributes : mapping
        Its other arguments by name; ``"transposed_b"`` where the second factor of a product is a transposed view.
    dtype : str
    meter : Meter
    device : str

    Raises
    ------
    InputError
        If the operator has no sum that can be asked for.
    """
    layout, function = _call(operator, shapes, attributes)
    turned = isinstance(layout, TurnedLayout)

    def make(weights: Array | None) -> Callable[[Array], Array]:
        fixed = None if weights is None else tensor_of(weights).to(device)

        def run(x: Array) -> Array:
            given = tensor_of(x).to(device)
            with torch.no_grad():
                out = function(fixed, given) if turned else function(given, fixed)
            return np.asarray(array_of(out.detach().cpu()))

        return run

    where = "" if device == "cpu" else f" on {device}"
    return PlacedKernel(f"aten.{operator}{where}", layout, make, dtype, f"torch {torch.__version__}", meter)


def _call(operator: str, shapes: list[Sizes], attributes: Mapping[str, Any]) -> tuple[Layout, Callable[..., Any]]:
    if operator in PRODUCTS:
        return _product(operator, shapes, bool(attributes.get("transposed_b")))
    if operator in REDUCTIONS:
        axes = _axes(attributes.get("dim"), len(shapes[0]))
        function = torch.sum if operator == "sum" else torch.mean
        return AxesLayout(shapes[0], axes), lambda x, _: function(x, axes)
    if operator == "convolution":
        return _convolution(shapes, attributes)
    raise InputError(f"aten.{operator}: it has no order that can be revealed")


def _product(operator: str, shapes: list[Sizes], transposed: bool) -> tuple[Layout, Callable[..., Any]]:
    added = operator in ("addmm", "baddbmm")
    left, right = shapes[1:3] if added else shapes[:2]
    if len(left) < 2 or len(right) < 2:
        raise InputError(f"aten.{operator}: the order of products with a vector cannot be revealed")
    bias = shapes[0] if added else shapes[2] if operator == "linear" and len(shapes) > 2 else None
    if operator == "linear" or (transposed and len(right) == 2):
        stored = right if operator == "linear" else right[::-1]
        layout = product_layout(left, stored, transposed=True)
        return layout, lambda x, w: torch.nn.functional.linear(x, w, _zeros(bias, w))
    if added:
        add = torch.addmm if operator == "addmm" else torch.baddbmm
        return product_layout(left, right), lambda x, w: add(w.new_zeros(bias or ()), x, w)
    return product_layout(left, right), torch.matmul


def _zeros(shape: Sizes | None, like: torch.Tensor) -> torch.Tensor | None:
    return None if shape is None else like.new_zeros(shape)


def _axes(dim: Any, rank: int) -> Sizes:
    given = range(rank) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return tuple(sorted(axis % rank for axis in given))


def _convolution(shapes: list[Sizes], attributes: Mapping[str, Any]) -> tuple[Layout, Callable[..., Any]]:
    if attributes.get("transposed"):
        raise InputError("aten.convolution: the order of a transposed convolution cannot be revealed")
    image, filters = shapes[0], shapes[1]
    many = len(image) - 2
    stride, padding, dilation = (_each(attributes.get(word, default), many) for word, default in _DEFAULTS)
    groups = int(attributes.get("groups", 1))
    layout = WindowLayout(image, filters, stride, dilation, (*padding, *padding), groups)
    biased = len(shapes) > 2

    def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        bias = w.new_zeros(filters[0]) if biased else None
        return torch.convolution(x, w, bias, stride, padding, dilation, False, (0,) * many, groups)

    return layout, convolve


_DEFAULTS = (("stride", 1), ("padding", 0), ("dilation", 1))


def _each(value: Any, many: int) -> Sizes:
    sizes = (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    return sizes * many if len(sizes) == 1 else sizes

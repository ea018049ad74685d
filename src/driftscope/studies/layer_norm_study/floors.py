"""The noise floor of LayerNormalization, MatMul and Add, from the error model."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch

from driftscope.numerics.error_model import TORCH, Units, dot, normalisation
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.groupings import ROUNDING_RMS


@dataclass(frozen=True, slots=True)
class Scales:
    """Mean squares that the model needs, from the exact values.

    Parameters
    ----------
    row_mean : float
        Mean square of (mean / deviation) of the rows of x: how large a row is before it is centred.
    scaled, normal : float
        Of ``scale`` and of the normalised rows.
    weight_sum : float
        Of the sum of a column of W.
    weights : float
        Of the elements of W.
    product, result : float
        Of the product and of the whole chain.
    """

    row_mean: float
    scaled: float
    normal: float
    weight_sum: float
    weights: float
    product: float
    result: float
    length: int


def scales_of(
    operands: dict[str, torch.Tensor], normal: torch.Tensor, product: torch.Tensor, result: torch.Tensor
) -> Scales:
    """Measure the scales of a chain.

    Parameters
    ----------
    operands : dict of torch.Tensor
        ``x``, ``scale``, ``W``, in float64.
    normal, product, result : torch.Tensor of float64
        Exact outputs of LayerNormalization, MatMul and Add.
    """
    x, weight = operands["x"], operands["W"]
    deviation = (x.var(-1, correction=0) + 1e-5).sqrt()
    return Scales(
        row_mean=float((x.mean(-1) / deviation).square().mean()),
        scaled=float(operands["scale"].square().mean()),
        normal=float(normal.square().mean()),
        weight_sum=float(weight.sum(0).square().mean()),
        weights=float(weight.square().mean()),
        product=float(product.square().mean()),
        result=float(result.square().mean()),
        length=x.shape[-1],
    )


def floor_of_normalisation(scales: Scales, dtype: str) -> float:
    """Root-mean-square rounding error of an element of the normalised rows."""
    return math.sqrt(_normalised(scales, _units(dtype)))


def floor_of_chain(scales: Scales, dtype: str, rounding: Collection[str]) -> float:
    """Root-mean-square rounding error of the chain's result.

    Parameters
    ----------
    rounding : names of operators
        Whose results are rounded to ``dtype``; the others stay in float32 on their way to the next.
    """
    first, inner = (_units(dtype if name in rounding else "float32") for name in ("LayerNormalization", "MatMul"))
    spread = normalisation(first)
    # Independent errors of the elements meet the squares of a column of W, a shared one scales the whole product.
    through = spread.value**2 * scales.normal * scales.length * scales.weights + spread.shared**2 * scales.product
    through += spread.level**2 * scales.row_mean * scales.scaled * scales.weight_sum
    multiplied = dot(inner, TORCH.dot(scales.length))
    squares = scales.length * scales.normal * scales.weights
    own = multiplied.value**2 * scales.product + multiplied.terms**2 * squares
    return math.sqrt(through + own + (ROUNDING_RMS * FORMATS[dtype].unit_roundoff) ** 2 * scales.result)


def _normalised(scales: Scales, units: Units) -> float:
    spread = normalisation(units)
    return (spread.value**2 + spread.shared**2) * scales.normal + spread.level**2 * scales.row_mean * scales.scaled


def _units(dtype: str) -> Units:
    storage = FORMATS[dtype].unit_roundoff
    return Units(storage, min(storage, FORMATS["float32"].unit_roundoff))

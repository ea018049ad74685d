"""Classical machine learning (domain ``ai.onnx.ml``): the linear parts; trees and encoders decide, elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import dot, matmul_squares
from driftscope.lift.onnx.element_types import Format
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding

_DOMAIN = "ai.onnx.ml"


def _real(node: Node, x: Tensor) -> tuple[Tensor, Format]:
    """The input as floats, and the format of results: these operators answer in float32 to anything."""
    native = node.format(0)
    wide = x if x.is_floating_point() else x.to(torch.float64 if node.lifted else torch.float32)
    return wide, native if native == torch.float64 else torch.float32


def _row(node: Node, name: str, x: Tensor) -> Tensor:
    return torch.tensor(node.numbers(name, [0.0]), dtype=x.dtype, device=x.device)


@operator("Scaler", domain=_DOMAIN)
def scaler(node: Node, x: Tensor) -> Result:
    """``(x - offset) scale``, per feature or for all."""
    wide, native = _real(node, x)
    return Result((wide - _row(node, "offset", wide)) * _row(node, "scale", wide), Rounding(Kind.ROUND), [native])


@operator("Normalizer", domain=_DOMAIN)
def normalizer(node: Node, x: Tensor) -> Result:
    """Division of every row by its largest magnitude, its L1 or its L2 norm."""
    wide, native = _real(node, x)
    kind = node.text("norm", "MAX")
    if kind == "MAX":
        size = wide.abs().amax(-1, keepdim=True)
    elif kind == "L1":
        size = wide.abs().sum(-1, keepdim=True)
    else:
        size = wide.square().sum(-1, keepdim=True).sqrt()
    y = torch.where(size == 0, wide, wide / size)
    return Result(y, Rounding(Kind.NORM, wide.shape[-1]), [native])


@operator("LinearRegressor", domain=_DOMAIN)
def linear_regressor(node: Node, x: Tensor) -> Result:
    """``x coefficients' + intercepts``."""
    if node.text("post_transform", "NONE") != "NONE":
        raise node.refuse("a transformation after a regression")
    wide, native = _real(node, x)
    weights = _row(node, "coefficients", wide).reshape(node.integer("targets", 1), -1).T
    y = wide @ weights
    if node.has("intercepts"):
        y = y + _row(node, "intercepts", wide)
    return Result(y, dot(wide.shape[-1], lambda: matmul_squares(wide, weights)), [native])


@operator("Binarizer", domain=_DOMAIN)
def binarizer(node: Node, x: Tensor) -> Tensor:
    """One where the native value exceeds a threshold, else zero."""
    return (node.rounded(x) > node.setting("threshold", 0.0)).to(x.dtype)


@operator("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(node: Node, x: Tensor, columns: Tensor) -> Tensor:
    """Columns of the last axis."""
    rows = x.unsqueeze(0) if x.dim() == 1 else x
    return rows.index_select(-1, columns.reshape(-1).to(x.device))

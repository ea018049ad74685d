"""Matrix products that onnxruntime's optimiser writes: transposes, scales, sums and activations folded in.

Semantics: onnxruntime, ``docs/ContribOperators.md`` (FusedMatMul, TransposeMatMul, FusedMatMulActivation,
FusedGemm, GemmFastGelu).
"""

from __future__ import annotations

import torch

from driftscope.lift.formulas.terms import Number, ProductSquares, dot, matmul_squares, matrix_product
from driftscope.lift.onnx.contrib.activations import MICROSOFT, finish, gelu
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding

_ACTIVATION_PARAMETERS = ("activation_alpha", "activation_beta", "activation_gamma")


def _arranged(x: torch.Tensor, batch: int, last: int) -> torch.Tensor:
    """Transpose a factor of FusedMatMul: first ``batch``, then ``last``.

    ``batch`` brings a matrix whose rows are the first dimension, (M, b0, b1, .., K), into (b0, b1, .., M, K).
    """
    if batch and x.dim() > 2:
        x = x.movedim(0, -2)
    return x.transpose(-1, -2) if last and x.dim() > 1 else x


def _product(node: Node, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, Rounding]:
    a = _arranged(a, node.integer("transBatchA", 0), node.integer("transA", 0))
    b = _arranged(b, node.integer("transBatchB", 0), node.integer("transB", 0))
    alpha = node.number("alpha", 1.0)
    return alpha * matrix_product(a, b), dot(a.shape[-1], ProductSquares(a, b, alpha))


@operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: Node, a: torch.Tensor, b: torch.Tensor) -> Result:
    """``alpha * A' @ B'`` where A', B' are transposed as the attributes say."""
    return Result(*_product(node, a, b))


@operator("FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul_activation(node: Node, a: torch.Tensor, b: torch.Tensor) -> Result:
    """FusedMatMul, then an activation; Softmax is taken over ``activation_axis``."""
    product, rounding = _product(node, a, b)
    if node.text("activation") == "Softmax":
        axis = node.integer("activation_axis", -1)
        scores = node.inner("FusedMatMul", product, rounding)
        return Result(torch.softmax(scores, axis), Rounding(Kind.SOFTMAX, scores.shape[axis]))
    return finish(node, "FusedMatMul", product, rounding, _activation_parameters(node))


@operator("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> Result:
    """``activation(alpha * A' @ B' + beta * C)``, A' of shape (M, K), B' (K, N), C broadcastable to (M, N)."""
    a = a.transpose(0, 1) if node.integer("transA", 0) else a
    b = b.transpose(0, 1) if node.integer("transB", 0) else b
    alpha = node.number("alpha", 1.0)
    total = alpha * matrix_product(a, b)
    addend = None if c is None else node.number("beta", 1.0) * c
    if addend is not None:
        total = total + addend

    def squares() -> torch.Tensor:
        products = alpha * alpha * matmul_squares(a, b)
        return products if addend is None else products + addend.square()

    rounding = dot(a.shape[-1] + (c is not None), squares)
    return finish(node, "Gemm", total, rounding, _activation_parameters(node))


def _activation_parameters(node: Node) -> list[Number]:
    parameters: list[Number] = []
    for name in _ACTIVATION_PARAMETERS:
        if not node.has(name):
            break
        parameters.append(node.number(name))
    return parameters


@operator("GemmFastGelu", domain=MICROSOFT, kind=Kind.FUNCTION)
def gemm_fast_gelu(node: Node, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> Result:
    """``fast_gelu(x @ w + bias)``."""
    product = node.inner("MatMul", matrix_product(x, w), dot(x.shape[-1], lambda: matmul_squares(x, w)))
    if bias is not None:
        product = node.inner("Add", product + bias, Rounding(Kind.ROUND))
    return Result(*gelu(node, product, "tanh"))

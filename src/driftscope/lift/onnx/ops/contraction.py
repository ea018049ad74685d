"""Sums of products: matrix products, Gemm, Einsum, determinants."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftscope.lift.formulas.linear_algebra import as_kernel
from driftscope.lift.formulas.terms import ProductSquares, dot, matrix_product, product
from driftscope.lift.onnx.registry import Node, Result, operator


@operator("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Result:
    """Matrix product with numpy's broadcasting of stacks."""
    if not a.is_floating_point():
        return Result(torch.matmul(a.to(torch.int64), b.to(torch.int64)).to(a.dtype))
    return Result(matrix_product(a, b), product(a, b))


@operator("Gemm", since=7)
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Result:
    """``alpha A' B' + beta C``."""
    if node.integer("transA", 0):
        a = a.transpose(-1, -2)
    if node.integer("transB", 0):
        b = b.transpose(-1, -2)
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if not a.is_floating_point():
        result = (torch.matmul(a.to(torch.float64), b.to(torch.float64)) * alpha).to(a.dtype)
        return Result(result if c is None else result + (c * beta).to(a.dtype))
    result = matrix_product(a, b)
    # A factor of exactly one is left out: it costs a pass over the product and changes nothing.
    if isinstance(alpha, Tensor) or alpha != 1.0:
        result = alpha * result
    if c is not None:
        result = result + (c if not isinstance(beta, Tensor) and beta == 1.0 else beta * c)

    products = ProductSquares(a, b, alpha)
    return Result(result, dot(a.shape[-1], products if c is None else lambda: products() + (beta * c).square()))


@operator("Einsum")
def einsum(node: Node, *inputs: Tensor) -> Result:
    """Einstein summation."""
    equation = node.text("equation").replace(" ", "")
    terms = equation.split("->")[0].split(",")
    kept = equation.split("->")[1] if "->" in equation else None
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, inputs, strict=False):
        letters = term.split("...")
        for letter, size in zip(letters[0], tensor.shape, strict=False):
            sizes[letter] = size
        if len(letters) == 2 and letters[1]:
            sizes.update(zip(letters[1], tensor.shape[-len(letters[1]) :], strict=True))
    if kept is None:
        joined = "".join(terms)
        kept = "".join(letter for letter in sizes if joined.count(letter) == 1)
    length = math.prod(size for letter, size in sizes.items() if letter not in kept)
    kind = dot(length, lambda: torch.einsum(equation, *[x.square() for x in inputs]))
    return Result(torch.einsum(equation, *inputs), kind)


@operator("Det")
def determinant(node: Node, x: Tensor) -> Result:
    """Determinants of square matrices."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    return Result(torch.linalg.det(wide).to(x.dtype), as_kernel(torch.linalg.det, wide))

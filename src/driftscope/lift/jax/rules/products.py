"""Primitives that multiply and add up: products of matrices, convolutions, a few of linear algebra and of Fourier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from driftscope.errors import CannotLift
from driftscope.lift.arrays.tracing import torch_dtype
from driftscope.lift.jax.rules.elementwise import Rule
from driftscope.lift.jax.rules.shapes import pad

Tensor = torch.Tensor


def _dot_general(x: Tensor, y: Tensor, dimension_numbers: Any, preferred_element_type: Any = None, **_: Any) -> Tensor:
    (x_summed, y_summed), (x_batch, y_batch) = dimension_numbers
    if preferred_element_type is not None:
        dtype = torch_dtype(np.dtype(preferred_element_type))
        x, y = x.to(dtype), y.to(dtype)
    if not x_batch and tuple(x_summed) == (x.dim() - 1,) and y.dim() == 2 and len(y_summed) == 1:
        return torch.matmul(x, y if y_summed[0] == 0 else y.t())
    x_free = [d for d in range(x.dim()) if d not in (*x_summed, *x_batch)]
    y_free = [d for d in range(y.dim()) if d not in (*y_summed, *y_batch)]
    batch = [x.shape[d] for d in x_batch]
    rows, columns = [x.shape[d] for d in x_free], [y.shape[d] for d in y_free]
    summed = int(np.prod([x.shape[d] for d in x_summed], dtype=int))
    left = _ordered(x, [*x_batch, *x_free, *x_summed], [*batch, int(np.prod(rows, dtype=int)), summed])
    right = _ordered(y, [*y_batch, *y_summed, *y_free], [*batch, summed, int(np.prod(columns, dtype=int))])
    product = torch.matmul(left, right)
    wanted = [*batch, *rows, *columns]
    return product if list(product.shape) == wanted else product.reshape(wanted)


def _ordered(x: Tensor, order: Sequence[int], shape: Sequence[int]) -> Tensor:
    turned = x if list(order) == list(range(x.dim())) else x.permute(*order)
    return turned if list(turned.shape) == list(shape) else turned.reshape(*shape)


def _convolution(
    x: Tensor,
    kernel: Tensor,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    preferred_element_type: Any = None,
    **_: Any,
) -> Tensor:
    if batch_group_count != 1 or len(window_strides) > 3:
        raise CannotLift("jax.lax.conv_general_dilated, so called, has no float64 evaluation")
    spec = dimension_numbers
    x, kernel = x.permute(*spec.lhs_spec), kernel.permute(*spec.rhs_spec)
    if preferred_element_type is not None:
        dtype = torch_dtype(np.dtype(preferred_element_type))
        x, kernel = x.to(dtype), kernel.to(dtype)
    symmetric = all(low == high >= 0 for low, high in padding)
    if not symmetric or any(k != 1 for k in lhs_dilation):
        widths = [(low, high, k - 1) for (low, high), k in zip(padding, lhs_dilation, strict=True)]
        x = pad(x, x.new_zeros(()), [(0, 0, 0), (0, 0, 0), *widths])
        padding = [(0, 0)] * len(padding)
    sides = [int(low) for low, _ in padding]
    strides, dilation = [int(k) for k in window_strides], [int(k) for k in rhs_dilation]
    nothing = [0] * len(sides)
    found: Tensor = torch.convolution(
        x, kernel, None, strides, sides, dilation, False, nothing, int(feature_group_count)
    )
    back = [0] * found.dim()
    for k, dim in enumerate(spec.out_spec):
        back[dim] = k
    return found.permute(*back)


def _cholesky(x: Tensor, **_: Any) -> Tensor:
    # What LAPACK leaves above the diagonal is the argument's; JAX clears it in a step of its own.
    found: Tensor = torch.linalg.cholesky(x) + x.triu(1)
    return found


def _lu(x: Tensor, **_: Any) -> list[Tensor]:
    """Both factors in one matrix, rows exchanged (from 0 on), and the permutation that makes."""
    factors, pivots = torch.linalg.lu_factor(x)
    permutation = torch.lu_unpack(factors, pivots, unpack_data=False)[0].argmax(-2)
    return [factors, pivots - 1, permutation.to(torch.int32)]


def _qr(x: Tensor, pivoting: bool = False, full_matrices: bool = True, **_: Any) -> list[Tensor]:
    if pivoting:
        raise CannotLift("jax.lax.qr with pivoting has no float64 evaluation")
    return list(torch.linalg.qr(x, mode="complete" if full_matrices else "reduced"))


def _svd(x: Tensor, full_matrices: bool = True, compute_uv: bool = True, **parameters: Any) -> list[Tensor]:
    if parameters.get("subset_by_index") is not None:
        raise CannotLift("a part of the singular values has no float64 evaluation")
    if not compute_uv:
        return [torch.linalg.svdvals(x)]
    left, sizes, right = torch.linalg.svd(x, full_matrices=full_matrices)
    return [sizes, left, right]


def _eigh(x: Tensor, lower: bool = True, **parameters: Any) -> list[Tensor]:
    if parameters.get("subset_by_index") not in (None, (0, x.shape[-1])):
        raise CannotLift("a part of the eigenvalues has no float64 evaluation")
    values, vectors = torch.linalg.eigh(x, UPLO="L" if lower else "U")
    return [vectors, values]


def _triangular_solve(
    a: Tensor, b: Tensor, left_side: bool, lower: bool, transpose_a: bool, unit_diagonal: bool, **parameters: Any
) -> Tensor:
    if parameters.get("conjugate_a") and a.is_complex():
        a = a.conj_physical()
    if transpose_a:
        a, lower = a.mT, not lower
    found: Tensor = torch.linalg.solve_triangular(a, b, upper=not lower, left=left_side, unitriangular=unit_diagonal)
    return found


def _fft(x: Tensor, fft_type: Any, fft_lengths: Sequence[int], **_: Any) -> Tensor:
    kind = getattr(fft_type, "name", str(fft_type)).rpartition(".")[2].upper()
    call = {"FFT": torch.fft.fftn, "IFFT": torch.fft.ifftn, "RFFT": torch.fft.rfftn, "IRFFT": torch.fft.irfftn}[kind]
    found: Tensor = call(x, tuple(fft_lengths), dim=tuple(range(x.dim() - len(fft_lengths), x.dim())))
    return found


PRODUCTS: dict[str, Rule] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "cholesky": _cholesky,
    "lu": _lu,
    "qr": _qr,
    "svd": _svd,
    "eigh": _eigh,
    "triangular_solve": _triangular_solve,
    "fft": _fft,
}

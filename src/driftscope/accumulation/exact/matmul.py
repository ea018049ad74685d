"""Products of matrices in a fixed order, and correctly rounded ones, on two-dimensional operands."""

from __future__ import annotations

import ctypes
from typing import Literal

import torch

from driftscope.accumulation.exact.compiled import library
from driftscope.accumulation.exact.formats import STORED, Reduction
from driftscope.accumulation.exact.integers import reduce_rows
from driftscope.accumulation.exact.rows import share

Order = Literal["sequential-fma", "exact"]

#: Multiplications for which another thread pays for itself.
_PER_THREAD = 1 << 22


def product(a: torch.Tensor, b: torch.Tensor, order: Order) -> torch.Tensor:
    """Multiply two matrices.

    Parameters
    ----------
    a : Tensor, shape ``(M, K)``
    b : Tensor, shape ``(K, N)``, of the same dtype
    order : {"sequential-fma", "exact"}
        A chain of fused multiply-adds over k from +0, or the correctly rounded sum of products. The chain of
        float16 and bfloat16 matrices is float32, rounded once at its end.

    Returns
    -------
    Tensor, shape ``(M, N)``, of the dtype of ``a``
    """
    if order == "exact":
        return _exact(a, b)
    if a.dtype in (torch.float16, torch.bfloat16):
        return product(a.float(), b.float(), order).to(a.dtype)
    native = library() if a.device.type == "cpu" else None
    if native is not None:
        return _compiled(native, a, b)
    return _chain_of_floats(a, b) if a.dtype is torch.float32 else _chain_of_integers(a, b)


def _compiled(native: ctypes.CDLL, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a if a.stride(1) == 1 and a.stride(0) >= 0 else a.contiguous()
    rows, depth, columns = a.shape[0], a.shape[1], b.shape[1]
    result = torch.empty((rows, columns), dtype=a.dtype)
    if result.numel() == 0:
        return result
    size, kind = a.element_size(), STORED[a.dtype].code

    def some_rows(_: int, start: int, stop: int) -> None:
        failed = native.driftscope_matmul(
            kind, a.data_ptr() + start * a.stride(0) * size, b.data_ptr(), result.data_ptr() + start * columns * size,
            stop - start, depth, columns, a.stride(0), b.stride(0), b.stride(1),
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory to pack a matrix in")

    threads = min(torch.get_num_threads(), rows, rows * depth * columns // _PER_THREAD)
    share(rows, max(threads, 1), some_rows)
    return result


def _chain_of_floats(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The chain in float32 without an fma: a float64 sum rounded to odd, then to float32, is rounded once.

    A product of floats is exact in float64. Rounding to odd keeps what a second rounding must know (Boldo and
    Melquiond, *Emulation of FMA and correctly rounded sums*, 2008).
    """
    total = torch.zeros((a.shape[0], b.shape[1]), dtype=torch.float32, device=a.device)
    for k in range(a.shape[1]):
        term, before = a[:, k : k + 1].double() * b[k].double(), total.double()
        after = term + before
        back = after - term
        error = (term - (after - back)) + (before - back)
        odd = after.view(torch.int64)
        inexact = (error != 0) & after.isfinite()
        odd = torch.where(inexact, (odd - ((error > 0) != (after > 0)).long()) | 1, odd)
        total = odd.view(torch.float64).float()
    return total


def _chain_of_integers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The chain in any format: ``fma(x, y, z)`` is the correctly rounded dot product of ``(x, z)`` and ``(y, 1)``."""
    stored = STORED[a.dtype]
    shape = (a.shape[0], b.shape[1])
    total = torch.zeros(shape, dtype=a.dtype, device=a.device)
    for k in range(a.shape[1]):
        left = torch.stack([a[:, k : k + 1].expand(shape), total], dim=-1).reshape(-1, 2)
        right = torch.stack([b[k].expand(shape), torch.ones_like(total)], dim=-1).reshape(-1, 2)
        total = reduce_rows(Reduction.DOT, left, right, (stored, stored), 0).reshape(shape).to(a.device)
    return total


def _exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    stored = STORED[a.dtype]
    a, columns = a.contiguous(), b.t().contiguous()
    result = torch.empty((a.shape[0], columns.shape[0]), dtype=a.dtype)
    native = library() if a.device.type == "cpu" else None
    if native is None:
        for i, row in enumerate(a):
            result[i] = reduce_rows(Reduction.DOT, row.expand(columns.shape), columns, (stored, stored), 0)
        return result.to(a.device)
    n, width = a.shape[1], columns.shape[0]

    def some_rows(_: int, start: int, stop: int) -> None:
        native.driftscope_dots(
            stored.code, stored.code, a.data_ptr() + start * n * a.element_size(), columns.data_ptr(), stop - start,
            width, n, result.data_ptr() + start * width * a.element_size(),
        )  # fmt: skip

    share(a.shape[0], max(min(torch.get_num_threads(), a.numel() * width // _PER_THREAD, a.shape[0]), 1), some_rows)
    return result

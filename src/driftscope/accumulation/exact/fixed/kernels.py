"""Layers on whole tensors: compiled where that can be, in torch otherwise, with the same bits either way.

float16 and bfloat16 are computed in float32 and rounded at the end.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from driftscope.accumulation.exact import reductions
from driftscope.accumulation.exact.compiled import layers
from driftscope.accumulation.exact.fixed import operations
from driftscope.accumulation.exact.formats import STORED
from driftscope.accumulation.exact.rows import share, threads_for
from driftscope.accumulation.exact.softmax import softmax as softmax_of_doubles

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_COMPILED = (torch.float32, torch.float64)

#: Multiplications for which another thread pays for itself.
_PER_THREAD = 1 << 22
_FUNCTIONS = tuple(operations.ELEMENTS)


def _compiled_for(*tensors: torch.Tensor | None) -> ctypes.CDLL | None:
    """The library, where every operand is a plain tensor in this process's memory."""
    for t in tensors:
        if t is not None and not (type(t) in _PLAIN and t.is_cpu and t.layout is torch.strided and not t.is_neg()):
            return None
    return layers()


def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ b + bias``: one chain of fused multiply-adds for each output, over k = 0, 1, 2, ..., then the bias.

    Parameters
    ----------
    a, b : Tensor
        As :func:`torch.matmul` takes them.
    bias : Tensor, shape ``(N,)``, optional
    """
    if a.dtype not in _COMPILED and a.dtype is b.dtype:
        found = product(a.float(), b.float()).to(a.dtype)
        return found if bias is None else found + bias
    native = _compiled_for(a, b, bias)
    same = a.dtype is b.dtype and (bias is None or bias.dtype is a.dtype)
    if native is None or not same or not (a.dim() == b.dim() == 2 or (a.dim() == b.dim() == 3 and len(a) == len(b))):
        found = _product_of_any(a, b)
        return found if bias is None else found + bias
    return _compiled_product(native, a, b, bias)


def _product_of_any(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = reductions.matmul(a, b)
    return found


def _compiled_product(native: ctypes.CDLL, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    batch = len(a) if a.dim() == 3 else 1
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != depth:
        return _product_of_any(a, b)  # which says what is wrong
    result = torch.empty((*a.shape[:-1], columns), dtype=a.dtype)
    if not result.numel():
        return result
    a = a if a.stride(-1) == 1 else a.contiguous()
    bias = bias if bias is None else bias.contiguous()
    kind, size = STORED[a.dtype].code, a.element_size()
    apart = (a.stride(0), b.stride(0)) if a.dim() == 3 else (0, 0)
    steps = a.stride(-2), apart[1], b.stride(-2), b.stride(-1)
    x, y, out, add = a.data_ptr(), b.data_ptr(), result.data_ptr(), bias if bias is None else bias.data_ptr()

    def part(_: int, start: int, stop: int) -> None:
        many, lines = (1, stop - start) if batch == 1 else (stop - start, rows)
        to = start * columns * (1 if batch == 1 else rows)
        failed = native.driftscope_products(
            kind, x + start * (steps[0] if batch == 1 else apart[0]) * size, y + start * apart[1] * size * (batch > 1),
            add, out + to * size, many, lines, depth, columns, apart[0], *steps,
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory to pack a matrix in")

    pieces = rows if batch == 1 else batch
    share(pieces, max(1, min(torch.get_num_threads(), pieces, batch * rows * depth * columns // _PER_THREAD)), part)
    return result


def softmax(x: torch.Tensor, dim: int, *, masked_rows_are_zero: bool = False) -> torch.Tensor:
    """Normalise exponentials along an axis; float64 takes the exact sum, other formats float32 steps.

    Parameters
    ----------
    x : Tensor of float64, float32, float16 or bfloat16
    dim : int
    masked_rows_are_zero : bool
        Return 0 instead of NaN where everything is -infinity, as torch does inside attention.
    """
    if x.dtype is torch.float64 or not x.numel() or not x.dim():
        return softmax_of_doubles(x, dim, masked_rows_are_zero=masked_rows_are_zero)
    last = dim in (-1, x.dim() - 1)
    single = x.float()
    moved = single.contiguous() if last else single.movedim(dim, -1).contiguous()
    n = moved.shape[-1]
    native = _compiled_for(moved)
    if native is None:
        found, _ = operations.softmax_rows(moved.reshape(-1, n), masked_is_zero=masked_rows_are_zero)
        found = found.reshape(moved.shape)
    else:
        found = torch.empty_like(moved)
        source, out = moved.data_ptr(), found.data_ptr()

        def rows(_: int, start: int, stop: int) -> None:
            at = start * n * 4
            native.driftscope_softmax(source + at, stop - start, n, masked_rows_are_zero, out + at)

        share(moved.numel() // n, threads_for(moved.numel(), moved.numel() // n), rows)
    found = found if last else found.movedim(-1, dim).contiguous()
    return found.to(x.dtype)


def layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise the last axes: the three results of torch's native operator.

    Statistics and formula are float64, rounded once to float32 (float64 for float64), then to the dtype of ``x``.
    """
    n, kept = math.prod(shape), (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    if not x.numel():
        return torch.empty_like(x), x.new_zeros(kept), x.new_zeros(kept)
    double = x.dtype is torch.float64
    dense = (x if double else x.float()).contiguous()
    native = None if double else _compiled_for(dense, weight, bias)
    if native is None or any(f is not None and f.dtype is torch.float64 for f in (weight, bias)):
        w, b = (f if f is None else f.reshape(n) for f in (weight, bias))
        wide, statistics = operations.norm_rows(dense.double().reshape(-1, n), w, b, eps)
        mean, scale = (s.reshape(kept).to(dense.dtype).to(x.dtype) for s in statistics.unbind(1))
        return wide.to(dense.dtype).to(x.dtype).reshape(x.shape), mean, scale
    found, mean, scale = torch.empty_like(dense), dense.new_empty(kept), dense.new_empty(kept)
    flat = [f if f is None else f.float().contiguous() for f in (weight, bias)]
    w_at, b_at = (f if f is None else f.data_ptr() for f in flat)
    source, out, first, second = dense.data_ptr(), found.data_ptr(), mean.data_ptr(), scale.data_ptr()

    def some(_: int, start: int, stop: int) -> None:
        at = start * n * 4
        native.driftscope_norm_rows(
            source + at, stop - start, n, w_at, b_at, eps, out + at, first + start * 4, second + start * 4
        )

    count = dense.numel() // n
    share(count, threads_for(dense.numel(), count), some)
    return found.to(x.dtype), mean.to(x.dtype), scale.to(x.dtype)


def elements(name: str, x: torch.Tensor) -> torch.Tensor:
    """Apply one of ``operations.ELEMENTS`` to float32, float16 or bfloat16."""
    single = x.float()
    dense = single if single.is_contiguous() else single.contiguous()
    native = _compiled_for(dense)
    if native is None:
        found = operations.quiet(operations.ELEMENTS[name](dense))
    else:
        found = torch.empty_like(dense)
        number, source, out = _FUNCTIONS.index(name), dense.data_ptr(), found.data_ptr()

        def some(_: int, start: int, stop: int) -> None:
            native.driftscope_elements(number, source + 4 * start, stop - start, out + 4 * start)

        share(dense.numel(), threads_for(dense.numel(), dense.numel()), some)
    return found.to(x.dtype)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``softmax(q k^T + mask) v`` of float32 for each batch and head.

    q and k are each multiplied by the root of the scale first, as torch's plain formula has it. A row that is masked
    whole is 0.

    Parameters
    ----------
    query, key, value : Tensor of float32, shapes ``(B, H, L, E)``, ``(B, H, S, E)``, ``(B, H, S, V)``
    mask : Tensor of float32 that broadcasts to ``(B, H, L, S)``, or None
        What is added to the scores.

    Returns
    -------
    result : Tensor, shape ``(B, H, L, V)``
    statistics : Tensor, shape ``(B, H, L, 2)``
        The largest score and the sum of exponentials of each row.
    """
    batch, heads, queries, depth = query.shape
    keys, width = value.shape[-2:]
    root = math.sqrt(abs(scale))
    q, k, v = (query * math.copysign(root, scale)).contiguous(), (key * root).contiguous(), value.contiguous()
    native = _compiled_for(q, k, v, mask) if q.dtype is torch.float32 else None
    result, statistics = q.new_empty(batch, heads, queries, width), q.new_empty(batch, heads, queries, 2)
    if not result.numel() or not keys:
        return result.zero_(), statistics.zero_()
    if native is None:
        q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (q, k, v))
        scores = product(q, k.transpose(1, 2)).reshape(batch, heads, queries, keys)
        scores = scores if mask is None else scores + mask
        if q.dtype is torch.float64:
            weights = softmax_of_doubles(scores, -1, masked_rows_are_zero=True)
            most = scores.amax(-1)
            statistics = torch.stack([most, 1.0 / weights.amax(-1)], -1)
        else:
            weights, statistics = operations.softmax_rows(scores.reshape(-1, keys), masked_is_zero=True)
        found = product(weights.reshape(-1, queries, keys), v)
        return found.reshape(result.shape), statistics.reshape(batch, heads, queries, 2)
    added = None if mask is None else mask.expand(batch, heads, queries, keys)
    hidden, apart = (None, (0, 0, 0, 0)) if added is None else (added.data_ptr(), added.stride())
    # Each operand is contiguous: its address, and the bytes of one head.
    placed = [(t.data_ptr(), 4 * t.shape[2] * t.shape[3]) for t in (q, k, v, result, statistics)]

    def heads_of(_: int, start: int, stop: int) -> None:
        for at in range(start, stop):
            *operands, out, beside = (address + at * size for address, size in placed)
            place = hidden and hidden + 4 * (at // heads * apart[0] + at % heads * apart[1])
            if native.driftscope_attention(
                *operands, place, apart[2], apart[3], queries, keys, depth, width, out, beside
            ):
                raise MemoryError("no memory for the scores of attention")

    work = batch * heads * queries * keys * (depth + width)
    share(batch * heads, max(1, min(torch.get_num_threads(), batch * heads, work // _PER_THREAD)), heads_of)
    return result, statistics

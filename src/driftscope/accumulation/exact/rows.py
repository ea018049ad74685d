"""Rows reduced by the compiled library, in threads when there is enough to do, or in integers without it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from driftscope.accumulation.exact.compiled import library
from driftscope.accumulation.exact.formats import STORED, Reduction, StoredFormat
from driftscope.accumulation.exact.integers import reduce_rows

#: Elements for which another thread pays for itself; starting one takes about as long as adding this many.
_PER_THREAD = 1 << 18

_CODES = {dtype: stored.code for dtype, stored in STORED.items()}
#: To be made like: torch.empty takes half a microsecond longer.
_SCALARS = {dtype: torch.empty((), dtype=dtype) for dtype in STORED}


def reduced(
    op: Reduction,
    rows: torch.Tensor,
    others: torch.Tensor | None,
    formats: tuple[StoredFormat, StoredFormat],
    correction: int = 1,
) -> torch.Tensor:
    """Reduce each row of a contiguous matrix.

    Parameters
    ----------
    op : Reduction
    rows : Tensor, shape ``(R, n)``, contiguous
    others : Tensor of the same shape and dtype, or None
        The second operand of DOT.
    formats : (Stored, Stored)
        Of the input and of the result.
    correction : int
        Of VAR.

    Returns
    -------
    Tensor, shape ``(R,)``
        On the host, also for rows on an accelerator.
    """
    native = library() if rows.device.type == "cpu" else None
    if native is None:
        return reduce_rows(op, *_where_integers_work(rows, others), formats, correction)
    stored, out = formats
    count, n = rows.shape
    result = torch.empty(count, dtype=out.dtype)
    threads = threads_for(count * n, count * n)
    if threads > 1:
        _in_threads(native, op, rows, others, formats, correction, result, threads)
    else:
        second = None if others is None else others.data_ptr()
        native.driftscope_rows(
            op, stored.code, out.code, rows.data_ptr(), second, count, n, correction, result.data_ptr()
        )
    return result


def whole_sum(x: torch.Tensor) -> torch.Tensor | None:
    """Add all elements of a plain tensor in memory; None when the call is not as usual as that.

    A sum of a thousand elements takes a tenth of a microsecond; what is asked before it takes longer.
    """
    native = library()
    code = _CODES.get(x.dtype)
    if native is None or code is None or not x.is_cpu or x.layout is not torch.strided or x.requires_grad:
        return None
    n = x.numel()
    if x.is_neg() or not x.is_contiguous() or (n >= 2 * _PER_THREAD and torch.get_num_threads() > 1):
        return None
    try:
        address = x.data_ptr()
    except RuntimeError:  # a tensor inside a torch.func transform looks plain and has no memory
        return None
    result = torch.empty_like(_SCALARS[x.dtype])
    native.driftscope_total(code, address, n, result.data_ptr())
    return result


def _where_integers_work(rows: torch.Tensor, others: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """CUDA adds 64-bit integers itself; whatever else there is may not, and comes to the host."""
    if rows.device.type in ("cpu", "cuda"):
        return rows, others
    return rows.cpu(), None if others is None else others.cpu()


def _in_threads(
    native: ctypes.CDLL,
    op: Reduction,
    rows: torch.Tensor,
    others: torch.Tensor | None,
    formats: tuple[StoredFormat, StoredFormat],
    correction: int,
    result: torch.Tensor,
    threads: int,
) -> None:
    """Share rows between threads, or, when there are fewer rows than threads, the elements of each row."""
    stored, out = formats
    count, n = rows.shape
    size = stored.bits // 8
    x, y = rows.data_ptr(), 0 if others is None else others.data_ptr()
    if count >= threads:

        def whole_rows(start: int, stop: int) -> None:
            native.driftscope_rows(
                op, stored.code, out.code, x + start * n * size, y and y + start * n * size, stop - start, n,
                correction, result.data_ptr() + start * (out.bits // 8),
            )  # fmt: skip

        share(count, threads, lambda i, start, stop: whole_rows(start, stop))
        return
    state = native.driftscope_state_size()
    memory = ctypes.create_string_buffer(state * threads)
    address = ctypes.addressof(memory)
    for row in range(count):
        first = row * n * size

        def part(i: int, start: int, stop: int, first: int = first) -> None:
            offset = first + start * size
            native.driftscope_part(op, stored.code, x + offset, y and y + offset, stop - start, address + i * state)

        share(n, threads, part)
        native.driftscope_join(op, out.code, address, threads, n, correction, result.data_ptr() + row * (out.bits // 8))


def threads_for(elements: int, most: int) -> int:
    """How many threads to take for so many elements; at least one, at most as many as torch would take."""
    return max(1, min(torch.get_num_threads(), elements // _PER_THREAD, most))


def share(total: int, threads: int, work: Callable[[int, int, int], None]) -> None:
    """Call ``work(i, start, stop)`` for ``threads`` pieces of ``range(total)``, side by side."""
    if threads == 1:
        work(0, 0, total)
        return
    edges = [total * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads), edges[:-1], edges[1:]))

"""``reveal``: examine a kernel, find its tree, verify it, report it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.examination import examine, words_of
from driftscope.accumulation.kernels import Kernel, Meter
from driftscope.accumulation.known import known_order
from driftscope.accumulation.opening import open_kernel
from driftscope.accumulation.probes import Prober, Question, Units
from driftscope.accumulation.probing import TreeFinder
from driftscope.accumulation.refusal import BudgetSpentError, RevealError
from driftscope.accumulation.verification import Verified, verify
from driftscope.errors import InputError
from driftscope.numerics.trees import SumTree
from driftscope.numerics.trees_replay import Arithmetic

#: Trying without the guess that equal shapes have equal orders costs more rows, and is done when that guess failed.
_ATTEMPTS = ({"copying": True, "refinements": 2}, {"copying": False, "refinements": 6})


def reveal_sum(
    kernel: Callable[[Any], Any] | str,
    n: int,
    *,
    dtype: Any = "float32",
    shape: tuple[int, ...] | None = None,
    threads: int | None = None,
    max_calls: int | None = None,
    max_seconds: float | None = 120.0,
    seed: int = 0,
) -> Accumulation:
    """Find the order in which a kernel adds ``n`` terms.

    Parameters
    ----------
    kernel : callable or str
        A function that reduces the last axis of an array ``(rows, n)`` of numpy or torch (one that takes a single row
        is called row by row); ``"torch.sum"``, ``"torch.mean"``, ``"torch.matmul"``, ``"torch.linear"``,
        ``"torch.bmm"``, ``"numpy.sum"``, ``"numpy.matmul"``; ``"model.onnx:output"`` for the ReduceSum, ReduceMean,
        MatMul or Gemm that computes that value; ``"package.module:name"`` or ``"file.py:name"``.
    n : int
        Number of terms.
    dtype : str or dtype
        Of the terms: float64, float32, float16 or bfloat16.
    shape : tuple of int, optional
        ``(M, K, N)`` with K = n for products; ``(rows, n)`` for sums. The kernel is only ever called with this shape.
    threads : int, optional
        Threads of torch, BLAS or onnxruntime during the call; None leaves them.
    max_calls, max_seconds : optional
        What may be spent on calling the kernel.
    seed : int
        For pivots, carriers and verification.

    Returns
    -------
    Accumulation
        Verified: adding in its order gave the kernel's bits on every row that was tried.

    Raises
    ------
    RevealError
        If the kernel is no sum or mean of a fixed order, or the order found does not give its bits.
    InputError
        If n, dtype, shape or threads cannot be.
    """
    checked = _count(n)
    meter = Meter(max_calls, max_seconds)
    with thread_count(threads):
        opened = open_kernel(kernel, checked, dtype, shape, threads, meter)
        return accumulation_of(opened, threads, seed)


def accumulation_of(kernel: Kernel, threads: int | None = None, seed: int = 0) -> Accumulation:
    """Ask an opened kernel, and put down what was found.

    Raises
    ------
    RevealError
        See :func:`reveal_sum`.
    """
    tree, arithmetic, verified = reveal_kernel(kernel, seed)
    return Accumulation(
        kernel=kernel.name, n=kernel.n, dtype=kernel.dtype, output=kernel.output, shape=kernel.shape, threads=threads,
        library=kernel.library, tree=tree, arithmetic=arithmetic, products=kernel.products,
        applies=words_of(kernel), calls=kernel.meter.calls, rows=kernel.meter.rows, verified=verified,
    )  # fmt: skip


def reveal_kernel(kernel: Kernel, seed: int = 0) -> tuple[SumTree, Arithmetic, Verified]:
    """Find the tree and the arithmetic of an opened kernel.

    Raises
    ------
    RevealError
        See :func:`reveal_sum`.
    """
    rng = np.random.default_rng(seed)
    found = known_order(kernel, rng)
    if found is not None:
        return found
    gain = examine(kernel, rng)
    try:
        return _found(kernel, gain, rng)
    except BudgetSpentError:
        raise
    except RevealError:
        several = kernel.rows is not None and kernel.rows > 1
        if not several:
            raise
        # Rows may be added in orders that the data of the examination did not tell apart: now row 0 alone.
        kernel.alike = np.zeros(1, np.int64)
        return _found(kernel, gain, rng)


def _found(kernel: Kernel, gain: float, rng: np.random.Generator) -> tuple[SumTree, Arithmetic, Verified]:
    prober = Prober(kernel, Units.choose(kernel.dtype, kernel.output, gain), gain)
    if loses_nothing(prober):
        # No order can be seen, and none matters: one step adds everything.
        tree = SumTree.of(tuple(range(kernel.n)))
        return tree, *verify(kernel, tree, gain, rng)
    refusal: RevealError | None = None
    for attempt in _ATTEMPTS:
        try:
            tree = TreeFinder(prober, rng, **attempt).find()  # type: ignore[arg-type]
            if tree.has_fused and attempt["copying"]:
                # A copy keeps quiet about whether its sum is joined to the step that takes it.
                continue
            return tree, *verify(kernel, tree, gain, rng)
        except BudgetSpentError:
            raise
        except RevealError as error:
            refusal = error
    raise refusal or RevealError(f"{kernel.name}: no order was found")


def loses_nothing(prober: Prober) -> bool:
    """Whether units survive beside masks everywhere: the kernel sums exactly."""
    n = prober.kernel.n
    if n < 3:
        return False
    # At most one of two terms can be a sibling of the first one, whose mask then meets no unit.
    carriers = np.arange(1, n)[: prober.units.most]
    under = prober.ask([Question(0, np.asarray([1, n - 1]), carriers)])[0]
    return bool((under == np.isin([1, n - 1], carriers)).all())


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise InputError(f"n is the number of terms, a whole number, not {n!r}")
    if n < 1:
        raise InputError(f"n={n}: there is nothing to add; give at least one term")
    return int(n)


@contextlib.contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Set the threads of torch and of the BLAS libraries, and set them back."""
    if threads is None:
        yield
        return
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads={threads!r}: give a whole number of at least 1")
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(limits=threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

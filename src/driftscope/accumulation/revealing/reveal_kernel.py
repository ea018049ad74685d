"""``reveal``: examine a kernel, find its tree, verify it, report it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.kernel_factory import open_kernel
from driftscope.accumulation.kernels.operand_layouts import TurnedLayout
from driftscope.accumulation.kernels.products import PRODUCTS
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.examination import (
    examine,
    find_calling,
    in_rows,
    rows_per_call,
    words_of,
    words_of_elements,
)
from driftscope.accumulation.revealing.known_orders import known_order
from driftscope.accumulation.revealing.order_classes import Numbers, ask_about, checked_map, order_map
from driftscope.accumulation.revealing.probes import MaskUnits, MeetingQuestion, Prober
from driftscope.accumulation.revealing.probing import TreeFinder
from driftscope.accumulation.revealing.refusal import BudgetSpentError, RevealError
from driftscope.accumulation.revealing.sketching import LONGEST, SketchKernel, sketched_terms
from driftscope.accumulation.revealing.subnormals import subnormal_rows, subnormal_words
from driftscope.accumulation.revealing.verification import Verified, verify
from driftscope.errors import InputError
from driftscope.numerics.trees.replay import SumArithmetic
from driftscope.numerics.trees.tree import SumTree
from driftscope.programs.state.process import state_kept
from driftscope.programs.state.threads import thread_count

#: Trying without the guess that equal shapes have equal orders costs more rows, and is done when that guess failed.
_ATTEMPTS = ({"copying": True, "refinements": 2}, {"copying": False, "refinements": 6})

#: Classes of elements that are asked for their order; of a result with more, the others stay unknown.
_MOST_CLASSES = 12

#: torch starts every thread that it is told to: a hundred thousand take ten seconds.


@state_kept()
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
    device: str | None = None,
    sketch: bool | None = None,
) -> Accumulation:
    """Find the order in which a kernel adds ``n`` terms.

    Parameters
    ----------
    kernel : callable or str
        A function that reduces the last axis of an array ``(rows, n)`` of numpy or torch (one that takes a single row
        is called row by row); ``"torch.sum"``, ``"torch.mean"``, ``"torch.matmul"``, ``"torch.linear"``,
        ``"torch.bmm"``, ``"numpy.sum"``, ``"numpy.matmul"``; ``"model.onnx:output"`` for the ReduceSum, ReduceMean,
        MatMul, Gemm, Conv or LayerNormalization that computes that value; ``"package.module:name"`` or
        ``"file.py:name"``.
    n : int
        Number of terms: of an axis, K of a product, those of one filter of a convolution.
    dtype : str or dtype
        Of the terms: float64, float32, float16 or bfloat16.
    shape : tuple of int, optional
        ``(M, K, N)`` with K = n for products; ``(rows, n)`` for sums; the image's for convolutions. The kernel is only
        ever called with this shape.
    threads : int, optional
        Threads of torch, BLAS or onnxruntime during the call; None leaves them.
    max_calls, max_seconds : optional
        What may be spent on calling the kernel; looked at before every call.
    seed : int
        For pivots, carriers and verification.
    device : str, optional
        Where torch computes, as ``"cuda"``; torch's kernels and functions of torch tensors only.
    sketch : bool, optional
        Ask for the order of some hundred of the terms only. By default where there are more than 50 000 and the order
        is not a known one.

    Returns
    -------
    Accumulation
        Verified: adding in its order gave the kernel's bits on every row that was tried.

    Raises
    ------
    RevealError
        If the kernel is no sum or mean of a fixed order, or the order found does not give its bits.
    InputError
        If n, dtype, shape, threads, device or a budget cannot be.
    """
    checked = _count(n)
    meter = Meter(_limit(max_calls, "max_calls"), _limit(max_seconds, "max_seconds"))

    def opened(rows: int | None, many: int | None, counter: Meter) -> Kernel:
        wanted = _with_rows(shape, rows, kernel, checked)
        return open_kernel(kernel, checked, dtype, wanted, many, counter, device=device)

    with thread_count(threads):
        found = accumulation_of(opened(None, threads, meter), threads, seed, sketch=sketch)
    return dataclasses.replace(found, opener=opened)


def _with_rows(shape: Any, rows: int | None, kernel: Any, n: int) -> Any:
    """Return the shape of the same sum with another number of rows."""
    if rows is None:
        return shape
    if shape is None:
        shape = (rows, n, 32) if kernel in PRODUCTS else (rows, n)
    return (rows, *tuple(shape)[1:])


def accumulation_of(
    kernel: Kernel, threads: int | None = None, seed: int = 0, *, sketch: bool | None = None
) -> Accumulation:
    """Ask an opened kernel, and put down what was found.

    Raises
    ------
    RevealError
        See :func:`reveal_sum`.
    """
    sketched = sketch or (sketch is None and kernel.n > LONGEST)
    if kernel.rows is None or sketched or kernel.rows * kernel.n == 1:
        return _of_one_order(kernel, threads, seed, sketch=sketch)
    find_calling(kernel, _generator(seed))
    numbers = order_map(kernel, _generator(seed))
    kernel.mapped = True
    if not numbers.any():
        return _of_one_order(kernel, threads, seed, sketch=False)
    return _of_several_orders(kernel, numbers, threads, seed)


def _of_several_orders(kernel: Kernel, numbers: Numbers, threads: int | None, seed: int) -> Accumulation:
    """Ask for the order of each class of elements, the first element's first."""
    found: list[Accumulation | None] = []
    for number in range(int(numbers.max()) + 1):
        ask_about(kernel, numbers, number)
        try:
            found.append(_of_one_order(kernel, threads, seed, sketch=False) if number < _MOST_CLASSES else None)
        except RevealError:  # its budget spent, among other reasons: what was found of the first one is told
            if not number:
                raise
            found.append(None)
    rng = _generator(seed)
    numbers = checked_map(kernel, numbers, [None if a is None else functools.partial(_again, a) for a in found], rng)
    if isinstance(getattr(kernel, "layout", None), TurnedLayout):
        numbers = np.ascontiguousarray(numbers.T)
    numbers = numbers if kernel.products else numbers[:, 0]
    meter = kernel.meter
    classes = [
        dataclasses.replace(
            a,
            elements=(mine := numbers == number),
            applies=words_of_elements(mine),
            calls=meter.calls,
            rows=meter.rows,
            seconds=round(meter.seconds, 4),
        )
        for number, a in enumerate(found)
        if a is not None and (numbers == number).any()
    ]
    return dataclasses.replace(classes[0], others=tuple(classes[1:]))


def _again(one: Accumulation, x: Any, weights: Any) -> Any:
    return replayed(one.tree, x, one.arithmetic, one.output, weights)


def _of_one_order(kernel: Kernel, threads: int | None, seed: int, *, sketch: bool | None) -> Accumulation:
    """Ask a kernel all of whose elements are added alike, or are asked alike."""
    terms = None
    found = None if sketch else known_order(kernel, _generator(seed))
    if found is None:
        asked = kernel
        if sketch or (sketch is None and kernel.n > LONGEST):
            find_calling(kernel, _generator(seed))
            terms = sketched_terms(kernel.n)
            asked = SketchKernel(kernel, terms)
        found = *reveal_kernel(asked, seed), ""
        kernel.output, kernel.alike, kernel.columns = asked.output, asked.alike, asked.columns
        kernel.subnormals = asked.subnormals
    tree, arithmetic, verified, words = found
    return Accumulation(
        kernel=kernel.name, n=kernel.n, dtype=kernel.dtype, output=kernel.output, shape=kernel.shape, threads=threads,
        library=kernel.library, tree=tree, arithmetic=arithmetic, products=kernel.products,
        applies=words_of(kernel), calls=kernel.meter.calls, rows=kernel.meter.rows, verified=verified,
        subnormals=kernel.subnormals, seconds=round(kernel.meter.seconds, 4), terms=terms, known=words,
    )  # fmt: skip


def reveal_kernel(kernel: Kernel, seed: int = 0) -> tuple[SumTree, SumArithmetic, Verified]:
    """Find the tree and the arithmetic of an opened kernel by asking it.

    Raises
    ------
    RevealError
        See :func:`reveal_sum`.
    """
    rng = _generator(seed)
    gain = examine(kernel, rng)
    if gain != 1 and kernel.length != kernel.n:
        raise RevealError(f"{kernel.name} takes a mean of {kernel.length} terms; a sketch is made of sums alone")
    kernel.subnormals = subnormal_words(kernel, in_rows(kernel, subnormal_rows(kernel)), gain)
    try:
        return _found(kernel, gain, rng)
    except BudgetSpentError:
        raise
    except RevealError:
        several = kernel.rows is not None and rows_per_call(kernel) > 1
        if not several:
            raise
        # Rows may be added in orders that the data of the examination did not tell apart: now row 0 alone.
        kernel.alike = np.zeros(1, np.int64) if kernel.alike is None else kernel.alike[:1]
        return _found(kernel, gain, rng)


def _found(kernel: Kernel, gain: float, rng: np.random.Generator) -> tuple[SumTree, SumArithmetic, Verified]:
    prober = Prober(kernel, MaskUnits.choose(kernel.dtype, kernel.output, gain), gain)
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
    under = prober.ask([MeetingQuestion(0, np.asarray([1, n - 1]), carriers)])[0]
    return bool((under == np.isin([1, n - 1], carriers)).all())


def _count(n: Any) -> int:
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise InputError(f"n is the number of terms, a whole number, not {n!r}")
    if n < 1:
        raise InputError(f"n={n}: there is nothing to add; give at least one term")
    return int(n)


def _generator(seed: int) -> np.random.Generator:
    # Three times as fast as numpy's usual one, and every row of a verification is drawn.
    return np.random.Generator(np.random.SFC64(seed))


def _limit(value: Any, word: str) -> Any:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0):
        return value
    raise InputError(f"{word}={value!r}: give a number of at least 0, or None for no limit")

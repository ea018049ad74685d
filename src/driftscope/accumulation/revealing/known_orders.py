"""Orders that are tried before any is asked for: one call tells which, a second one verifies it.

The first call adds values and their negatives: what comes out is rounding error alone, and every order leaves another
one. A known order that gives the same error is then verified like any other, on rows made from its tree. Nothing here
refuses: where no known order fits, the kernel is examined and asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.examination import cancelling_rows, rows_per_call
from driftscope.accumulation.revealing.refusal import AloneError, BudgetSpentError, RevealError
from driftscope.accumulation.revealing.subnormals import ROWS, subnormal_rows, subnormal_words
from driftscope.accumulation.revealing.verification import MEANS, Guess, Verified, verify
from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.trees import known
from driftscope.numerics.trees.replay import SumArithmetic, finished
from driftscope.numerics.trees.tree import SumTree

Array = npt.NDArray[Any]
Maker = Callable[[int], SumTree]
Candidate = tuple[Maker, str, str]

#: Fewest terms: below, an order is asked in about as many calls, and several orders leave the same errors.
FEWEST = 48
#: Candidates that are verified before the kernel is asked after all.
_TRIED = 3


def known_order(kernel: Kernel, rng: np.random.Generator) -> tuple[SumTree, SumArithmetic, Verified, str] | None:
    """Find the order of a kernel among those of known libraries, and verify it.

    Returns
    -------
    tuple or None
        Tree, arithmetic, verification and the order's name; None where no known order gives the kernel's bits.

    Raises
    ------
    BudgetSpentError
        If not even two calls are allowed.
    """
    if kernel.n < FEWEST or (kernel.products and kernel.n < 2):
        return None
    before = kernel.meter.calls
    # A mean of float16 would have no room for the errors of smaller values.
    x = cancelling_rows(kernel, rows_per_call(kernel) if kernel.rows else 1, rng, 3 if kernel.dtype == "float16" else 0)
    spare = len(x) >= 4 * ROWS and kernel.length == kernel.n
    if spare:
        x[-ROWS:] = subnormal_rows(kernel)
    given = x.copy()
    try:
        native = kernel(x)
        if x.tobytes() != given.tobytes() or not np.isfinite(native.astype(np.float64)).all():
            return None
        telling = len(x) - ROWS if spare else len(x)
        for tried, guess in enumerate(_fitting(kernel, x[:telling], native[:telling])):
            if tried == _TRIED:
                return None
            try:
                found = _verified(kernel, guess, rng, (x, native))
                if spare:
                    kernel.subnormals = subnormal_words(kernel, native[-ROWS:], 1.0)
                if found[0].mean != "none":
                    kernel.subnormals = ""
                return guess.tree, *found, guess.words
            except BudgetSpentError:
                raise
            except RevealError:
                continue
    except BudgetSpentError:
        raise
    except RevealError:
        # What is wrong with the kernel is for the examination to say.
        if kernel.meter.calls == before:
            raise
    return None


def _verified(
    kernel: Kernel, guess: Guess, rng: np.random.Generator, alone: tuple[Array, Array]
) -> tuple[SumArithmetic, Verified]:
    try:
        return verify(kernel, guess.tree, 1.0, rng, guess=guess, alone=alone)
    except AloneError:
        # The order of one row alone is what was asked for.
        kernel.rows = 1
        return verify(kernel, guess.tree, 1.0, rng, guess=guess)


def _fitting(kernel: Kernel, x: Array, native: Array) -> Iterator[Guess]:
    """Yield the known orders that leave the errors that the kernel left."""
    weights = np.ones(kernel.n, numpy_dtype(kernel.dtype)) if kernel.products else None
    unlike = min(len(x), 12)
    output = numpy_dtype(kernel.output)
    seen: set[tuple[int, str]] = set()
    for make, accumulator, words in _candidates(kernel):
        tree = make(kernel.n)
        if (id(tree), accumulator) in seen:
            continue
        seen.add((id(tree), accumulator))
        plain = SumArithmetic(accumulator, "rounded" if kernel.products else "none")
        total = replayed(tree, x[:unlike], plain, accumulator, weights)
        means = []
        for mean in ("none", *MEANS[:3]):
            with np.errstate(over="ignore", invalid="ignore"):
                result = finished(total, kernel.n, SumArithmetic(accumulator, plain.product, mean), output)
            if (result == native[:unlike]).all():
                means.append(mean)
        if means:
            yield Guess(tree, accumulator, tuple(means), words)


def _candidates(kernel: Kernel) -> Iterator[Candidate]:
    """Yield makers of trees, the format of their partial sums, and what they are called; likeliest first."""
    narrow = kernel.dtype in ("float16", "bfloat16")
    accumulator = "float32" if narrow else kernel.dtype
    makers = _of_products(kernel.n, narrow) if kernel.products else _of_sums(kernel)
    whole = list(makers)
    for make in whole:
        yield make, accumulator, _words(make)
    for make in whole if kernel.n % 2 == 0 else ():
        words = _words(make)
        yield functools.partial(_split, make), accumulator, f"split in 2 halves, each: {words}" if words else ""
    if not kernel.products and kernel.dtype == "float32":
        # The mean of a normalisation.
        for make in (functools.partial(known.packets, lanes=4), functools.partial(known.interleaved, lanes=4)):
            yield make, "float64", _words(make)


def _words(make: Maker) -> str:
    """Name a known order, for lengths at which its pattern is too uneven to read."""
    if make is known.numpy_pairwise:
        return "numpy's pairwise sum: halves down to blocks of 128, 8 lanes in each"
    function, options = getattr(make, "func", None), getattr(make, "keywords", {})
    lanes = int(options.get("lanes", 0))
    if function is known.torch_cascade:
        loads = ", two loads added first" if options.get("pairs") else ""
        return f"torch's cascade: {4 * lanes} lanes, 4 levels of running sums{loads}, the rest in front"
    if function is known.packets:
        return f"packets of {lanes}, two at a time, lanes joined pairwise, the rest behind"
    if function is known.narrow_dot:
        return f"torch's product of 16-bit numbers: {8 * lanes} lanes, lanes joined by halves, the rest behind"
    if function is known.interleaved:
        return f"{lanes} lanes, lanes joined pairwise, the rest behind"
    return ""


def _split(make: Maker, n: int) -> SumTree:
    return known.twice(n, make(n // 2))


def _of_sums(kernel: Kernel) -> Iterator[Maker]:
    narrow, lanes = kernel.dtype in ("float16", "bfloat16"), 4 if kernel.dtype == "float64" else 8
    cascades: list[Maker] = [functools.partial(known.torch_cascade, lanes=lanes, pairs=narrow)]
    if narrow:  # a mean is taken of numbers that were widened first
        cascades.insert(0 if "mean" in kernel.name else 1, functools.partial(known.torch_cascade, lanes=lanes))
    eigen: list[Maker] = [functools.partial(known.packets, lanes=lanes // 2)]
    of_library: dict[str, list[Maker]] = {"numpy": [known.numpy_pairwise], "torch": cascades, "onnxruntime": eigen}
    own = of_library.get(kernel.library.partition(" ")[0], [])
    yield from own
    for others in of_library.values():
        if others is not own:
            yield from others
    for many in (4, 8, 16, 32):
        yield functools.partial(known.interleaved, lanes=many)
    yield known.sequential


def _of_products(n: int, narrow: bool) -> Iterator[Maker]:
    if narrow:
        whole = next((size for size in range(32, 1, -2) if n % size == 0), 32)
        for size in dict.fromkeys((32, whole)):
            yield functools.partial(known.tiles, size=size)
        for lanes in (8, 16, 4):
            yield functools.partial(known.narrow_dot, lanes=lanes)
    first, later = ((512, 1024), (256, 384, 128, 2048)) if narrow else ((384, 256, 192), (448, 512, 128, 320, 1024))
    for size in (*first, *later):
        for cut in (_halved_tail, _one_rest, _rounded_tail):
            yield functools.partial(_blocks, cut=cut, size=size)
    yield known.sequential


def _blocks(n: int, *, cut: Callable[[int, int], tuple[int, ...]], size: int) -> SumTree:
    return known.blocks(n, cut(n, size))


def _halved_tail(n: int, size: int) -> tuple[int, ...]:
    return known.split_tail(n, size, 1)


def _rounded_tail(n: int, size: int) -> tuple[int, ...]:
    return known.split_tail(n, size, 32)


def _one_rest(n: int, size: int) -> tuple[int, ...]:
    return known.even_blocks(n, size)

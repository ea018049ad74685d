"""Replays by the compiled library and by numpy: the same bits, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from accumulation.known_kernels import random_order
from driftscope.accumulation.exact import compiled
from driftscope.accumulation.exact.compiled import Instructions
from driftscope.accumulation.replaying import replayed
from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.trees.replay import SumArithmetic, replay
from driftscope.numerics.trees.tree import SumTree

WAYS = [
    ("none", "none"), ("none", "divide"), ("none", "reciprocal"), ("none", "divide-first"), ("none", "divide-last"),
    ("rounded", "none"), ("fma", "none"), ("mixed", "divide"),
]  # fmt: skip


@pytest.fixture(params=list(Instructions), ids=lambda level: level.name.lower())
def instructions(request):
    if compiled.library() is None:
        pytest.skip("the library was not compiled")
    if compiled.use(request.param) is not request.param:
        pytest.skip("the processor lacks these instructions")
    yield
    compiled.use(Instructions.AVX512)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)).astype(numpy_dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 2, 3, 17, 64])
def test_both_ways_give_the_same_bits(instructions, n, dtype):
    rng = np.random.default_rng(n)
    tree = SumTree.of(random_order(n, n)) if n > 1 else SumTree.sequential(1)
    x, w = drawn(rng, (37, n), dtype), drawn(rng, (n,), dtype)
    for accumulator in ("float32", "float64") if dtype != "float64" else ("float64",):
        for product, mean in WAYS:
            flags = rng.random(n) < 0.5 if product == "mixed" else None
            arithmetic = SumArithmetic(accumulator, product, mean, "exact", flags)
            weights = None if product == "none" else w
            fast = replayed(tree, x, arithmetic, dtype, weights)
            assert fast.tobytes() == replay(tree, x, arithmetic, dtype, weights).tobytes(), (accumulator, product, mean)


def test_another_order_gives_other_bits(instructions):
    rng = np.random.default_rng(0)
    x = drawn(rng, (64, 64), "float32")
    one, other = (
        replayed(SumTree.of(random_order(64, s)), x, SumArithmetic("float32", "none"), "float32") for s in (1, 2)
    )
    assert (one != other).any()


def test_infinities_and_nan_come_out_as_they_do_in_numpy(instructions):
    x = np.asarray([[np.inf, 1, 2], [np.inf, -np.inf, 1], [np.nan, 1, 2], [3e38, 3e38, -3e38]], np.float32)
    tree, arithmetic = SumTree.sequential(3), SumArithmetic("float32", "none")
    np.testing.assert_array_equal(
        replayed(tree, x, arithmetic, "float32"), replay(tree, x, arithmetic, "float32", None)
    )

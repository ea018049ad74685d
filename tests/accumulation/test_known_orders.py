"""Orders of known libraries: found in two calls, and never believed without a replay."""

from __future__ import annotations

import numpy as np
import pytest

import driftscope as ds
from accumulation.known_kernels import adding, folded, pairwise, random_order
from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.kernel_factory import open_kernel
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.known_orders import known_order
from driftscope.accumulation.revealing.reveal_kernel import reveal_kernel
from driftscope.numerics.trees import known
from driftscope.numerics.trees.replay import SumArithmetic
from driftscope.numerics.trees.tree import SumTree

pytestmark = pytest.mark.usefixtures("one_thread")


def opened(name: object, n: int, dtype: str = "float32") -> Kernel:
    return open_kernel(name, n, dtype, None, None, Meter())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("numpy.sum", ("float32", "float64", "float16")),
        ("torch.sum", ("float32", "float64", "float16", "bfloat16")),
        ("torch.mean", ("float32", "float64", "float16", "bfloat16")),
    ],
)
@pytest.mark.parametrize("n", [48, 100, 256, 1000, 2047])
def test_a_known_sum_takes_two_calls_and_is_what_asking_finds(name, dtypes, n):
    for dtype in dtypes:
        found = ds.reveal(name, n, dtype=dtype)
        assert found.calls <= 3, dtype  # two, unless another order left the same error in one row
        if n <= 256 and dtype != "bfloat16":
            tree, arithmetic, _ = reveal_kernel(opened(name, n, dtype))
            assert found.tree == tree, dtype
            assert found.arithmetic.accumulator == arithmetic.accumulator


def test_most_known_sums_take_two_calls():
    calls = [ds.reveal(name, n).calls for name in ("numpy.sum", "torch.sum") for n in range(64, 1100, 137)]
    assert sum(c == 2 for c in calls) >= 0.8 * len(calls)


@pytest.mark.parametrize("n", [64, 500, 1000, 1024])
def test_a_product_in_its_shape_takes_two_calls(n):
    # Two blocks that some library cuts: written here, so that no processor matters.
    for size in (256, 384):
        order = [SumTree.sequential(n)] if size >= n else []
        cut = known.even_blocks(n, size)
        tree = order[0] if order else known.blocks(n, cut)
        assert tree.n == n
        assert len(cut) == -(-n // size)
    found = ds.reveal("torch.matmul", n, shape=(32, n, 32))
    asked, _, _ = reveal_kernel(open_kernel("torch.matmul", n, "float32", (32, n, 32), None, Meter()))
    assert found.tree == asked


def in_vectors(x: np.ndarray, lanes: int) -> np.float32:
    """Add as torch's product of 16-bit numbers does: eight vectors, then two by two into one, then single numbers."""
    total, at = np.float32(0), 0
    for many, registers in ((8, 8), (2, 1)):
        sums = np.zeros((registers, lanes), np.float32)
        step, start = many * lanes, at
        for at in range(start + step, len(x) + 1, step):
            for i, vector in enumerate(x[at - step : at].reshape(many, lanes)):
                sums[i % registers] += vector
        flat = sums.ravel()
        while len(flat) > 1:
            flat = flat[: len(flat) // 2] + flat[len(flat) // 2 :]
        total += flat[0]
    for value in x[at:]:
        total += value
    return total


@pytest.mark.parametrize("n", [64, 100, 150, 200, 321, 1000])
def test_the_order_of_torchs_narrow_products_is_that_of_its_loop(n):
    plain = SumArithmetic("float32", "none")
    for lanes in (4, 8, 16):
        x = np.random.default_rng(n).standard_normal((8, n)).astype(np.float32)
        got = replayed(known.narrow_dot(n, lanes), x, plain, "float32", None)
        assert got.tolist() == [in_vectors(row, lanes) for row in x]
        if lanes > 4 and n > 64:  # eight vectors of any width are halves of halves there
            assert known.narrow_dot(n, lanes) != known.narrow_dot(n, 4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_product_is_what_asking_finds(dtype):
    for n in (64, 150):
        found = ds.reveal("torch.linear", n, dtype=dtype)
        asked, _, _ = reveal_kernel(open_kernel("torch.linear", n, dtype, None, None, Meter()))
        assert found.tree == asked


@pytest.mark.parametrize("n", [100, 257])
def test_an_unknown_order_is_asked_for_and_not_taken_for_a_known_one(n):
    for order in (random_order(n, 3), pairwise(0, n), folded(reversed(range(n)))):
        kernel = adding(order)
        assert known_order(opened(kernel, n), np.random.default_rng(0)) is None
        found = ds.reveal(kernel, n)
        assert found.tree == SumTree.of(order)
        assert found.calls > 3


def test_one_exchange_in_a_known_order_is_noticed():
    n = 256
    tree = known.numpy_pairwise(n)
    right = tree.right.copy()
    # In one lane (a + b) + c becomes (a + c) + b.
    outer = int(np.flatnonzero((tree.left >= n) & (tree.right < n))[100])
    inner = int(tree.left[outer]) - n
    right[outer], right[inner] = tree.right[inner], tree.right[outer]
    changed = SumTree(n, tree.left, right, tree.joined)
    assert changed != tree

    def kernel(x: np.ndarray) -> np.ndarray:
        values = list(x.T)
        for a, b in zip(changed.left.tolist(), changed.right.tolist(), strict=True):
            values.append(values[a] + values[b])
        return values[-1]

    assert ds.reveal(kernel, n).tree == changed


def test_a_row_that_is_added_otherwise_alone_is_asked_alone():
    def kernel(x: np.ndarray) -> np.ndarray:
        one = adding(folded(range(96)))
        return one(x) if len(x) == 1 else np.sum(x, axis=-1)

    assert ds.reveal(kernel, 96).pattern == "fold(96)"


def test_a_kernel_that_changes_its_input_is_refused_also_where_its_order_is_known():
    def kernel(x: np.ndarray) -> np.ndarray:
        total = np.sum(x, axis=-1)
        x += 1
        return total

    with pytest.raises(ds.DriftscopeError, match="changes its input"):
        ds.reveal(kernel, 200)
    assert ds.reveal(lambda x: np.sum(x, axis=-1), 200).tree == known.numpy_pairwise(200)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_budget_is_kept_and_said(dtype):
    assert ds.reveal("numpy.sum", 1000, dtype=dtype, max_calls=4).calls <= 4
    with pytest.raises(ds.DriftscopeError, match=r"not found within 1 call \(.* s\)"):
        ds.reveal("numpy.sum", 1000, dtype=dtype, max_calls=1)
    for wrong in ({"max_calls": "a"}, {"max_seconds": -1}, {"threads": 2000}):
        with pytest.raises(ds.InputError):
            ds.reveal("numpy.sum", 1000, **wrong)


def test_a_long_float16_mean_says_that_it_was_verified_less_well():
    short, long = (ds.reveal("torch.mean", n, dtype="float16").verified for n in (512, 16384))
    assert long.rows > short.rows
    assert long.miss > 1e-3 > 1e-4 > short.miss
    assert ds.reveal("torch.mean", 4096, dtype="bfloat16").verified.miss < 1e-4

"""Orders that are known must be revealed exactly; what has no order must be refused."""

from __future__ import annotations

import math
import time

import ml_dtypes
import numpy as np
import pytest

import driftscope as ds
from accumulation.known_kernels import (
    adding,
    adding_in_float32,
    folded,
    kahan_sum,
    pairwise,
    random_order,
    tensor_core,
    tensor_core_order,
    welford_mean,
)
from driftscope.accumulation.revealing.refusal import BudgetSpentError, RevealError
from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.trees.tree import SumTree

ORDERS = {
    "sequential": folded(range(50)),
    "reverse": folded(range(49, -1, -1)),
    "pairwise": pairwise(0, 50),
    "blocks": folded([folded(range(b, min(b + 8, 50))) for b in range(0, 50, 8)]),
    "lanes": folded([folded(range(lane, 50, 4)) for lane in range(4)]),
    "split": (folded(range(25)), folded(range(25, 50))),
    "outside in": folded([k // 2 if k % 2 == 0 else 49 - k // 2 for k in range(50)]),
    "random": random_order(50, 1),
    "random again": random_order(47, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_known_orders_are_revealed(name, dtype):
    found = ds.reveal(adding(ORDERS[name]), SumTree.of(ORDERS[name]).n, dtype=dtype)
    assert found.tree == SumTree.of(ORDERS[name])
    assert found.accumulator == dtype
    assert found.fma is None


def test_neighbouring_orders_are_told_apart():
    a, b = folded(range(20)), folded([0, 1, 2, 3, 5, 4, *range(6, 20)])
    assert ds.reveal(adding(a), 20).tree == SumTree.of(a) != SumTree.of(b) == ds.reveal(adding(b), 20).tree


@pytest.mark.parametrize(
    ("dtype", "nested"),
    [
        (ml_dtypes.bfloat16, folded([folded(range(lane, 600, 8)) for lane in range(8)])),
        (ml_dtypes.bfloat16, folded([folded(range(b, b + 100)) for b in range(0, 600, 100)])),
        (ml_dtypes.bfloat16, folded(range(401))),
        (np.float16, folded([folded(range(b, min(b + 128, 2100))) for b in range(0, 2100, 128)])),
        (np.float16, pairwise(0, 2100)),
    ],
)
def test_narrow_results_that_cannot_count_all_terms_at_once(dtype, nested):
    n = SumTree.of(nested).n
    assert n > 2 ** (8 if dtype is ml_dtypes.bfloat16 else 11)
    found = ds.reveal(adding_in_float32(nested), n, dtype=dtype)
    assert found.tree == SumTree.of(nested)
    assert found.accumulator == "float32"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_accumulators_are_named(dtype):
    found = ds.reveal(adding(pairwise(0, 24)), 24, dtype=dtype)
    assert found.tree == SumTree.of(pairwise(0, 24))
    assert found.accumulator == np.dtype(dtype).name


@pytest.mark.parametrize(("n", "group", "extra"), [(4, 4, 1), (16, 4, 0), (24, 8, 2), (30, 4, 3)])
def test_steps_of_several_terms_are_seen(n, group, extra):
    found = ds.reveal(tensor_core(group, extra), n)
    assert found.tree == SumTree.of(tensor_core_order(n, group))
    assert found.tree.has_fused
    assert found.arithmetic.fused.startswith("aligned")


@pytest.mark.parametrize("n", [3, 10, 40])
def test_an_exact_sum_is_one_step(n):
    found = ds.reveal(math.fsum, n, dtype="float64")
    assert found.tree == SumTree.of(tuple(range(n)))
    assert found.family == "all at once, rounded once"
    assert found.accumulator == "exact"


@pytest.mark.parametrize(("sums_in", "said"), [(np.float64, "exact"), (np.float32, "float32")])
def test_partial_sums_that_are_not_rounded_are_called_exact(sums_in, said):
    """A float64 holds every sum of a thousand float16 numbers; a float32 does not."""
    plain = adding(folded(range(1000)))
    found = ds.reveal(lambda x: plain(x.astype(sums_in)).astype(x.dtype), 1000, dtype="float16")
    assert found.accumulator == said


@pytest.mark.parametrize("n", [3, 17, 24])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", ["divide", "reciprocal"])
def test_a_mean_by_division_and_one_by_the_reciprocal_are_told_apart(n, dtype, way):
    """Of 17 terms the two have other bits in one mean of 16 only."""
    total = adding(folded(range(n)))

    def mean(x: np.ndarray) -> np.ndarray:
        sums = total(x)
        count = sums.dtype.type(n)
        return sums / count if way == "divide" else sums * (sums.dtype.type(1) / count)

    found = ds.reveal(mean, n, dtype=dtype)
    assert found.arithmetic.mean == way
    x = np.random.default_rng(0).standard_normal((1000, n)).astype(numpy_dtype(dtype))
    assert (found.replay(x) == mean(x)).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_very_short_sums(n):
    found = ds.reveal(adding(folded(range(n))), n)
    assert found.tree == SumTree.of(folded(range(n)))
    x = np.float32([range(1, n + 1)])
    assert found.replay(x).tolist() == [n * (n + 1) / 2]


def test_a_kernel_of_one_row_is_called_row_by_row():
    def one_row(x: np.ndarray) -> np.ndarray:
        if x.ndim != 1:
            raise TypeError("one row, please")
        return adding(folded(range(12)))(x[None])[0]

    assert ds.reveal(one_row, 12).tree == SumTree.sequential(12)
    assert ds.reveal(sum, 12).tree == SumTree.sequential(12)


def test_rows_that_are_added_otherwise_together_are_asked_alone():
    alone, together = adding(folded(range(30))), adding(pairwise(0, 30))
    found = ds.reveal(lambda x: np.asarray(alone(x) if len(x) == 1 else together(x)), 30)
    assert found.tree == SumTree.sequential(30)
    assert ds.reveal(lambda x: np.asarray(together(x)), 30).tree == SumTree.of(pairwise(0, 30))


def test_a_given_shape_is_the_only_one_called():
    shapes = set()

    def kernel(x: np.ndarray) -> np.ndarray:
        shapes.add(x.shape)
        return adding(pairwise(0, 30))(x)

    assert ds.reveal(kernel, 30, shape=(5, 30)).tree == SumTree.of(pairwise(0, 30))
    assert shapes == {(5, 30)}


def test_means_are_sums_that_are_divided():
    order = adding(pairwise(0, 30))
    found = ds.reveal(lambda x: order(x) / np.float32(30), 30)
    assert (found.tree, found.arithmetic.mean) == (SumTree.of(pairwise(0, 30)), "divide")
    found = ds.reveal(lambda x: order(x) * np.float32(1 / 30), 30)
    assert (found.tree, found.arithmetic.mean) == (SumTree.of(pairwise(0, 30)), "reciprocal")


def test_the_same_seed_asks_the_same_questions():
    first, second = (ds.reveal(adding(random_order(40, 3)), 40, seed=7) for _ in range(2))
    assert (first.calls, first.rows) == (second.calls, second.rows)


# --- refusals -----------------------------------------------------------------------------------------------


def weighted(x: np.ndarray) -> np.ndarray:
    return x @ np.linspace(1, 2, x.shape[1], dtype=x.dtype)


def sorted_sum(x: np.ndarray) -> np.ndarray:
    return np.cumsum(np.sort(x, axis=-1), axis=-1)[..., -1]


def coarse_sum(x: np.ndarray) -> np.ndarray:
    """Drops the last four bits of every partial sum."""
    total = np.zeros(len(x), np.float32)
    for k in range(x.shape[1]):
        total = ((total + x[:, k]).view(np.int32) & np.int32(-16)).view(np.float32)
    return total


def changing(x: np.ndarray) -> np.ndarray:
    x += np.float32(1)
    return np.cumsum(x, axis=-1)[..., -1] - np.float32(x.shape[-1])


class Unsteady:
    """Adds in another order every time."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.cumsum(x[..., self.rng.permutation(x.shape[-1])], axis=-1)[..., -1]


def failing(x: np.ndarray) -> np.ndarray:
    raise ValueError(f"no rows of {np.ndim(x)} axes today")


REFUSED = [
    (welford_mean, "no tree of additions"),
    (kahan_sum, "no tree of additions|so it is not reported"),
    (lambda x: np.max(x, axis=-1), "neither a sum nor a mean"),
    (lambda x: np.abs(x).sum(axis=-1), "neither a sum nor a mean"),
    (lambda x: np.exp(x - x.max(-1, keepdims=True)), r"does not reduce the last axis: shape \(3, 40\) gave \(3, 40\)"),
    (lambda x: np.var(x, axis=-1), "neither a sum nor a mean"),
    (lambda x: np.argmax(x, axis=-1), "returns int64"),
    (weighted, "neither a sum nor a mean"),
    (sorted_sum, "no tree of additions|so it is not reported"),
    (coarse_sum, "so it is not reported"),
    (changing, "changes its input"),
    (Unsteady(), "Unsteady is not deterministic"),
    (failing, "failing raised ValueError: no rows of"),
]


@pytest.mark.parametrize(("kernel", "reason"), REFUSED, ids=lambda v: getattr(v, "__name__", None))
def test_what_has_no_order_is_refused_with_the_reason(kernel, reason):
    with pytest.raises(RevealError, match=reason):
        ds.reveal(kernel, 40)


def test_a_budget_is_kept():
    calls = []
    order = adding(random_order(200, 0))

    def kernel(x: np.ndarray) -> np.ndarray:
        calls.append(len(x))
        return order(x)

    with pytest.raises(BudgetSpentError, match="within 15 calls"):
        ds.reveal(kernel, 200, max_calls=15)
    assert len(calls) == 15
    with pytest.raises(BudgetSpentError, match=r"within 0\.01 s"):
        ds.reveal(lambda x: (time.sleep(0.02), order(x))[1], 200, max_seconds=0.01)
    assert ds.reveal(kernel, 200).tree == SumTree.of(random_order(200, 0))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.sum, 0), {}, "nothing to add"),
        ((np.sum, 4.0), {}, "whole number"),
        ((np.sum, True), {}, "whole number"),
        ((np.sum, 4), {"dtype": "int32"}, "give float64, float32, float16, bfloat16"),
        ((np.sum, 4), {"shape": (2, 5)}, "does not end with n=4"),
        ((np.sum, 4), {"shape": "4"}, "does not end with n=4"),
        ((np.sum, 4), {"shape": 4}, "not a tuple"),
        ((np.sum, 4), {"threads": 0}, "from 1 to 1024"),
        (("torch.matmul", 4), {"shape": (2, 5, 2)}, "K = n = 4"),
        (("numpy.summ", 4), {}, "there is no kernel 'numpy.summ'"),
        ((3, 4), {}, "a int is not a kernel"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(arguments, options, message):
    with pytest.raises(ds.InputError, match=message) as raised:
        ds.reveal(*arguments, **options)
    assert "\n" not in str(raised.value)

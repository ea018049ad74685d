"""Whether products are rounded before they are added: known kernels of each kind are told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accumulation.known_kernels import folded, pairwise, random_order
from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.revealing.examination import words_of
from driftscope.accumulation.revealing.reveal_kernel import reveal_kernel
from driftscope.numerics.trees.rounding import fma
from driftscope.numerics.trees.tree import SumTree


class Product(Kernel):
    """Dot products in a known order; ``unrounded`` says which terms are added with FMA."""

    products = True

    def __init__(self, nested: Any, dtype: str, unrounded: np.ndarray, by_row: bool = False):
        self.tree = SumTree.of(nested)
        super().__init__("a dot product", self.tree.n, dtype, Meter())
        self.unrounded = unrounded
        self.rows, self.shape = 16, (16, self.tree.n, 1)
        self.by_row = by_row
        self.use_weights(None)

    def use_weights(self, weights: np.ndarray | None) -> None:
        self.weights = np.ones(self.n, self.dtype) if weights is None else weights

    def run(self, x: np.ndarray) -> np.ndarray:
        values = [x[:, k] * self.weights[k] for k in range(self.n)]
        for a, b in zip(self.tree.left.tolist(), self.tree.right.tolist(), strict=True):
            # The second of two terms is the one that is not rounded, unless only the first one may be.
            term, other = (b, a) if b < self.n and self.unrounded[b] else (a, b)
            if term < self.n and self.unrounded[term]:
                values.append(fma(x[:, term], np.full(len(x), self.weights[term]), values[other]))
            else:
                values.append(values[a] + values[b])
        if self.by_row:
            values[-1][7:] = np.cumsum((x * self.weights)[7:, ::-1], axis=-1)[:, -1]
        return values[-1]


ORDERS = {"sequential": folded(range(30)), "pairwise": pairwise(0, 30), "random": random_order(30, 4)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["fma", "rounded"])
def test_products_all_of_one_kind(order, dtype, kind):
    kernel = Product(ORDERS[order], dtype, np.full(30, kind == "fma"))
    tree, arithmetic, _ = reveal_kernel(kernel)
    assert tree == kernel.tree
    assert (arithmetic.product, arithmetic.accumulator) == (kind, dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_both_kinds_term_by_term(order, dtype):
    unrounded = np.arange(30) % 3 == 1
    kernel = Product(ORDERS[order], dtype, unrounded)
    tree, arithmetic, _ = reveal_kernel(kernel)
    assert tree == kernel.tree
    assert arithmetic.product == "mixed"
    seen = arithmetic.fma_terms
    assert seen is not None
    # Where two products meet, only one of them is added unrounded, and only that one can be seen.
    assert (seen <= unrounded).all()
    assert seen.sum() >= unrounded.sum() - 4


def test_exact_products_need_no_question():
    kernel = Product(pairwise(0, 30), "float32", np.zeros(30, np.bool_))
    kernel.dtype = "float16"
    kernel.run = lambda x: Product.run(kernel, x.astype(np.float32)).astype(np.float16)  # type: ignore[method-assign]
    _, arithmetic, _ = reveal_kernel(kernel)
    assert arithmetic.product == "rounded"
    assert arithmetic.accumulator == "float32"


def test_rows_with_orders_of_their_own_are_left_out():
    kernel = Product(pairwise(0, 30), "float32", np.zeros(30, np.bool_), by_row=True)
    tree, arithmetic, _ = reveal_kernel(kernel)
    assert (tree, arithmetic.product) == (kernel.tree, "rounded")
    assert words_of(kernel) == "0 to 6 of 16 rows"
    assert words_of(Product(pairwise(0, 30), "float32", np.zeros(30, np.bool_))) == "every element"


def test_rows_that_only_differ_later_leave_row_0_alone():
    kernel = Product(pairwise(0, 30), "float32", np.zeros(30, np.bool_))
    plain = kernel.run

    def run(x: np.ndarray) -> np.ndarray:
        out = plain(x)
        # The examination's data are smaller than this; masks are not.
        late = np.abs(x).max(axis=1) > 2.0**20
        late[:7] = False
        out[late] = np.cumsum(x[late][:, ::-1], axis=-1)[:, -1]
        return out

    kernel.run = run  # type: ignore[method-assign]
    tree, _, _ = reveal_kernel(kernel)
    assert tree == kernel.tree
    assert words_of(kernel) == "number 0 of 16 rows"

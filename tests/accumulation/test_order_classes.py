"""A result whose elements are added in several orders: a map of them, each order by itself, every element replayed."""

from __future__ import annotations

import numpy as np
import pytest

import driftscope as ds
from driftscope.accumulation.kernels.kernel import Meter
from driftscope.accumulation.kernels.operand_layouts import PlacedKernel, product_layout
from driftscope.accumulation.revealing.reveal_kernel import accumulation_of
from driftscope.errors import InputError

SHAPES = [(7, 300, 19), (33, 96, 17), (1, 64, 40), (40, 64, 1), (6, 64, 30)]


def forwards(terms):
    return np.add.accumulate(terms, axis=-1)[..., -1]


def backwards(terms):
    return forwards(terms[..., ::-1])


def halves(terms):
    half = terms.shape[-1] // 2
    return forwards(terms[..., :half]) + forwards(terms[..., half:])


def written_kernel(shape, numbers, dtype=np.float32):
    """A product whose elements are added in the order that a map of numbers says."""
    rows, k, columns = shape
    orders = (forwards, backwards, halves)

    def multiply(a, b):
        products = a[:, None, :] * b.T[None, :, :]
        each = np.stack([order(products) for order in orders])
        return np.take_along_axis(each, numbers[None], axis=0)[0]

    layout = product_layout((rows, k), (k, columns))
    turned = columns > rows

    def make(weights):
        return lambda x: multiply(weights, x) if turned else multiply(x, weights)

    kernel = PlacedKernel("written", layout, make, np.dtype(dtype).name, "numpy", Meter())
    return kernel, multiply


def map_of(shape, kind):
    rows, _, columns = shape
    numbers = np.zeros((rows, columns), np.int64)
    if kind == "rest of the columns":
        numbers[:, columns * 3 // 4 :] = 1
    elif kind == "rest of the rows":
        numbers[rows * 3 // 4 :] = 2
    elif kind == "a corner":
        numbers[rows - rows // 4 :, columns - columns // 4 :] = 1
    elif kind == "a chessboard":
        numbers = (np.arange(rows)[:, None] // 2 + np.arange(columns) // 2) % 3
    return numbers


@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.parametrize("kind", ["one", "rest of the columns", "rest of the rows", "a corner", "a chessboard"])
def test_the_map_is_the_one_that_was_written(shape, kind):
    numbers = map_of(shape, kind)
    kernel, multiply = written_kernel(shape, numbers)
    found = accumulation_of(kernel)
    assert len(found.classes) == len(np.unique(numbers))
    for one in found.classes:
        mine = np.broadcast_to(one.applies_to, numbers.shape)
        assert len(np.unique(numbers[mine])) == 1
        assert mine.sum() == (numbers == numbers[mine][0]).sum()
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape[:2]).astype(np.float32)
    b = rng.standard_normal(shape[1:]).astype(np.float32)
    assert found.replay(a, b).tobytes() == multiply(a, b).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_numpys_product_is_replayed_element_by_element_on_whatever_processor_this_is(shape):
    found = ds.reveal("numpy.matmul", shape[1], shape=shape)
    rng = np.random.default_rng(4)
    a = rng.standard_normal(shape[:2]).astype(np.float32)
    b = rng.standard_normal(shape[1:]).astype(np.float32)
    assert (
        sum(np.broadcast_to(one.applies_to, (shape[0], shape[2])).sum() for one in found.classes) == shape[0] * shape[2]
    )
    assert found.replay(a, b).tobytes() == (a @ b).tobytes()


def test_rows_of_a_sum_in_two_orders():
    def rows_differ(x):
        return np.concatenate([forwards(x[:5]), backwards(x[5:])])

    found = ds.reveal(rows_differ, 64, shape=(8, 64))
    assert len(found.classes) == 2
    assert found.applies_to.tolist() == [True] * 5 + [False] * 3
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    assert found.replay(x).tobytes() == rows_differ(x).tobytes()
    assert found.classes[0].replay(x[5:]).tobytes() == forwards(x[5:]).tobytes()
    with pytest.raises(InputError, match="several orders"):
        found.replay(x[:3])


def test_it_is_said_drawn_and_kept(tmp_path):
    kernel, _ = written_kernel((6, 64, 30), map_of((6, 64, 30), "a corner"))
    found = accumulation_of(kernel)
    assert "called A" in str(found)
    assert "rows 0 to 4: A" in str(found)
    assert "row 5: A in columns 0 to 22, B in columns 23 to 29" in str(found)
    kept = found.record()
    assert len(kept.others) == 1
    assert kept.map[0] == "rows 0 to 4: A"
    drawn = found.draw(tmp_path / "map.svg").read_text()
    assert "which element is added in which order" in drawn
    page = found.save(tmp_path / "page.html").read_text()
    assert "Orders in this result" in page
    one, _ = written_kernel((6, 64, 30), map_of((6, 64, 30), "one"))
    assert "map" not in str(accumulation_of(one))


@pytest.mark.parametrize(("together", "applies"), [(backwards, "a row given alone;"), (forwards, "every element")])
def test_an_order_that_only_a_row_alone_has_is_said_to_be_one(together, applies):
    def kernel(terms):
        return forwards(terms) if len(terms) == 1 else together(terms)

    found = ds.reveal(kernel, 24)
    assert found.applies.startswith(applies)
    several = ds.reveal(kernel, 24, shape=(5, 24))
    x = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    assert (several.replay(x) == kernel(x)).all()
    assert several.applies == "every element"

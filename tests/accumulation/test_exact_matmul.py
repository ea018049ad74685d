"""Products of matrices in one fixed order, against a chain of rational multiply-adds."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

import driftscope as ds
from accumulation.exact_truth import DTYPES, LAWS, bits, fractions, nearest
from accumulation.exact_ways import need_compiled, only_integers
from driftscope.accumulation.exact import compiled
from driftscope.accumulation.exact.compiled import Instructions

FULL = (torch.float64, torch.float32)


def drawn(law: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    count = int(np.prod(shape))
    return LAWS[law](np.random.default_rng([seed, *shape]), count, dtype).reshape(shape)


def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The specification, word by word: one rounding after each multiply-add, from +0, in the order of k."""
    result = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for i, j in itertools.product(range(a.shape[0]), range(b.shape[1])):
        total = 0.0
        for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True):
            total = nearest(Fraction(x) * Fraction(y) + Fraction(total), a.dtype)
        result[i, j] = total
    return result


@pytest.fixture
def instructions(request):
    need_compiled()
    if compiled.use(request.param) is not request.param:
        pytest.skip(f"no compiled code for {request.param.name} here")
    yield request.param
    compiled.use(Instructions.AVX512)


@pytest.mark.parametrize("instructions", list(Instructions), indirect=True)
@pytest.mark.parametrize("dtype", FULL, ids=str)
@pytest.mark.parametrize("shape", [(1, 9, 5), (3, 40, 33), (13, 7, 35), (2, 0, 3)])
def test_the_chain_is_the_specified_one(shape, dtype, instructions):
    m, k, n = shape
    a, b = drawn("normal", (m, k), dtype), drawn("normal", (k, n), dtype, 1)
    assert bits(ds.exact.matmul(a, b)) == bits(chain(a, b))
    assert bits(ds.exact.matmul(a, b.t().contiguous().t())) == bits(chain(a, b))


@pytest.mark.parametrize("dtype", FULL, ids=str)
@pytest.mark.parametrize("law", ["normal", "wide", "subnormal", "sparse", "pareto"])
def test_the_chain_without_a_compiler_is_the_same(law, dtype, monkeypatch):
    a, b = drawn(law, (4, 12), dtype), drawn(law, (12, 6), dtype, 1)
    with only_integers(monkeypatch):
        slow = ds.exact.matmul(a, b)
    assert bits(slow) == bits(chain(a, b))
    assert bits(ds.exact.matmul(a, b)) == bits(slow)


@pytest.mark.parametrize("instructions", list(Instructions), indirect=True)
@pytest.mark.parametrize(
    "shape", [(12, 256, 32), (50, 700, 70), (5, 513, 1100), (4, 300, 130), (1, 259, 67), (103, 30, 37)]
)
def test_tiles_and_edges_keep_the_order(shape, instructions, monkeypatch):
    m, k, n = shape
    a, b = drawn("normal", (m, k), torch.float32), drawn("normal", (k, n), torch.float32, 1)
    with only_integers(monkeypatch):
        expected = bits(ds.exact.matmul(a, b))
    assert bits(ds.exact.matmul(a, b)) == expected
    assert bits(ds.exact.matmul(a, b.t().contiguous().t())) == expected
    assert bits(ds.exact.matmul(a.t().contiguous().t(), b)) == expected


def test_an_order_is_not_what_torch_promises():
    """The comparison can fail: torch.mm adds this product in blocks, and its bits differ."""
    a, b = drawn("normal", (64, 4096), torch.float32), drawn("normal", (4096, 64), torch.float32, 1)
    assert bits(torch.mm(a, b)) != bits(ds.exact.matmul(a, b))
    assert torch.allclose(torch.mm(a, b), ds.exact.matmul(a, b), atol=1e-3)


@pytest.mark.parametrize("order", ["sequential-fma", "exact"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batches_rows_and_threads_do_not_change_a_bit(dtype, order):
    need_compiled()  # minutes without it
    a, b = drawn("normal", (40, 300), dtype), drawn("normal", (300, 41), dtype, 1)
    whole = ds.exact.matmul(a, b, order=order)
    assert bits(ds.exact.matmul(a[7:9], b, order=order)) == bits(whole[7:9])
    assert bits(ds.exact.matmul(a, b[:, 5:6], order=order)) == bits(whole[:, 5:6])
    batch = ds.exact.matmul(a.view(4, 10, 300), b.expand(4, 300, 41), order=order)
    assert bits(batch) == bits(whole)
    assert bits(ds.exact.matmul(a[3], b, order=order)) == bits(whole[3])
    assert bits(ds.exact.matmul(a[3], b[:, 2], order=order)) == bits(whole[3, 2])


def test_threads_share_rows():
    need_compiled()  # minutes without it
    a, b = drawn("normal", (130, 512), torch.float32), drawn("normal", (512, 256), torch.float32, 1)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(bits(ds.exact.matmul(a, b)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", ["normal", "full-range", "zero-cancelling"])
def test_the_exact_order_is_correctly_rounded(law, dtype, monkeypatch):
    a, b = drawn(law, (3, 50), dtype), drawn(law, (50, 4), dtype, 1)
    expected = [
        nearest(sum((x * y for x, y in zip(fractions(row), fractions(column), strict=True)), Fraction(0)), dtype)
        for row, column in itertools.product(a, b.t())
    ]
    found = ds.exact.matmul(a, b, order="exact")
    assert bits(found) == bits(torch.tensor(expected, dtype=torch.float64).to(dtype))
    with only_integers(monkeypatch):
        assert bits(ds.exact.matmul(a, b, order="exact")) == bits(found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_formats_have_a_float32_chain(dtype):
    a, b = drawn("normal", (5, 64), dtype), drawn("normal", (64, 6), dtype, 1)
    assert bits(ds.exact.matmul(a, b)) == bits(chain(a.float(), b.float()).to(dtype))


def test_nan_and_infinity_stay_where_they_are():
    a, b = torch.ones(2, 3), torch.ones(3, 2)
    a[0, 1] = float("nan")
    b[2, 1] = float("inf")
    assert bits(ds.exact.matmul(a, b)) == bits(torch.tensor([[float("nan")] * 2, [3.0, float("inf")]]))


def test_shapes_and_kinds_are_those_of_torch():
    for left, right in [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((0, 3), (3, 2)),
        ((0, 2, 3), (3, 2)),
        ((0, 2, 3), (1, 3, 2)),
        ((2, 0), (0, 3)),
        ((4, 2, 0), (4, 0, 3)),
    ]:
        a, b = torch.ones(left), torch.ones(right)
        found = ds.exact.matmul(a, b)
        assert found.shape == torch.matmul(a, b).shape
        assert torch.equal(found, torch.matmul(a, b))
        assert np.array_equal(ds.exact.matmul(a.numpy(), b.numpy()), np.matmul(a.numpy(), b.numpy()))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ds.exact.matmul(torch.ones(2, 3), torch.ones(2, 3)),
            r"cannot multiply the shapes \(2, 3\) and \(2, 3",
        ),
        (lambda: ds.exact.matmul(torch.ones(2, 2, 3), torch.ones(3, 3, 2)), r"batch axes must broadcast"),
        (lambda: ds.exact.matmul(torch.tensor(1.0), torch.ones(3)), r"not a scalar"),
        (lambda: ds.exact.matmul(torch.ones(3), torch.ones(3), order="pairwise"), r"'sequential-fma' and 'exact'"),
        (lambda: ds.exact.matmul(torch.ones(3), torch.ones(3).half()), r"of one kind, dtype and device"),
        (lambda: ds.exact.matmul(torch.ones(3).int(), torch.ones(3).int()), r"not int32"),
    ],
)
def test_refusals_say_what_to_do(call, words):
    with pytest.raises(ds.InputError, match=words):
        call()

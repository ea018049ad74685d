"""Layer normalisation on exact statistics: the documented formula, rounded once, whatever the order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import driftscope as ds
from accumulation.exact_truth import DTYPES, LAWS, bits, fractions, nearest
from accumulation.exact_ways import only_integers
from driftscope.accumulation.exact.layer_norm import rounded_once


def formula(row: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> list[float]:
    """The formula of the documentation in Python floats, each operation rounded by itself."""
    values, n = fractions(row), row.numel()
    exact_mean = sum(values, Fraction(0)) / n
    mean = nearest(exact_mean, torch.float64)
    var = nearest(sum(((v - exact_mean) ** 2 for v in values), Fraction(0)) / n, torch.float64)
    scale = 1.0 / math.sqrt(var + eps)
    found = [
        ((x - mean) * scale) * w + b
        for x, w, b in zip(row.double().tolist(), weight.double().tolist(), bias.double().tolist(), strict=True)
    ]
    return [nearest(Fraction(value), row.dtype) for value in found]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", ["normal", "wide", "pareto", "subnormal"])
def test_the_formula_is_the_documented_one(law, dtype, monkeypatch):
    r = np.random.default_rng(0)
    x = torch.stack([LAWS[law](r, 37, dtype) for _ in range(3)])
    weight, bias = LAWS["normal"](r, 37, dtype), LAWS["normal"](r, 37, torch.float32)
    expected = torch.tensor([formula(row, weight, bias, 1e-5) for row in x], dtype=torch.float64).to(dtype)
    found = ds.exact.layer_norm(x, 37, weight, bias)
    assert bits(found) == bits(expected)
    with only_integers(monkeypatch):
        assert bits(ds.exact.layer_norm(x, 37, weight, bias)) == bits(found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_order_and_batch_do_not_change_a_bit(dtype):
    r = np.random.default_rng(1)
    x = LAWS["normal"](r, 6000, dtype).reshape(6, 1000)
    whole = ds.exact.layer_norm(x, 1000)
    order = torch.from_numpy(r.permutation(1000))
    assert bits(ds.exact.layer_norm(x[:, order], 1000)) == bits(whole[:, order])
    assert bits(ds.exact.layer_norm(x[2], 1000)) == bits(whole[2])
    assert bits(ds.exact.layer_norm(x.view(6, 10, 100), (10, 100))) == bits(whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_and_long_rows_do_not_change_a_bit(dtype):
    x = LAWS["normal"](np.random.default_rng(5), 600_000, dtype).reshape(200, 3000)
    weight = LAWS["normal"](np.random.default_rng(6), 3000, dtype)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(bits(ds.exact.layer_norm(x, 3000, weight)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]
    assert bits(ds.exact.layer_norm(x[150], 3000, weight)) == found[0][150 * 3000 : 151 * 3000]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_specials_stay_in_their_rows(dtype, monkeypatch):
    x = torch.ones(4, 5, dtype=dtype)
    x[0, 1], x[1, 2], x[2, 0] = math.nan, math.inf, -3.0
    found = ds.exact.layer_norm(x, 5)
    assert found.isnan().all(1).tolist() == [True, True, False, False]
    assert found[3].tolist() == [0] * 5
    with only_integers(monkeypatch):
        assert bits(ds.exact.layer_norm(x, 5)) == bits(found)


def test_torch_is_close_but_not_the_same():
    """The check above can fail: the kernel of torch differs from the formula in the last bits."""
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((64, 1000))).float() * 100
    theirs, ours = torch.nn.functional.layer_norm(x, (1000,)), ds.exact.layer_norm(x, (1000,))
    assert torch.allclose(theirs, ours, atol=1e-5)
    assert bits(theirs) != bits(ours)


def test_large_values_do_not_overflow_the_variance():
    x = torch.tensor([[3e38, -3e38, 3e38, -3e38]])
    assert ds.exact.layer_norm(x, 4).tolist() == [[1, -1, 1, -1]]


def test_arrays_are_accepted():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = ds.exact.layer_norm(x, 3, weight=np.ones(3, np.float32))
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found[0].tolist() == found[1].tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_rounded_to_once(dtype):
    """A value just above a tie, by less than float32 can see, goes up; by way of float32 it would go to even."""
    step = 2.0 ** -(10 if dtype is torch.float16 else 7)
    above = torch.tensor([1 + step / 2 + 2.0**-40], dtype=torch.float64)
    assert rounded_once(above, dtype).item() == 1 + step
    assert above.float().to(dtype).item() == 1.0
    r = np.random.default_rng(3)
    x = torch.from_numpy(r.standard_normal(20_000) * 2.0 ** r.integers(-40, 20, 20_000))
    expected = torch.tensor([nearest(v, dtype) for v in fractions(x[:4000])], dtype=torch.float64).to(dtype)
    assert bits(rounded_once(x[:4000], dtype)) == bits(expected)
    special = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e39, -1e-50], dtype=torch.float64)
    inf, nan = math.inf, math.nan
    assert bits(rounded_once(special, dtype)) == bits(torch.tensor([inf, -inf, nan, -0.0, inf, -0.0], dtype=dtype))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ds.exact.layer_norm(torch.ones(2, 3), 4), r"sizes \(4,\), but the input has the shape \(2, 3\)"),
        (lambda: ds.exact.layer_norm(torch.ones(2, 3), ()), r"give its last sizes"),
        (lambda: ds.exact.layer_norm(torch.ones(2, 3), 3, torch.ones(2)), r"a weight of the shape \(3,\), not \(2,\)"),
        (lambda: ds.exact.layer_norm(torch.ones(2, 3), 3, None, torch.ones(1, 3)), r"a bias of the shape"),
        (lambda: ds.exact.layer_norm(torch.ones(2, 3).int(), 3), r"not int32"),
    ],
)
def test_refusals_say_what_to_do(call, words):
    with pytest.raises(ds.InputError, match=words):
        call()

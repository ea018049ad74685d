"""The formulas of rounding error, held against sums that were really rounded."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driftscope.numerics import error_model, groupings
from driftscope.numerics.error_model import Spread, Units
from driftscope.numerics.groupings import ROUNDING_RMS

U32 = 2.0**-24
ROWS = 400


def _fold(x: np.ndarray, fold: int) -> np.ndarray:
    """Add every ``fold`` neighbours of the last axis in a running float32 sum."""
    grouped = x.reshape(*x.shape[:-1], -1, fold)
    total = grouped[..., 0].copy()
    for k in range(1, fold):
        total += grouped[..., k]
    return total


def _predicted(terms: np.ndarray, growth: groupings.Growth) -> np.ndarray:
    squares = np.square(terms, dtype=np.float64).sum(-1)
    total = np.square(terms.sum(-1, dtype=np.float64))
    return ROUNDING_RMS * U32 * np.sqrt(growth.terms * squares + growth.total * total)


DATA = {
    "mean zero": lambda rng, n: rng.standard_normal((ROWS, n)),
    "mean one": lambda rng, n: 1 + rng.standard_normal((ROWS, n)),
    "positive": lambda rng, n: rng.random((ROWS, n)),
}


@pytest.mark.parametrize("law", DATA)
@pytest.mark.parametrize(
    "folds", [(2,), (16,), (1024,), (256, 4), (384, 8), (2,) * 10, (16, 8, 4, 8), (64, 2, 2, 2)], ids=str
)
def test_growth_predicts_the_error_of_its_grouping(law, folds):
    rng = np.random.default_rng(math.prod(folds))
    terms = DATA[law](rng, math.prod(folds)).astype(np.float32)
    total = terms
    for fold in folds:
        total = _fold(total, fold)
    error = total[:, 0] - terms.sum(-1, dtype=np.float64)
    floor = _predicted(terms, groupings.growth([float(f) for f in folds]))
    ratio = np.sqrt(np.mean(error**2) / np.mean(floor**2))
    # 400 rows: 3.5 % of spread; a sum near a power of two (mean one, few terms) is off by up to 15 %.
    assert 0.75 < ratio < 1.3


def test_a_wrong_grouping_does_not_predict():
    rng = np.random.default_rng(3)
    terms = rng.standard_normal((ROWS, 1024)).astype(np.float32)
    error = _fold(terms, 1024)[:, 0] - terms.sum(-1, dtype=np.float64)
    pairwise = _predicted(terms, groupings.growth((2.0,) * 10))
    assert np.sqrt(np.mean(error**2) / np.mean(pairwise**2)) > 4


@pytest.mark.parametrize(("dtype", "unit"), [(np.float32, 2.0**-24), (np.float16, 2.0**-11)])
@pytest.mark.parametrize("law", [lambda r: r.uniform(1, 1000, 50_000), lambda r: np.exp(r.normal(0, 2, 50_000))])
def test_one_rounding_has_the_rms_of_the_model(dtype, unit, law):
    exact = law(np.random.default_rng(0))
    relative = (exact.astype(dtype).astype(np.float64) - exact) / exact
    assert np.sqrt(np.mean(relative**2)) == pytest.approx(ROUNDING_RMS * unit, rel=0.05)


def test_products_with_fused_multiply_add():
    # FMA is emulated exactly: a product of two float32 is exact in float64, and so is its sum with a float32 nearby.
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, ROWS, 300)).astype(np.float32)
    total = np.zeros(ROWS, np.float32)
    for k in range(300):
        total = (a[:, k].astype(np.float64) * b[:, k] + total).astype(np.float32)
    products = a.astype(np.float64) * b
    floor = _predicted(products, groupings.growth((300.0,), products=True))
    error = total - products.sum(-1)
    assert 0.85 < np.sqrt(np.mean(error**2) / np.mean(floor**2)) < 1.15


@pytest.mark.parametrize("length", [1, 2, 7, 8, 63, 64, 1000, 4096, 100_000])
@pytest.mark.parametrize("kernels", [error_model.TORCH, error_model.ONNXRUNTIME], ids=["torch", "onnxruntime"])
def test_every_grouping_has_all_terms(kernels, length):
    for folds in (kernels.dot(length), kernels.sum(length), kernels.softmax(length)):
        assert math.prod(folds) == pytest.approx(length)
        assert min(folds) >= 1


def test_one_term_is_not_added():
    assert groupings.growth((1.0,)) == groupings.Growth(0.0, 0.0)


def test_one_product_is_rounded_once():
    spread = error_model.dot(Units(U32, U32), (1.0,))
    assert math.hypot(spread.value, spread.terms) == pytest.approx(ROUNDING_RMS * U32)


def test_narrow_storage_outweighs_its_accumulator():
    spread = error_model.dot(Units(2.0**-11, U32), (128.0,))
    assert spread.value == pytest.approx(ROUNDING_RMS * 2.0**-11, rel=1e-3)
    assert spread.terms < 2.0**-20


def test_cheaper_arithmetic_is_larger_noise():
    folds = groupings.blocked(1280, 384)
    ordinary = error_model.dot(Units(U32, U32), folds)
    tf32 = error_model.dot(Units(U32, U32, product=2.0**-11), folds)
    half = error_model.dot(Units(U32, 2.0**-11), groupings.sequential(1280))
    assert 20 * ordinary.terms < tf32.terms < half.terms


@pytest.mark.parametrize("model", [error_model.rounding, error_model.function, error_model.normalisation])
def test_noise_is_linear_in_the_units(model):
    one, two = model(Units(U32, U32)), model(Units(2 * U32, 2 * U32))
    assert two == Spread(*(2 * v for v in (one.value, one.terms, one.shared, one.level, one.absolute)))


def test_the_logarithm_of_a_softmax_has_an_absolute_error():
    plain = error_model.softmax(Units(U32, U32), (64.0,))
    logarithm = error_model.log_softmax(Units(U32, U32), (64.0,))
    assert plain.shared > 0 == plain.absolute
    assert logarithm.absolute >= plain.shared > 0 == logarithm.shared

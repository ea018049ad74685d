"""Functions that name no library get the arrays of their inputs, or of the function beside them."""

import numpy as np
import pytest
import torch

import driftscope as ds

X = np.random.default_rng(3).normal(size=(4, 6)).astype(np.float32)


def spread(x):
    return x.std(0)  # over n in numpy, over n - 1 in torch


def numpys_spread(x):
    return np.std(x, axis=0)


def unbiased_spread(x):
    return np.std(x, axis=0, ddof=1)


def backwards(x):
    return x[:, ::-1].sum(1)  # torch has no such slice


def nested(x):
    return [np.sum(r) for r in x]


@pytest.mark.parametrize("inputs", [{"x": X}, X, {"x": "4x6:float32"}], ids=["named", "placed", "drawn"])
def test_methods_mean_what_the_arrays_mean(inputs):
    for a, b in ((spread, numpys_spread), (numpys_spread, spread)):
        assert ds.compare(a, b, inputs).verdict.name == "IDENTICAL"


def test_another_spread_is_still_found():
    assert ds.compare(spread, unbiased_spread, {"x": X}).verdict.name == "DIFFERENT"


def test_what_only_numpy_can_slice_runs():
    assert ds.compare(backwards, lambda x: np.sum(x, 1), {"x": X}).verdict.name in ("IDENTICAL", "ROUNDING")


def test_tensors_stay_tensors():
    x = torch.from_numpy(X)
    assert ds.compare(spread, lambda x: torch.std(x, 0), x).verdict.name in ("IDENTICAL", "ROUNDING")
    assert ds.compare(lambda x: x.softmax(-1), lambda x: torch.softmax(x, -1), {"x": X}).verdict.name == "IDENTICAL"


def test_names_inside_a_comprehension_tell_the_library():
    assert ds.compare(nested, lambda x: list(np.sum(x, 1)), {"x": X}).verdict.name in ("IDENTICAL", "ROUNDING")

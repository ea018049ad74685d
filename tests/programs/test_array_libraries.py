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


def imports_numpy(x, axis=-1):
    import numpy as local

    parts = local.exp(x - local.max(x, -1, keepdims=True))
    return parts / parts.sum(axis, keepdims=True)


def imports_jax(x):
    import jax

    return jax.nn.softmax(x)


@pytest.mark.parametrize("function", [imports_numpy, imports_jax])
def test_what_a_function_imports_itself_tells_the_library(function):
    if function is imports_jax:
        pytest.importorskip("jax")
    x = torch.from_numpy(X)
    for a, b in ((function, lambda x: torch.softmax(x, -1)), (lambda x: torch.softmax(x, -1), function)):
        assert ds.compare(a, b, x).verdict.name in ("IDENTICAL", "ROUNDING")
    assert ds.compare(function, lambda x: torch.softmax(x, 0), x).verdict.name == "DIFFERENT"
    assert ds.compare(lambda x: torch.softmax(x, -1), lambda x: imports_numpy(x, 0), x).verdict.name == "DIFFERENT"

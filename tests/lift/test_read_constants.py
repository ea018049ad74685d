"""A constant that one step reads can be replaced there, whatever rule evaluates the step."""

import numpy as np

import driftscope as ds

STEPS = 10


def filtered(x):
    y = np.zeros_like(x)
    for t in range(STEPS):
        y[:, t] = 0.2 * x[:, t] + (0.5 * y[:, t - 1] if t else 0)
    return y


def response(x):
    table = np.array([[0.2 * 0.5 ** (i - j) if i >= j else 0 for j in range(STEPS)] for i in range(STEPS)], x.dtype)
    return x @ table.T


def weaker(x):
    return 0.75 * response(x)


def test_searching_a_cause_among_written_rows_ends():
    x = {"x": np.random.default_rng(0).normal(size=(3, STEPS)).astype(np.float32)}
    for a, b in ((filtered, weaker), (weaker, filtered)):
        assert ds.compare(a, b, x).verdict.name == "DIFFERENT"

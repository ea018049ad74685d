"""Parts of complex products below the smallest number of their format are rounding, and no cause of its own."""

import numpy as np

import driftscope as ds


def modulus(x):
    return np.abs(np.fft.rfft(x))


def by_its_conjugate(x):
    spectrum = np.fft.rfft(x)
    return np.sqrt((spectrum * np.conj(spectrum)).real)


def twice(x):
    return 2 * by_its_conjugate(x)


def test_squares_that_vanish_are_rounding():
    x = {"x": (np.random.default_rng(0).normal(size=(6, 16)) * 1e-38).astype(np.float32)}
    for a, b in ((modulus, by_its_conjugate), (by_its_conjugate, modulus)):
        found = ds.compare(a, b, x)
        assert found.verdict.name == "ROUNDING", found
        assert all(f.note for f in found.findings)


def test_another_function_of_ordinary_numbers_is_found():
    x = {"x": np.random.default_rng(0).normal(size=(6, 16)).astype(np.float32)}
    assert ds.compare(modulus, twice, x).verdict.name == "DIFFERENT"

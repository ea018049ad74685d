"""Functions of numpy that nothing translates are followed through numpy's own code; drawn numbers stay numpy's."""

import numpy as np
import pytest

import driftscope as ds

X = np.random.default_rng(3).normal(size=(8, 6)).astype(np.float32)
S = np.array([0, 1, 1, 2, 0, 3, 3, 1])


def by_hand(x):
    return ((0.3 * x - 1.2) * x + 2.5) * x + 0.7


def polynomial(x):
    return np.polyval(np.array([0.3, -1.2, 2.5, 0.7], x.dtype), x)


def other_polynomial(x):
    return np.polyval(np.array([0.3, -1.2, 2.5, 0.701], x.dtype), x)


def covariance(x):
    return np.cov(x, rowvar=False)


def of_centred(x):
    d = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    return d.T @ d / 7


def of_all(x):
    d = x.astype(np.float64) - x.mean(0, dtype=np.float64)
    return d.T @ d / 8


def scattered(x):
    out = np.zeros((4, 6), x.dtype)
    np.add.at(out, S, x)
    top = np.full((4, 6), -np.inf, x.dtype)
    np.maximum.at(top, S, x)
    return out, top


def by_one_hot(x):
    hot = np.arange(4)[:, None] == S
    return hot.astype(x.dtype) @ x, np.where(hot[..., None], x, -np.inf).max(1).astype(x.dtype)


def written_once(x):
    out = np.zeros((4, 6), x.dtype)
    out[S] += x
    return out, scattered(x)[1]


def by_stretches(x):
    rows = x[np.argsort(S, kind="stable")]
    return np.add.reduceat(rows, [0, 2, 5, 6], axis=0), np.maximum.reduceat(rows, [0, 2, 5, 6], axis=0)


def noisy(x):
    out = np.empty(6, x.dtype)
    out[:] = np.random.default_rng(0).normal(size=6)
    return x * out


def where_large(x):
    large = x > -0.5
    return x.mean(0, where=large), np.var(x, 0, ddof=1, where=large), np.nanstd(np.where(large, x, np.nan), 0)


def by_counting(x, free=1):
    large = x > -0.5
    count = large.sum(0)
    mean = np.where(large, x, 0).sum(0) / count
    squares = (np.where(large, x - mean, 0) ** 2).sum(0)
    return [v.astype(x.dtype) for v in (mean, squares / (count - free), np.sqrt(squares / count))]


def of_another_count(x):
    return by_counting(x, free=0)


def slid(x):
    return np.correlate(x[:, 0], x[2:5, 1]), np.correlate(x[2:5, 1], x[:, 0], "full"), np.polymul(x[0], x[1])


def by_windows(x):
    one, other = x[:, 0], np.concatenate([np.zeros(7, x.dtype), x[2:5, 1], np.zeros(7, x.dtype)])
    product = [sum(x[0, i] * x[1, k - i] for i in range(6) if 0 <= k - i < 6) for k in range(11)]
    return (
        np.stack([one[k : k + 3] @ x[2:5, 1] for k in range(6)]),
        np.stack([other[k : k + 8] @ one for k in range(10)]),
        np.stack(product),
    )


def reversed_windows(x):
    one, other, product = by_windows(x)
    return one, other[::-1], product


def by_slices(x):
    return np.apply_along_axis(lambda row: row / np.abs(row).sum(), 1, x)


def at_once(x):
    return x / np.abs(x).sum(1, keepdims=True)


def down(x):
    return x / np.abs(x).sum(0, keepdims=True)


def copied(x, small=0.0):
    found = x.copy()
    np.copyto(found, np.float32(small), where=x < 0)
    return found * np.float32(1.1)


def chosen(x):
    return np.where(x < 0, np.float32(0), x * np.float32(1.1))


def copied_otherwise(x):
    return copied(x, small=1e-3)


def by_writers(x, column=1):
    gaps = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    np.fill_diagonal(gaps, np.inf)
    np.put(gaps, [1, -1], x[0, :2])
    np.put_along_axis(gaps, np.full((len(x), 1), 2), x[:, column : column + 1], 1)
    np.place(gaps, gaps > np.float32(2), [3, 4, 5])
    np.putmask(gaps, gaps < 0, np.float32(0.5))
    gaps.sort(0)
    np.nan_to_num(gaps, copy=False)
    return gaps * np.float32(1.1)


def by_positions(x):
    gaps = np.sqrt(((x[:, None] - x[None]) ** 2).sum(-1))
    gaps = np.where(np.eye(len(x), dtype=bool), np.inf, gaps).astype(x.dtype)
    gaps[0, 1] = x[0, 0]
    gaps[-1, -1] = x[0, 1]
    gaps[:, 2] = x[:, 1]
    large = gaps > np.float32(2)
    gaps = np.where(large, (3 + (np.cumsum(large) - 1) % 3).reshape(gaps.shape).astype(x.dtype), gaps)
    return np.sort(np.where(gaps < 0, np.float32(0.5), gaps), 0) * np.float32(1.1)


def by_other_writers(x):
    return by_writers(x, column=3)


HONEST = [
    (polynomial, by_hand), (covariance, of_centred), (scattered, by_one_hot), (scattered, by_stretches),
    (where_large, by_counting), (slid, by_windows), (by_slices, at_once), (copied, chosen),
    (by_writers, by_positions),
]  # fmt: skip
BUGS = [
    (other_polynomial, by_hand), (covariance, of_all), (scattered, written_once), (where_large, of_another_count),
    (slid, reversed_windows), (by_slices, down), (copied_otherwise, chosen),
    (by_other_writers, by_positions),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), HONEST)
def test_the_same_function_is_found_the_same(a, b):
    for one, other in ((a, b), (b, a)):
        found = ds.compare(one, other, {"x": X})
        assert found.verdict.name in ("IDENTICAL", "ROUNDING"), found
        assert not [f for f in found.findings if f.code == "R004"]


@pytest.mark.parametrize(("a", "b"), BUGS)
def test_another_function_is_found_in_float64(a, b):
    for one, other in ((a, b), (b, a)):
        found = ds.compare(one, other, {"x": X})
        assert found.verdict.name == "DIFFERENT", found
        assert not [f for f in found.findings if f.code == "R004"]


def test_compiled_code_gets_real_memory():
    found = ds.compare(noisy, noisy, {"x": X})  # it ended the process: numpy.random wrote into a followed array
    assert found.verdict.name == "IDENTICAL"
    assert not [f for f in found.findings if f.code == "R004"]

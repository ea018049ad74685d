"""Exact sums, means and dot products against rational arithmetic, with and without the compiled library."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import driftscope as ds
from accumulation.exact_truth import DTYPES, LAWS, SIZES, bits, fractions, nearest, nearest_root, same
from accumulation.exact_ways import need_compiled, only_integers
from driftscope.accumulation.exact import compiled
from driftscope.accumulation.exact.compiled import Instructions


@pytest.fixture(params=["compiled", "integers"])
def way(request, monkeypatch):
    """Both ways to the same bits; the first is skipped, visibly, where nothing was compiled."""
    if request.param == "compiled":
        need_compiled()
        yield request.param
    else:
        with only_integers(monkeypatch):
            yield request.param


def truth(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """Every reduction of two vectors of finite numbers, from rational arithmetic."""
    n, a, b = x.numel(), fractions(x), fractions(y)
    total, squares = sum(a, Fraction(0)), sum((v * v for v in a), Fraction(0))
    dot = sum((v * w for v, w in zip(a, b, strict=True)), Fraction(0))
    minus_zero = bool(((x == 0) & x.signbit()).all())
    minus_zeros = bool((((x == 0) | (y == 0)) & (x.signbit() != y.signbit())).all())
    d = x.dtype
    return {
        "sum": -0.0 if minus_zero else nearest(total, d),
        "mean": -0.0 if minus_zero else nearest(total / n, d),
        "dot": -0.0 if minus_zeros else nearest(dot, d),
        "norm": nearest_root(squares, d),
        "var": nearest((n * squares - total**2) / (n * (n - 1)), d) if n > 1 else math.nan,
    }


def computed(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "sum": ds.exact.sum(x), "mean": ds.exact.mean(x), "dot": ds.exact.dot(x, y),
        "norm": ds.exact.norm(x), "var": ds.exact.var(x),
    }  # fmt: skip


def wrong(law: str, dtype: torch.dtype, n: int, seed: int) -> list[str]:
    r = np.random.default_rng([n, seed])
    x, y = LAWS[law](r, n, dtype), LAWS[law](r, n, dtype)
    expected = truth(x, y)
    return [name for name, value in computed(x, y).items() if not same(value, expected[name])]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.sampled(24)
def test_results_are_correctly_rounded(law, dtype, way):
    assert {n: found for n in (1, 2, 7, 64, 601) if (found := wrong(law, dtype, n, 0))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("instructions", list(Instructions))
def test_every_instruction_set_rounds_correctly(law, dtype, instructions):
    """4 dtypes x 9 laws x 22 vectors x 5 reductions = 3,960 cases for each instruction set."""
    if compiled.library() is None or compiled.use(instructions) is not instructions:
        pytest.skip(f"no compiled code for {instructions.name} here")
    try:
        assert {(n, s): found for n in SIZES for s in (1, 2) if (found := wrong(law, dtype, n, s))} == {}
    finally:
        compiled.use(Instructions.AVX512)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_integers_round_correctly(law, dtype, monkeypatch):
    with only_integers(monkeypatch):
        assert {n: found for n in SIZES if (found := wrong(law, dtype, n, 3))} == {}


def test_the_oracle_can_tell_a_wrong_sum():
    """torch's own sum of data that cancels is not correctly rounded: the comparison above can fail."""
    x = LAWS["wide"](np.random.default_rng(0), 2000, torch.float32)
    assert not same(torch.sum(x), truth(x, x)["sum"])


@settings(max_examples=60)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.randoms())
def test_any_floats_in_any_order(values, random):
    x = torch.tensor(values, dtype=torch.float32)
    total = sum(fractions(x), Fraction(0))
    if total:
        assert same(ds.exact.sum(x), nearest(total, torch.float32))
        assert same(ds.exact.sum(x, dtype=torch.float16), nearest(total, torch.float16))
    random.shuffle(values)
    shuffled = torch.tensor(values, dtype=torch.float32)
    assert bits(ds.exact.sum(shuffled)) == bits(ds.exact.sum(x))
    assert bits(ds.exact.var(shuffled)) == bits(ds.exact.var(x))


@settings(max_examples=60)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20), st.data())
def test_any_products_of_doubles(values, data):
    others = data.draw(
        st.lists(st.sampled_from([*values, 5e-324, 1.7e308]), min_size=len(values), max_size=len(values))
    )
    x, y = torch.tensor(values, dtype=torch.float64), torch.tensor(others, dtype=torch.float64)
    expected = truth(x, y)
    assert same(ds.exact.dot(x, y), expected["dot"])
    assert same(ds.exact.norm(x), expected["norm"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("law", ["normal", "wide", "full-range"])
def test_no_order_can_be_seen(law, dtype, way):
    """Permutations, strides, batches and axes: one and the same bits."""
    r = np.random.default_rng(5)
    x = LAWS[law](r, 3000, dtype)
    expected = {name: bits(value) for name, value in computed(x, x.flip(0)).items()}
    order = torch.from_numpy(r.permutation(3000))
    strided = torch.zeros((3000, 3), dtype=dtype)
    strided[:, 1] = x
    for same_values in (x[order], strided[:, 1], x.view(50, 60).t(), x.view(5, 6, 100).permute(2, 0, 1)):
        flat_twin = same_values.reshape(-1)
        assert bits(ds.exact.sum(same_values)) == expected["sum"]
        assert bits(ds.exact.mean(same_values)) == expected["mean"]
        assert bits(ds.exact.norm(same_values)) == expected["norm"]
        assert bits(ds.exact.var(flat_twin)) == expected["var"]
    assert bits(ds.exact.dot(x[order], x.flip(0)[order])) == expected["dot"]
    batch = torch.stack([x[order], torch.ones_like(x), x])
    assert bits(ds.exact.sum(batch, dim=1))[::2] == expected["sum"] * 2
    assert bits(ds.exact.sum(batch.t(), dim=0))[::2] == expected["sum"] * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_do_not_change_a_bit(dtype):
    r = np.random.default_rng(6)
    x, y = (LAWS["wide"](r, 150_000, dtype) for _ in range(2))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            rows = ds.exact.sum(x.view(3, -1), dim=1)
            found.append([bits(v) for v in (*computed(x, y).values(), rows)])
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("cut", [1, 999, 2048, 4999])
def test_pieces_add_up_to_the_whole(cut):
    """Partial sums in a format that holds them: the sum of sums is the sum."""
    x = torch.from_numpy(np.random.default_rng(7).integers(-1000, 1000, 5000) / 1024).float()
    pieces = torch.stack([ds.exact.sum(x[:cut], dtype=torch.float64), ds.exact.sum(x[cut:], dtype=torch.float64)])
    assert bits(ds.exact.sum(pieces, dtype=torch.float32)) == bits(ds.exact.sum(x))


def test_flush_to_zero_in_the_calling_thread_changes_nothing(way):
    x = LAWS["subnormal"](np.random.default_rng(8), 100, torch.float32)
    expected = truth(x, x)["sum"]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = ds.exact.sum(x)
    finally:
        torch.set_flush_denormal(False)
    assert same(found, expected)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("values", "total", "mean", "norm"),
    [
        ([], 0.0, NAN, 0.0),
        ([0.0], 0.0, 0.0, 0.0),
        ([-0.0], -0.0, -0.0, 0.0),
        ([-0.0] * 3000, -0.0, -0.0, 0.0),
        ([-0.0, 0.0], 0.0, 0.0, 0.0),
        ([1.0, -1.0, -0.0], 0.0, 0.0, math.sqrt(2)),
        ([INF, 1.0], INF, INF, INF),
        ([-INF, 1.0], -INF, -INF, INF),
        ([INF, -INF], NAN, NAN, INF),
        ([NAN, 1.0], NAN, NAN, NAN),
        ([INF, NAN], NAN, NAN, NAN),
        ([1.0] * 2500 + [INF], INF, INF, INF),
    ],
)
def test_special_values(values, total, mean, norm, dtype, way):
    x = torch.tensor(values, dtype=dtype)
    assert same(ds.exact.sum(x), total)
    assert same(ds.exact.mean(x), mean)
    expected = nearest_root(Fraction(2), dtype) if norm == math.sqrt(2) else norm
    assert same(ds.exact.norm(x), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_only_the_result_can_overflow(dtype, way):
    top = torch.finfo(dtype).max
    assert same(ds.exact.sum(torch.tensor([top, top, -top], dtype=dtype)), top)
    assert same(ds.exact.sum(torch.tensor([top, top], dtype=dtype)), INF)
    assert same(ds.exact.mean(torch.tensor([top, top], dtype=dtype)), top)
    assert same(ds.exact.norm(torch.tensor([top, 0.0], dtype=dtype)), top)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([0.0, 1.0], [INF, 1.0], NAN),
        ([1.0, 1.0], [INF, 1.0], INF),
        ([-1.0, 1.0], [INF, 1.0], -INF),
        ([1.0, 1.0], [INF, -INF], NAN),
        ([NAN, 1.0], [0.0, 1.0], NAN),
        ([-0.0, 0.0], [1.0, -1.0], -0.0),
        ([-0.0, 0.0], [1.0, 1.0], 0.0),
        ([1e-300, 1e-300], [1e-300, -1e-300], 0.0),
        ([-1e-300], [1e-300], -0.0),
    ],
)
def test_special_products(a, b, expected, way):
    x, y = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    assert same(ds.exact.dot(x, y), expected)


@pytest.mark.parametrize(
    ("values", "correction", "expected"),
    [([], 0, NAN), ([2.0], 1, NAN), ([2.0], 0, 0.0), ([1.0, 3.0], 2, INF), ([1.0, 3.0], 1, 2.0), ([1.0, INF], 1, NAN)],
)
def test_variance_of_few(values, correction, expected, way):
    x = torch.tensor(values, dtype=torch.float32)
    assert same(ds.exact.var(x, correction=correction), expected)


# --- shapes, kinds, refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (1, 2), [2, 0, 1], (), 1])
@pytest.mark.parametrize("keep", [False, True])
def test_shapes_are_those_of_torch(dim, keep, way):
    x = torch.arange(24, dtype=torch.float32).view(2, 3, 4)
    everything = dim is None or dim == ()
    expected = torch.sum(x, (0, 1, 2) if everything else dim, keepdim=keep)
    found = ds.exact.sum(x, dim, keep)
    assert found.shape == expected.shape
    assert torch.equal(found, expected)
    array = ds.exact.sum(x.numpy(), axis=tuple(dim) if isinstance(dim, list) else dim, keepdims=keep)
    assert np.array_equal(array, expected.numpy())


def test_empty_axes_and_scalars(way):
    assert ds.exact.sum(torch.zeros(3, 0), dim=1).tolist() == [0, 0, 0]
    assert ds.exact.sum(torch.zeros(0, 3), dim=1).shape == (0,)
    assert ds.exact.mean(torch.tensor(2.5)).item() == 2.5
    assert ds.exact.sum(torch.tensor(2.5), dim=-1).item() == 2.5


def test_arrays_come_back_as_arrays(way):
    import ml_dtypes

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    x.flags.writeable = False
    for source in (x, x[::-1], x.astype(">f4"), x.T.copy().T):
        found = ds.exact.sum(source, axis=0)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        assert found.tolist() == [12, 15, 18, 21]
    assert isinstance(ds.exact.sum(x), np.float32)
    brief = ds.exact.sum(x.astype(ml_dtypes.bfloat16), axis=1)
    assert brief.dtype == ml_dtypes.bfloat16
    assert brief.astype(float).tolist() == [6, 22, 38]
    assert ds.exact.sum(x, dtype=np.float64).dtype == np.float64


def test_memory_may_lie_in_any_way(way):
    record = np.zeros(5, dtype=[("a", "i1"), ("b", "f4")])
    record["b"] = 1.5
    assert ds.exact.sum(record["b"]) == 7.5
    assert ds.exact.sum(np.ones((4, 6), np.float32)[::-2, ::-1]) == 12
    x = torch.complex(torch.ones(3), torch.full((3,), 2.0))
    assert ds.exact.sum(x.conj().imag).item() == -6
    assert ds.exact.sum(x.conj().imag, 0).item() == -6
    assert ds.exact.sum(torch.ones(1).expand(4096)).item() == 4096
    for dtype, start in itertools.product(DTYPES, (1, 3)):
        counted = torch.arange(5000).remainder(7)
        assert ds.exact.sum(counted.to(dtype)[start:], dtype=torch.float64).item() == counted[start:].sum().item()


def test_dot_broadcasts(way):
    a, b = torch.randn(4, 1, 9), torch.randn(5, 9)
    assert ds.exact.dot(a, b).shape == (4, 5)
    assert bits(ds.exact.dot(a, b)[2, 3]) == bits(ds.exact.dot(a[2, 0], b[3]))
    assert ds.exact.dot(a, b, keepdim=True).shape == (4, 5, 1)
    assert bits(ds.exact.dot(a, b, axis=0)) == bits(ds.exact.dot(a.permute(1, 2, 0), b[..., None].expand(5, 9, 4)))


class Wrapped(torch.Tensor):
    """A tensor of somebody else's; it need not have memory of its own."""


F32 = torch.ones(2, 3)
REFUSED = {
    "integers": (lambda: ds.exact.sum(torch.ones(3, dtype=torch.int64)), r"not int64: convert it first"),
    "integer array": (lambda: ds.exact.sum(np.ones(3, np.int32)), r"not int32: convert it first"),
    "bool": (lambda: ds.exact.mean(torch.ones(3) > 0), r"not bool"),
    "complex": (lambda: ds.exact.sum(torch.ones(3, dtype=torch.complex64)), r"x\.real and x\.imag"),
    "float8": (lambda: ds.exact.sum(F32.to(torch.float8_e4m3fn)), r"not float8_e4m3fn"),
    "list": (lambda: ds.exact.sum([1.0]), r"torch\.tensor\(x\)"),
    "no such axis": (lambda: ds.exact.sum(F32, dim=2), r"no axis 2 .* 2 axes, so -2 to 1 exist"),
    "a name": (lambda: ds.exact.sum(F32, dim=("a",)), r"no axis 'a'"),
    "axis twice": (lambda: ds.exact.sum(F32, dim=(0, -2)), r"axis twice"),
    "dim and axis": (lambda: ds.exact.sum(F32, dim=0, axis=0), r"two names of one argument"),
    "dtype": (lambda: ds.exact.sum(F32, dtype=torch.int32), r"not to int32"),
    "no dtype": (lambda: ds.exact.sum(F32, dtype="floaty"), r"not to floaty"),
    "gradient": (lambda: ds.exact.sum(F32.clone().requires_grad_()), r"no derivative: call it under torch\.no_grad"),
    "sparse": (lambda: ds.exact.sum(F32.to_sparse()), r"to_dense"),
    "meta": (lambda: ds.exact.sum(F32.to("meta")), r"meta tensor"),
    "correction": (lambda: ds.exact.var(F32, correction=-1), r"at least 0, not -1"),
    "half a correction": (lambda: ds.exact.var(F32, correction=0.5), r"whole correction"),
    "masked": (lambda: ds.exact.sum(np.ma.masked_array(np.ones(2), [0, 1])), r"masked: pass x\.compressed"),
    "vmap": (lambda: torch.vmap(ds.exact.sum)(F32), r"inside a torch\.func transform"),
    "subclass": (lambda: ds.exact.sum(F32.as_subclass(Wrapped), 0), r"a plain tensor, not of Wrapped"),
    "objects": (lambda: ds.exact.sum(np.array([1, None])), r"not object"),
    "longdouble": (lambda: ds.exact.sum(np.ones(2, np.longdouble)), r"not \w*longdouble|not float128"),
    "dot dtypes": (lambda: ds.exact.dot(F32, F32.double()), r"of float32 .* of float64"),
    "dot kinds": (lambda: ds.exact.dot(F32, F32.numpy()), r"a tensor .* an array"),
    "dot shapes": (lambda: ds.exact.dot(F32, torch.ones(2)), r"cannot broadcast the shapes \(2, 3\) and \(2,\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_to_do_in_one_sentence(case):
    call, words = REFUSED[case]
    with pytest.raises(ds.InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_their_neighbours_are_accepted():
    assert ds.exact.sum(torch.ones(3, dtype=torch.int64).to(torch.float64)).item() == 3
    assert ds.exact.sum(F32, dim=(0, 1)).item() == 6
    assert ds.exact.sum(F32, dtype="float16").dtype == torch.float16
    assert ds.exact.sum(F32, dtype=np.dtype("float64")).dtype == torch.float64
    assert ds.exact.var(F32, correction=0).item() == 0
    assert ds.exact.dot(F32, torch.ones(3)).tolist() == [3, 3]
    with torch.no_grad():
        assert ds.exact.sum(F32.clone().requires_grad_()).item() == 6

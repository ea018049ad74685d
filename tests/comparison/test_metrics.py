"""What is measured between two values: a table of edge values, and the layouts that torch has."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from driftscope.comparison.measuring.metrics import Drift, measure
from driftscope.errors import InputError

NAN, INF = math.nan, math.inf


def t(*values, dtype=None):
    return torch.tensor(values, dtype=dtype)


EDGES = [
    # a, b, and what must be said; each pair of neighbours is one trap and the same trap without the bug
    ("equal infinities", t(INF, -INF), t(INF, -INF), {"differing": 0, "inf_both": 2, "max_abs": 0.0}),
    ("opposite infinities", t(INF), t(-INF), {"differing": 1, "inf_differ": 1, "max_abs": 0.0}),
    ("infinity against a number", t(INF, 1.0), t(3.0, 1.0), {"differing": 1, "inf_differ": 1, "worst_index": (0,)}),
    ("NaN on both sides", t(NAN, 1.0), t(NAN, 1.0), {"differing": 0, "nan_both": 1, "all_nan": False}),
    ("nothing but NaN", t(NAN, NAN), t(NAN, NAN), {"differing": 0, "nan_both": 2, "all_nan": True}),
    ("NaN on one side", t(1.0, NAN), t(1.0, 2.0), {"differing": 1, "nan_a": 1, "nan_b": 0, "worst_index": (1,)}),
    ("NaN on the other", t(1.0, 2.0), t(1.0, NAN), {"differing": 1, "nan_a": 0, "nan_b": 1}),
    ("NaN against infinity", t(NAN), t(INF), {"nan_a": 1, "inf_differ": 0, "differing": 1}),
    ("uint8 does not wrap", t(0, dtype=torch.uint8), t(1, dtype=torch.uint8), {"max_abs": 1.0, "differing": 1}),
    ("uint8 does not wrap back", t(1, dtype=torch.uint8), t(0, dtype=torch.uint8), {"max_abs": 1.0}),
    ("int8 does not overflow", t(-128, dtype=torch.int8), t(127, dtype=torch.int8), {"max_abs": 255.0}),
    ("large integers differ", t(2**62), t(2**62 + 1), {"max_abs": 1.0, "differing": 1, "max_ulp": None}),
    ("large integers agree", t(2**62), t(2**62), {"max_abs": 0.0, "differing": 0}),
    ("the ends of int64", t(-(2**63)), t(2**63 - 1), {"max_abs": float(2**64 - 1)}),
    ("uint64 above int64", t(2**63 + 5, dtype=torch.uint64), t(2**63 + 6, dtype=torch.uint64), {"max_abs": 1.0}),
    ("int64 against float64", t(2**62 + 1), t(2.0**62, dtype=torch.float64), {"max_abs": 1.0, "differing": 1}),
    ("imaginary parts", t(1 + 2j), t(1 + 5j), {"max_abs": 3.0, "count": 2, "worst_values": ("1.0+2.0j", "1.0+5.0j")}),
    ("imaginary NaN", t(complex(1, NAN)), t(1 + 5j), {"nan_a": 1, "differing": 1}),
    ("minus zero", t(-0.0), t(0.0), {"mismatched": 1, "differing": 0, "max_ulp": 0.0, "same_values": True}),
    ("the same zero", t(-0.0), t(-0.0), {"mismatched": 0, "differing": 0}),
    ("0/0 is nothing", t(0.0, 1.0), t(0.0, 1.5), {"max_rel": 0.5}),
    ("something over 0 is infinite", t(0.0, 1.0), t(1e-9, 1.0), {"max_rel": INF}),
    ("one ulp in half precision", t(512.0, dtype=torch.half), t(512.5, dtype=torch.half), {"max_ulp": 1.0}),
    ("empty", torch.zeros(0, 3), torch.zeros(0, 3), {"count": 0, "mismatched": 0, "all_nan": False}),
    ("a scalar", torch.tensor(1.0), torch.tensor(1.5), {"count": 1, "worst_index": (), "max_abs": 0.5}),
    ("bool", t(True, False), t(True, True), {"max_abs": 1.0, "differing": 1, "worst_values": ("False", "True")}),
    ("half against single, equal", t(0.5, dtype=torch.half), t(0.5), {"differing": 0, "max_ulp": 0.0}),
    ("half against single, rounded", t(0.1, dtype=torch.half), t(0.1), {"differing": 1, "max_ulp": 0.0}),
    ("bfloat16 against half", t(1.0, dtype=torch.bfloat16), t(1.0078125, dtype=torch.half), {"max_ulp": 1.0}),
    ("float64 that overflows when subtracted", t(1.7e308, dtype=torch.float64), t(-1.7e308, dtype=torch.float64),
     {"max_abs": INF, "inf_differ": 0, "differing": 1}),
    ("subnormals", t(1e-45), t(3e-45), {"max_ulp": 1.0, "differing": 1}),
    ("text", np.array(["a", "b"]), np.array(["a", "c"]), {"mismatched": 1, "worst_values": ("'b'", "'c'")}),
    ("the same text", np.array(["a", "b"]), np.array(["a", "b"]), {"mismatched": 0}),
    ("integers beyond 64 bits", 2**70, 2**70 + 1, {"mismatched": 1, "max_abs": 1.0}),
    ("fractions", Fraction(1, 3), Fraction(1, 3), {"mismatched": 0}),
    ("None", None, None, {"mismatched": 0, "count": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "said"), [e[1:] for e in EDGES], ids=[e[0] for e in EDGES])
def test_edge_values(a, b, said):
    drift = measure(a, b)
    assert {key: getattr(drift, key) for key in said} == said


@pytest.mark.parametrize("shapes", [((3,), (1,)), ((3, 1), (1, 3)), ((), (1,)), ((0,), (0, 1))])
def test_nothing_is_broadcast(shapes):
    with pytest.raises(ValueError, match="no elementwise difference"):
        measure(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


def test_payloads_are_bits_and_not_values():
    quiet = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    other = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    drift = measure(quiet, other)
    assert (drift.mismatched, drift.differing, drift.nan_both, drift.all_nan) == (1, 0, 1, True)


def test_worst_place_and_values_read_back():
    a = torch.zeros(2, 3, 4)
    b = a.clone()
    b[1, 2, 3], b[0, 0, 1] = 0.1, -0.05
    drift = measure(a, b)
    assert drift.worst_index == (1, 2, 3)
    assert drift.worst_values is not None
    assert np.float32(drift.worst_values[1]) == np.float32(0.1)
    assert drift.max_abs == float(np.float32(0.1))
    assert drift.rms == pytest.approx(math.sqrt((0.1**2 + 0.05**2) / 24), rel=1e-6)


def test_special_values_do_not_hide_the_rest():
    a = torch.ones(100_000)
    b = a.clone()
    b[70_000], b[5], b[99_999] = 1.5, NAN, INF
    drift = measure(a, b)
    assert (drift.max_abs, drift.worst_index) == (0.5, (70_000,))
    assert (drift.nan_b, drift.inf_differ, drift.differing) == (1, 1, 3)
    assert drift.rms == pytest.approx(0.5 / math.sqrt(99_998))


def test_thresholds_count_what_exceeds_them():
    a = torch.zeros(6)
    b = torch.tensor([0.0, 1e-3, -1e-2, 0.5, 2.0, -20.0])
    drift = measure(a, b, thresholds=(0.0, 0.1, 1.0, 100.0))
    assert drift.above == ((0.0, 5), (0.1, 3), (1.0, 2), (100.0, 0))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_rms_survives_the_ends_of_the_range(scale):
    a = torch.zeros(1000, dtype=torch.float64)
    assert measure(a, a + scale).rms == pytest.approx(scale, rel=1e-14)


def test_rms_adds_up_pieces_of_very_different_size():
    b = torch.tensor([1e200, 1e-200, 1.0, 3e200], dtype=torch.float64)
    assert measure(torch.zeros_like(b), b, size=1).rms == pytest.approx(math.sqrt(10) / 2 * 1e200, rel=1e-14)


SAME_FORMATS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
                "float8_e3m4", "float8_e4m3b11fnuz", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]  # fmt: skip


@pytest.mark.parametrize("name", SAME_FORMATS)
def test_ml_dtypes_count_ulps_in_their_own_format(name):
    dtype = getattr(ml_dtypes, name)
    one = np.ones(3, dtype=dtype)
    above = one.copy()
    above[1] = dtype(1) + dtype(float(ml_dtypes.finfo(dtype).eps))
    drift = measure(one, above)
    assert (drift.max_ulp, drift.differing, drift.worst_index) == (1.0, 1, (1,))
    assert measure(one, one.copy()).same_bits


def test_numpy_in_every_memory_layout():
    a = np.arange(24, dtype=">f4").reshape(4, 6)
    b = a.astype(np.float32)
    for x, y in ((a, b), (a[::-1], b[::-1]), (a.T, b.T), (a[:, ::2], b[:, ::2])):
        assert measure(x, y).same_bits
    b.flags.writeable = False
    assert measure(a, b).same_bits
    assert measure(a[::-1], b).max_abs == 18.0


def test_longer_formats_are_not_cut_off():
    one = np.ones(2, dtype=np.longdouble)
    above = np.nextafter(one, np.longdouble(2))
    drift = measure(one, above)
    if np.finfo(np.longdouble).nmant > 52:
        assert drift.differing == 2
        assert 0 < drift.max_abs < 1e-18
    assert measure(one, one.copy()).differing == 0


def test_expanded_strided_and_transposed_tensors_agree_with_their_copies():
    torch.manual_seed(0)
    a, b = torch.randn(40, 1, 50), torch.randn(40, 30, 50)
    for x, y in (
        (a.expand(40, 30, 50), b),
        (b.transpose(0, 2), b.transpose(0, 2) + 1),
        (b[::2, 1::3], b[::2, 1::3] * 2),
    ):
        found, expected = measure(x, y, size=700), measure(x.contiguous(), y.contiguous(), size=10**6)
        assert found.rms == pytest.approx(expected.rms, rel=1e-12)
        assert found.worst_index == expected.worst_index
        assert (found.max_abs, found.max_ulp, found.differing) == (
            expected.max_abs,
            expected.max_ulp,
            expected.differing,
        )


def test_lazy_negation_and_conjugation_are_seen():
    z = torch.tensor([1 + 2j])
    assert measure(z, z.conj()).max_abs == 4.0
    assert measure(z.conj(), torch.tensor([1 - 2j])).same_bits
    assert measure(z.conj().imag, torch.tensor([-2.0])).same_bits


@pytest.mark.parametrize("layout", ["coo", "csr", "dense"])
def test_sparse_tensors_are_compared_where_they_store(layout):
    dense = torch.zeros(50, 60)
    dense[3, 7], dense[40, 2] = 1.0, 2.0
    other = dense.clone()
    other[40, 2], other[9, 9] = 2.5, 0.25
    make = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "dense": torch.clone}[layout]
    drift = measure(dense.to_sparse(), make(other))
    assert (drift.count, drift.differing, drift.max_abs, drift.worst_index) == (3, 2, 0.5, (40, 2))
    assert measure(dense.to_sparse(), make(dense)).same_values


def test_sparse_tensors_stay_sparse():
    index = torch.tensor([[0, 10**6 - 1], [5, 10**6 - 1]])
    a = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0]), (10**6, 10**6))
    b = torch.sparse_coo_tensor(index[:, :1], torch.tensor([1.0]), (10**6, 10**6))
    drift = measure(a, b)
    assert (drift.count, drift.max_abs, drift.worst_index) == (2, 2.0, (10**6 - 1, 10**6 - 1))


def test_uncoalesced_entries_are_added_up():
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([1.0, 2.0]), (3,))
    once = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.tensor([3.0]), (3,))
    assert measure(twice, once).same_values


def test_quantised_tensors_are_compared_by_value():
    a = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 0, torch.quint8)
    b = torch.quantize_per_tensor(torch.tensor([1.0, 2.2]), 0.1, 0, torch.quint8)
    assert measure(a, b).max_abs == pytest.approx(0.2, rel=1e-6)
    assert measure(a, a.clone()).same_bits


def test_nested_tensors_are_compared_component_by_component():
    parts = [torch.ones(2, 3), torch.zeros(4, 3)]
    a = torch.nested.nested_tensor(parts, layout=torch.jagged)
    b = torch.nested.nested_tensor([parts[0], parts[1] + 0.5], layout=torch.jagged)
    assert (measure(a, b).differing, measure(a, b).count) == (12, 18)
    assert measure(a, torch.nested.nested_tensor(parts)).same_bits


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc, torch.sparse_csc])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64])
def test_compressed_layouts(layout, dtype):
    dense = torch.zeros(4, 4, dtype=dtype)
    dense[1, 2] = 3
    options = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    sparse = dense.to_sparse(layout=layout, **options)
    assert measure(sparse, dense).same_values
    dense[1, 2] = 4
    assert measure(sparse, dense).worst_index == (1, 2)


class Answers:
    """An object whose == answers element by element."""

    def __eq__(self, other):
        return np.array([True, False])

    __hash__ = None


def test_objects_that_cannot_say_whether_they_are_equal_are_not():
    one = Answers()
    assert measure(one, Answers()).differing == 1
    assert measure(one, one).differing == 0


def test_packed_four_bit_floats():
    a = torch.tensor([0x21, 0xF0], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    b = torch.tensor([0x31, 0xF0], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    drift = measure(a, b)
    assert (drift.count, drift.max_abs, drift.max_ulp, drift.worst_values) == (4, 0.5, 1.0, ("1.0", "1.5"))


def test_python_numbers_take_the_dtype_of_their_partner():
    assert measure(0.1, torch.tensor(0.1)).same_bits
    assert measure(torch.tensor(0.1), 0.1).same_bits
    assert measure(3, torch.tensor(3, dtype=torch.int32)).same_bits
    assert measure(0.1, np.float64(0.1)).same_bits
    assert not measure(0.1, torch.tensor(0.1).double()).same_values
    assert measure(1.5, torch.tensor(1)).max_abs == 0.5


def test_gradients_parameters_and_inputs_are_left_alone():
    p = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    before = p.detach().clone()
    assert measure(p, (p * 2).requires_grad_()).differing == 5
    assert torch.equal(p.detach(), before)


def test_meta_tensors_have_no_values():
    with pytest.raises(InputError, match="meta device"):
        measure(torch.zeros(3, device="meta"), torch.zeros(3))


def test_measuring_is_frozen():
    drift = measure(torch.zeros(1), torch.ones(1))
    assert isinstance(drift, Drift)
    with pytest.raises(AttributeError):
        drift.max_abs = 0.0


MEMORY = """
import resource, torch
from driftscope.comparison.measuring.metrics import measure
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
torch.manual_seed(0)
measure(torch.zeros(1000), torch.ones(1000))
a = torch.randn(16 * 2**20)
b = (a + 1).view(4096, 4096).t()
a = a.view(4096, 4096)
before = peak()
assert measure(a, b).differing
print(peak() - before)
"""


@pytest.mark.slow
def test_no_temporary_of_the_tensors_size():
    out = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 16, f"{out.stdout.strip()} MiB for two tensors of 64 MiB"

"""The table of formats against the libraries that implement them."""

from __future__ import annotations

import math
import subprocess
import sys

import ml_dtypes
import pytest
import torch

from driftscope.numerics.formats import FORMATS, format_of

ML_FORMATS = sorted(name for name in FORMATS if name != "tf32" and not name.startswith(("float32", "float64")))
TORCH_FORMATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
                 "float8_e5m2fnuz", "float8_e8m0fnu"]  # fmt: skip


@pytest.mark.parametrize("name", ML_FORMATS)
def test_ml_dtypes_agrees(name):
    fmt = FORMATS[name]
    info = ml_dtypes.finfo(getattr(ml_dtypes, name, "float16"))
    assert fmt.p == info.nmant + 1
    assert fmt.largest == float(info.max)
    assert fmt.smallest_normal == float(info.smallest_normal)
    assert fmt.smallest_subnormal == float(info.smallest_subnormal)
    assert fmt.bits == info.bits


@pytest.mark.parametrize("name", TORCH_FORMATS)
def test_torch_agrees(name):
    fmt = FORMATS[name]
    info = torch.finfo(getattr(torch, name))
    assert (fmt.largest, fmt.smallest_normal) == (info.max, info.smallest_normal)
    assert fmt.smallest == info.min
    assert fmt.bits == info.bits


@pytest.mark.parametrize("name", TORCH_FORMATS[:-1])
def test_half_an_ulp_rounds_away_and_less_does_not(name):
    fmt = FORMATS[name]
    dtype = getattr(torch, name)
    one = torch.tensor([1.0 + 0.49 * fmt.ulp(1.0), 1.0 + 0.51 * fmt.ulp(1.0)], dtype=torch.float64).to(dtype)
    assert one.double().tolist() == [1.0, 1.0 + fmt.ulp(1.0)]
    assert fmt.ulp(1.0) == 2 * fmt.unit_roundoff


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1.0, -3.0, 1000.0, 65504.0])
def test_ulp_at_a_scale_is_the_step_to_the_next_number(name, scale):
    dtype = getattr(torch, name)
    here = torch.tensor(abs(scale), dtype=dtype)
    if name == "bfloat16":
        step = 2.0**-133 if scale in (0.0, 1e-300) else FORMATS[name].ulp(float(here))
        there = (here.view(torch.int16) + 1).view(torch.bfloat16)
    else:
        there = torch.nextafter(here, torch.tensor(math.inf, dtype=dtype))
        step = FORMATS[name].ulp(float(here))
    if torch.isfinite(there):
        assert float(there) - float(here) == step


def test_ulp_outside_the_range_is_not_a_number_or_infinite():
    assert math.isnan(FORMATS["float32"].ulp(math.nan))
    assert FORMATS["float16"].ulp(1e6) == math.inf
    assert FORMATS["bfloat16"].ulp(1e6) == 2.0**12


@pytest.mark.parametrize(
    ("name", "expected"),
    [("torch.float32", "float32"), ("half", "float16"), ("complex64", "float32"), ("complex128", "float64"),
     ("tf32", "tf32"), ("float4_e2m1fn_x2", "float4_e2m1fn")],
)  # fmt: skip
def test_other_names_are_known(name, expected):
    found = format_of(name)
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize("name", ["int64", "bool", "object", "<U3", "float33", ""])
def test_what_is_not_a_float_has_no_format(name):
    assert format_of(name) is None


def test_asking_about_formats_imports_no_tensor_library():
    code = "import sys, driftscope.numerics.formats; assert not {'torch', 'numpy', 'onnx'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

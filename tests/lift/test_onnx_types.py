"""Rounding to every ONNX float format, against ml_dtypes, and the storage of formats torch cannot compute in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from driftscope.lift.onnx.element_types import (
    INT4,
    SMALL_FLOATS,
    UINT4,
    array_to_tensor,
    lifted_storage,
    round_to,
    storage,
    wrap_integer,
)

NUMPY = {
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
    torch.float4_e2m1fn_x2: ml_dtypes.float4_e2m1fn,
}


def _samples() -> np.ndarray:
    random = np.random.default_rng(0)
    spread = random.standard_normal(4000) * 2.0 ** random.integers(-20, 18, 4000)
    ties = np.arange(-512, 512) / 1024.0
    return np.concatenate([spread, ties, ties * 512, ties * 2.0**-12, [0.0, -0.0]])


@pytest.mark.parametrize("native", NUMPY, ids=str)
def test_rounds_as_ml_dtypes_does_inside_the_range(native: torch.dtype) -> None:
    x = _samples()
    x = x[np.abs(x) <= SMALL_FLOATS[native].largest]
    expected = x.astype(NUMPY[native]).astype(np.float64)
    assert np.array_equal(round_to(torch.from_numpy(x), native).numpy(), expected)


@pytest.mark.parametrize("native", [d for d in NUMPY if SMALL_FLOATS[d].nan], ids=str)
def test_overflow_saturates_or_does_not(native: torch.dtype) -> None:
    x = torch.tensor([1e6, -1e6, torch.nan], dtype=torch.float64)
    largest = SMALL_FLOATS[native].largest
    saturated = round_to(x, native)
    assert saturated[:2].tolist() == [largest, -largest]
    beyond = round_to(x, native, saturate=False)
    assert not torch.isfinite(beyond[:2]).any()
    assert torch.isnan(saturated[2])


@pytest.mark.parametrize("native", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_rounds_to_torch_formats_and_keeps_float64(native: torch.dtype) -> None:
    x = torch.from_numpy(_samples())
    rounded = round_to(x, native)
    assert rounded.dtype == torch.float64
    assert rounded.equal(x.to(native).double())
    assert not rounded.equal(x)


def test_integers_narrower_than_their_storage_wrap() -> None:
    x = torch.tensor([-1, 0, 65536, 70000], dtype=torch.int32)
    assert wrap_integer(x, torch.uint16).tolist() == [65535, 0, 0, 4464]
    assert wrap_integer(torch.tensor([8, -9], dtype=torch.int8), INT4).tolist() == [-8, 7]
    assert wrap_integer(x, torch.int32) is x


def test_arrays_arrive_in_the_storage_of_their_format() -> None:
    nibbles = np.array([-8, 7], dtype=ml_dtypes.int4)
    assert array_to_tensor(nibbles).tolist() == [-8, 7]
    assert array_to_tensor(np.array([2**32 - 1], dtype=np.uint32)).tolist() == [2**32 - 1]
    assert array_to_tensor(np.array([1.5], dtype=ml_dtypes.bfloat16)).dtype == torch.bfloat16
    assert (storage(UINT4), lifted_storage(torch.float8_e5m2)) == (torch.uint8, torch.float64)

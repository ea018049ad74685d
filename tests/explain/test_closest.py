"""Which of several programs is closest to exact arithmetic."""

from __future__ import annotations

import torch
from optimised_graphs import batch, four_bit_model, written_gelu
from torch import nn

import driftscope as ds


def test_float64_is_closer_than_float32_and_float32_than_float16():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    x = torch.randn(8, 16).half().float()
    matrix = ds.compare_all({"float32": model, "float16": ds.torch(model, dtype="float16")}, [x])
    assert matrix.errors["float32"] < matrix.errors["float16"]
    assert matrix.closest == ("float32",)


def test_programs_with_the_same_bits_are_equally_close():
    matrix = ds.compare_all({"one": written_gelu(), "two": ds.onnx(written_gelu(), threads=1)}, batch())
    assert matrix.closest == ("one", "two")


def test_the_kernel_with_rounded_activations_is_not_the_closest():
    plain = ds.onnx(four_bit_model(), level="disable")
    assert ds.compare_all({"fused": four_bit_model(), "plain": plain}, batch()).closest == ("plain",)


def test_of_different_functions_none_is_the_closest():
    matrix = ds.compare_all({"sin": torch.sin, "cos": torch.cos}, [torch.randn(4)])
    assert matrix.closest == ()
    assert set(matrix.errors) == {"sin", "cos"}

"""Complex numbers on one side and pairs of reals on the other are the same values in another representation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import driftscope as ds

TURNED = pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
X = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
Z = torch.complex(X[:, :8], X[:, 8:])


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x * 0.5)


class Product(nn.Module):
    def forward(self, z):
        return z * z * 0.3


def _written(module, x, folder):
    file = folder / f"{type(module).__name__}.onnx"
    torch.onnx.export(module, (x,), file, dynamo=True, verbose=False)
    return str(file)


def _compared(one, other, x, turned):
    return ds.compare(*((other, one) if turned else (one, other)), (x,), isolate=False)


@TURNED
def test_a_spectrum_and_its_exported_file_are_one_function(turned, tmp_path):
    found = _compared(Spectrum(), _written(Spectrum(), X, tmp_path), X, turned)
    assert found.verdict in ("IDENTICAL", "ROUNDING"), found.reason
    note = next(f for f in found.findings if f.code == "O023")
    assert note.note
    assert note.what.startswith(f"{'B' if turned else 'A'} gives ")


@TURNED
@pytest.mark.parametrize("edit", [lambda z: z.conj(), lambda z: torch.complex(z.imag, z.real), lambda z: z * 1.001])
def test_another_spectrum_is_another_function(edit, turned, tmp_path):
    class Edited(nn.Module):
        def forward(self, x):
            return edit(torch.fft.rfft(x * 0.5))

    found = _compared(Edited(), _written(Spectrum(), X, tmp_path), X, turned)
    assert found.verdict == "DIFFERENT", found.reason


@TURNED
def test_complex_inputs_are_given_to_a_file_as_pairs(turned, tmp_path):
    file = _written(Product(), Z, tmp_path)
    found = _compared(Product(), file, Z, turned)
    assert found.verdict in ("IDENTICAL", "ROUNDING"), found.reason
    assert any("is given it as pairs of reals" in f.what for f in found.findings if f.code == "O023")

    class Conjugated(nn.Module):
        def forward(self, z):
            return z.conj() * z * 0.3

    assert _compared(Conjugated(), file, Z, turned).verdict == "DIFFERENT"


@TURNED
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_whatever_runs_the_complex_side_it_is_compared_as_pairs(sign, turned):
    def reals(x):
        return torch.stack([torch.sin(x), sign * torch.cos(x)], -1)

    def complexes(x):
        return torch.complex(torch.sin(x), torch.cos(x))

    def arrays(x):
        return np.sin(x) + 1j * np.cos(x)

    exported = torch.export.export(_Called(complexes), (X,))
    for one in (exported, ds.torch(complexes, compile="eager"), ds.program(arrays, framework="numpy")):
        found = _compared(one, reals, X, turned)
        assert (found.verdict == "DIFFERENT") == (sign < 0), (one, found.reason)
        assert "O023" in [f.code for f in found.findings]
    recorded = _compared(ds.recorded({"y": complexes(X)}), reals, X, turned)
    assert (recorded.verdict == "IDENTICAL") == (sign > 0), recorded.reason


class _Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_reals_with_another_last_axis_are_another_shape():
    found = ds.compare(lambda x: torch.complex(x, x), lambda x: torch.stack([x, x, x], -1), (X,), isolate=False)
    assert found.verdict == "DIFFERENT"
    assert found.first.code == "N008"

"""Tables inside a fused operator that an exporter computes ahead of time and stores."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch.nn import functional

import driftscope as ds
from driftscope.records.verdict import Verdict

SIZES = (31, 7, 64)


class Longer(nn.Module):
    """A sound in another length."""

    def __init__(self, size, ends):
        super().__init__()
        self.size, self.ends = size, ends

    def forward(self, x):
        return functional.interpolate(x, size=self.size, mode="linear", align_corners=self.ends)


class Turned(nn.Module):
    """Positions under an affine map."""

    def __init__(self, ends):
        super().__init__()
        self.ends = ends

    def forward(self, x):
        return functional.affine_grid(x, [2, 1, 9, 10], align_corners=self.ends)


def sound():
    return (torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(0)),)


def maps():
    return (torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0)),)


CASES = [(Longer(size, ends), sound()) for size in SIZES for ends in (False, True)]
CASES += [(Turned(ends), maps()) for ends in (False, True)]


def exported(model, inputs):
    return torch.onnx.export(model, inputs, dynamo=True, verbose=False).model_proto


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{type(c[0]).__name__}-{vars(c[0]).get('size')}-{c[0].ends}")
@pytest.mark.sampled(1)
def test_a_stored_table_of_a_fused_operator_is_rounding(case):
    model, inputs = case
    program = exported(model, inputs)
    for pair in ((model, program), (program, model)):
        found = ds.compare(*pair, inputs)
        assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason


@pytest.mark.parametrize("case", [CASES[0], CASES[-2]], ids=["interpolation", "grid"])
@pytest.mark.sampled(1)
def test_another_table_is_another_function(case):
    model, inputs = case
    other = Longer(31, True) if isinstance(model, Longer) else Turned(True)
    assert ds.compare(other, exported(model, inputs), inputs).verdict is Verdict.DIFFERENT
    program = onnx.ModelProto()
    program.CopyFrom(exported(model, inputs))
    table = max((t for t in program.graph.initializer if t.data_type == 1), key=lambda t: np.prod(t.dims))
    value = numpy_helper.to_array(table).copy()
    value.reshape(-1)[4] *= 1 + 1e-4
    table.CopyFrom(numpy_helper.from_array(value, table.name))
    for pair in ((model, program), (program, model)):
        assert ds.compare(*pair, inputs).verdict is Verdict.DIFFERENT


class Windowed(nn.Module):
    """A frame times a window that was computed beforehand and stored."""

    def __init__(self, window):
        super().__init__()
        self.register_buffer("window", torch.from_numpy(window.astype(np.float32)))

    def forward(self, x):
        return x * self.window


@pytest.mark.parametrize(("size", "beta"), [(8, 12.0), (16, 3.0), (100, 14.0)])
def test_a_kaiser_window_loses_what_its_bessel_function_makes_of_its_argument(size, beta):
    """torch's kernel in float32 is up to ``beta`` units off, and so is not the rounded float64 window."""

    def frame(x):
        return x * torch.kaiser_window(size, True, beta)

    x = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    stored = Windowed(np.kaiser(size + 1, beta)[:size])
    for a, b in ((frame, stored), (stored, frame)):
        assert ds.compare(a, b, (x,)).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING, Verdict.PRECISION)
    for wrong in (np.kaiser(size + 1, beta * 1.0001)[:size], np.kaiser(size, beta)):
        assert ds.compare(frame, Windowed(wrong), (x,)).verdict is Verdict.DIFFERENT


class Fourier(nn.Module):
    """A real Fourier transform as one product with a table of both parts."""

    def __init__(self, size, how, factor=1.0):
        super().__init__()
        angle = 2 * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(size)) / size
        both = {"after": np.concatenate, "in turn": lambda parts: np.stack(parts, 1).reshape(-1, size)}
        table = both[how]([np.cos(angle), -np.sin(angle)])
        table[3, 5] *= factor
        self.how = how
        self.register_buffer("table", torch.tensor(table, dtype=torch.float32))

    def forward(self, x):
        made = x @ self.table.T
        if self.how == "after":
            return torch.stack(made.chunk(2, -1), -1)
        return made.unflatten(-1, (-1, 2))


def transformed(x):
    return torch.view_as_real(torch.fft.rfft(x))


@pytest.mark.parametrize("how", ["after", "in turn"])
def test_one_table_of_both_parts_of_a_fourier_transform_is_rounding(how):
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    for pair in ((transformed, Fourier(16, how)), (Fourier(16, how), transformed)):
        found = ds.compare(*pair, x)
        assert found.verdict is Verdict.ROUNDING, found.reason
    assert ds.compare(transformed, Fourier(16, how, 1 + 1e-5), x).verdict is Verdict.DIFFERENT

"""Numbers that somebody made of two others and rounded once, and numbers that an operator stands for."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import driftscope as ds

MEAN, DEVIATION = 0.485, 0.229
X = np.random.default_rng(0).standard_normal((4, 7)).astype(np.float32)


class Folded(nn.Module):
    """The normalisation of an image as one multiplication and one addition."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.register_buffer("slope", torch.tensor(factor / (255 * DEVIATION)))
        self.register_buffer("shift", torch.tensor(MEAN / DEVIATION))

    def forward(self, x):
        return x * self.slope - self.shift


def normalised(x):
    return (x / 255 - MEAN) / DEVIATION


@pytest.mark.parametrize("range_", [1.0, 255.0])
def test_a_normalisation_folded_in_float64_is_rounding(range_):
    x = torch.rand(5, 16, generator=torch.Generator().manual_seed(0)) * range_
    for pair in ((normalised, Folded()), (Folded(), normalised)):
        found = ds.compare(*pair, x)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
    for factor in (1 + 3e-7, 1 - 3e-7):
        assert ds.compare(normalised, Folded(factor), x).verdict is ds.Verdict.DIFFERENT


def model(body, **stored):
    header = '<ir_version: 10, opset_import: ["" : 20]> g (float[4,7] x) => (float[4,7] y) '
    made = onnx.parser.parse_model(header + body)
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items())
    return made


def sixth(value):
    numbers = {"t": np.float32(3), "z": np.float32(0), "s": np.float32(6), "w": np.float32(value)}
    return model("{ a = Add(x, t) c = Clip(a, z, s) m = Mul(x, c) y = Mul(m, w) }", **numbers)


def test_the_sixth_of_hard_swish_may_be_written_out():
    whole = model("{ y = HardSwish(x) }")
    for pair in ((whole, sixth(1 / 6)), (sixth(1 / 6), whole)):
        found = ds.compare(*pair, X)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
    assert ds.compare(whole, sixth(1 / 6 + 1e-6), X).verdict is ds.Verdict.DIFFERENT


def window_of(size, factor=1.0):
    turns = 2 * np.pi * np.arange(size) / size
    window = 0.42 - 0.5 * np.cos(turns) + 0.08 * np.cos(2 * turns)
    window[3] *= factor
    return model("{ y = Mul(x, h) }", h=window.astype(np.float32))


def test_a_window_may_be_computed_ahead_of_time():
    whole = model("{ h = BlackmanWindow(n) y = Mul(x, h) }", n=np.int64(7))
    for pair in ((whole, window_of(7)), (window_of(7), whole)):
        found = ds.compare(*pair, X)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
        assert all(f.note for f in found.findings)
    for pair in ((whole, window_of(7, 1 + 1e-5)), (window_of(7, 1 + 1e-5), whole)):
        assert ds.compare(*pair, X).verdict is ds.Verdict.DIFFERENT


def test_a_sixth_that_both_sides_round_is_a_sixth_on_both():
    whole = model("{ y = HardSigmoid<alpha=0.16666667>(x) }")

    def written(factor):
        numbers = {"t": np.float32(3), "z": np.float32(0), "s": np.float32(6), "w": np.float32(factor / 6)}
        return model("{ a = Add(x, t) c = Clip(a, z, s) y = Mul(c, w) }", **numbers)

    for pair in ((whole, written(1.0)), (written(1.0), whole)):
        found = ds.compare(*pair, X)
        assert found.verdict is ds.Verdict.ROUNDING, found.reason
    found = ds.compare(whole, written(1 + 1e-6), X)
    assert found.verdict is ds.Verdict.DIFFERENT
    assert "Set t to 3." not in str(found)

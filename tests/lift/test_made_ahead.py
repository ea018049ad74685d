"""Constants that a port adds or multiplies ahead of time and stores: a rounding, and no other function."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from driftscope.records.verdict import Verdict

ROUNDING = (Verdict.IDENTICAL, Verdict.ROUNDING)
generator = torch.Generator().manual_seed(0)


def numbers(*shape):
    return torch.randn(shape, generator=generator)


def layer(made):
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=generator)
    return made.requires_grad_(False).eval()


LINEAR, KEYS, PATCHES = layer(nn.Linear(8, 6)), layer(nn.Linear(8, 6)), layer(nn.Conv2d(3, 8, 4, 4))
WORDS, NORM, BATCH = layer(nn.Embedding(20, 6)), layer(nn.LayerNorm(6)), layer(nn.BatchNorm1d(8))
BATCH.running_mean.normal_(generator=generator)
BATCH.running_var.uniform_(0.5, 2.0, generator=generator)
TABLE, WIDE, TOKEN, KIND, QUERY, SCALE = (
    numbers(5, 6),
    numbers(5, 8),
    numbers(1, 1, 8),
    numbers(6),
    numbers(1, 3, 8),
    (numbers(8).abs() + 0.5),
)
THREE, ONE, EACH = (
    layer(nn.Conv2d(3, 3, 3, padding=1)),
    layer(nn.Conv2d(3, 3, 1)),
    layer(nn.Conv2d(3, 3, 3, 1, 1, groups=3)),
)
SQUARE, DOWN, UP, TALL, FLAT = (
    layer(nn.Linear(8, 8)),
    numbers(8, 2),
    numbers(2, 6),
    numbers(3, 1, 3, 1),
    numbers(3, 1, 1, 3),
)
EYE, CENTRE = torch.eye(3)[..., None, None], F.pad(torch.ones(3, 1, 1, 1), (1, 1, 1, 1))
VALUES, OUTPUT = 0.3 * numbers(8, 8), 0.3 * numbers(8, 8)
WINDOW, SOUND = torch.hann_window(32), numbers(2, 160)
ANGLE = torch.outer(torch.arange(17), torch.arange(32)).double() * (2 * torch.pi / 32)
X, IMAGE, IDS = numbers(2, 5, 8), numbers(2, 3, 8, 8), torch.arange(10).reshape(2, 5)


def patches(x, bias):
    return F.conv2d(x, PATCHES.weight, bias, 4).flatten(2).transpose(1, 2)


def with_token(x, token, bias, table):
    joined = [token.expand(x.shape[0], -1, -1), patches(x, bias)]
    if table.shape[-2] == 5:
        return torch.tanh(torch.cat(joined, 1) + table)
    return torch.tanh(torch.cat([joined[0], joined[1] + table], 1))


def mixed(x):
    return (x @ x.transpose(1, 2)).softmax(-1) @ x


def spectrum(x):
    found = torch.stft(x, 32, hop_length=8, window=WINDOW, center=False, return_complex=True)
    return found.real.square() + found.imag.square()


def resizing(size, count):
    """The matrix of a linear interpolation between the nearest two."""
    at = ((torch.arange(count) + 0.5).double() * size / count - 0.5).clamp(min=0)
    low, matrix = at.floor().long(), torch.zeros(count, size, dtype=torch.float64)
    matrix[torch.arange(count), low] = 1 - (at - low)
    matrix[torch.arange(count), (low + 1).clamp(max=size - 1)] += at - low
    return matrix.float()


def attended(x, query):
    keys = KEYS(x)
    return (query @ keys.transpose(1, 2)).softmax(-1) @ keys


def standardised(x, eps=1e-5):
    scale = BATCH.weight / (BATCH.running_var + eps).sqrt()
    return (x - BATCH.running_mean) * scale + BATCH.bias, scale


def changed(value, by=1e-5):
    """The same, one element off by a few of the last places of the largest."""
    value = value.contiguous().clone()
    value.view(-1)[3] += by * value.abs().max()
    return value


RESIZED = resizing(8, 11), resizing(8, 13)

#: By name: inputs, the program, what a port stores, and the port, given that.
MADE = {
    "bias in a table": (
        X, lambda x: torch.tanh(LINEAR(x) + TABLE), LINEAR.bias + TABLE,
        lambda t: lambda x: torch.tanh(x @ LINEAR.weight.T + t),
    ),
    "two biases in a table": (
        X, lambda x: torch.tanh(LINEAR(x) + KIND + TABLE), LINEAR.bias + KIND + TABLE,
        lambda t: lambda x: torch.tanh(x @ LINEAR.weight.T + t),
    ),
    "bias of patches": (
        IMAGE, lambda x: with_token(x, TOKEN, PATCHES.bias, WIDE), PATCHES.bias + WIDE[1:],
        lambda t: lambda x: with_token(x, TOKEN + WIDE[:1], None, t),
    ),
    "kind in words": (
        IDS, lambda i: torch.tanh(WORDS(i) + KIND), WORDS.weight + KIND,
        lambda t: lambda i: torch.tanh(F.embedding(i, t)),
    ),
    "bias of a norm": (
        X, lambda x: torch.tanh(NORM(LINEAR(x)) + TABLE), NORM.bias + TABLE,
        lambda t: lambda x: torch.tanh(F.layer_norm(LINEAR(x), (6,), NORM.weight) + t),
    ),
    "scaled query": (
        X, lambda x: attended(x, LINEAR(QUERY.expand(len(x), -1, -1)) / 6**0.5), LINEAR(QUERY) / 6**0.5,
        lambda t: lambda x: attended(x, t),
    ),
    "projected table": (
        X, lambda x: torch.tanh(LINEAR(x + WIDE)), WIDE @ LINEAR.weight.T,
        lambda t: lambda x: torch.tanh(LINEAR(x) + t),
    ),
    "scaled table": (
        X, lambda x: torch.tanh((x + WIDE) * SCALE), WIDE * SCALE, lambda t: lambda x: torch.tanh(x * SCALE + t),
    ),
    "table in a batch norm": (
        X, lambda x: torch.tanh(BATCH((x + WIDE).transpose(1, 2))), standardised(WIDE)[0],
        lambda t: lambda x: torch.tanh((x * standardised(WIDE)[1] + t).transpose(1, 2)),
    ),
    "absorbed keys": (
        X, lambda x: attended(x, LINEAR(QUERY.expand(len(x), -1, -1))), LINEAR(QUERY) @ KEYS.weight,
        lambda t: lambda x: (t @ x.transpose(1, 2) + (LINEAR(QUERY) @ KEYS.bias)[..., None]).softmax(-1) @ KEYS(x),
    ),
    "branches": (
        IMAGE, lambda x: torch.relu(THREE(x) + ONE(x)), THREE.weight + F.pad(ONE.weight, (1, 1, 1, 1)),
        lambda t: lambda x: torch.relu(F.conv2d(x, t, THREE.bias + ONE.bias, padding=1)),
    ),
    "branches and what they skip": (
        IMAGE, lambda x: torch.relu(THREE(x) + ONE(x) + x), THREE.weight + F.pad(ONE.weight + EYE, (1, 1, 1, 1)),
        lambda t: lambda x: torch.relu(F.conv2d(x, t, THREE.bias + ONE.bias, padding=1)),
    ),
    "each channel and what it skips": (
        IMAGE, lambda x: torch.relu(EACH(x) - x), EACH.weight - CENTRE,
        lambda t: lambda x: torch.relu(F.conv2d(x, t, EACH.bias, padding=1, groups=3)),
    ),
    "what a layer skips": (
        X, lambda x: torch.tanh(x + SQUARE(x)), SQUARE.weight + torch.eye(8),
        lambda t: lambda x: torch.tanh(F.linear(x, t, SQUARE.bias)),
    ),
    "two small factors beside a layer": (
        X, lambda x: LINEAR(x) + 1.5 * (x @ DOWN @ UP), LINEAR.weight + 1.5 * (DOWN @ UP).T,
        lambda t: lambda x: F.linear(x, t, LINEAR.bias),
    ),
    "two filters in a row": (
        IMAGE, lambda x: F.conv2d(F.conv2d(x, TALL, groups=3), FLAT, groups=3), TALL * FLAT,
        lambda t: lambda x: F.conv2d(x, t, groups=3),
    ),
    "a small filter before a large one": (
        IMAGE, lambda x: F.conv2d(ONE(x), THREE.weight),
        torch.einsum("ochw,ci->oihw", THREE.weight, ONE.weight[..., 0, 0]),
        lambda t: lambda x: F.conv2d(x, t, THREE.weight.sum((2, 3)) @ ONE.bias),
    ),
    "cosines and sines of a window": (
        SOUND, spectrum, torch.cat([torch.cos(ANGLE), -torch.sin(ANGLE)]).float()[:, None] * WINDOW,
        lambda t: lambda x: F.conv1d(x[:, None], t, stride=8).reshape(2, 2, 17, -1).square().sum(1),
    ),
    "values and output multiplied": (
        X, lambda x: mixed(x) @ VALUES.T @ OUTPUT.T, OUTPUT @ VALUES, lambda t: lambda x: mixed(x) @ t.T,
    ),
    "query and keys multiplied": (
        X, lambda x: ((x @ VALUES.T) @ (x @ OUTPUT).transpose(1, 2) / 8**0.5).softmax(-1), VALUES.T @ OUTPUT.T / 8**0.5,
        lambda t: lambda x: (x @ t @ x.transpose(1, 2)).softmax(-1),
    ),
    "a resized image": (
        IMAGE, lambda x: F.interpolate(x, size=(11, 13), mode="bilinear"), RESIZED[0],
        lambda t: lambda x: t @ x @ RESIZED[1].T,
    ),
}  # fmt: skip
BOTH = pytest.mark.parametrize("turned", [False, True])


def compared(one, other, inputs, turned):
    return ds.compare(other, one, (inputs,)) if turned else ds.compare(one, other, (inputs,))


@BOTH
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_constants_is_found_exactly(name, turned):
    inputs, program, stored, port = MADE[name]
    found = compared(program, port(stored), inputs, turned)
    assert found.verdict in ROUNDING, found
    assert found.outputs[0].lifted_size < 1e-12
    assert all(f.note for f in found.findings)


@BOTH
@pytest.mark.parametrize("name", MADE)
def test_a_changed_element_of_it_is_another_function(name, turned):
    inputs, program, stored, port = MADE[name]
    found = compared(program, port(changed(stored)), inputs, turned)
    differs = found.verdict is Verdict.DIFFERENT or any(f.code == "N016" for f in found.findings)
    assert differs, found


@BOTH
def test_another_epsilon_and_another_factor_are_other_functions(turned):
    table, scale = standardised(WIDE, 1e-6)
    inputs, program, _, _ = MADE["table in a batch norm"]
    found = compared(program, lambda x: torch.tanh((x * scale + table).transpose(1, 2)), inputs, turned)
    assert found.verdict is Verdict.DIFFERENT
    inputs, program, stored, port = MADE["scaled query"]
    assert compared(program, port(stored * (1 + 2e-6)), inputs, turned).verdict is Verdict.DIFFERENT


@BOTH
def test_a_changed_weight_beside_it_is_no_rounding(turned):
    """One element, in its last places: what was rounded elsewhere does not excuse it."""
    inputs, program, stored, _ = MADE["projected table"]
    weight = changed(LINEAR.weight, 2e-7)
    found = compared(program, lambda x: torch.tanh(F.linear(x, weight, LINEAR.bias) + stored), inputs, turned)
    assert found.verdict is Verdict.DIFFERENT


# --- the initial state of a recurrent layer, multiplied with its weights ---


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Recurrent(nn.Module):
    """A recurrent layer that begins with a learned state."""

    def __init__(self, kind, rows):
        super().__init__()
        self.layer = layer(getattr(nn, kind)(5, 4, batch_first=True))
        self.state, self.kind = nn.Parameter(0.5 * numbers(1, rows, 4), requires_grad=False), kind

    def forward(self, x):
        state = self.state.expand(1, x.shape[0], 4).contiguous()
        return self.layer(x, (state, torch.zeros_like(state)) if self.kind == "LSTM" else state)[0]


def port(model, biases, weight=None):
    """The same in numpy; the first product is made ahead of time, and ``biases`` says how many are added to it."""
    kind, start = model.kind, model.state.numpy()[0]  # a function that holds the module is given torch's tensors
    held = {name[:-3]: value.numpy() for name, value in model.layer.named_parameters()}
    of_input, of_state = held["weight_ih"].T, held["weight_hh"].T
    one, two, size = held["bias_ih"], held["bias_hh"], 4
    added = ([0, two, two] if kind == "GRU" else [0, two, one + two])[biases]
    first = start @ (of_state if weight is None else weight(of_state)) + added

    def gru(x, t, h):
        given = x[:, t] @ of_input + one
        total = (first if biases else first + two) if t == 0 else h @ of_state + two
        reset, z = np.split(sigmoid(given[:, : 2 * size] + total[:, : 2 * size]), 2, -1)
        new = np.tanh(given[:, 2 * size :] + reset * total[:, 2 * size :])
        return (1 - z) * new + z * h

    def summed(x, t, h):
        given = x[:, t] @ of_input
        if t:
            return given + one + h @ of_state + two
        return [given + one + first + two, given + one + first, given + first][biases]

    def run(x):
        h = c = np.zeros((len(x), size), x.dtype)
        h, out = h + start, []
        for t in range(x.shape[1]):
            if kind == "GRU":
                h = gru(x, t, h)
            elif kind == "RNN":
                h = np.tanh(summed(x, t, h))
            else:
                i, f, g, o = np.split(summed(x, t, h), 4, -1)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            out.append(h)
        return np.stack(out, 1)

    return run


STATES = [(kind, rows, biases) for kind in ("LSTM", "GRU", "RNN") for rows in (1, 2) for biases in (0, 1, 2)]


@BOTH
@pytest.mark.parametrize(("kind", "rows", "biases"), STATES)
@pytest.mark.sampled(6)
def test_the_first_product_of_a_recurrent_layer(kind, rows, biases, turned):
    model, x = Recurrent(kind, rows), numbers(2, 3, 5)
    found = compared(model, port(model, biases), x, turned)
    assert found.verdict in ROUNDING, found
    assert compared(model, port(model, biases, np.flipud), x, turned).verdict is Verdict.DIFFERENT


@pytest.mark.parametrize(("kind", "rows", "biases"), [case for case in STATES if case[0] != "RNN"])
@pytest.mark.slow
def test_the_first_product_of_a_file(tmp_path, kind, rows, biases):
    """Of an RNN the exporter stores that product itself, with a bias: then neither holds what both were made of."""
    model, x = Recurrent(kind, rows), numbers(2, 3, 5)
    path = str(tmp_path / "file.onnx")
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    assert ds.compare(path, port(model, biases), (x,)).verdict in ROUNDING
    assert ds.compare(port(model, biases), path, (x,)).verdict in ROUNDING


class _NormAndOnes(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.norm = nn.LayerNorm(8, eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) + torch.ones(8)


def test_a_number_that_nobody_rounded_is_not_told():
    """A layer norm's weight has the bits of ones that the other program computes: nothing was computed ahead."""
    found = ds.compare(_NormAndOnes(1e-5), _NormAndOnes(1e-3), X)
    assert [f.code for f in found.findings] == ["N001"]

"""What a port of a recurrent operator computes ahead of time of its two biases is rounded, and no other function."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

import driftscope as ds

TIME, BATCH, READ, SIZE = 5, 2, 3, 4
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def file(operator, attributes=""):
    draw, rows = np.random.default_rng(0).standard_normal, GATES[operator] * SIZE
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> g (float[{TIME},{BATCH},{READ}] x) => (float[a,b,c,d] y) '
        f"{{ y = {operator}<hidden_size={SIZE}{attributes}>(x, w, r, b) }}"
    )
    stored = {"w": (1, rows, READ), "r": (1, rows, SIZE), "b": (1, 2 * rows)}
    numbers = {name: (0.5 * draw(shape)).astype(np.float32) for name, shape in stored.items()}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in numbers.items())
    return model, (numbers["w"][0].T.copy(), numbers["r"][0].T.copy(), *np.split(numbers["b"][0], 2))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn(w, r, wb, rb, gap=0.0):
    bias = wb + rb
    bias[1] += gap

    def run(x):
        h, out = np.zeros((BATCH, SIZE), x.dtype), []
        for t in range(TIME):
            h = np.tanh(x[t] @ w + h @ r + bias)
            out.append(h)
        return np.stack(out)[:, None]

    return run


def lstm(w, r, wb, rb, gap=0.0):
    bias = wb + rb
    bias[1] += gap

    def run(x):
        h = c = np.zeros((BATCH, SIZE), x.dtype)
        out = []
        for t in range(TIME):
            i, o, f, g = np.split(x[t] @ w + h @ r + bias, 4, 1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out.append(h)
        return np.stack(out)[:, None]

    return run


def gru(w, r, wb, rb, gap=0.0):
    """With ``linear_before_reset``: the last gate keeps its biases apart, the others' stand with the input's."""
    first, last = np.concatenate([(wb + rb)[: 2 * SIZE], wb[2 * SIZE :]]), rb[2 * SIZE :].copy()
    first[1] += gap

    def run(x):
        h, out = np.zeros((BATCH, SIZE), x.dtype), []
        for t in range(TIME):
            of_input, of_state = x[t] @ w + first, h @ r
            z, reset = (sigmoid(of_input[:, k] + of_state[:, k]) for k in (slice(SIZE), slice(SIZE, 2 * SIZE)))
            new = np.tanh(of_input[:, 2 * SIZE :] + reset * (of_state[:, 2 * SIZE :] + last))
            h = (1 - z) * new + z * h
            out.append(h)
        return np.stack(out)[:, None]

    return run


PORTS = {"LSTM": (lstm, ""), "GRU": (gru, ", linear_before_reset=1"), "RNN": (rnn, "")}
X = np.random.default_rng(1).standard_normal((TIME, BATCH, READ)).astype(np.float32)


def compared(operator, gap, turned):
    port, attributes = PORTS[operator]
    model, numbers = file(operator, attributes)
    pair = model, ds.program(port(*numbers, gap=np.float32(gap)), framework="numpy")
    return ds.compare(*(pair[::-1] if turned else pair), {"x": X}, isolate=False)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("operator", PORTS)
def test_two_biases_that_are_stored_added_are_the_same_function(operator, turned):
    found = compared(operator, 0.0, turned)
    assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason
    assert any(f.code == "W002" and "the two biases of b added" in f.what for f in found.findings)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("operator", PORTS)
def test_another_bias_is_not_the_two_added(operator, turned):
    assert str(compared(operator, 1e-5, turned).verdict) == "DIFFERENT"


def added(operator, gap=0.0):
    """The same operator, its biases added where its layout lets them be and zeros where nothing is left to add."""
    model, (_, _, wb, rb) = file(operator, PORTS[operator][1])
    apart = 2 * SIZE if operator == "GRU" else len(wb)
    rest = np.concatenate([np.zeros(apart, np.float32), rb[apart:]])
    stored = np.concatenate([(wb + rb)[:apart], wb[apart:], rest])[None]
    stored[0, 1] += np.float32(gap)
    model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(stored, "b"))
    return model


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("operator", PORTS)
def test_biases_that_are_added_inside_the_operators_layout_are_the_same_function(operator, turned):
    pair = file(operator, PORTS[operator][1])[0], added(operator)
    found = ds.compare(*(pair[::-1] if turned else pair), {"x": X}, isolate=False)
    assert str(found.verdict) in ("IDENTICAL", "ROUNDING"), found.reason
    assert "N016" not in [f.code for f in found.findings]
    other = file(operator, PORTS[operator][1])[0], added(operator, 1e-5)
    assert str(ds.compare(*(other[::-1] if turned else other), {"x": X}, isolate=False).verdict) == "DIFFERENT"

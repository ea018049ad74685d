"""LSTM, GRU and RNN, unrolled: rounding enters at every time step, so each one is shown to the observer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.lift.formulas import activations as formulas
from driftscope.lift.formulas.recurrent import Activation, LstmVariant, gru_cell, lstm_cell
from driftscope.lift.formulas.terms import EXACT, FUNCTION, ROUND, matrix_product, product
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding
from driftscope.numerics.error_model import part_error

# Activations with parameters: (function of x, alpha, beta), default alpha, default beta.
_WITH_PARAMETERS: dict[str, tuple[Callable[[Tensor, float, float], Tensor], float | None, float | None]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: formulas.leaky_relu(x, a), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: formulas.thresholded(x, x, a), 1.0, None),
    "scaledtanh": (formulas.scaled_tanh, 1.0, 1.0),
    "hardsigmoid": (formulas.hard_sigmoid, 0.2, 0.5),
    "elu": (lambda x, a, b: formulas.elu(x, a), 1.0, None),
}


@dataclass(slots=True)
class RecurrentDirection:
    """One direction of a recurrent layer.

    Parameters
    ----------
    w, r : torch.Tensor, (gates * H, I) and (gates * H, H)
    wb, rb : torch.Tensor, (gates * H,)
    h, c : torch.Tensor, (N, H)
        States before the first step; ``c`` is used by LSTM alone.
    peephole : torch.Tensor, (3 * H,), or None
    activations : list of callable
    reverse : bool
    """

    w: Tensor
    r: Tensor
    wb: Tensor
    rb: Tensor
    h: Tensor
    c: Tensor
    peephole: Tensor | None
    activations: list[Activation]
    reverse: bool


def _activations(node: Node, count: int, defaults: Sequence[str]) -> list[Activation]:
    names = [n.lower() for n in node.texts("activations", list(defaults) * count)]
    alphas, betas = iter(node.attribute("activation_alpha") or ()), iter(node.attribute("activation_beta") or ())
    made = []
    for name in names:
        if name in formulas.PLAIN:
            made.append(formulas.PLAIN[name])
            continue
        if name not in _WITH_PARAMETERS:
            raise node.refuse(f"its activation {name!r} is not known")
        function, alpha, beta = _WITH_PARAMETERS[name]
        a = alpha if alpha is None else next(alphas, alpha)
        b = beta if beta is None else next(betas, beta)
        made.append(_bound(function, float(a or 0.0), float(b or 0.0)))
    return made


def _bound(function: Callable[[Tensor, float, float], Tensor], a: float, b: float) -> Activation:
    return lambda x: function(x, a, b)


def _limited(node: Node, x: Tensor) -> Tensor:
    if not node.has("clip"):
        return x
    limit = node.setting("clip")
    return x.clamp(-limit, limit)


def _times(node: Node, part: str, h: Tensor, r: Tensor) -> Tensor:
    weights = r.transpose(-1, -2)
    h = _coarse(node, h)
    return node.inner(part, h @ weights, product(h, weights))


def _coarse(node: Node, x: Tensor) -> Tensor:
    """What onnxruntime's dynamically quantised layer multiplies with: 8 bits between the extremes; else the value."""
    if not node.op_type.startswith("DynamicQuantize") or not x.numel():
        return x
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = (high - low) / 255
    zero = torch.round((-low / scale).nan_to_num(0.0))
    return torch.where(scale > 0, ((torch.round(x / scale) + zero).clamp(0, 255) - zero) * scale, x)


def _lstm_step(node: Node, d: RecurrentDirection, xw: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    total = node.inner("sum", xw + _times(node, "recurrent", h, d.r) + d.rb, ROUND)
    i, o, forget, cell = total.chunk(4, -1)
    peepholes = None
    if d.peephole is not None:
        pi, po, pf = d.peephole.chunk(3)
        peepholes = (pi, pf, po)
    coupled = node.integer("input_forget", 0) == 1
    f, g, k = d.activations
    variant = LstmVariant(f, g, k, peepholes, coupled, lambda x: _limited(node, x))
    return lstm_cell(node.inner, (i, forget, cell, o), c, variant)


def _gru_step(node: Node, d: RecurrentDirection, xw: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    f, g = d.activations
    size = h.shape[-1]
    both = _times(node, "recurrent", h, d.r[: 2 * size]) + d.rb[: 2 * size] + xw[..., : 2 * size]
    z, r = (_limited(node, t) for t in node.inner("sum", both, ROUND).chunk(2, -1))
    weights, bias = d.r[2 * size :], d.rb[2 * size :]

    def candidate(reset: Tensor) -> Tensor:
        if node.integer("linear_before_reset", 0):
            inner = node.inner("reset", reset * (_times(node, "candidate recurrent", h, weights) + bias), ROUND)
        else:
            inner = _times(node, "candidate recurrent", node.inner("reset", reset * h, ROUND), weights) + bias
        return _limited(node, node.inner("candidate sum", xw[..., 2 * size :] + inner, ROUND))

    rounding = _overshooting if g is _TANH else lambda _argument: FUNCTION
    return gru_cell(node.inner, (z, r), candidate, h, (f, g), rounding), c


# onnxruntime's GRU and RNN have a tanh of their own each, measured in 1.20 and 1.31: that of the first is 1 and 8 units
# roundoff beyond 9.2; that of the second is off by as much near zero as near one.
_TANH = formulas.PLAIN["tanh"]
_OVERSHOOT, _BEYOND = 8.0, 9.2


def _overshooting(argument: Tensor) -> Rounding:
    size = _OVERSHOOT / part_error(functions=True)
    return Rounding(Kind.FUNCTION, parts=lambda: (argument.abs() > _BEYOND) * size)


def _cancelling(result: Tensor) -> Rounding:
    return Rounding(Kind.FUNCTION, parts=lambda: torch.ones_like(result))


def _rnn_step(node: Node, d: RecurrentDirection, xw: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    total = node.inner("sum", xw + _times(node, "recurrent", h, d.r) + d.rb, ROUND)
    (function,) = d.activations
    y = function(_limited(node, total))
    return node.inner("activated", y, _cancelling(y) if function is _TANH else FUNCTION), c


_STEPS = {"LSTM": (_lstm_step, 4), "DynamicQuantizeLSTM": (_lstm_step, 4), "GRU": (_gru_step, 3), "RNN": (_rnn_step, 1)}
_THREE = ("Sigmoid", "Tanh", "Tanh")
_DEFAULTS = {"LSTM": _THREE, "DynamicQuantizeLSTM": _THREE, "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _unroll(node: Node, d: RecurrentDirection, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Run one direction over (T, N, I); rows shorter than T keep their state and yield zeros."""
    step, _ = _STEPS[node.op_type]
    time = x.shape[0]
    if d.reverse:
        x = _reversed(x, lengths)
    weights, x = d.w.transpose(0, 1), _coarse(node, x)
    xw = node.inner("input", matrix_product(x, weights), product(x, weights)) + d.wb
    h, c = d.h, d.c
    ys = []
    for t in range(time):
        new_h, new_c = step(node, d, xw[t], h, c)
        if lengths is None:
            y, h, c = new_h, new_h, new_c
        else:
            alive = (lengths > t).unsqueeze(-1)
            y = torch.where(alive, new_h, torch.zeros_like(new_h))
            h, c = torch.where(alive, new_h, h), torch.where(alive, new_c, c)
        ys.append(y)
    out = torch.stack(ys) if ys else x.new_zeros(0, x.shape[1], h.shape[-1])
    return (_reversed(out, lengths) if d.reverse else out), h, c


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse time, each row within its own length."""
    if lengths is None:
        return x.flip(0)
    time = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    index = torch.where(time < lengths, lengths - 1 - time, time)
    return x.gather(0, index.unsqueeze(-1).expand_as(x))


@operator("LSTM", "GRU", "RNN", since=7)
def recurrent(node: Node, x: Tensor, w: Tensor, r: Tensor, *optional: Tensor | None) -> Result:
    """A recurrent layer in one or two directions; X is (T, N, I), or (N, T, I) with ``layout`` 1."""
    b, lengths, h0, c0, p = (*optional, *[None] * 5)[:5]
    batch_first = node.integer("layout", 0) == 1
    if batch_first:
        x = x.transpose(0, 1)
        h0, c0 = (None if s is None else s.transpose(0, 1) for s in (h0, c0))
    gates = _STEPS[node.op_type][1]
    directions, size = w.shape[0], r.shape[-1]
    zeros = x.new_zeros(directions, x.shape[1], size)
    bias = x.new_zeros(directions, 2 * gates * size) if b is None else b
    activations = _activations(node, directions, _DEFAULTS[node.op_type])
    share = len(activations) // directions
    lengths = None if lengths is None else lengths.to(device=x.device, dtype=torch.int64)
    runs = []
    for i in range(directions):
        direction = RecurrentDirection(
            w[i], r[i], bias[i][: gates * size], bias[i][gates * size :],
            (zeros if h0 is None else h0)[i], (zeros if c0 is None else c0)[i], None if p is None else p[i],
            activations[share * i : share * (i + 1)], reverse=i == 1 or node.text("direction", "forward") == "reverse",
        )  # fmt: skip
        runs.append(_unroll(node, direction, x, lengths))
    y = torch.stack([run[0] for run in runs], 1)
    h, c = (torch.stack([run[i] for run in runs]) for i in (1, 2))
    if batch_first:
        y, h, c = y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)
    outputs = (y, h, c) if node.op_type.endswith("LSTM") else (y, h)
    # Every time step has been shown: the layer itself adds no rounding of its own.
    return Result(outputs, EXACT, [node.format(0)] * len(outputs))

"""Fused recurrent layers, unrolled: for each time step one step for the gates and one for the cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.formulas.recurrent import LstmVariant, gru_cell, lstm_cell
from driftscope.lift.formulas.terms import EXACT, FUNCTION, Show, dot
from driftscope.lift.steps import Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.ops.quantised import dynamic_product, half_product
from driftscope.lift.torch.ops.registry import Outputs, rule

_aten = torch.ops.aten
# The kernels' numbers of the recurrent modes.
_MODES = {0: "relu", 1: "tanh", 2: "lstm", 3: "gru"}


class _Layer:
    """One direction of one recurrent layer.

    Parameters
    ----------
    mode : str
        "lstm", "gru", "tanh" or "relu".
    weights : list of torch.Tensor or None
        ``w_ih`` (G·H, I), ``w_hh`` (G·H, H), ``b_ih``, ``b_hh`` (G·H,).
    """

    def __init__(self, call: Call, label: str, mode: str, weights: list[torch.Tensor | None]):
        self._call = call
        self._label = label
        self._mode = mode
        self._w_ih, self._w_hh, self._b_ih, self._b_hh = weights

    def run(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None, reverse: bool) -> Any:
        """Unroll over time: `x` (T, B, I), `h`, `c` (B, H); gives outputs (T, B, H) and the last states."""
        projected = self._input(x)
        outputs: list[torch.Tensor] = []
        order = range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0])
        for t in order:
            h, c = self._cell(f"{self._label}t{t}", projected[t], h, c)
            outputs.append(h)
        return torch.stack(outputs[::-1] if reverse else outputs), h, c

    def _input(self, x: torch.Tensor) -> torch.Tensor:
        return self._call.step(f"{self._label}input", _aten.linear.default, x, self._w_ih, self._b_ih)

    def _recurrent(self, label: str, h: torch.Tensor) -> torch.Tensor:
        return self._call.step(f"{label}.recurrent", _aten.linear.default, h, self._w_hh, self._b_hh)

    def _cell(self, label: str, gates: torch.Tensor, h: torch.Tensor, c: torch.Tensor | None) -> Any:
        recurrent = self._recurrent(label, h)
        show = _labelled(self._call, label)
        if self._mode == "lstm":
            return _lstm_cell(show, gates + recurrent, c)
        if self._mode == "gru":
            return _gru_cell(show, gates, recurrent, h), None
        function = _aten.tanh.default if self._mode == "tanh" else _aten.relu.default
        return self._call.step(label, function, gates + recurrent), None


class _PackedLayer(_Layer):
    """The same with packed int8 weights; a whole sequence is rounded by one range, each state by its own.

    Parameters
    ----------
    mode : str
        "lstm" or "gru".
    cell : torch.ScriptObject
        torch's ``rnn.CellParamsBase``.
    """

    def __init__(self, call: Call, label: str, mode: str, cell: Any):
        super().__init__(call, label, mode, [None] * 4)
        (kind, _, _, (reduced,), self._packed), _ = cell.__getstate__()
        if kind != "quantized_dynamic":
            raise CannotLift(f"{call.entry.where}: a recurrent layer of the kind {kind!r} is not lifted.")
        self._reduced = bool(reduced)

    def _input(self, x: torch.Tensor) -> torch.Tensor:
        return self._product("input", f"{self._label}input", 0, x)

    def _recurrent(self, label: str, h: torch.Tensor) -> torch.Tensor:
        return self._product("recurrent", f"{label}.recurrent", 1, h)

    def _product(self, which: str, label: str, number: int, x: torch.Tensor) -> torch.Tensor:
        name = f"{self._call.entry.name}.{self._label}{which}"
        out = dynamic_product(x, self._packed[number], name, self._reduced)
        return self._call.show(label, out, dot(x.shape[-1]), (x,))


class _PackedCell(_PackedLayer):
    """A cell that is called by itself, with the packed weights of its input and its state.

    Parameters
    ----------
    mode : str
        "lstm", "gru", "tanh" or "relu".
    packed : list of torch.ScriptObject
        What ``linear_prepack`` or ``linear_prepack_fp16`` made of weights and biases.
    """

    def __init__(self, call: Call, mode: str, packed: list[Any]):
        _Layer.__init__(self, call, "", mode, [None] * 4)
        self._packed, self._reduced = packed, True

    def _product(self, which: str, label: str, number: int, x: torch.Tensor) -> torch.Tensor:
        if _packs_integers(self._packed[number]):
            return super()._product(which, label, number, x)
        out = half_product(x, self._packed[number], f"{self._call.entry.name}.{which}")
        return self._call.show(label, out, dot(x.shape[-1]), (x,))


def _packs_integers(packed: Any) -> bool:
    weight, _ = torch.ops.quantized.linear_unpack(packed)
    return bool(weight.is_quantized)


def _lstm_cell(show: Show, gates: torch.Tensor, c: torch.Tensor | None) -> Any:
    i, f, g, o = gates.chunk(4, -1)
    return lstm_cell(show, (i, f, g, o), torch.zeros_like(i) if c is None else c, LstmVariant())


def _gru_cell(show: Show, a: torch.Tensor, b: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    (ar, az, an), (br, bz, bn) = a.chunk(3, -1), b.chunk(3, -1)
    return gru_cell(show, (az + bz, ar + br), lambda reset: an + reset * bn, h)


def _labelled(call: Call, label: str) -> Show:
    """Show the steps of a cell under its own name."""

    def show(name: str, output: Any, rounding: Rounding, inputs: Any = (), /, *, stored: bool = True) -> torch.Tensor:
        return call.show(f"{label}.{name}", output, rounding, inputs, stored=stored)

    return show


@rule("mkldnn_rnn_layer")
def _mkldnn(call: Call) -> tuple[Outputs, Rounding]:
    """One direction of one layer on the CPU; time is the first dimension, whatever `batch_first` says."""
    mode = _MODES[int(call.raw("mode"))]
    weights = [call.value(f"weight{i}") for i in range(4)]
    if not call.raw("has_biases"):
        weights[2:] = [None, None]
    h, c = call.value("hx_"), call.value("cx_")
    layer = _Layer(call, "", mode, weights)
    out, h, c = layer.run(call.value("input"), h.reshape(-1, h.shape[-1]), c.reshape(-1, c.shape[-1]),
                          bool(call.raw("reverse")))  # fmt: skip
    return [*_shaped(call, [out, h, c]), *_workspace(call, 3)], EXACT


def _shaped(call: Call, tensors: list[torch.Tensor | None]) -> Outputs:
    """Give results the shapes that the kernel gives them (states may have leading ones)."""
    values = call.replay.tape.values
    shaped: Outputs = []
    for number, tensor in zip(call.entry.outputs, tensors, strict=False):
        fits = number is not None and tensor is not None
        shaped.append(
            tensor.reshape(values[number].shape) if fits and tensor is not None and number is not None else tensor
        )
    return shaped


def _workspace(call: Call, first: int) -> Outputs:
    """Stand in for what a kernel saves for a backward pass only."""
    values = call.replay.tape.values
    rest = call.entry.outputs[first:]
    formats = call.formats[first:]
    return [
        None if number is None or f is None else torch.zeros(values[number].shape, dtype=_wide(f))
        for number, f in zip(rest, formats, strict=True)
    ]


def _wide(format: torch.dtype) -> torch.dtype:
    return torch.float64 if format.is_floating_point else format


@rule("_cudnn_rnn", "miopen_rnn")
def _cudnn(call: Call) -> tuple[Outputs, Rounding]:
    """All layers and directions in one kernel (CUDA)."""
    if call.raw("proj_size") or call.raw("batch_sizes"):
        raise CannotLift(f"{call.entry.where}: projected or packed sequences inside a fused kernel are not lifted.")
    if call.raw("train") and call.raw("dropout"):
        raise CannotLift(f"{call.entry.where} drops out inside a fused kernel; call eval() on the module.")
    mode = _MODES[int(call.raw("mode"))]
    stride = int(call.raw("weight_stride0"))
    weights: list[Any] = call.value("weight")

    def unit(n: int, label: str) -> _Layer:
        return _Layer(call, label, mode, [*weights[n * stride : (n + 1) * stride], None, None][:4])

    states = _stacked(call, unit, call.value("hx"), call.value("cx"))
    return [*_shaped(call, states), *_workspace(call, 3)], EXACT


def _stacked(
    call: Call, unit: Callable[[int, str], _Layer], h0: torch.Tensor, c0: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """All layers and directions of a kernel that has them: the outputs and the last states."""
    x = call.value("input")
    x = x.transpose(0, 1) if call.raw("batch_first") else x
    directions = 2 if call.raw("bidirectional") else 1
    last_h, last_c = [], []
    for layer in range(int(call.raw("num_layers"))):
        sides = []
        for direction in range(directions):
            n = layer * directions + direction
            one = unit(n, f"l{layer}d{direction}.")
            out, h, c = one.run(x, h0[n], None if c0 is None else c0[n], direction == 1)
            sides.append(out)
            last_h.append(h)
            last_c.append(c)
        x = torch.cat(sides, -1)
    x = x.transpose(0, 1) if call.raw("batch_first") else x
    return [x, torch.stack(last_h), torch.stack(last_c) if last_c[0] is not None else None]


@rule("quantized_lstm", "quantized_gru")
def _quantised(call: Call) -> tuple[Outputs, Rounding]:
    """Layers of torch.ao's dynamic int8 quantisation."""
    if call.raw("train") and call.raw("dropout"):
        raise CannotLift(f"{call.entry.where} drops out inside a fused kernel; call eval() on the module.")
    cells, states = call.raw("params"), call.value("hx")
    mode = call.facts.name.removeprefix("quantized_")
    h0, c0 = (states[0], states[1]) if mode == "lstm" else (states, None)
    found = _stacked(call, lambda n, label: _PackedLayer(call, label, mode, cells[n]), h0, c0)
    return found if mode == "lstm" else found[:2], EXACT


@rule("quantized_lstm_cell_dynamic", "quantized_gru_cell_dynamic", "quantized_rnn_tanh_cell_dynamic",
      "quantized_rnn_relu_cell_dynamic")  # fmt: skip
def _quantised_cell(call: Call) -> tuple[Outputs, Rounding]:
    """One step of a layer of torch.ao: weights packed in int8, of 7-bit activations, or in float16."""
    mode = call.facts.name.removeprefix("quantized_").removesuffix("_cell_dynamic").removeprefix("rnn_")
    states = call.value("hx")
    h, c = (states[0], states[1]) if mode == "lstm" else (states, None)
    layer = _PackedCell(call, mode, [call.raw("w_ih"), call.raw("w_hh")])
    _, h, c = layer.run(call.value("input").unsqueeze(0), h, c, reverse=False)
    return [h, c] if mode == "lstm" else [h], EXACT


@rule("_thnn_fused_lstm_cell")
def _fused_lstm(call: Call) -> tuple[Outputs, Rounding]:
    gates = call.value("input_gates") + call.value("hidden_gates")
    for name in ("input_bias", "hidden_bias"):
        bias = call.value(name)
        gates = gates if bias is None else gates + bias
    h, c = _lstm_cell(call.show, gates, call.value("cx"))
    return [h, c, *_workspace(call, 2)], FUNCTION


@rule("_thnn_fused_gru_cell")
def _fused_gru(call: Call) -> tuple[Outputs, Rounding]:
    sides = []
    for kind in ("input", "hidden"):
        bias = call.value(f"{kind}_bias")
        gates = call.value(f"{kind}_gates")
        sides.append(gates if bias is None else gates + bias)
    return [_gru_cell(call.show, sides[0], sides[1], call.value("hx")), *_workspace(call, 1)], FUNCTION

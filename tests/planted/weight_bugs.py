"""Bugs in stored weights: a layout, a rounding, a missing piece, a fold that forgot something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from onnx import ModelProto

from .architectures import ARCHITECTURES
from .bug import CHEAPER, FLOAT, Bug, Plant
from .edits import change, find, store, stored, user_of

Array = np.ndarray


def _weight(operator: str, index: int, edit: Callable[[Array], Array], slot: int = 1) -> Plant:
    return lambda model: change(find(model, operator, index), model, slot, edit)


def _named(name: str, edit: Callable[[Array], Array]) -> Plant:
    def plant(model: ModelProto) -> str:
        store(model, name, np.asarray(edit(stored(model, name)), dtype=stored(model, name).dtype))
        return user_of(model, name).name

    return plant


def _rounded(dtype: Any) -> Callable[[Array], Array]:
    return lambda w: w.astype(dtype).astype(np.float32)


def _channel_scaled(w: Array) -> Array:
    scaled = w.astype(np.float32)
    scaled[3] *= np.float32(1.001)
    return scaled


def _int8_grid(w: Array) -> Array:
    step = np.abs(w).max() / 127
    return np.round(w.astype(np.float32) / step) * step


def _row_zeroed(w: Array) -> Array:
    w[5] = 0
    return w


def _one_sign(w: Array) -> Array:
    w[2, 3] = -w[2, 3]
    return w


def _heads_exchanged(w: Array) -> Array:
    """Exchange the first two heads (8 columns each) of a projection stored as (in, out)."""
    return np.concatenate((w[:, 8:16], w[:, :8], w[:, 16:]), axis=1)


def _interleaved(w: Array) -> Array:
    """Read heads of (8) as if they were stored as (8, heads)."""
    return w.reshape(w.shape[0], 4, 8).transpose(0, 2, 1).reshape(w.shape)


def _gates(order: tuple[int, ...]) -> Callable[[Array], Array]:
    """Permute the gate blocks of a recurrent weight (directions, gates * hidden, ...)."""

    def edit(w: Array) -> Array:
        return np.concatenate([np.split(w, len(order), axis=1)[g] for g in order], axis=1)

    return edit


def _recurrent_bias_dropped(b: Array) -> Array:
    b[:, b.shape[1] // 2 :] = 0
    return b


def _fold(conv: str, norm: str, eps: float) -> Plant:
    """Fold BatchNorm into its convolution again, with another epsilon."""

    def plant(model: ModelProto) -> str:
        dtype = torch.from_numpy(stored(model, "conv1.weight")).dtype
        module = ARCHITECTURES["convnet"].module(dtype)
        layer, bn = module.get_submodule(conv), module.get_submodule(norm)
        node = user_of(model, f"{conv}.weight")
        with torch.no_grad():
            scale = bn.weight / torch.sqrt(bn.running_var + eps)
            bias = torch.zeros_like(bn.bias) if layer.bias is None else layer.bias
            store(model, node.input[1], (layer.weight * scale[:, None, None, None]).numpy())
            store(model, node.input[2], ((bias - bn.running_mean) * scale + bn.bias).numpy())
        return node.name

    return plant


def _query_key_exchanged(model: ModelProto) -> str:
    q, k = find(model, "MatMul", 0), find(model, "MatMul", 1)
    q.input[1], k.input[1] = k.input[1], q.input[1]
    return q.name


def _gate_up_exchanged(model: ModelProto) -> str:
    gate, up = find(model, "MatMul", 4), find(model, "MatMul", 5)
    gate.input[1], up.input[1] = up.input[1], gate.input[1]
    return gate.name


WEIGHT_BUGS = (
    Bug("square-weight-transposed", "encoder", _weight("MatMul", 5, np.transpose), "attention's output projection"),
    Bug("square-gemm-transposed", "mlp", _weight("Gemm", 0, np.transpose), "the first layer"),
    Bug("bias-plus-1e-3", "encoder", _named("layers.1.up.bias", lambda b: b + 1e-3), "a thousandth too much"),
    Bug("bias-dropped", "mlp", _named("third.bias", lambda b: b * 0), "one bias is zero"),
    Bug("bias-of-another-layer", "mlp", _named("second.bias", lambda b: b[::-1]), "a bias stored backwards"),
    Bug(
        "weight-in-bfloat16", "encoder", _weight("MatMul", 15, _rounded(ml_dtypes.bfloat16)), "8 bits", expected=CHEAPER
    ),
    Bug("weight-in-float8", "mlp", _weight("Gemm", 1, _rounded(ml_dtypes.float8_e4m3fn)), "4 bits", expected=CHEAPER),
    Bug("weight-on-int8-grid", "decoder", _weight("MatMul", 14, _int8_grid), "one scale", expected=CHEAPER),
    Bug("channel-x1.001", "mlp", _weight("Gemm", 2, _channel_scaled), "one output channel"),
    Bug("rows-rolled", "encoder", _weight("MatMul", 6, lambda w: np.roll(w, 1, axis=0)), "by one"),
    Bug("row-zeroed", "encoder", _weight("MatMul", 7, _row_zeroed), "one input pruned"),
    Bug("one-sign-flipped", "mlp", _weight("Gemm", 4, _one_sign), "one weight of 336"),
    Bug("heads-exchanged", "encoder", _weight("MatMul", 10, _heads_exchanged), "two heads of the values"),
    Bug("heads-interleaved", "padded", _weight("MatMul", 0, _interleaved), "queries read in another layout"),
    Bug("query-key-exchanged", "encoder", _query_key_exchanged, "weights of q and k"),
    Bug("gate-up-exchanged", "decoder", _gate_up_exchanged, "SwiGLU's two branches"),
    Bug("gru-gates-exchanged", "recurrent", _weight("GRU", 0, _gates((1, 0, 2))), "update and reset"),
    Bug("lstm-gates-torch-order", "recurrent", _weight("LSTM", 0, _gates((0, 2, 3, 1))), "iofc read as ifgo"),
    Bug("lstm-directions-exchanged", "recurrent", _weight("LSTM", 0, lambda w: w[::-1], slot=2), "recurrence only"),
    Bug("gru-recurrent-bias-dropped", "recurrent", _weight("GRU", 0, _recurrent_bias_dropped, slot=3), "Rb is zero"),
    Bug("batchnorm-fold-without-epsilon", "convnet", _fold("conv1", "bn1", 0.0), "1e-5 to 0", (FLOAT,)),
    Bug("batchnorm-fold-default-epsilon", "convnet", _fold("conv2", "bn2", 1e-5), "1e-3 to 1e-5"),
    Bug("kernel-flipped", "convnet", _weight("Conv", 2, lambda w: w[:, :, ::-1, ::-1]), "a true convolution"),
    Bug("channels-reversed", "convnet", _weight("Conv", 0, lambda w: w[:, ::-1]), "RGB read as BGR"),
    Bug("upsampling-kernel-flipped", "groupnet", _weight("ConvTranspose", 0, lambda w: w[:, :, ::-1]), "rows"),
    Bug("norm-weight-plus-one", "decoder", _named("layers.1.norm2.weight", lambda w: 1 + w), "another convention"),
    Bug("relative-heads-rolled", "relative", _named("permute", lambda b: np.roll(b, 1, axis=0)), "biases of heads"),
)

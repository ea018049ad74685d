"""One onnxruntime kernel at a time: the error it really makes, in units of the noise that is injected for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from one_node import OneNode, lifted, run

from driftscope.lift.noise.floor import noise_samples


def normal(*shape: int, mean: float = 0.0, scale: float = 1.0) -> np.ndarray:
    values = np.random.default_rng(shape[-1]).standard_normal(shape) * scale + mean
    return values.astype(np.float32)


def node(op_type: str, *inputs: np.ndarray, **attributes: object) -> OneNode:
    return OneNode(op_type, inputs, attributes, domain="")


X, POSITIVE = normal(200, 256), np.abs(normal(200, 256)) + np.float32(0.01)

KERNELS: Mapping[str, OneNode] = {
    "Add": node("Add", X, normal(200, 257)[:, 1:]),
    "Div": node("Div", X, POSITIVE),
    **{name: node(name, X) for name in ("Exp", "Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Gelu", "Softplus")},
    **{name: node(name, POSITIVE) for name in ("Sqrt", "Log", "Reciprocal")},
    **{f"MatMul {k}": node("MatMul", normal(96, k), normal(k, 128)) for k in (8, 64, 256, 1280, 2048)},
    **{f"MatMul {k} mean 1": node("MatMul", normal(96, k, mean=1), normal(k, 128, mean=1)) for k in (64, 1280)},
    **{f"Gemm {k}": node("Gemm", normal(96, k), normal(k, 128), normal(128)) for k in (64, 1280)},
    "Conv 16": node("Conv", normal(2, 16, 16, 16), normal(32, 16, 3, 3), pads=[1, 1, 1, 1]),
    "Conv 64": node("Conv", normal(2, 64, 16, 16), normal(32, 64, 1, 1)),
    **{f"ReduceSum {n}": node("ReduceSum", normal(400, n), np.array([1])) for n in (64, 1024, 4096)},
    "ReduceMean 1024": node("ReduceMean", normal(400, 1024, mean=1), np.array([1])),
    **{f"Softmax {n}": node("Softmax", normal(2**16 // n, n)) for n in (16, 64, 1024, 4096)},
    "Softmax 256 x10": node("Softmax", normal(200, 256, scale=10.0)),
    "LogSoftmax 1024": node("LogSoftmax", normal(64, 1024)),
    **{
        f"LayerNormalization {n} mean {m}": node(
            "LayerNormalization", normal(2**16 // n, n, mean=m), np.ones(n, np.float32)
        )
        for n, m in ((64, 0), (1024, 0), (1024, 10))
    },
}


#: Coordinates are computed in float32 by both runtimes, here with fewer roundings than in torch.
RESIZES = {
    f"{mode} x{scale} {transform}": OneNode(
        "Resize",
        (normal(1, 2, 64, 64), None, np.array([1, 1, scale, scale], np.float32)),
        {"mode": mode, "coordinate_transformation_mode": transform},
        domain="",
        weights=(2,),
    )
    for mode in ("linear", "cubic")
    for scale in (1.7, 2.0)
    for transform in ("half_pixel", "align_corners")
}


def recurrent(op_type: str, gates: int, scale: float) -> OneNode:
    """A layer whose activations lie near zero (scale 0.001), or where they are one or minus one (30 and 300)."""
    w, r = normal(1, gates * 12, 8) / np.float32(8), normal(1, gates * 12, 12) / np.float32(12)
    return node(op_type, normal(5, 32, 8, scale=scale), w, r, hidden_size=12)


RECURRENT = {
    f"{op_type} x{scale}": recurrent(op_type, gates, scale)
    for op_type, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
    for scale in ((0.001, 1, 30, 300) if op_type == "RNN" else (1, 30, 300))
}


def error_in_noise(kernel: OneNode) -> float:
    """rms(native - own lift) / floor."""
    model, feeds = kernel.model(), kernel.feeds()
    (native,) = run(model, feeds)
    graph = lifted(model, feeds)
    clean = graph.run()
    value = clean[0].value
    assert value is not None
    noise = torch.stack([sample[0] for sample in noise_samples(graph, clean)])
    error = torch.from_numpy(native).double() - value
    return float(error.square().mean().sqrt() / noise.square().mean().sqrt())


@pytest.mark.parametrize("name", KERNELS)
def test_the_error_of_a_kernel_is_the_noise_of_its_step(name):
    assert 0.4 < error_in_noise(KERNELS[name]) < 1.35


@pytest.mark.parametrize("name", RESIZES)
def test_the_error_of_resizing_is_the_noise_of_its_step(name):
    assert 0.3 < error_in_noise(RESIZES[name]) < 1.35


@pytest.mark.parametrize("name", RECURRENT)
def test_the_error_of_a_recurrent_layer_is_the_noise_of_its_steps(name):
    """Those of onnxruntime's GRU and RNN have a tanh of their own; where that of others is one it has no error."""
    exact = name in ("LSTM x30", "LSTM x300", "RNN x30", "RNN x300")
    assert (0.02 if exact else 0.5) < error_in_noise(RECURRENT[name]) < 1.35

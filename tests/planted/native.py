"""Run a file in onnxruntime as it stands: no optimiser, one thread."""

from __future__ import annotations

import numpy as np
import onnxruntime
import torch
from onnx import ModelProto

from .architectures import ARCHITECTURES


def feeds_of(model: ModelProto, name: str, dtype: str) -> dict[str, np.ndarray]:
    """Return the architecture's example under the file's input names."""
    example = ARCHITECTURES[name].example(getattr(torch, dtype))
    return {i.name: t.numpy() for i, t in zip(model.graph.input, example, strict=True)}


def native_outputs(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def relative_rms(expected: np.ndarray, got: np.ndarray) -> float:
    """Return rms(got - expected) / rms(expected); inf where NaN appears."""
    wide, other = expected.astype(np.float64), got.astype(np.float64)
    ratio = float(np.sqrt(np.mean((other - wide) ** 2) / np.mean(wide**2)))
    return ratio if np.isfinite(ratio) else float("inf")

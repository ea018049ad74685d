"""One node, run by onnxruntime and evaluated in float64: the ground truth of an operator's evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper, numpy_helper

from driftscope.lift.onnx.graph import LiftedOnnx, lift_onnx

OPSET = 20
PRECISION = {np.dtype(np.float32): 2e-6, np.dtype(np.float16): 2e-3, np.dtype(np.float64): 1e-13}


@dataclass
class OneNode:
    """A node, its inputs by position (None: left out) and the number of its outputs."""

    op_type: str
    inputs: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int | Sequence[int] = 1
    domain: str = "com.microsoft"
    weights: Sequence[int] = ()  # inputs that are initializers
    opset: int = OPSET

    def model(self) -> onnx.ModelProto:
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        wanted = range(self.outputs) if isinstance(self.outputs, int) else self.outputs
        outputs = [f"y{i}" if i in wanted else "" for i in range(max(wanted) + 1)]
        node = helper.make_node(self.op_type, names, outputs, "node", domain=self.domain, **self.attributes)
        infos, initializers = [], []
        for i, x in enumerate(self.inputs):
            if x is None:
                continue
            if i in self.weights:
                initializers.append(numpy_helper.from_array(x, f"x{i}"))
            else:
                element = helper.np_dtype_to_tensor_dtype(x.dtype)
                infos.append(helper.make_tensor_value_info(f"x{i}", element, x.shape))
        results = [onnx.ValueInfoProto(name=o) for o in outputs if o]
        graph = helper.make_graph([node], "one_node", infos, results, initializers)
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feeds(self) -> dict[str, np.ndarray]:
        return {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None and i not in self.weights}


def session(model: onnx.ModelProto, **options: Any) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in options.items():
        setattr(settings, name, value)
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return session(model).run(None, dict(feeds))


def lifted(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> LiftedOnnx:
    return lift_onnx(model, {name: torch.from_numpy(x) for name, x in feeds.items()})


def distance(expected: np.ndarray, value: torch.Tensor) -> float:
    """Greatest difference, in units of the expected values' rms; infinite where shapes or NaNs differ."""
    got = value.to(torch.float64).numpy() if value.is_floating_point() else value.numpy()
    if got.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    a, b = expected.astype(np.float64), got.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.where(np.isfinite(a), a, 0)
    scale = np.sqrt(np.mean(finite**2)) or 1.0
    return float(np.max(np.where(same, 0, np.abs(a - b))) / scale)


def assert_lift_agrees(case: OneNode, precision: float | None = None) -> list[torch.Tensor]:
    """Require the lift of a node to equal onnxruntime within the rounding of the node's output dtype."""
    model, feeds = case.model(), case.feeds()
    expected = run(model, feeds)
    results = lifted(model, feeds).run()
    assert len(results) == len(expected)
    for want, got in zip(expected, results, strict=True):
        assert got.value is not None
        named = str(got.format).removeprefix("torch.")
        assert named == want.dtype.name, f"{got.name} is {want.dtype} in onnxruntime and {named} in the lift"
        limit = precision if precision is not None else PRECISION.get(want.dtype, 0.0)
        found = distance(want, got.value)
        assert found <= limit, f"{case.op_type} {got.name}: {found:.3g} of rms, limit {limit:.3g}"
    return [r.value for r in results if r.value is not None]

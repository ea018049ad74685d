"""The loops a person writes to compare products and normalisations across runtimes: one session, one pair at a time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import onnxruntime
import torch
from onnx_diagnostic.helpers import max_diff

from driftscope.studies.gemm_variants import ONNX_VARIANTS, onnx_model
from driftscope.studies.layer_norm_chain import OPERATORS, chain_model

matplotlib.use("Agg")
NUMPY = {"float32": np.float32, "float16": np.float16}


def _session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _matrix(results: list[torch.Tensor]) -> np.ndarray[Any, Any]:
    found = np.zeros((len(results), len(results)), dtype=np.float32)
    for i, j in itertools.combinations(range(len(results)), 2):
        found[i, j] = found[j, i] = max_diff(results[i], results[j])["abs"]
    return found


def products(size: int, path: Path, *, measured_again: int = 0) -> None:
    """Eight ways to compute ``A @ X + B`` in two dtypes on two data sets, all pairs, a figure of heat maps.

    Parameters
    ----------
    measured_again : int
        How often the pairs of the second data set are measured again, once for each further figure: that is what the
        published script does.
    """
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(4, 2, figsize=(12, 16))
    generator = torch.Generator().manual_seed(0)
    for row, (data, dtype) in enumerate(itertools.product(("normal", "bias"), ("float32", "float16"))):
        a, x = torch.randn((size, size), generator=generator), torch.randn((size, size), generator=generator)
        b = torch.randn(size, generator=generator)
        if data == "bias":
            a, x, b = a / a.max(), x / x.max(), (torch.arange(size, dtype=torch.float32) + 1) / size * 16
        a, x, b = (t.to(getattr(torch, dtype)) for t in (a, x, b))
        feeds = {"A": a.numpy(), "X": x.numpy(), "B": b.numpy()}
        results = [torch.nn.functional.linear(a, x.T, b)]
        for kind in ONNX_VARIANTS:
            y = _session(onnx_model(kind, dtype, (size, size, size))).run(None, feeds)[0]
            results.append(torch.from_numpy(y))
        results.append(a @ x + b)
        panels[row, 0].imshow(_matrix(results))
        for _ in range(measured_again if data == "bias" else 0):
            panels[row, 0].imshow(_matrix(results))
        columns = (results[0].float() - results[1].float()).abs().max(dim=0)[0]
        panels[row, 1].plot(b.tolist(), columns.tolist(), ".")
    figure.savefig(path)
    plt.close(figure)


def normalisations(rows: int, last_dim: int, path: Path) -> None:
    """All mixtures of three operators in two runtimes and the whole graph, in two dtypes, all pairs, a figure."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(12, 8))
    generator = torch.Generator().manual_seed(0)
    for row, dtype in enumerate(("float32", "float16")):
        kind = getattr(torch, dtype)
        shapes = {"x": (rows, last_dim), "scale": (last_dim,), "shift": (last_dim,), "W": (last_dim, last_dim),
                  "B": (last_dim,)}  # fmt: skip
        operands = {name: torch.randn(shape, generator=generator).to(kind) for name, shape in shapes.items()}
        results = [_mixture(letters, operands, dtype) for letters in itertools.product("to", repeat=3)]
        whole = _session(chain_model(OPERATORS, dtype, operands))
        results.append(torch.from_numpy(whole.run(None, {k: v.numpy() for k, v in operands.items()})[0]))
        panels[row, 0].imshow(_matrix(results))
        difference = (results[0].float() - results[-1].float()).flatten()
        panels[row, 1].hist(difference.numpy(), bins=50, log=True)
    figure.savefig(path)
    plt.close(figure)


def _mixture(letters: tuple[str, ...], operands: dict[str, torch.Tensor], dtype: str) -> torch.Tensor:
    n = _one("LayerNormalization", letters[0], {k: operands[k] for k in ("x", "scale", "shift")}, dtype)
    m = _one("MatMul", letters[1], {"n": n, "W": operands["W"]}, dtype)
    return _one("Add", letters[2], {"m": m, "B": operands["B"]}, dtype)


def _one(operator: str, letter: str, given: dict[str, torch.Tensor], dtype: str) -> torch.Tensor:
    if letter == "o":
        model = chain_model((operator,), dtype, given)
        return torch.from_numpy(_session(model).run(None, {k: v.numpy() for k, v in given.items()})[0])
    first, second, *third = given.values()
    if operator == "LayerNormalization":
        return torch.nn.functional.layer_norm(first, first.shape[-1:], second, third[0], 1e-5)
    return first @ second if operator == "MatMul" else first + second

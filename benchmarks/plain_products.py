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

from driftscope.studies.gemm_study.variants import ONNX_VARIANTS, onnx_model
from driftscope.studies.layer_norm_study.chain import OPERATORS, chain_model

matplotlib.use("Agg")
NUMPY = {"float32": np.float32, "float16": np.float16}


def _session(model: Any, optimised: bool = False) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
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


def normalisations(rows: int, last_dim: int, path: Path | None, *, exact: bool = False) -> None:
    """All mixtures of three operators in two runtimes and the whole graph, in two dtypes, all pairs.

    Parameters
    ----------
    path : Path or None
        Where a figure is drawn to.
    exact : bool
        Answer all that the study answers: the optimised graph too, every way against float64 with the histogram of its
        errors, and the implementations of the normalisation against float64.
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for dtype in ("float32", "float16"):
        kind = getattr(torch, dtype)
        shapes = {"x": (rows, last_dim), "scale": (last_dim,), "shift": (last_dim,), "W": (last_dim, last_dim),
                  "B": (last_dim,)}  # fmt: skip
        operands = {name: torch.randn(shape, generator=generator).to(kind) for name, shape in shapes.items()}
        results = [_mixture(letters, operands, dtype) for letters in itertools.product("to", repeat=3)]
        levels = (False, True) if exact else (False,)
        for optimised in levels:
            whole = _session(chain_model(OPERATORS, dtype, operands), optimised)
            results.append(torch.from_numpy(whole.run(None, {k: v.numpy() for k, v in operands.items()})[0]))
        found.append((_matrix(results), results[0].float() - results[8].float()))
        if exact:
            _against_float64(operands, results, dtype)
    if path is not None:
        _draw(found, path)


def _draw(found: list[tuple[Any, torch.Tensor]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(2, 2, figsize=(12, 8))
    for row, (matrix, difference) in zip(panels, found, strict=True):
        row[0].imshow(matrix)
        row[1].hist(difference.flatten().numpy(), bins=50, log=True)
    figure.savefig(path)
    plt.close(figure)


def _against_float64(operands: dict[str, torch.Tensor], results: list[torch.Tensor], dtype: str) -> list[Any]:
    x, scale, shift, weight, bias = (operands[k].double() for k in ("x", "scale", "shift", "W", "B"))
    normal = torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift, 1e-5)
    right = normal @ weight + bias
    found: list[Any] = [(max_diff(y, right), np.histogram((y.double() - right).numpy(), bins=33)) for y in results]
    given = {k: operands[k] for k in ("x", "scale", "shift")}
    ways = [_one("LayerNormalization", letter, given, dtype) for letter in "to"]
    ways += [_normalised(moments, *given.values()) for moments in (_two_pass, _one_pass, _welford, _in_float64)]
    return found + [max_diff(y, normal) for y in ways]


def _normalised(moments: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    mean, variance = moments(x.float())
    y: torch.Tensor = (x.float() - mean) / torch.sqrt(variance + 1e-5) * scale.float() + shift.float()
    return y.to(x.dtype)


def _two_pass(x: torch.Tensor) -> Any:
    return x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)


def _one_pass(x: torch.Tensor) -> Any:
    mean = x.mean(-1, keepdim=True)
    return mean, (x * x).mean(-1, keepdim=True) - mean * mean


def _in_float64(x: torch.Tensor) -> Any:
    return tuple(t.float() for t in _two_pass(x.double()))


def _welford(x: torch.Tensor) -> Any:
    mean, squares = torch.zeros(len(x), 1), torch.zeros(len(x), 1)
    for k in range(x.shape[1]):
        delta = x[:, k : k + 1] - mean
        mean = mean + delta / (k + 1)
        squares = squares + delta * (x[:, k : k + 1] - mean)
    return mean, squares / x.shape[1]


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

"""One cell of the layer norm study: one data set, dtype and device; all mixtures, all implementations."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driftscope.errors import RuntimeRefused
from driftscope.numerics.seeds import seed_of
from driftscope.programs.torch_devices import device_of
from driftscope.studies import pairwise
from driftscope.studies.layer_norm_study.chain import OPERATORS, WHOLE, ChainKernels, ChainRun, mixtures, run_chain
from driftscope.studies.layer_norm_study.floors import Scales, floor_of_chain, floor_of_normalisation, scales_of
from driftscope.studies.layer_norm_study.implementations import MOMENTS, exact, normalise, rows_of

NOT_AVAILABLE, NOT_FINITE = "not available", "not finite"
HALF_WIDTH, BINS = 4.0, 33  # the histogram reaches from -4 to 4 units in the last place


@dataclass(frozen=True, slots=True)
class _Operands:
    dtype: str
    operands: dict[str, torch.Tensor]
    normal: torch.Tensor  # exact outputs, float64
    result: torch.Tensor
    scales: Scales

    ulp: float  # one unit in the last place at the scale of the result


def layer_norm_cell(
    data: str, dtype: str, device: str, *, rows: int, last_dim: int, threads: int, data_seed: int
) -> list[dict[str, Any]]:
    """Run LayerNormalization, MatMul and Add in every mixture of runtimes, and every implementation of the first.

    Parameters
    ----------
    data, dtype, device : str
    rows, last_dim : int
        Shape of the input; W is square.
    threads : int
    data_seed : int

    Returns
    -------
    list of dict
        Rows of kind ``chain`` (one way to run it: error against float64, roundings, histogram of the errors),
        ``pair`` (two ways), ``operator`` (what exchanging one operator does), ``implementation`` (of the
        normalisation).
    """
    problem = _problem(data, dtype, rows, last_dim, data_seed)
    try:
        where = device_of(device)
    except RuntimeRefused as refused:
        return [{"kind": "chain", "name": "ttt", "verdict": NOT_AVAILABLE, "gap": str(refused)}]
    kernels = ChainKernels({name: value.to(where) for name, value in problem.operands.items()}, threads)
    chains = [run_chain(kernels, name) for name in (*mixtures(), *WHOLE)]
    there = {chain.name: chain for chain in chains if chain.y is not None}
    classes = pairwise.bit_classes({name: chain.y for name, chain in there.items() if chain.y is not None})
    errors: dict[int, _Errors] = {}
    for name, chain in there.items():
        if classes[name] not in errors and chain.y is not None:
            errors[classes[name]] = _errors(problem, chain.y)
    found = [_chain_row(problem, chain, classes, errors) for chain in chains]
    pairs = _pair_rows(problem, there, classes)
    return [*found, *pairs, *_operator_rows(pairs), *_implementation_rows(problem, kernels)]


def _problem(data: str, dtype: str, rows: int, last_dim: int, seed: int) -> _Operands:
    kind: torch.dtype = getattr(torch, dtype)
    operands = {"x": rows_of(data, rows, last_dim, seed), **_weights(last_dim, seed)}
    narrow = {name: value.to(kind) for name, value in operands.items()}
    wide = {name: value.double() for name, value in narrow.items()}
    normal = exact(wide["x"], wide["scale"], wide["shift"])
    product = normal @ wide["W"]
    result = product + wide["B"]
    low, high = torch.aminmax(result)
    ulp = pairwise.ulp_at(dtype, max(-float(low), float(high)))
    return _Operands(dtype, narrow, normal, result, scales_of(wide, normal, product, result), ulp)


@functools.lru_cache(maxsize=1)
def _weights(last_dim: int, seed: int) -> dict[str, torch.Tensor]:
    """Draw what is the same for every data set and dtype."""
    generator = torch.Generator().manual_seed(seed_of("layer_norm", seed, "weights"))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {"scale": 1.0 + 0.1 * draw(last_dim), "shift": 0.1 * draw(last_dim), "W": draw(last_dim, last_dim),
            "B": draw(last_dim)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Errors:
    """Against the exact result: the largest, the root mean square, and counts of the histogram."""

    max_abs: float
    rms: float
    histogram: list[int]


def _errors(problem: _Operands, y: torch.Tensor) -> _Errors:
    errors = y.double().sub_(problem.result)
    max_abs, rms = _extent(errors)
    # By hand: torch.histogram is ten times slower. What lies beyond the ends is counted in the last bins.
    places = errors.mul_(BINS / (2 * HALF_WIDTH * problem.ulp)).add_(BINS / 2).nan_to_num_(0.0).clamp_(0, BINS - 1)
    return _Errors(max_abs, rms, torch.bincount(places.flatten().long(), minlength=BINS).tolist())


def _extent(errors: torch.Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(errors)
    norm = float(torch.linalg.vector_norm(errors, dtype=torch.float64))
    return max(-float(low), float(high)), norm / math.sqrt(errors.numel())


def _chain_row(
    problem: _Operands, chain: ChainRun, classes: Mapping[str, int], errors: Mapping[int, _Errors]
) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": "chain", "name": chain.name, "other": ""}
    if chain.y is None:
        return row | {"verdict": NOT_AVAILABLE, "gap": chain.gap}
    floor, error = _floor(problem, chain), errors[classes[chain.name]]
    return row | {
        "bits": classes[chain.name], "roundings": len(chain.rounding), "rounds": " ".join(chain.rounding),
        **_size(error.max_abs, error.rms, floor, problem.ulp),
        "runtime": chain.changes.words if chain.changes else "",
        "histogram": error.histogram,
    }  # fmt: skip


def _floor(problem: _Operands, chain: ChainRun) -> float:
    return floor_of_chain(problem.scales, problem.dtype, chain.rounding)


def _size(max_abs: float, rms: float, floor: float, ulp: float) -> dict[str, Any]:
    if not math.isfinite(rms):
        return {"max_abs": max_abs, "rms": rms, "floor": floor, "floors": math.inf, "verdict": NOT_FINITE}
    floors = rms / floor if floor else 0.0
    verdict = pairwise.SAME_BITS if rms == 0 else pairwise.verdict_of(floors)
    return {
        "max_abs": max_abs, "rms": rms, "floor": floor, "floors": floors, "max_ulp": max_abs / ulp, "verdict": verdict,
    }  # fmt: skip


def _pair_rows(problem: _Operands, chains: Mapping[str, ChainRun], classes: Mapping[str, int]) -> list[dict[str, Any]]:
    measured: dict[tuple[int, int], tuple[float, float, float]] = {}
    rows = []
    for one, other in pairwise.pairs_of(list(chains)):
        a, b = chains[one], chains[other]
        row: dict[str, Any] = {"kind": "pair", "name": one, "other": other}
        key = (min(classes[one], classes[other]), max(classes[one], classes[other]))
        if key[0] == key[1]:
            rows.append(row | {"max_abs": 0.0, "rms": 0.0, "floors": 0.0, "max_ulp": 0.0, "changed": 0.0,
                               "verdict": pairwise.SAME_BITS})  # fmt: skip
            continue
        if key not in measured and a.y is not None and b.y is not None:
            difference = a.y.float() - b.y.float()
            # numpy counts truth values by the word; torch's own count takes as long as the matrix product.
            changed = int(np.count_nonzero(difference.ne(0).numpy())) / difference.numel()
            measured[key] = (*_extent(difference), changed)
        max_abs, rms, changed = measured[key]
        floor = math.hypot(_floor(problem, a), _floor(problem, b))
        rows.append(row | _size(max_abs, rms, floor, problem.ulp) | {"changed": changed})
    return rows


def _operator_rows(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say what exchanging one operator does, over the mixtures of the two others."""
    rows = []
    for index, operator in enumerate(OPERATORS):
        alone = [
            pair for pair in pairs
            if len(pair["other"]) == len(OPERATORS) == len(pair["name"])
            and [k for k in range(len(OPERATORS)) if pair["name"][k] != pair["other"][k]] == [index]
        ]  # fmt: skip
        if alone:
            worst = max(alone, key=lambda pair: pair["rms"])
            rms = math.sqrt(sum(pair["rms"] ** 2 for pair in alone) / len(alone))
            rows.append(
                {"kind": "operator", "name": operator, "other": "", "rms": rms, "max_abs": worst["max_abs"],
                 "floors": worst["floors"], "max_ulp": worst["max_ulp"], "verdict": worst["verdict"],
                 "changed": sum(pair["changed"] for pair in alone) / len(alone)}
            )  # fmt: skip
    return rows


def _implementation_rows(problem: _Operands, kernels: ChainKernels) -> list[dict[str, Any]]:
    floor = floor_of_normalisation(problem.scales, problem.dtype)
    ulp = pairwise.ulp_at(problem.dtype, float(problem.normal.abs().max()))
    x, scale, shift = (problem.operands[name] for name in ("x", "scale", "shift"))
    rows = []
    for name in (*MOMENTS, "torch", "onnxruntime"):
        row: dict[str, Any] = {"kind": "implementation", "name": name, "other": "", "negative": 0}
        try:
            if name in MOMENTS:
                y, variance = normalise(name, x, scale, shift)
                row["negative"] = int((variance < 0).sum())  # which no exact variance is
            else:
                y = kernels.normalised(name[0]).cpu()
        except RuntimeRefused as refused:
            rows.append(row | {"verdict": NOT_AVAILABLE, "gap": " ".join(str(refused).split())[:300]})
            continue
        size = _size(*_extent(y.double().sub_(problem.normal)), floor, ulp)
        rows.append(row | size)
    return rows

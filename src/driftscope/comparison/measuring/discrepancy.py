"""The numbers that users of onnx-diagnostic's ``max_diff`` know, for two leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from driftscope.comparison.measuring.metrics import measure
from driftscope.comparison.measuring.operands import operand

#: The thresholds of ``hist=True``.
HISTOGRAM = (0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)

#: Added to ``|expected|`` in the denominator of ``rel``.
REL_OFFSET = 1e-3

Numbers = dict[str, Any]


def incomparable() -> Numbers:
    """Return what a difference of structure or shape amounts to: infinity everywhere."""
    return {"abs": math.inf, "rel": math.inf, "sum": math.inf, "n": math.inf, "dnan": math.inf}


def leaf_discrepancy(expected: Any, got: Any, hist: Sequence[float] = ()) -> Numbers:
    """Measure two leaves; see :func:`driftscope.testing.max_diff` for the keys."""
    e, g = operand(expected), operand(got)
    if e.absent and g.absent:
        return {"abs": 0.0, "rel": 0.0, "sum": 0.0, "n": 0.0, "dnan": 0}
    if e.absent or g.absent or e.shape != g.shape or (e.tensor is None) is not (g.tensor is None):
        return incomparable()
    drift = measure(e, g, thresholds=hist, rel_offset=REL_OFFSET)
    # A NaN or an infinity against a number is no small difference, and neither is one text against another.
    far = drift.special_differ + (drift.differing if e.tensor is None and not drift.max_abs else 0)
    found: Numbers = {
        "abs": math.inf if far else drift.max_abs,
        "rel": math.inf if far else drift.max_rel,
        "sum": math.inf if far else drift.sum_abs,
        "n": float(drift.count),
        "dnan": drift.nan_a + drift.nan_b,
        "argm": drift.worst_index if drift.differing else _first(e.shape, drift.count),
    }
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        found["dev"] = 0 if expected.device == got.device else 1
    if e.dtype != g.dtype and not (e.weak or g.weak):
        found["dtype"] = f"{e.dtype} against {g.dtype}"
    if hist:
        found["rep"] = {f">{h}": count + far for h, (_, count) in zip(hist, drift.above, strict=True)}
    return found


def _first(shape: tuple[int, ...] | None, count: int) -> tuple[int, ...] | None:
    return (0,) * len(shape) if shape is not None and count else None


def combine(parts: Sequence[Numbers]) -> Numbers:
    """Put the numbers of several leaves together: the largest ``abs`` and ``rel``, sums of the rest."""
    total: Numbers = {
        "abs": max((p["abs"] for p in parts), default=0.0),
        "rel": max((p["rel"] for p in parts), default=0.0),
        "sum": sum(p["sum"] for p in parts),
        "n": sum((p["n"] for p in parts), 0.0),
        "dnan": max((p["dnan"] for p in parts), default=0),
    }
    devices = [p["dev"] for p in parts if "dev" in p]
    if devices:
        total["dev"] = sum(devices)
    dtypes = [p["dtype"] for p in parts if "dtype" in p]
    if dtypes:
        total["dtype"] = ", ".join(dict.fromkeys(dtypes))
    histograms = [p["rep"] for p in parts if "rep" in p]
    if histograms:
        total["rep"] = {key: sum(h[key] for h in histograms) for key in histograms[0]}
    return total

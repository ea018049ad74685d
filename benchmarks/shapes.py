"""What a check of shapes costs beside the export it examines, and what covering keeps beside plain exports.

``python -m benchmarks shapes`` prints one line per model and the sums. Times are processor time of this process.

* *export*: one ``torch.export.export`` with ``Dim.AUTO`` on every axis, the least anybody does.
* *check*: ``ds.check_shapes`` without ONNX: every way of exporting that is tried, a few hundred runs of each target.
* *cover*: ``ds.cover``.
* *kept*: shapes at which the model runs that AUTO keeps, and that the cover keeps.
* *onnx*: two conversions with the exporter's operator table built once, beside two that build it at each call.

Goals: a check within 15 exports (median), a cover that keeps at least 98 % of the shapes tried and more than AUTO does,
and conversions at least 1.3 times as fast as torch's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import Dim

import driftscope as ds
from driftscope.shapes.probe.judging_runs import silence
from driftscope.shapes.probe.onnx_conversion import one_table

MOST_EXPORTS = 15.0
LEAST_KEPT = 0.98
LEAST_FASTER = 1.3


class Center(nn.Module):
    """A branch on the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Subtract the mean, unless there is one row."""
        return x if x.shape[0] == 1 else x - x.mean(0)


class Damped(nn.Module):
    """A branch on a length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Halve what is long."""
        return (x / 2 if x.shape[1] > 6 else x).cumsum(1)


class Padded(nn.Module):
    """Padding to a multiple of eight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad, fold, sum."""
        return nn.functional.pad(x, (0, (-x.shape[1]) % 8)).view(x.shape[0], -1, 8).sum(-1)


class Mean(nn.Module):
    """A product that broadcasts, and a size used as a number."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Weighted mean."""
        return (x * y).sum() / x.shape[0]


CASES: tuple[tuple[str, nn.Module, tuple[torch.Tensor, ...]], ...] = (
    ("branch on batch", Center(), (torch.randn(3, 4),)),
    ("branch on length", Damped(), (torch.randn(2, 4),)),
    ("padding", Padded(), (torch.randn(2, 11),)),
    ("broadcasting", Mean(), (torch.randn(3), torch.randn(3))),
    ("linear and softmax", nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), (torch.randn(2, 5, 8),)),
)


def main() -> int:
    """Print the table; the number of goals missed."""
    _seconds(lambda: _export(*CASES[0][1:]))
    ratios, kept, auto_kept, probed = [], 0, 0, 0
    print(f"{'model':20} {'export s':>9} {'check s':>9} {'cover s':>9} {'AUTO keeps':>12} {'cover keeps':>12}")
    for name, model, inputs in CASES:
        export, _ = _seconds(lambda m=model, i=inputs: _export(m, i))
        check, report = _seconds(lambda m=model, i=inputs: ds.check_shapes(m, i, targets=()))
        covering, cover = _seconds(lambda m=model, i=inputs: ds.cover(m, i))
        auto = next((c for c in report.record.candidates if c.mode == "Dim.AUTO"), None)
        tried = auto.right + auto.lost + auto.wrong if auto is not None else 0
        share = auto.right / tried if auto is not None and tried else 0.0
        ratios.append(check / export)
        kept, probed, auto_kept = kept + cover.covered, probed + cover.probed, auto_kept + round(share * cover.probed)
        print(
            f"{name:20} {export:9.2f} {check:9.2f} {covering:9.2f} {share:12.0%} {cover.covered / cover.probed:12.0%}"
        )
    faster = _conversion_ratio()
    print(f"check / export: {statistics.median(ratios):.1f} (goal: at most {MOST_EXPORTS})")
    print(f"kept: cover {kept / probed:.1%}, AUTO {auto_kept / probed:.1%} (goal: at least {LEAST_KEPT:.0%})")
    print(f"conversion to ONNX: {faster:.2f} times as fast with one operator table (goal: {LEAST_FASTER})")
    return sum((statistics.median(ratios) > MOST_EXPORTS, kept / probed < LEAST_KEPT, faster < LEAST_FASTER))


def _export(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    spec = tuple(dict.fromkeys(range(x.ndim), Dim.AUTO) for x in inputs)
    with silence():
        return torch.export.export(model, inputs, dynamic_shapes=spec)


def _conversion_ratio() -> float:
    """How many times as fast conversions are with the operator table kept."""
    program = _export(*CASES[4][1:])

    def convert() -> None:
        with silence():
            torch.onnx.export(program, dynamo=True, verbose=False)

    convert()
    plain = min(_seconds(convert)[0] for _ in range(3))
    with one_table():
        convert()
        kept = min(_seconds(convert)[0] for _ in range(3))
    return plain / kept


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


if __name__ == "__main__":
    raise SystemExit(main())

"""What a comparison of two 1280 x 1280 tensors costs, beside the peers, in one run.

Ratios of CPU time, interleaved so that a busy machine slows both sides alike; the promise stands beside each.
Polygraphy and onnx-diagnostic are measured when they are installed and never needed.

Run: ``python -m benchmarks.metrics``
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.comparison.measuring.metrics import measure
from driftscope.comparison.measuring.pieces import same_bits
from driftscope.testing import assert_close, max_diff

SIZE = 1280
REPEATS = 15


@dataclass(frozen=True)
class Row:
    """One ratio: ours over theirs, with the most it may be (None: only told)."""

    what: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    promise: float | None = None


def ratio(row: Row, repeats: int = REPEATS) -> tuple[float, float, float]:
    """Return the median ratio and both medians in ms, measured turn by turn."""
    for call in (row.ours, row.theirs):
        call()
    times: list[tuple[float, float]] = []
    for _ in range(repeats):
        times.append((_seconds(row.ours), _seconds(row.theirs)))
    ours, theirs = (1e3 * statistics.median(t[i] for t in times) for i in (0, 1))
    return statistics.median(a / b for a, b in times), ours, theirs


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _rejected(check: Callable[[Any, Any], object], a: Any, b: Any) -> None:
    try:
        check(a, b)
    except AssertionError:
        return
    raise SystemExit("the benchmark's failing pair was accepted")


def rows() -> list[Row]:
    """Return what is measured: equal bits, rounding within the tolerance, and a difference."""
    torch.manual_seed(0)
    a = torch.randn(SIZE, SIZE)
    same, near, far = a.clone(), a * (1 + 1e-7 * torch.randn_like(a)), a + 1e-2
    theirs = torch.testing.assert_close
    found = [
        Row("same_bits / torch.equal, equal bits", lambda: same_bits(a, same), lambda: torch.equal(a, same), 2.0),
        Row("measure / torch.equal, equal bits", lambda: measure(a, same), lambda: torch.equal(a, same), 2.0),
        Row("assert_close, equal bits", lambda: assert_close(a, same), lambda: theirs(a, same), 1.0),
        Row("assert_close, passes", lambda: assert_close(near, a), lambda: theirs(near, a), 2.0),
        Row("assert_close, fails", lambda: _rejected(assert_close, far, a), lambda: _rejected(theirs, far, a), 1.0),
        Row("measure / assert_close, passes", lambda: measure(a, near), lambda: theirs(near, a), 2.0),
        Row("measure / assert_close, fails", lambda: measure(a, far), lambda: _rejected(theirs, far, a), 1.0),
    ]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x, y = a.to(dtype), far.to(dtype)
        found.append(
            Row(
                f"measure / assert_close, fails, {dtype}",
                lambda x=x, y=y: measure(x, y),  # type: ignore[misc]
                lambda x=x, y=y: _rejected(theirs, x, y),  # type: ignore[misc]
            )
        )
    return found + _peers(a, near)


def _peers(a: torch.Tensor, b: torch.Tensor) -> list[Row]:
    found = []
    if importlib.util.find_spec("onnx_diagnostic") is not None:
        peer = importlib.import_module("onnx_diagnostic.helpers").max_diff
        found.append(Row("max_diff / onnx-diagnostic", lambda: max_diff(a, b), lambda: peer(a, b)))
        found.append(Row("the same, hist=True", lambda: max_diff(a, b, hist=True), lambda: peer(a, b, hist=True)))
    if importlib.util.find_spec("polygraphy") is not None:
        compare_func = importlib.import_module("polygraphy.comparator").CompareFunc
        found.append(Row("max_diff / Polygraphy simple", lambda: max_diff(a, b), _polygraphy(compare_func, a, b)))
    return found


def _polygraphy(compare_func: Any, a: torch.Tensor, b: torch.Tensor) -> Callable[[], object]:
    from polygraphy.comparator import IterationResult

    results = [IterationResult({"x": x.numpy()}, runner_name=n) for n, x in (("a", a), ("b", b))]
    check = compare_func.simple()
    return lambda: check(*results)


def main() -> int:
    """Print expected and measured ratios; return the number of broken promises."""
    threads = torch.get_num_threads()
    print(f"two {SIZE} x {SIZE} tensors, float32 unless said, {threads} threads, median of {REPEATS} turns")
    print(f"{'':44s} {'ours ms':>9s} {'theirs ms':>9s} {'ratio':>7s} {'expected':>9s}")
    broken = 0
    for row in rows():
        value, ours, theirs = ratio(row)
        expected = "" if row.promise is None else f"<= {row.promise:g}"
        late = row.promise is not None and value > row.promise
        broken += late
        print(f"{row.what:44s} {ours:9.2f} {theirs:9.2f} {value:7.2f} {expected:>9s}{'  BROKEN' if late else ''}")
    return broken


if __name__ == "__main__":
    raise SystemExit(main())

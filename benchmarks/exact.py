"""What order independence costs: exact sums beside torch.sum, fixed-order products beside torch.mm, in one run.

Ratios of CPU time on one thread, interleaved so that a busy machine slows both sides alike; what is promised stands
beside what was measured, and the bytes read per second beside both. ``torch.sum(dtype=float64)``, neither exact nor
independent of order, is the alternative most people reach for.

Run: ``OMP_NUM_THREADS=1 python -m benchmarks.exact``
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import driftscope as ds
from driftscope.accumulation.exact import compiled

#: Enough calls per measurement that the clock's resolution does not matter.
ENOUGH = 0.002
REPEATS = 25
SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
PRODUCTS = ((256, 256, 256), (512, 512, 512), (1280, 1280, 1280), (32, 4096, 1024), (1, 1280, 1280))


@dataclass(frozen=True)
class Row:
    """One ratio: ours over theirs, with the most it may be (None: only told) and the bytes or operations of a call."""

    what: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    promise: float | None
    work: float
    unit: str


def measured(row: Row) -> tuple[float, float, float]:
    """Return the median ratio and both medians in seconds per call."""
    calls = max(1, round(ENOUGH / max(_seconds(row.theirs, 1), 1e-7)))
    row.ours()
    times = [(_seconds(row.ours, calls), _seconds(row.theirs, calls)) for _ in range(REPEATS)]
    ours, theirs = (statistics.median(t[i] for t in times) for i in (0, 1))
    return statistics.median(a / b for a, b in times), ours, theirs


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def sums() -> list[Row]:
    """Every dtype and size; in cache (below a million elements) 3 is promised, above it 1.3, for float16 2."""
    rows = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for n in SIZES:
            x = torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)
            promise = 3.0 if n < 1_000_000 else 1.3
            if dtype is torch.float16:
                promise = 2.0 if n >= 1_000_000 else 3.0
            if dtype is torch.bfloat16:
                promise = None
            name = str(dtype).removeprefix("torch.")
            what = f"exact.sum {name} {n:>8}"
            rows.append(Row(what, lambda x=x: ds.exact.sum(x), lambda x=x: torch.sum(x), promise, x.nbytes, "GB/s"))
    x = torch.randn(1_000_000)
    wider = Row(
        "exact.sum float32 1e6 / torch.sum(dtype=float64)", lambda: ds.exact.sum(x),
        lambda: torch.sum(x, dtype=torch.float64), None, x.nbytes, "GB/s",
    )  # fmt: skip
    return [*rows, wider]


def products() -> list[Row]:
    """Sequential-FMA products of float32 and float64; 1.3 is promised from 256 cubed up."""
    rows = []
    for dtype in (torch.float32, torch.float64):
        for m, k, n in PRODUCTS:
            a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
            promise = 1.3 if m > 1 else None
            what = f"exact.matmul {str(dtype).removeprefix('torch.')} {m}x{k}x{n}"
            ours, theirs = (lambda a=a, b=b: ds.exact.matmul(a, b)), (lambda a=a, b=b: torch.mm(a, b))
            rows.append(Row(what, ours, theirs, promise, 2.0 * m * k * n, "Gflop/s"))
    return rows


def main() -> int:
    """Print every row and return how many are above what was promised."""
    torch.set_num_threads(1)
    best = compiled.use(compiled.Instructions.AVX512)
    print(f"compiled library: {compiled.library() is not None}, instructions: {best.name}, torch {torch.__version__}")
    print(f"{'':52} {'promised':>8} {'measured':>8}   ours      torch")
    above = 0
    for row in (*sums(), *products()):
        ratio, ours, theirs = measured(row)
        promised = "" if row.promise is None else f"<= {row.promise}"
        late = row.promise is not None and ratio > row.promise
        above += late
        speeds = f"{row.work / ours / 1e9:7.1f}  {row.work / theirs / 1e9:7.1f} {row.unit}"
        print(f"{row.what:52} {promised:>8} {ratio:8.2f} {speeds}{'   above' if late else ''}", flush=True)
    return above


if __name__ == "__main__":
    sys.exit(1 if main() else 0)

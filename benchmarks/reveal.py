"""What revealing an order costs, verification included, against FPRev's algorithm on the same kernel in the same run.

``python -m benchmarks.reveal`` prints one line per kernel; ``--long`` adds 16384 terms (the peer then takes minutes),
``--power`` instead measures how many balanced rows notice one local change. Times are processor time on one thread.

* *known*: ``ds.reveal`` as users call it; the order is found among those of known libraries and verified.
* *asked*: the same without the known orders, as for a kernel nobody has seen; verified too.
* *peer*: FPRev (USENIX ATC 2025) written from its paper: one call carries one probe, a mask at the lowest term of a
  group and one at another, units at all other terms; terms that meet the pivot at one height are asked in turn. It does
  not verify, and counts beyond the significand of a narrow result are wrong: its tree is compared with ours.

Goals: 4096 terms within 30 ms (sum) and 100 ms (product), 16384 within 250 ms and 1 s, at least 15 (sum) and 30
(product) times faster than the peer with 100 times fewer calls, and known orders within 20 ms and 2 calls. Asked orders
do not reach the ratios for sums: a row per term is asked, and the peer asks 4 to 6 times as many.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.kernel_factory import open_kernel
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.reveal_kernel import reveal_kernel, reveal_sum
from driftscope.numerics.formats import FORMATS, numpy_dtype
from driftscope.numerics.trees.balanced import balanced_rows, scale_for
from driftscope.numerics.trees.tree import SumTree

#: (kernel, dtype, goals in ms for 4096 and 16384 terms)
CASES = (
    ("numpy.sum", "float32", (30, 250)),
    ("torch.sum", "float32", (30, 250)),
    ("torch.sum", "bfloat16", (30, 250)),
    ("torch.linear", "float32", (100, 1000)),
    ("torch.linear", "bfloat16", (100, 1000)),
    ("torch.linear", "float16", (100, 1000)),
)
ROUNDS = 5
MUTANTS = 24


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


class Peer:
    """FPRev's algorithm: one probe per call.

    Parameters
    ----------
    kernel : Kernel
    """

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        form = FORMATS[kernel.dtype]
        # float16 has room for one choice only: a unit that is the smallest number, and the largest power of two.
        self.mask, self.unit = (2.0**15, 2.0**-24) if form.emax <= 15 else (2.0 ** min(form.emax - 1, 500), 1.0)
        self.x = np.full((kernel.rows or 1, kernel.n), self.unit, numpy_dtype(kernel.dtype))
        self.calls = 0

    def size_below(self, i: int, j: int) -> int:
        """Return the number of terms under the partial sum where two terms meet, as far as the result can count."""
        self.x[0, i], self.x[0, j] = self.mask, -self.mask
        self.calls += 1
        left = float(self.kernel(self.x)[0]) / self.unit
        self.x[0, i] = self.x[0, j] = self.unit
        return self.kernel.n - round(left)

    def tree(self) -> SumTree | None:
        """Return the tree it finds; None where its groups make none."""
        left: list[int] = []
        right: list[int] = []
        done: dict[tuple[int, ...], int] = {}
        stack: list[tuple[tuple[int, ...], bool, tuple[tuple[int, ...], ...]]]
        stack = [(tuple(range(self.kernel.n)), False, ())]
        while stack:
            terms, ready, groups = stack.pop()
            if not ready:
                groups = self.groups(terms)
                stack.append((terms, True, groups))
                stack += [(group, False, ()) for group in groups if len(group) > 1]
                continue
            node = terms[0]
            for group in groups:
                left.append(node)
                right.append(done.get(group, group[0]))
                node = self.kernel.n + len(left) - 1
            done[terms] = node
        made = SumTree.from_additions(self.kernel.n, left, right)
        return made if sorted([*left, *right]) == list(range(2 * self.kernel.n - 2)) else None

    def groups(self, terms: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the groups that join the lowest term on its way up."""
        heights: dict[int, list[int]] = {}
        for term in terms[1:]:
            heights.setdefault(self.size_below(terms[0], term), []).append(term)
        return tuple(tuple(heights[size]) for size in sorted(heights))


def opened(name: str, n: int, dtype: str) -> Kernel:
    return open_kernel(name, n, dtype, None, None, Meter())


def measure(name: str, n: int, dtype: str, goal: float) -> bool:
    """Print one line; return whether the goal was missed where the order is known."""
    start = time.process_time()
    first = reveal_sum(name, n, dtype=dtype)
    cold = time.process_time() - start
    known = statistics.median(seconds(lambda: reveal_sum(name, n, dtype=dtype)) for _ in range(ROUNDS))
    asked_calls: list[int] = []

    def ask() -> None:
        kernel = opened(name, n, dtype)
        reveal_kernel(kernel)
        asked_calls.append(kernel.meter.calls)

    asked = statistics.median(seconds(ask) for _ in range(ROUNDS if n <= 4096 else 1))
    kernel = opened(name, n, dtype)
    kernel(np.zeros((kernel.rows or 1, n), numpy_dtype(dtype)))
    peer, found = Peer(kernel), list[SumTree | None]()
    theirs = seconds(lambda: found.append(peer.tree()))
    right = "right" if found[0] == first.tree else "WRONG"
    met = "ok" if max(known, asked) * 1e3 <= goal else "known ok" if known * 1e3 <= goal else "OVER"
    print(
        f"{name:12s} {n:6d} {dtype:8s} known {known * 1e3:7.1f} ms {first.calls:3d} calls (first time"
        f" {cold * 1e3:.0f} ms) | asked {asked * 1e3:7.1f} ms {asked_calls[-1]:5d} calls"
        f" | peer {theirs:7.2f} s {peer.calls:7d} calls {right}"
        f" | known {theirs / known:6.1f}x time {peer.calls / first.calls:7.0f}x calls"
        f" | asked {theirs / asked:5.1f}x {peer.calls / asked_calls[-1]:4.0f}x | {met} (<= {goal} ms)",
        flush=True,
    )
    return known * 1e3 > goal


def mutant(tree: SumTree, rng: np.random.Generator) -> SumTree:
    """Exchange two operands of neighbouring additions: (a + b) + c becomes (a + c) + b."""
    while True:
        left, right = tree.left.copy(), tree.right.copy()
        k = int(rng.integers(0, tree.n - 1))
        inner, outer = (left, right) if rng.random() < 0.5 else (right, left)
        j, c = int(inner[k]) - tree.n, int(outer[k])
        if j < 0 or c >= tree.n + j:
            continue
        side = (left, right)[int(rng.integers(2))]
        outer[k], side[j] = side[j], c
        changed = SumTree(tree.n, left, right, tree.joined)
        if changed != tree:
            return changed


def power(name: str, n: int, dtype: str) -> None:
    """Print which share of balanced rows notices one local change, for the change that is noticed least."""
    a, rng = reveal_sum(name, n, dtype=dtype), np.random.default_rng(n)
    weights = None
    if a.products:
        weights = (rng.uniform(1, 2, n) * rng.choice([-1.0, 1.0], n)).astype(numpy_dtype(dtype))
    x = balanced_rows(a.tree, 1024, dtype, scale_for(dtype, a.accumulator), rng, weights)
    own = replayed(a.tree, x, a.arithmetic, a.output, weights)
    shares = [
        float((replayed(mutant(a.tree, rng), x, a.arithmetic, a.output, weights) != own).mean()) for _ in range(MUTANTS)
    ]
    print(f"{name:13s} {n:6d} {dtype:9s} least {min(shares):.3f} median {statistics.median(shares):.3f}", flush=True)


def main() -> int:
    """Print one line per case; return how many goals were missed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--power", action="store_true")
    options.add_argument("--long", action="store_true")
    chosen, _ = options.parse_known_args()
    torch.set_num_threads(1)
    if chosen.power:
        for name in ("numpy.sum", "torch.sum", "torch.linear"):
            for n in (64, 256, 1024, 4096):
                for dtype in ("float32", "float64", "float16", "bfloat16"):
                    if (name, dtype) != ("numpy.sum", "bfloat16"):
                        power(name, n, dtype)
        return 0
    print(f"torch {torch.__version__}, numpy {np.__version__}, one thread, processor time, median of {ROUNDS}")
    sizes = (4096, 16384) if chosen.long else (4096,)
    return sum(measure(name, n, dtype, goals[n == 16384]) for n in sizes for name, dtype, goals in CASES)


if __name__ == "__main__":
    raise SystemExit(main())

"""What revealing an order costs, verification included, against one call per pair of terms.

Run with ``python -m benchmarks.reveal`` (``--power`` for how many balanced rows notice one local change). Times are
processor time on one thread; "pairs" is FPRev's way: as many calls of one row as its recursion needs on this tree,
times the time of such a call, which leaves out its own bookkeeping and any verification.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.kernels import Meter
from driftscope.accumulation.opening import open_kernel
from driftscope.accumulation.revealing import reveal_sum
from driftscope.numerics.trees import SumTree
from driftscope.numerics.trees_balanced import balanced_rows, scale_for
from driftscope.numerics.trees_replay import replay

#: (kernel, n, dtype, target in ms or None)
CASES = (
    ("numpy.sum", 4096, "float32", 30),
    ("torch.sum", 4096, "float32", 30),
    ("torch.sum", 4096, "bfloat16", None),
    ("torch.linear", 4096, "float32", 100),
    ("torch.linear", 4096, "bfloat16", None),
    ("torch.linear", 4096, "float16", None),
    ("numpy.sum", 16384, "float32", 250),
    ("torch.sum", 16384, "float32", 250),
    ("torch.linear", 16384, "float32", 1000),
    ("torch.linear", 16384, "bfloat16", None),
)
ROUNDS = 5
MUTANTS = 24


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def calls_pair_by_pair(tree: SumTree) -> int:
    """Count FPRev's calls: a group of m terms costs m - 1, then every group that its lowest term meets."""
    parent = np.full(2 * tree.n - 1, -1)
    for k in range(tree.n - 1):
        parent[tree.left[k]] = parent[tree.right[k]] = tree.n + k
    lowest = list(range(tree.n))
    for a, b in zip(tree.left.tolist(), tree.right.tolist(), strict=True):
        lowest.append(min(lowest[a], lowest[b]))
    calls, groups = 0, [tree.root]
    while groups:
        top = groups.pop()
        calls += int(tree.sizes[top]) - 1
        node = lowest[top]
        while node != top:
            above = int(parent[node])
            a, b = int(tree.left[above - tree.n]), int(tree.right[above - tree.n])
            sibling = b if a == node else a
            if sibling >= tree.n:
                groups.append(sibling)
            node = above
    return calls


def one_call(name: str, n: int, dtype: str) -> float:
    """Return the seconds of one call that carries one probe."""
    kernel = open_kernel(name, n, dtype, None, None, Meter())
    x = np.zeros((kernel.rows or 1, n), np.float32).astype(balanced_dtype(dtype))
    return min(seconds(lambda: [kernel(x) for _ in range(20)]) / 20 for _ in range(5))


def balanced_dtype(dtype: str) -> np.dtype:
    """Return the dtype that stores a format."""
    from driftscope.numerics.trees_replay import numpy_dtype

    return numpy_dtype(dtype)


def measure(name: str, n: int, dtype: str, target: float | None) -> None:
    found: list[Accumulation] = []
    reveal_sum(name, n, dtype=dtype)
    times = [seconds(lambda: found.append(reveal_sum(name, n, dtype=dtype))) for _ in range(ROUNDS)]
    own, a = statistics.median(times), found[-1]
    calls = calls_pair_by_pair(a.tree)
    pairs = calls * one_call(name, n, dtype)
    aim = "" if target is None else f"{'ok' if own * 1e3 <= target else 'OVER'} (<= {target} ms)"
    print(
        f"{name:13s} {n:6d} {dtype:9s} {own * 1e3:8.1f} ms {a.calls:6d} calls {a.rows:6d} rows | pairs"
        f" {calls:7d} calls {pairs:7.2f} s | calls {calls / a.calls:5.0f}x time {pairs / own:5.1f}x  {aim}"
    )


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
    x = balanced_rows(a.tree, 1024, dtype, scale_for(dtype, a.accumulator), rng)
    own = replay(a.tree, x, a.arithmetic, a.output)
    shares = [float((replay(mutant(a.tree, rng), x, a.arithmetic, a.output) != own).mean()) for _ in range(MUTANTS)]
    print(f"{name:13s} {n:6d} {dtype:9s} least {min(shares):.3f} median {statistics.median(shares):.3f}")


def main() -> None:
    """Print one line per case."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--power", action="store_true")
    torch.set_num_threads(1)
    if options.parse_args().power:
        for name in ("numpy.sum", "torch.sum"):
            for n in (64, 256, 1024, 4096):
                for dtype in ("float32", "float64", "float16", "bfloat16"):
                    if (name, dtype) != ("numpy.sum", "bfloat16"):
                        power(name, n, dtype)
        return
    print(f"torch {torch.__version__}, numpy {np.__version__}, one thread, processor time, median of {ROUNDS}")
    for case in CASES:
        measure(*case)


if __name__ == "__main__":
    main()

"""What ``ds.vmap`` costs and gains: against the loop where torch.vmap refuses, against torch.vmap where it works.

Run with ``python -m benchmarks vmap``. Both sides are timed in turn on one thread, in processor time; a ratio is taken
of the smallest times of both, which other work on the machine can only have made larger.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import driftscope as ds

ROUNDS = 25
SIZE = 1000

Call = Callable[[], Any]


def two_ways(v: torch.Tensor) -> torch.Tensor:
    """Take one of two branches."""
    if v.sum() > 0:
        return v.sin() * 2
    return v.cos() - 1


def scalar_branch(x: torch.Tensor) -> torch.Tensor:
    """Take one of two branches by one number."""
    if x > 0:
        return x * 2
    return x * 0


def halving(x: torch.Tensor) -> torch.Tensor:
    """Halve until small: a handful of different lengths."""
    while x.abs() > 0.3:
        x = x * 0.5
    return x


def masked_sum(v: torch.Tensor) -> torch.Tensor:
    """Sum what a mask selects: as many groups as counts."""
    return v[v > 0].sum()


def by_largest(v: torch.Tensor) -> torch.Tensor:
    """Use another number for every example: no groups at all."""
    return v * float(v.max())


def dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Multiply two vectors: as small a call of torch.vmap as there is."""
    return torch.dot(x, y)


def log_softmax(v: torch.Tensor) -> torch.Tensor:
    """One fused call."""
    return torch.log_softmax(v, 0)


def perceptron(weights: dict[str, torch.Tensor], v: torch.Tensor) -> torch.Tensor:
    """Four layers with their weights as an argument."""
    for w in weights.values():
        v = torch.tanh(w @ v)
    return v


def smallest(*calls: Call, repeat: int = 1, rounds: int = ROUNDS) -> list[float]:
    """Time calls in turn; the smallest processor time of each, in seconds."""
    best = [float("inf")] * len(calls)
    for call in calls:
        call()
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.process_time_ns()
            for _ in range(repeat):
                call()
            best[i] = min(best[i], (time.process_time_ns() - start) * 1e-9 / repeat)
    return best


#: (function, a batch, promised speed against the loop; None where only the number is told)
REFUSED: tuple[tuple[Callable[..., Any], Callable[[], torch.Tensor], float | None], ...] = (
    (scalar_branch, lambda: torch.randn(SIZE), 2.0),
    (two_ways, lambda: torch.randn(SIZE, 16), 2.0),
    (halving, lambda: torch.randn(SIZE), 2.0),
    (masked_sum, lambda: torch.randn(SIZE, 16), None),
    (by_largest, lambda: torch.randn(SIZE, 16), 0.7),
)
#: (function, in_dims, arguments)
ACCEPTED: tuple[tuple[Callable[..., Any], Any, Callable[[], tuple[Any, ...]]], ...] = (
    (dot, 0, lambda: (torch.randn(64, 32), torch.randn(64, 32))),
    (log_softmax, 0, lambda: (torch.randn(64, 32),)),
    (perceptron, (None, 0), lambda: ({f"w{i}": torch.randn(64, 64) for i in range(4)}, torch.randn(256, 64))),
)
OVERHEAD = 1.05


def against_the_loop() -> int:
    """Print the speed against the loop; return the number of broken promises."""
    broken = 0
    print(f"{'refused by torch.vmap, B=' + str(SIZE):34s} {'loop':>9s} {'ds.vmap':>9s} {'speed':>7s} {'promised':>9s}")
    for function, make, promised in REFUSED:
        x, mapped = make(), ds.vmap(function)
        loop, ours = smallest(lambda f=function, x=x: torch.stack([f(v) for v in x]), lambda m=mapped, x=x: m(x))
        same = torch.equal(mapped(x), torch.stack([function(v) for v in x]))
        limit = f"{promised:8.1f}x" if promised else ""
        print(f"{function.__name__:34s} {loop * 1e3:6.2f} ms {ours * 1e3:6.2f} ms {loop / ours:6.1f}x {limit:>9s}"
              + ("" if same else "   OTHER BITS"))  # fmt: skip
        broken += (promised is not None and loop / ours < promised) or not same
    return broken


def beside_torch() -> int:
    """Print what is added to torch.vmap; return the number of broken promises."""
    broken = 0
    print(f"{'accepted by torch.vmap':34s} {'torch':>9s} {'ds.vmap':>9s} {'ratio':>7s} {'promised':>9s}")
    for function, in_dims, make in ACCEPTED:
        arguments = make()
        theirs, ours = torch.vmap(function, in_dims), ds.vmap(function, in_dims)
        a, b = smallest(lambda t=theirs, z=arguments: t(*z), lambda o=ours, z=arguments: o(*z), repeat=40, rounds=300)
        print(f"{function.__name__:34s} {a * 1e6:6.1f} us {b * 1e6:6.1f} us {b / a:6.3f}x {OVERHEAD:8.2f}x")
        broken += b / a > OVERHEAD
    return broken


def main() -> int:
    """Print both tables; return the number of broken promises."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, processor time")
    return against_the_loop() + beside_torch()


if __name__ == "__main__":
    raise SystemExit(main())

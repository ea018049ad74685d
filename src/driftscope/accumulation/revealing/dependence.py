"""Does the order depend on how many rows there are, and on how many threads?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.replaying import replayed
from driftscope.accumulation.revealing.refusal import BudgetSpentError, RevealError
from driftscope.numerics.trees.balanced import balanced_rows, scale_for
from driftscope.numerics.trees.replay import SumArithmetic
from driftscope.numerics.trees.tree import SumTree
from driftscope.programs.state.threads import thread_count

#: Rows on which a setting must agree with the revealed order to be called the same.
ROWS = 32
#: Numbers of rows that are tried: kernels for one row, for a few and for many are often different ones.
BATCHES = (1, 2, 8, 32, 128)

#: Opens the kernel anew for a number of rows and of threads.
Opener = Callable[[int | None, int | None, Meter], Kernel]


@dataclass(frozen=True)
class Dependence:
    """Where the revealed order holds.

    Parameters
    ----------
    rows, threads : dict of int to bool or None
        Whether rows are added in the revealed order with so many rows (on so many threads); None where it could not
        be tried.
    calls : int
    """

    rows: dict[int, bool | None]
    threads: dict[int, bool | None]
    calls: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "rows": {str(k): v for k, v in self.rows.items()},
            "threads": {str(k): v for k, v in self.threads.items()},
            "calls": self.calls,
        }

    def __str__(self) -> str:
        return f"{_words('rows', self.rows)}; {_words('threads', self.threads)}"


def _words(noun: str, found: dict[int, bool | None]) -> str:
    same = [str(k) for k, v in found.items() if v]
    other = [str(k) for k, v in found.items() if v is False]
    untried = [str(k) for k, v in found.items() if v is None]
    parts = [f"the same with {', '.join(same)}"] if same else []
    parts += [f"another with {', '.join(other)}"] if other else []
    parts += [f"not tried with {', '.join(untried)}"] if untried else []
    return f"{noun}: {', '.join(parts)}"


def dependence_of(
    opener: Opener, tree: SumTree, arithmetic: SumArithmetic, asked: tuple[int | None, int | None], *,
    rows: Sequence[int] | None = None, threads: Sequence[int] | None = None,
) -> Dependence:  # fmt: skip
    """Run a kernel with other numbers of rows and of threads, and hold its bits against a revealed order.

    Parameters
    ----------
    opener : callable
    tree, arithmetic
        What was revealed.
    asked : pair of int or None
        The rows and threads with which it was revealed.
    rows, threads : sequence of int, optional
        What to try: 1, 2, 8, 32 and 128 rows, and 1, 2 and all threads by default.
    """
    processors = os.cpu_count() or 1
    counts = sorted({1, 2, processors}) if threads is None else list(threads)
    meter = Meter()
    by_rows = {m: _holds(opener, tree, arithmetic, (m, asked[1]), meter) for m in rows or BATCHES}
    by_threads = {t: _holds(opener, tree, arithmetic, (asked[0], t), meter) for t in counts}
    return Dependence(by_rows, by_threads, meter.calls)


def _holds(
    opener: Opener, tree: SumTree, arithmetic: SumArithmetic, setting: tuple[int | None, int | None], meter: Meter
) -> bool | None:

    try:
        with thread_count(setting[1]):
            kernel = opener(*setting, meter)
            rng = np.random.default_rng(tree.n)
            drawn = balanced_rows(tree, ROWS, kernel.dtype, scale_for(kernel.dtype, arithmetic.accumulator), rng)
            weights = np.ones(tree.n, drawn.dtype) if kernel.products else None
            # Without a shape, the order of one row alone was asked for.
            size = kernel.rows or 1
            for at in range(0, ROWS, size):
                x = np.resize(drawn[at : at + size], (size, tree.n))
                expected = replayed(tree, x, arithmetic, kernel.output, weights)
                if not (kernel(x) == expected).all():
                    return False
            return True
    except BudgetSpentError:
        raise
    except RevealError:
        return None

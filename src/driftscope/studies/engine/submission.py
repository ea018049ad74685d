"""Handing cells to an executor: each row is kept before its worker begins with another cell."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from driftscope.numerics.seeds import seed_of
from driftscope.records.runs.rows import OK, CellRows
from driftscope.studies.engine.cell_runs import Answer, CodeChanged, run_cell
from driftscope.studies.engine.grid import Cell
from driftscope.studies.engine.plan import Plan
from driftscope.studies.engine.pools import ClusterLost

_AHEAD = 256  # tasks submitted and not finished: few enough for grids of millions


@dataclass(frozen=True, slots=True)
class Submission:
    """What turns cells into entries.

    Parameters
    ----------
    pool : Executor
        With an attribute ``ahead`` if it should be given fewer tasks at once than it could hold.
    plan : Plan
    function : CellFunction or callable
        The plan's cell function as the pool takes it.
    """

    pool: Executor
    plan: Plan
    function: Any

    def entries(
        self, cells: Iterable[Cell], attempts: Mapping[str, int], keep: Callable[[CellRows], None]
    ) -> Generator[CellRows, None, None]:
        """Yield entries as cells finish, a bounded number under way; ``attempts`` numbers those that are tried again.

        ``keep`` is called in the thread that heard of the result, before its worker is given another cell: whoever
        kills this process loses no more cells than were running.
        """
        finished: queue.SimpleQueue[CellRows | Exception] = queue.SimpleQueue()
        waiting, under_way, left = iter(cells), 0, threading.Event()
        # The signature of a function is dear to read for each cell.
        arguments = functools.partial(self._arguments, self.plan.takes_seed)

        def settle(cell: Cell, future: Future[Answer]) -> None:
            if left.is_set():  # the study is being given up; what ends now was stopped by that
                return
            try:
                entry = _entry(cell, future, attempts.get(cell.name, 0))
                keep(entry)
                finished.put(entry)
            except Exception as error:  # a future swallows what its callbacks raise: hand it to who waits
                finished.put(error)

        try:
            while True:
                while under_way < getattr(self.pool, "ahead", _AHEAD) and (cell := next(waiting, None)) is not None:
                    future = self.pool.submit(run_cell, self.function, dict(cell.coordinates), arguments(cell))
                    future.add_done_callback(functools.partial(settle, cell))
                    under_way += 1
                if not under_way:
                    return
                found = finished.get()
                under_way -= 1
                if isinstance(found, Exception):
                    raise found
                yield found
        finally:
            left.set()

    def _arguments(self, takes_seed: bool, cell: Cell) -> dict[str, Any]:
        plan = self.plan
        seed = {"seed": seed_of(plan.name, plan.seed, cell.name)} if takes_seed else {}
        return {**plan.fixed, **seed}


def _entry(cell: Cell, future: Future[Answer], attempt: int) -> CellRows:
    error = future.exception()
    if error is None:
        answer = future.result()
        fine = {"outcome": OK, "code": "", "words": ""}
        return CellRows(cell.name, tuple(row | fine for row in answer.rows), answer.seconds, attempt)
    if isinstance(error, (ClusterLost, CodeChanged)):  # says nothing about the cell
        raise error
    from driftscope.programs.isolation.failures import failure_of

    failure = failure_of(error)
    row = dict(cell.coordinates) | {"outcome": str(failure.fate), "code": failure.code, "words": failure.words}
    return CellRows(cell.name, (row,), 0.0, attempt, failure.last_words)

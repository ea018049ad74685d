"""Where cells run: supervised processes here, a Dask cluster, or this very process. All are Executors."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass
from typing import Any

from driftscope.errors import DependencyMissing, DriftscopeError, InputError
from driftscope.programs.isolation.limits import NO_LIMITS, Limits, available_cores
from driftscope.programs.state.threads import thread_count

#: Variables by which numeric libraries read how many threads an operator may use.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

#: Seconds of work below which starting processes, each with its own libraries, costs more than it saves.
_WORTH_WORKERS = 1.0
_RECOUNT = 2.0  # seconds between two counts of a cluster's threads: workers come and go
_SHORT = 0.02  # seconds, of sending and making, below which a cell is short
_IN_TRANSIT = 8  # short cells on their way for each that runs


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where and under which limits cells run.

    Parameters
    ----------
    workers : int or None
        Processes of this machine; None for one per core, 0 to run in this process, where a crash is not survived.
    cluster : str
        Address of a Dask scheduler, as ``"tcp://host:8786"``; ``""`` for this machine.
    limits : Limits
        Time and memory of one cell.
    threads : int
        Threads inside an operator. They change how sums are grouped, so the default does not depend on the machine.
    modules : tuple of str
        What workers import first.
    code : str
        Fingerprint of the cell function: processes of a cluster that have imported another version of it are left.
    """

    workers: int | None = None
    cluster: str = ""
    limits: Limits = NO_LIMITS
    threads: int = 1
    modules: tuple[str, ...] = ()
    code: str = ""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"at least one thread is needed, not {self.threads}")
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers are counted from 0 (this process), not {self.workers}")

    @property
    def is_free(self) -> bool:
        """Whether the user left open where cells run: no number of workers, and no limits, which need a supervisor."""
        return self.workers is None and self.limits == NO_LIMITS

    @property
    def environment(self) -> dict[str, str]:
        """Variables that give workers their number of threads."""
        return dict.fromkeys(_THREAD_VARIABLES, str(self.threads))


def runs_here(place: Whereabouts, safe_seconds: float | None) -> bool:
    """Whether cells run in this process: as the user said, or since starting workers takes longer."""
    if place.cluster:
        return False
    return place.workers == 0 or (place.is_free and safe_seconds is not None and safe_seconds < _WORTH_WORKERS)


@contextlib.contextmanager
def executor_at(place: Whereabouts, cells: int, safe_seconds: float | None = None) -> Iterator[Executor]:
    """Open the executor of a place, for so many cells.

    Parameters
    ----------
    place : Whereabouts
    cells : int
    safe_seconds : float or None
        About how long they take in one process, where none can bring it down: less than starting workers takes is
        done here, unless the user asked for workers or limits.

    Raises
    ------
    InputError
        If there is no scheduler at the address.
    DependencyMissing
        If the package ``distributed`` is not installed.
    """
    if place.cluster:
        with _cluster(place) as pool:
            yield pool
    elif runs_here(place, safe_seconds):
        with InThisProcess(place.threads) as here:
            yield here
    else:
        from driftscope.programs.isolation.workers import WorkerPool

        count = min(place.workers or available_cores(), max(cells, 1))
        with WorkerPool(count, limits=place.limits, preload=place.modules, environment=place.environment) as pool:
            yield pool


class InThisProcess(Executor):
    """Runs each task at once, where it was submitted: for debugging, and for grids of very small cells."""

    ahead = 1  # what is submitted is finished: the next cell waits until the row of this one is kept

    def __init__(self, threads: int):
        self._threads = threads
        self._limited = contextlib.ExitStack()

    def __enter__(self) -> InThisProcess:
        self._limited.enter_context(thread_count(self._threads))
        return self

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Give this process its own numbers of threads back."""
        self._limited.close()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task and return its settled future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except (Exception, SystemExit) as error:  # belongs to the future, as in every executor
            future.set_exception(error)
        return future


class ClusterLost(DriftscopeError):
    """The scheduler went away while a study ran."""


@contextlib.contextmanager
def _cluster(place: Whereabouts) -> Iterator[Executor]:
    if importlib.util.find_spec("distributed") is None:
        raise DependencyMissing("--cluster", "distributed", "cluster")
    from distributed import Client

    try:
        client = Client(place.cluster, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"there is no Dask scheduler at {place.cluster!r} ({error}); start one with `dask scheduler` and workers "
            f"with `dask worker {place.cluster}`"
        ) from error
    with _quiet("distributed"), client:
        if not client.nthreads():
            raise InputError(
                f"the scheduler at {place.cluster!r} has no workers; start some: `dask worker {place.cluster}`"
            )
        yield SupervisedCluster(client, place)


@contextlib.contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Keep a library's log off the terminal: what goes wrong is said in a sentence of our own."""
    handlers = logging.getLogger(library).handlers
    levels = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=False):
            handler.setLevel(level)


class SupervisedCluster(Executor):
    """Sends each task to a cluster wrapped in a supervised process of its own there.

    A task that crashes would otherwise take the cluster's worker along, and the cells beside it, and be tried again
    elsewhere three times.
    """

    def __init__(self, client: Any, place: Whereabouts):
        self._client, self._place = client, place
        self._cluster: Executor = client.get_executor(pure=False)
        self._slots, self._counted = 1, -math.inf
        self._finished, self._seconds = 0, 0.0

    @property
    def ahead(self) -> int:
        """How many tasks it should be given at once.

        As many as run at once: a result that is still on its way when this process is killed is a cell made twice.
        Only where cells are so short that sending takes longer than making does it get more.
        """
        if time.monotonic() > self._counted + _RECOUNT:
            self._slots = max(1, sum(self._ask(self._client.nthreads).values()))
            self._counted = time.monotonic()
        short = self._finished >= self._slots and self._seconds < _SHORT * self._finished
        return self._slots * (_IN_TRANSIT if short else 1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task on the cluster."""
        start = time.monotonic()
        inner = self._ask(lambda: self._cluster.submit(run_supervised, self._place, fn, args, kwargs))
        future: Future[Any] = Future()

        def settle(ended: Future[Any]) -> None:
            self._finished += 1
            self._seconds += time.monotonic() - start
            error = CancelledError() if ended.cancelled() else ended.exception()
            if error is None:
                future.set_result(ended.result())
            else:
                future.set_exception(self._lost() if _is_of_the_cluster(error) else error)

        inner.add_done_callback(settle)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Forget what was submitted."""
        self._cluster.shutdown(wait=wait, cancel_futures=cancel_futures)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:
            if _is_of_the_cluster(error):
                raise self._lost() from error
            raise

    def _lost(self) -> ClusterLost:
        return ClusterLost(
            f"the Dask scheduler at {self._place.cluster!r} went away while the study ran; the rows it had sent "
            "are kept: start it again and give the same command to make the rest"
        )


def _is_of_the_cluster(error: BaseException) -> bool:
    """Whether an error is about the cluster, not about the task."""
    from distributed.comm.core import CommClosedError

    return isinstance(error, (CancelledError, CommClosedError)) or type(error).__name__ in {
        "FutureCancelledError", "FuturesCancelledError", "ClosedClientError", "RPCClosed",
    }  # fmt: skip


_POOLS: dict[Whereabouts, Executor] = {}
_MOST_POOLS = 2
_LOCK = threading.Lock()


def run_supervised(place: Whereabouts, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a task in a supervised process of the machine this is called on."""
    from driftscope.programs.isolation.workers import WorkerPool

    with _LOCK:
        # A pool starts as many processes as there are tasks at once, which the cluster's own threads limit.
        pool = _POOLS.pop(place, None) or WorkerPool(
            available_cores(), limits=place.limits, preload=place.modules, environment=place.environment
        )
        _POOLS[place] = pool
        while len(_POOLS) > _MOST_POOLS:  # the one that was not asked for longest finishes what it has
            _POOLS.pop(next(iter(_POOLS))).shutdown(wait=False)
        future = pool.submit(fn, *args, **kwargs)
    return future.result()

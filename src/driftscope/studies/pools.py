"""Where cells run: supervised processes here, a Dask cluster, or this very process. All are Executors."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from driftscope.errors import DependencyMissing, InputError
from driftscope.programs.worker_supervision import Limits
from driftscope.programs.workers import NO_LIMITS, WorkerPool, available_cores

#: Variables by which numeric libraries read how many threads an operator may use.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Place:
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
    """

    workers: int | None = None
    cluster: str = ""
    limits: Limits = NO_LIMITS
    threads: int = 1
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise InputError(f"at least one thread is needed, not {self.threads}")
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers are counted from 0 (this process), not {self.workers}")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that give workers their number of threads."""
        return dict.fromkeys(_THREAD_VARIABLES, str(self.threads))


@contextlib.contextmanager
def executor_at(place: Place, cells: int) -> Iterator[Executor]:
    """Open the executor of a place, for so many cells.

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
    elif place.workers == 0:
        with InThisProcess(place.threads) as here:
            yield here
    else:
        count = min(place.workers or available_cores(), max(cells, 1))
        with WorkerPool(count, limits=place.limits, preload=place.modules, environment=place.environment) as pool:
            yield pool


class InThisProcess(Executor):
    """Runs each task at once, where it was submitted: for debugging, and for grids of very small cells."""

    def __init__(self, threads: int):
        self._threads = threads
        self._limited = contextlib.ExitStack()

    def __enter__(self) -> InThisProcess:
        self._limited.enter_context(_threads_here(self._threads))
        return self

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Give this process its own numbers of threads back."""
        self._limited.close()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task and return its settled future."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # belongs to the future, as in every executor
            future.set_exception(error)
        return future


@contextlib.contextmanager
def _threads_here(count: int) -> Iterator[None]:
    import sys

    import threadpoolctl

    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else count
    if torch is not None and before != count:
        torch.set_num_threads(count)
    try:
        with threadpoolctl.threadpool_limits(count):
            yield
    finally:
        if torch is not None and before != count:
            torch.set_num_threads(before)


@contextlib.contextmanager
def _cluster(place: Place) -> Iterator[Executor]:
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
    with client:
        if not client.scheduler_info()["workers"]:
            raise InputError(
                f"the scheduler at {place.cluster!r} has no workers; start some: `dask worker {place.cluster}`"
            )
        yield Supervised(client.get_executor(pure=False), place)


class Supervised(Executor):
    """Sends each task to a cluster wrapped in a supervised process of its own there.

    A task that crashes would otherwise take the cluster's worker along, and the cells beside it, and be tried again
    elsewhere three times.
    """

    def __init__(self, cluster: Executor, place: Place):
        self._cluster, self._place = cluster, place

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task on the cluster."""
        return self._cluster.submit(run_supervised, self._place, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Forget what was submitted."""
        self._cluster.shutdown(wait=wait, cancel_futures=cancel_futures)


def run_supervised(place: Place, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a task in a supervised process of the machine this is called on."""
    return _pool(place).submit(fn, *args, **kwargs).result()


@functools.lru_cache(maxsize=2)
def _pool(place: Place) -> WorkerPool:
    # A pool starts as many processes as there are tasks at once, which the cluster's own threads limit.
    return WorkerPool(available_cores(), limits=place.limits, preload=place.modules, environment=place.environment)

"""What a user says about running a study, in one place for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftscope.errors import InputError
from driftscope.programs.isolation.limits import Limits
from driftscope.studies.engine.perform import Progress, Running
from driftscope.studies.engine.pools import Whereabouts

if TYPE_CHECKING:
    from pathlib import Path

_PLACE = ("workers", "cluster", "operator_threads")
_LIMITS = ("seconds", "memory")
_RUNNING = ("store", "run", "fresh", "command", "progress")


def running_of(**options: Any) -> Running:
    """Return how a study is run.

    Parameters
    ----------
    workers : int or None
        Processes of this machine: one for each core by default; 0 runs in this process, where a crash is not survived.
    cluster : str
        Address of a Dask scheduler, ``"tcp://host:8786"``, instead.
    operator_threads : int
        Threads inside an operator, 1 by default: they change how sums are grouped.
    seconds, memory : float, int
        Limits of one cell: seconds of running, bytes resident.
    store : path or None
        Folder in which the run is kept; None keeps it in memory alone.
    run : str
        Id of the run to make or to go on with.
    fresh : bool
        Make a new run even if an unfinished one of the same study is there.
    command : str
        The command line that does this again.
    progress : callable or None
        Told in a few words how far it is.

    Raises
    ------
    InputError
        For an option there is not, or a value that cannot be.
    """
    unknown = sorted(set(options) - {*_PLACE, *_LIMITS, *_RUNNING})
    if unknown:
        have = ", ".join((*_PLACE, *_LIMITS, *_RUNNING))
        raise InputError(f"a study has no option {unknown[0]!r}; running options are {have}")
    limits = Limits(seconds=options.get("seconds"), memory=options.get("memory"))
    place = Whereabouts(
        workers=_count(options.get("workers")),
        cluster=str(options.get("cluster") or ""),
        limits=limits,
        threads=1 if options.get("operator_threads") is None else int(options["operator_threads"]),
    )
    store: str | Path | None = options.get("store")
    progress: Progress | None = options.get("progress")
    return Running(
        place=place, store=store, run=str(options.get("run") or ""), fresh=bool(options.get("fresh")),
        command=str(options.get("command") or ""), progress=progress,
    )  # fmt: skip


def _count(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise InputError(f"workers is a whole number or None, not {given!r}")
    return given

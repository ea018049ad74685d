"""A comparison in another process: asked for by ``isolate=True``, so that whatever a program does is an answer."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.refusals import death_finding
from driftscope.programs.isolation.breadcrumbs import last_told
from driftscope.programs.isolation.choice import isolating, watched
from driftscope.programs.isolation.failures import CODES, WorkerDied
from driftscope.programs.isolation.workers import WorkerPool
from driftscope.records.environment import capture
from driftscope.records.files import in_place, stamp
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.output import Outputs
from driftscope.records.user_code import file_of, is_users
from driftscope.records.verdict import Verdict

P = ParamSpec("P")

_LOCK = threading.Lock()
_POOLS: dict[int, WorkerPool] = {}
#: In the worker: the user's files that it has imported, as they were then.
_IMPORTED: dict[str, tuple[int, int, int]] = {}


def where_asked(compare: Callable[P, Comparison]) -> Callable[P, Comparison]:
    """Run a comparison where its ``isolate`` says: the whole of it, its native runtimes, or nothing elsewhere."""

    @functools.wraps(compare)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Comparison:
        asked: Any = kwargs.get("isolate")
        if asked and not watched():
            return _elsewhere((compare.__module__, compare.__qualname__), args, kwargs)
        with isolating(asked):
            return compare(*args, **kwargs)

    return wrapper


def _elsewhere(function: tuple[str, str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Comparison:
    options = {name: value for name, value in kwargs.items() if name not in ("isolate", "progress")}
    try:
        if _pool(function[0]).submit(_is_outdated).result():
            _POOLS.pop(os.getpid()).shutdown(wait=False)
        found: Comparison = _pool(function[0]).submit(_call, function, args, options, os.getcwd()).result()
        return found
    except WorkerDied as died:
        return unanswered(died, args[:2], str(kwargs.get("command", "")))
    except (KeyboardInterrupt, SystemExit):
        _POOLS.pop(os.getpid()).stop()
        raise


def _pool(module: str) -> WorkerPool:
    with _LOCK:
        if os.getpid() not in _POOLS:
            _POOLS[os.getpid()] = pool = WorkerPool(1, preload=(module,))
            atexit.register(pool.shutdown, wait=False)
        return _POOLS[os.getpid()]


def _is_outdated() -> bool:
    """Whether this worker has imported a file of the user's that was written anew since: it would run the old one."""
    return not all(in_place(file, found) for file, found in _IMPORTED.items())


def _call(function: tuple[str, str], args: tuple[Any, ...], options: dict[str, Any], folder: str) -> Any:
    os.chdir(folder)
    try:
        # By name: what is decorated is not what its module calls by that name, and cannot be pickled.
        return getattr(importlib.import_module(function[0]), function[1])(*args, **options)
    finally:
        for file in {f for f in map(file_of, list(sys.modules.values())) if f and f not in _IMPORTED and is_users(f)}:
            with contextlib.suppress(OSError):
                _IMPORTED[file] = stamp(file)


def unanswered(
    died: WorkerDied, programs: tuple[Any, ...], command: str, told: Mapping[str, Any] | None = None
) -> Comparison:
    """The record of a comparison whose process did not live to answer.

    Parameters
    ----------
    died : WorkerDied
    programs : tuple
        What was given for A and B.
    command : str
    told : mapping or None
        What the process said it was doing; None where its last words hold that.
    """
    found = death_finding(CODES[died.fate], died.words, last_told(died.last_words) if told is None else told)
    names = (str(p) if isinstance(p, (str, Path)) else type(p).__name__ for p in programs)
    return Comparison(
        verdict=Verdict.INCONCLUSIVE,
        reason=found.what,
        outputs=Outputs(),
        findings=(found,),
        programs={side: {"name": name, "isolated": True} for side, name in zip("ab", names, strict=False)},
        environment=capture(),
        thresholds=THRESHOLDS.to_dict(),
        command=command,
    )

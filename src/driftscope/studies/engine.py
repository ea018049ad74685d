"""Running a study: cells out, rows in, kept as they come; what is there already is not made again."""

from __future__ import annotations

import datetime
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driftscope.errors import InputError
from driftscope.programs.worker_failures import Failure, Fate, failure_of
from driftscope.records import run_store
from driftscope.records.run_store import Entry, RunFolder
from driftscope.records.study_rows import OK
from driftscope.studies.cell_runs import Answer, environment_with, run_cell
from driftscope.studies.grid import Cell, seed_of
from driftscope.studies.plan import Plan, digest_of
from driftscope.studies.pools import Place, executor_at

_AHEAD = 256  # tasks submitted and not finished: enough for a cluster, few enough for grids of millions

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """How a study is run.

    Parameters
    ----------
    place : Place
    store : str or Path or None
        Folder of all runs; None keeps rows in memory alone.
    run : str
        Id of the run to make, or to go on with; ``""``: an unfinished run of the same study in the same environment is
        gone on with, else there is a new one.
    fresh : bool
        Make a new run in any case.
    command : str
        The command line that does this again.
    progress : callable or None
        Told in a few words how far it is.
    """

    place: Place = field(default_factory=Place)
    store: str | Path | None = None
    run: str = ""
    fresh: bool = False
    command: str = ""
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What running gave: every cell's entry in grid order, the environment, the folder if there is one."""

    entries: tuple[Entry, ...]
    environment: Mapping[str, Any]
    folder: Path | None


def run_study(plan: Plan, running: Running) -> Outcome:
    """Run what is missing of a study.

    Raises
    ------
    InputError
        If the function cannot be sent to workers, the store cannot be written, or ``running.run`` is the id of
        another study.
    """
    say = running.progress or (lambda _text: None)
    cells = list(plan.grid.cells())
    function: Any = plan.function if running.place.workers == 0 and not running.place.cluster else plan.reference()
    say("Starting workers")
    with executor_at(running.place, len(cells)) as pool:
        environment = _environment(pool, plan)
        folder = None if running.store is None else _folder(plan, running, environment)
        done = {} if folder is None else folder.entries()
        missing = [c for c in cells if c.name not in done or _worth_another_try(done[c.name])]
        say(_begin(folder, len(cells), len(missing)))
        writer = folder.writer() if folder is not None and missing else None
        try:
            for entry in _answered(pool, plan, function, missing, done):
                if writer is not None:
                    writer.append(entry)
                done[entry.cell] = entry
                say(_so_far(done, len(cells)))
        finally:
            if writer is not None:
                writer.close()
    entries = tuple(done[c.name] for c in cells)
    return Outcome(entries, environment, None if folder is None else folder.path)


def _environment(pool: Executor, plan: Plan) -> Mapping[str, Any]:
    found: Mapping[str, Any] = pool.submit(environment_with, plan.modules).result()
    return found


def _folder(plan: Plan, running: Running, environment: Mapping[str, Any]) -> RunFolder:
    """Find the run to go on with, or make one."""
    store = Path(running.store or run_store.RUNS_FOLDER)
    identity = plan.identity()
    wanted = digest_of({**identity, "environment": environment})
    if running.run and (store / running.run / "run.json").exists():
        found = RunFolder(store / running.run)
        if found.header.get("study") != plan.name or found.header.get("digest") != digest_of(identity):
            raise InputError(
                f"run {running.run!r} in {str(store)!r} is of another study or other axes; choose another id"
            )
        return found
    if not running.run and not running.fresh:
        for found in reversed(run_store.runs_in(store)):
            same = found.header.get("digest_with_environment") == wanted
            if same and not found.is_live() and len(found.entries()) < len(plan.grid):
                return found
    header = {
        **identity, "cells": len(plan.grid), "views": plan.views, "reading": plan.reading,
        "digest": digest_of(identity), "digest_with_environment": wanted,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "place": running.place.cluster or "this machine", "threads": running.place.threads,
        "command": running.command, "environment": environment,
    }  # fmt: skip
    return run_store.create_run(store, plan.name, header, running.run)


def _worth_another_try(entry: Entry) -> bool:
    """Whether a finished cell says nothing about itself: something else killed it."""
    return str(entry.rows[0]["outcome"]) == Fate.KILLED


def _answered(
    pool: Executor, plan: Plan, function: Any, cells: Sequence[Cell], done: Mapping[str, Entry]
) -> Iterator[Entry]:
    """Yield entries as cells finish, a bounded number of them under way."""
    finished: queue.SimpleQueue[tuple[Cell, Future[Answer]]] = queue.SimpleQueue()
    waiting, under_way, seeded = iter(cells), 0, plan.takes_seed
    while True:
        while under_way < _AHEAD and (cell := next(waiting, None)) is not None:
            future = pool.submit(run_cell, function, dict(cell.coordinates), _arguments(plan, cell, seeded))
            future.add_done_callback(lambda f, c=cell: finished.put((c, f)))  # type: ignore[misc]
            under_way += 1
        if not under_way:
            return
        ended, answer = finished.get()
        under_way -= 1
        attempt = done[ended.name].attempt + 1 if ended.name in done else 0
        yield _entry(ended, answer, attempt)


def _arguments(plan: Plan, cell: Cell, seeded: bool) -> dict[str, Any]:
    seed = {"seed": seed_of(plan.name, plan.seed, cell.name)} if seeded else {}
    return {**plan.fixed, **seed}


def _entry(cell: Cell, future: Future[Answer], attempt: int) -> Entry:
    error = future.exception()
    if error is None:
        answer = future.result()
        fine = {"outcome": OK, "code": "", "words": ""}
        return Entry(cell.name, tuple(row | fine for row in answer.rows), answer.seconds, attempt)
    failure: Failure = failure_of(error)
    row = dict(cell.coordinates) | {"outcome": str(failure.fate), "code": failure.code, "words": failure.words}
    return Entry(cell.name, (row,), 0.0, attempt, failure.last_words)


def _begin(folder: RunFolder | None, cells: int, missing: int) -> str:
    where = f" in {folder.path}" if folder is not None else ""
    kept = f", {cells - missing} kept from before" if missing < cells else ""
    return f"{missing} of {cells} cells to run{where}{kept}"


def _so_far(done: Mapping[str, Entry], cells: int) -> str:
    failed = sum(entry.rows[0]["outcome"] != OK for entry in done.values())
    return f"{len(done)} of {cells} cells" + (f", {failed} failed" if failed else "")

"""Running a study: cells out, rows in, kept as they come; what is there already is not made again."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from driftscope.errors import InputError
from driftscope.records.runs.rows import OK, CellRows
from driftscope.records.words import agreeing, counted
from driftscope.studies.engine.cell_runs import CellFunction, environment_with, installed
from driftscope.studies.engine.grid import Cell
from driftscope.studies.engine.plan import Plan, digest_of
from driftscope.studies.engine.pools import Whereabouts, executor_at, runs_here
from driftscope.studies.engine.submission import Submission

if TYPE_CHECKING:
    from pathlib import Path

    from driftscope.records.runs.store import RunFolder

_LOOK_AGAIN = 0.2  # seconds between two looks at what another process that shares the run has finished

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Running:
    """How a study is run.

    Parameters
    ----------
    place : Whereabouts
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

    place: Whereabouts = field(default_factory=Whereabouts)
    store: str | Path | None = None
    run: str = ""
    fresh: bool = False
    command: str = ""
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What running gave: every cell's entry in grid order, the environment, the folder if there is one."""

    entries: tuple[CellRows, ...]
    environment: Mapping[str, Any]
    folder: Path | None


def run_study(plan: Plan, running: Running, begun: Callable[[RunFolder], None] = lambda _folder: None) -> Outcome:
    """Run what is missing of a study; ``begun`` is given the folder before the first cell.

    Raises
    ------
    InputError
        If the function cannot be sent to workers, the store cannot be written, or ``running.run`` is the id of
        another study.
    ClusterLost
        If the scheduler went away; the rows that it had sent are kept.
    CodeChanged
        If a worker finds another version of the cell function.
    """
    say = running.progress or (lambda _text: None)
    cells = list(plan.grid.cells())
    say("Starting workers")
    here = runs_here(running.place, plan.safe_seconds)
    # Workers and stored runs alone can meet another version of the function.
    code = "" if here and running.store is None else _digest(plan.function)
    # On a cluster other packages may be installed: there the first cell of each process imports what it needs.
    modules = () if here or running.place.cluster else installed(plan.modules)
    place = dataclasses.replace(running.place, code=code, modules=modules)
    with executor_at(place, len(cells), plan.safe_seconds) as pool:
        function: Any = plan.function if here else CellFunction(plan.reference(), code)
        environment = _environment(pool, plan)
        folder = None if running.store is None else _folder(plan, running, environment, code)
        if folder is not None:
            begun(folder)
        submission = Submission(pool, plan, function)
        done = _made(submission, cells, say) if folder is None else _finished(submission, cells, folder, say)
    entries = tuple(done[c.name] for c in cells)
    return Outcome(entries, environment, None if folder is None else folder.path)


def _digest(function: Callable[..., Any]) -> str:
    from driftscope.studies.engine.code_digest import code_digest

    return code_digest(function)


def _made(submission: Submission, cells: Sequence[Cell], say: Progress) -> dict[str, CellRows]:
    """Make all cells, kept in memory alone."""
    tell = _Telling(say, len(cells), {}, _begin("", len(cells), len(cells)))
    done: dict[str, CellRows] = {}
    with contextlib.closing(submission.entries(cells, {}, lambda _entry: None)) as entries:
        for entry in entries:
            done[entry.cell] = entry
            tell(entry)
    return done


def _finished(submission: Submission, cells: Sequence[Cell], folder: RunFolder, say: Progress) -> dict[str, CellRows]:
    """Make the cells that a stored run lacks, and share them with other processes that do so at the same time."""
    from driftscope.records.runs.writers import Claims

    claims = Claims(folder.path)
    claims.look()
    done = folder.entries()
    missing = [c for c in cells if _is_wanted(c, done)]
    tell = _Telling(say, len(cells), done, _begin(f" in {folder.path}", len(cells), len(missing)))
    if not missing:
        return done
    for copy in folder.repair():
        say(f"{copy.name.removesuffix('.damaged')} was damaged; what was found is kept as {copy.name}")
    with folder.writer() as writer:
        while missing:
            attempts = {c.name: done[c.name].attempt + 1 for c in missing if c.name in done}
            ours = {}
            free = (c for c in missing if claims.take(c.name, writer.name))
            with contextlib.closing(submission.entries(free, attempts, writer.append)) as entries:
                for entry in entries:
                    ours[entry.cell] = entry
                    tell(entry)
            done |= ours
            missing = [c for c in missing if c.name not in ours]
            if missing:
                are = agreeing(len(missing), "is", "are")
                say(f"{counted(len(missing), 'cell')} {are} being made by another process that writes to {folder.path}")
                start = time.perf_counter()
                claims.look()
                done = folder.entries()
                missing = [c for c in missing if _is_wanted(c, done)]
                time.sleep(max(_LOOK_AGAIN, 4 * (time.perf_counter() - start)) if missing else 0.0)
    return done


def _environment(pool: Executor, plan: Plan) -> Mapping[str, Any]:
    found: Mapping[str, Any] = pool.submit(environment_with, plan.modules).result()
    return found


def _folder(plan: Plan, running: Running, environment: Mapping[str, Any], code: str) -> RunFolder:
    """Find the run to go on with, or make one."""
    from pathlib import Path

    from driftscope.records.runs import store as run_store
    from driftscope.studies.engine.code_digest import are_apart

    store = Path(running.store or run_store.RUNS_FOLDER)
    identity = plan.identity()
    wanted = digest_of({**identity, "environment": environment})
    if running.run and (store / running.run / "run.json").exists():
        found = run_store.RunFolder(store / running.run)
        if found.header.get("study") != plan.name or found.header.get("digest") != digest_of(identity):
            raise InputError(
                f"run {running.run!r} in {str(store)!r} is of another study, other axes or other files;"
                " choose another id"
            )
        if are_apart(found.header.get("code", code), code):  # none in runs of older versions
            raise InputError(
                f"run {running.run!r} in {str(store)!r} was made by {plan.label} as it was before it was changed;"
                " choose another id"
            )
        return found
    if not running.run and not running.fresh:
        for found in reversed(run_store.runs_in(store)):
            same = found.header.get("digest_with_environment") == wanted and found.header.get("code") == code
            if same and not found.is_live() and len(found.entries()) < len(plan.grid):
                return found
    header = {
        **identity, "cells": len(plan.grid), "views": plan.views, "reading": plan.reading,
        "digest": digest_of(identity), "digest_with_environment": wanted, "code": code,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "place": running.place.cluster or "this machine", "threads": running.place.threads,
        "command": running.command, "environment": environment,
    }  # fmt: skip
    return run_store.create_run(store, plan.name, header, running.run)


def _is_wanted(cell: Cell, done: Mapping[str, CellRows]) -> bool:
    """Whether a cell has no row, or one that says nothing about itself because something else killed it."""
    from driftscope.programs.isolation.failures import Fate

    return cell.name not in done or str(done[cell.name].rows[0]["outcome"]) == Fate.KILLED


def _begin(where: str, cells: int, missing: int) -> str:
    kept = f", {cells - missing} kept from before" if missing < cells else ""
    return f"{missing} of {counted(cells, 'cell')} to run{where}{kept}"


class _Telling:
    """Says how many cells are done, and how many of them failed."""

    def __init__(self, say: Progress, cells: int, done: Mapping[str, CellRows], begin: str):
        # A terminal draws how far it is; anybody else is given the words alone.
        self._move: Callable[[str, int, int], None] = getattr(say, "move", lambda text, _done, _total: say(text))
        self._cells = cells
        self._failed = {name: entry.rows[0]["outcome"] != OK for name, entry in done.items()}
        self._failures = sum(self._failed.values())
        self._move(begin, len(self._failed), cells)

    def __call__(self, entry: CellRows) -> None:
        failed = entry.rows[0]["outcome"] != OK
        self._failures += failed - self._failed.get(entry.cell, False)
        self._failed[entry.cell] = failed
        text = f"{len(self._failed)} of {counted(self._cells, 'cell')}"
        self._move(text + (f", {self._failures} failed" if self._failures else ""), len(self._failed), self._cells)

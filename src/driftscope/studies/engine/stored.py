"""Stored runs, opened again."""

from __future__ import annotations

from pathlib import Path

from driftscope.records.runs.store import RUNS_FOLDER, open_run
from driftscope.studies.engine.result import Study, stored_study


def open_study(run: str, store: str | Path = RUNS_FOLDER) -> Study:
    """Read a stored run: its rows, tables, pictures and conclusion.

    Parameters
    ----------
    run : str
        Its id, a beginning that only one id has, or its folder.
    store : path
        Folder of all runs.

    Raises
    ------
    RecordError
        If there is no such run.
    """
    return stored_study(open_run(store, run))

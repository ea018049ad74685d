"""Running one cell, wherever that is: in a worker, on a cluster, or here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.errors import DriftscopeError
from driftscope.records.environment import capture
from driftscope.records.runs.rows import Plain, Row, checked_rows


@dataclass(frozen=True, slots=True)
class Answer:
    """What a cell function gave.

    Parameters
    ----------
    rows : tuple of dict
        Checked: plain values, coordinates first.
    seconds : float
        Time inside the cell function.
    """

    rows: tuple[Row, ...]
    seconds: float


class CodeChanged(DriftscopeError):
    """A worker finds another version of the cell function than the study was begun with."""


@dataclass(frozen=True, slots=True)
class CellFunction:
    """A cell function by its name, so that only that travels between processes.

    Parameters
    ----------
    reference : str
        As ``"package.module:name"``.
    code : str
        Its fingerprint where the study was begun.
    """

    reference: str
    code: str


def run_cell(
    function: CellFunction | Callable[..., Any], coordinates: Mapping[str, Plain], arguments: Mapping[str, Any]
) -> Answer:
    """Call a cell function and check what it returns.

    Parameters
    ----------
    function : CellFunction or callable
    coordinates, arguments : mapping
        Axis values, and what is fixed (the cell's seed among it).

    Raises
    ------
    CodeChanged
        If it is another function here.
    """
    call = _found(function) if isinstance(function, CellFunction) else function
    start = time.perf_counter()
    answer = call(**coordinates, **arguments)
    seconds = time.perf_counter() - start
    return Answer(tuple(checked_rows(answer, coordinates)), seconds)


@functools.lru_cache(maxsize=64)
def _found(wanted: CellFunction) -> Callable[..., Any]:
    from driftscope.programs.loading.references import find
    from driftscope.studies.engine.code_digest import are_apart, code_digest

    found: Callable[..., Any] = find(wanted.reference)
    # The decorator leaves a study object under the function's name.
    found = getattr(found, "function", found)
    if are_apart(code_digest(found), wanted.code):
        raise CodeChanged(
            f"{wanted.reference} is another version in a worker process than it was when the study began: its file was"
            " written meanwhile, or differs on that machine; the rows that were made are kept"
        )
    return found


def installed(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out modules whose package is not there: what needs them says so itself."""
    return tuple(name for name in modules if importlib.util.find_spec(name.partition(".")[0]) is not None)


def environment_with(modules: tuple[str, ...]) -> dict[str, Any]:
    """Describe the environment of this process with ``modules`` imported: only then do libraries tell of themselves."""
    for name in installed(modules):
        importlib.import_module(name)
    return _captured(modules, tuple(sorted(os.environ.items())))


@functools.lru_cache(maxsize=4)
def _captured(_modules: tuple[str, ...], _variables: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    # Asking every package for its version takes a tenth of a second; a process that runs many studies asks once.
    return capture()

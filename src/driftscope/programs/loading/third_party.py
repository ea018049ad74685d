"""Runtimes of other people, found through the entry point group ``driftscope.runtimes``.

An entry point names a callable ``claim(obj, **options)`` that returns a :class:`Program` for what it can run and
None for what it cannot. OpenVINO comes with driftscope and is found in this way too::

    [project.entry-points."driftscope.runtimes"]
    openvino = "driftscope.programs.runtimes.openvino_compiled:claim"

``ds.program(obj)`` asks plug-ins about objects that nothing built in runs; ``ds.program(obj, runtime="openvino")``
asks that one about any object.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from driftscope.errors import DriftscopeError, ProgramError
from driftscope.programs.protocol import Program

GROUP = "driftscope.runtimes"


def claimed_by_plugin(obj: Any, runtime: str, options: Mapping[str, Any]) -> Program:
    """Return the program that the plug-in called ``runtime`` makes of ``obj``.

    Raises
    ------
    ProgramError
        If the plug-in is unknown, fails, declines, or returns something else.
    """
    found = _plugins()
    if runtime not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise ProgramError(f"no runtime is called {runtime!r}; third-party runtimes here: {known}")
    program = _ask(found[runtime], obj, options)
    if program is None:
        raise ProgramError(f"the runtime {runtime!r} cannot run a {type(obj).__name__}")
    return program


def claimed_by_any(obj: Any, options: Mapping[str, Any]) -> Program | None:
    """Return the program that the first willing plug-in, by name, makes of ``obj``; None when there is none.

    Raises
    ------
    ProgramError
        If a plug-in fails or returns something that is no program.
    """
    for _, entry in sorted(_plugins().items()):
        program = _ask(entry, obj, options)
        if program is not None:
            return program
    return None


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _ask(entry: EntryPoint, obj: Any, options: Mapping[str, Any]) -> Program | None:
    try:
        program = entry.load()(obj, **options)
    except DriftscopeError:
        raise
    except Exception as error:
        raise ProgramError(
            f"the runtime {entry.name!r} ({entry.value}) failed: {type(error).__name__}: {error}"
        ) from error
    if program is not None and not isinstance(program, Program):
        raise ProgramError(f"the runtime {entry.name!r} returned a {type(program).__name__}, not a driftscope Program")
    return program

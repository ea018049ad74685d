"""Runtimes of other people, found through the entry point group ``driftscope.runtimes``.

An entry point names a callable ``claim(obj, **options)`` that returns a :class:`Program` for what it can run and
None for what it cannot::

    [project.entry-points."driftscope.runtimes"]
    openvino = "my_package.driftscope_runtime:claim"

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


def claimed_by_plugin(obj: Any, runtime: str | None, options: Mapping[str, Any]) -> Any:
    """Return the program a plug-in makes of ``obj``, or None when ``runtime`` is None and no plug-in wants it.

    Raises
    ------
    ProgramError
        If the plug-in is unknown, fails to load, declines what it was asked for, or returns something else.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if runtime is not None and runtime not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise ProgramError(f"no runtime is called {runtime!r}; third-party runtimes here: {known}")
    for name in [runtime] if runtime is not None else sorted(found):
        program = _ask(found[name], obj, options)
        if program is not None:
            return program
    if runtime is not None:
        raise ProgramError(f"the runtime {runtime!r} cannot run a {type(obj).__name__}")
    return None


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

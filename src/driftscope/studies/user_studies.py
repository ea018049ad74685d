"""Studies of the user's own: a decorated function, or a YAML or TOML file that names one."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from driftscope.errors import DependencyMissing, InputError
from driftscope.programs.loading.references import find, of_python_itself
from driftscope.records.files import bounded_text
from driftscope.records.user_code import file_of
from driftscope.studies.engine.grid import make_grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan, Reading
from driftscope.studies.engine.result import Study, perform

_KNOWN = ("study", "cell", "axes", "fixed", "seed", "modules", "keys", "verdict", "floors", "seconds", "memory")

_LARGEST = 4 << 20
_MOST_VALUES = 200_000
_MOST_CELLS = 1_000_000
_DEEPEST = 20
# Python's reader of TOML takes time and memory with the square of a key's parts: a.b.c.d has four.
_DEEPEST_KEY = 100
# Comments and strings, each to its end or to the end of what it could be: every character is looked at once.
_NO_KEYS = re.compile(
    r"""#[^\n]*+|"{3}(?:[^\\"]|\\.|"(?!""))*+(?:"{3}|\Z)|'{3}(?:[^']|'(?!''))*+(?:'{3}|\Z)"""
    r"""|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?""",
    re.DOTALL,
)
_DOTTED = re.compile(r"(?:\.[^.\n=,{}\[\]]*+)++")


class OwnStudy:
    """A cell function with its axes: called it is the function, run it is the study.

    Parameters
    ----------
    plan : Plan
    limits : mapping
        ``seconds`` and ``memory`` of one cell.
    """

    def __init__(self, plan: Plan, limits: Mapping[str, Any]):
        self.plan, self.limits = plan, dict(limits)
        functools.update_wrapper(self, plan.function)

    @property
    def function(self) -> Callable[..., Any]:
        """The cell function as it was written."""
        return self.plan.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the cell function itself."""
        return self.plan.function(*args, **kwargs)

    def run(self, **running: Any) -> Study:
        """Run the study; options as :func:`driftscope.studies.engine.options.running_of`."""
        given = {name: value for name, value in self.limits.items() if value is not None}
        return perform(self.plan, running_of(**{**given, **running}))


def study(
    *,
    axes: Mapping[str, Any],
    name: str = "",
    seconds: float | None = None,
    memory: int | None = None,
    **settings: Any,
) -> Callable[[Callable[..., Any]], OwnStudy]:
    """Make a study of a pure function: ``@ds.studies.study(axes={"size": [8, 16]})``.

    Parameters
    ----------
    axes : mapping of parameter name to values
        Plain values: strings, numbers, booleans, None.
    name : str
        The study's name; the function's by default.
    seconds, memory : float, int
        Limits of one cell.
    settings
        ``fixed`` (arguments that are the same everywhere), ``seed``, ``modules`` (what workers import first), ``keys``
        (columns that tell the rows of one cell apart), ``verdict`` and ``floors`` (columns that ``runs diff`` reads).

    Returns
    -------
    callable
        The decorator. What it leaves under the function's name has ``.run(...)`` and can still be called.

    Raises
    ------
    InputError
        If the axes do not fit the function's parameters.
    """

    def wrap(function: Callable[..., Any]) -> OwnStudy:
        inner = getattr(function, "function", function)
        described = {"study": name or inner.__name__, "axes": axes, **settings}
        return OwnStudy(_plan(inner, described, "@study"), {"seconds": seconds, "memory": memory})

    return wrap


def load(source: str | Path) -> OwnStudy:
    """Read a study from a .yaml or .toml file, or find the one that ``module:function`` or ``file.py:function`` names.

    Parameters
    ----------
    source : str or Path
        A file has the keys ``axes`` and ``cell`` (``module:function``, or ``file.py:function`` beside it) and may have
        ``study`` (a name), ``fixed``, ``seed``, ``modules``, ``keys``, ``verdict``, ``floors``, ``seconds`` and
        ``memory``.

    Raises
    ------
    InputError
        If the file does not describe a study.
    ProgramError
        If the function cannot be found.
    """
    text = str(source)
    if text.lower().endswith((".yaml", ".yml", ".toml")):
        return _from_file(Path(text))
    found = find(text)
    if not isinstance(found, OwnStudy):
        raise InputError(
            f"{text!r} is not a study: decorate the function with @driftscope.studies.study(axes=...), or name it in a "
            "YAML or TOML file together with its axes"
        )
    return found


def _from_file(path: Path) -> OwnStudy:
    described = _read(path)
    if not isinstance(described, dict) or "axes" not in described or "cell" not in described:
        raise InputError(f"{str(path)!r} is not a study: it needs the keys 'axes' and 'cell' (module:function)")
    unknown = sorted(set(described) - set(_KNOWN))
    if unknown:
        raise InputError(f"{str(path)!r} has the key {unknown[0]!r}, which means nothing; known: {', '.join(_KNOWN)}")
    cell = str(described["cell"])
    home = cell.rpartition(":")[0]
    if home.endswith(".py") and not Path(home).is_absolute():
        cell = str(path.resolve().parent / cell)  # beside the file, from wherever the command is called
    found = find(_of_the_user(cell, path))
    function = getattr(found, "function", found)
    if not isinstance(found, OwnStudy) and _is_installed(cell):
        raise InputError(f"{str(path)!r}: {cell!r} belongs to an installed package and is not marked as a study's cell")
    if not callable(function):
        raise InputError(f"{str(path)!r}: {cell!r} is not a function")
    limits = {"seconds": described.get("seconds"), "memory": described.get("memory")}
    plan = _plan(function, {"study": path.stem, **described}, str(path))
    if len(plan.grid) > _MOST_CELLS:
        raise InputError(f"{str(path)!r} describes more than {_MOST_CELLS:,} cells; give its axes fewer values")
    return OwnStudy(plan, limits)


def _read(path: Path) -> Any:
    try:
        text = bounded_text(path, _LARGEST)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the study {str(path)!r}: {error}") from error
    try:
        described = _parsed(path, text)
    except (RecursionError, ValueError, TypeError, KeyError) as error:
        # What the parsers let through: nesting, odd dates and keys.
        raise InputError(f"{str(path)!r} cannot be read as a study: {' '.join(str(error).split())[:200]}") from error
    _check_size(described, path)
    return described


def _check_size(described: Any, path: Path) -> None:
    """Count what a description stands for: YAML's aliases let a few lines stand for a billion values."""
    waiting, visited = [(described, 0)], 0
    while waiting:
        part, depth = waiting.pop()
        visited += 1
        if visited > _MOST_VALUES or depth > _DEEPEST:
            raise InputError(f"{str(path)!r} describes more than {_MOST_VALUES:,} values, or more than {_DEEPEST} deep")
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, (list, set, tuple)) else ()
        waiting.extend((one, depth + 1) for one in inner)


def _parsed(path: Path, text: str) -> Any:
    if path.suffix.lower() == ".toml":
        if any(run.count(".") >= _DEEPEST_KEY for run in _DOTTED.findall(_NO_KEYS.sub(" ", text))):
            raise InputError(f"{str(path)!r} has a key of more than {_DEEPEST_KEY} parts")
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{str(path)!r} is not TOML: {error}") from error
    if importlib.util.find_spec("yaml") is None:
        raise DependencyMissing("a study in YAML", "yaml", "store")
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(text)  # plain data only: no objects are made of tags
    except yaml.YAMLError as error:
        raise InputError(f"{str(path)!r} is not YAML: {' '.join(str(error).split())}") from error


def _of_the_user(cell: str, path: Path) -> str:
    """Return the reference to a cell, if it is code that a user may have meant: never Python's own library."""
    if of_python_itself(cell):
        raise InputError(f"{str(path)!r}: {cell[:80]!r} belongs to Python itself; a cell is a function of yours")
    return cell


def _is_installed(cell: str) -> bool:
    """Whether a cell lies in a package that was installed (or in this one, wherever it lies), not in the user's own."""
    home = cell.rpartition(":")[0]
    if home.partition(".")[0] == __name__.partition(".")[0]:
        return True
    module = sys.modules.get(home)
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    file = file_of(module)
    return not home.endswith(".py") and any(Path(file).is_relative_to(place) for place in places)


def _plan(function: Callable[..., Any], described: Mapping[str, Any], where: str) -> Plan:
    known = {"fixed", "seed", "modules", "keys", "verdict", "floors"}
    unknown = sorted(set(described) - known - {"study", "axes", "cell", "seconds", "memory"})
    if unknown:
        raise InputError(f"{where} has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    return Plan(
        name=str(described["study"]),
        function=function,
        grid=make_grid(described["axes"]),
        fixed=dict(described.get("fixed") or {}),
        seed=described.get("seed", 0),
        modules=tuple(described.get("modules") or ()),
        reading=Reading(
            tuple(described.get("keys") or ()),
            str(described.get("verdict") or "verdict"),
            str(described.get("floors") or "floors"),
        ),
    )

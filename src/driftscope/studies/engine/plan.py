"""What a study is before it is run: a name, axes, one pure cell function, a seed."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.errors import InputError
from driftscope.records.plain import to_plain
from driftscope.studies.engine.grid import Grid


@dataclass(frozen=True, slots=True)
class Reading:
    """How the rows of a study are read when two runs are laid side by side.

    Parameters
    ----------
    keys : tuple of str
        Columns beside the axes that tell rows of one cell apart.
    verdict : str
        The column that holds a row's class, as ``"verdict"``.
    floors : str
        The column that says how far it is from agreeing, as ``"floors"``.
    """

    keys: tuple[str, ...] = ()
    verdict: str = "verdict"
    floors: str = "floors"


@dataclass(frozen=True, slots=True)
class Plan:
    """A study, ready to run.

    Parameters
    ----------
    name : str
        Letters, digits, ``_`` and ``-``: it begins the ids of its runs.
    function : callable
        ``function(**coordinates, **fixed)`` returns a row (a dict of plain values) or a list of rows. It must be pure:
        the same arguments give the same rows wherever and whenever it runs. A parameter called ``seed`` that is not
        an axis receives a seed made of the study's name, its seed and the cell's name.
    grid : Grid
    fixed : mapping
        Arguments that are the same for every cell; plain values.
    seed : int
    modules : tuple of str
        What workers import before their first cell, so that no cell pays for it.
    views : str
        Module with ``matrix``, ``plot`` and ``conclude`` for these rows; ``""`` for the general ones.
    reading : Reading
    safe_seconds : float or None
        About how long all cells take in one process, where none of them can bring that process down; None where one
        may: what is a user's own, and what a native runtime computes.
    """

    name: str
    function: Callable[..., Any]
    grid: Grid
    fixed: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    modules: tuple[str, ...] = ()
    views: str = ""
    reading: Reading = field(default_factory=Reading)
    safe_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "_-" for c in self.name):
            raise InputError(f"a study's name is made of letters, digits, '_' and '-', not {self.name!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"a seed is a whole number, not {self.seed!r}")
        shared = set(self.grid.axes) & set(self.fixed)
        if shared:
            raise InputError(f"{sorted(shared)[0]!r} is both an axis and a fixed argument of study {self.name!r}")
        self._check_parameters()

    def _check_parameters(self) -> None:
        try:
            parameters = inspect.signature(self.function).parameters
        except (ValueError, TypeError):
            return  # a builtin that does not say
        given = {*self.grid.axes, *self.fixed}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        unknown = sorted(given - set(parameters))
        if unknown and not takes_any:
            raise InputError(
                f"the cell function {self.label} has no parameter {unknown[0]!r}; it takes {', '.join(parameters)}"
            )
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        missing = [
            name for name, p in parameters.items() if p.default is p.empty and p.kind in plain and name not in given
        ]
        if [name for name in missing if name != "seed"]:
            raise InputError(f"the cell function {self.label} needs {missing[0]!r}, which is neither an axis nor fixed")

    @property
    def label(self) -> str:
        """The function's name as people know it."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @property
    def takes_seed(self) -> bool:
        """Whether cells receive a seed by name."""
        try:
            known = inspect.signature(self.function).parameters
        except (ValueError, TypeError):
            return False
        return "seed" in known and "seed" not in self.grid.axes and "seed" not in self.fixed

    def reference(self) -> str:
        """Return where another process finds the function.

        Raises
        ------
        InputError
            If it is a lambda, defined inside a function, or typed into a prompt.
        """
        from pathlib import Path

        from driftscope.records.user_code import file_of

        name, home = self.function.__qualname__, self.function.__module__
        if "<" in name:
            raise InputError(
                f"worker processes cannot find {name!r}: define the cell function at the top level of a file "
                "(or run the study in this process with workers=0)"
            )
        path = file_of(sys.modules.get(home))
        if home == "__main__" or home.startswith("_driftscope_"):
            if not path or not Path(path).is_file():
                raise InputError(
                    f"worker processes cannot find {name!r}, which was typed into a prompt or notebook: put it into a "
                    "file and import it (or run the study in this process with workers=0)"
                )
            return f"{Path(path).resolve()}:{name}"
        return f"{home}:{name}"

    def identity(self) -> dict[str, Any]:
        """Return what makes two plans the same study: everything but where and when it runs."""
        plain: dict[str, Any] = to_plain(
            {
                "study": self.name,
                "function": self.label,
                "axes": {name: list(values) for name, values in self.grid.axes.items()},
                "fixed": dict(self.fixed),
                "seed": self.seed,
            }
        )
        return plain


def digest_of(identity: Mapping[str, Any]) -> str:
    """Return a short fingerprint of plain data."""
    import json

    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

"""Modules beside a file of the user's, apart from others of their names: an old and a new checkout in one process."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from driftscope.records.files import in_place, stamp
from driftscope.records.user_code import file_of, is_users

#: What was imported from each folder for a reference, by name: the file, as it was then.
_IMPORTED: dict[str, dict[str, tuple[str, tuple[int, int, int]]]] = {}


def was_imported(name: str) -> bool:
    """Whether a module was imported for a reference, by whose path it was found."""
    return any(name in known for known in _IMPORTED.values())


def forget_outdated() -> None:
    """Let everything be imported anew that references imported from a folder in which a file of it was written since.

    What the user has imported is the user's to reload.
    """
    for known in _IMPORTED.values():
        if not all(in_place(file, found) for file, found in known.values()):
            for name, (file, _) in known.items():
                if file_of(sys.modules.get(name)) == file:
                    del sys.modules[name]
            known.clear()


class Siblings:
    """The modules of one folder, for one import of a file or module in it.

    Python keeps one module of each name. Where the folder has one of a name that stands for another folder's file by
    now, it is imported anew and kept here, and the other goes on having the name; whoever was imported from the folder
    meanwhile finds its own, in functions too.

    Parameters
    ----------
    folder : Path
    before : bool
        Whether it comes before all others on the path, as that of a script does; else it is on the path.
    """

    def __init__(self, folder: Path, before: bool = True):
        self.folder = str(folder.resolve())
        self._before = before
        self._own: dict[str, ModuleType] = {}

    @property
    def path(self) -> list[str]:
        """Where modules are looked for."""
        return [self.folder, *sys.path] if self._before else sys.path

    @contextlib.contextmanager
    def first(self) -> Iterator[bool]:
        """Import as this folder's modules do; yields whether modules of other folders had to make place."""
        aside, before = self._of_others(), set(sys.modules)
        for name in aside:
            del sys.modules[name]
        sys.modules.update(self._own)
        finder: Any = _Finder(self)
        sys.path[:] = self.path
        if aside:
            sys.meta_path.insert(0, finder)
        try:
            yield bool(aside)
        finally:
            if self._before and self.folder in sys.path:  # what was imported may have taken it out
                sys.path.remove(self.folder)
            if aside:
                sys.meta_path.remove(finder)
                tops = {_top(name) for name in aside}
                self._own = {name: module for name, module in sys.modules.items() if _top(name) in tops}
                for name in self._own:
                    del sys.modules[name]
                sys.modules.update(aside)
            else:
                self._note(set(sys.modules) - before)

    def _note(self, names: set[str]) -> None:
        known = _IMPORTED.setdefault(self.folder, {})
        for name in names:
            file = file_of(sys.modules[name])
            if file and self.hold(file) and not name.startswith("_driftscope_"):
                with contextlib.suppress(OSError):
                    known[name] = file, stamp(file)

    def hold(self, file: str) -> bool:
        """Whether a file, or the link that leads to it, lies in the folder or in one inside."""
        names = os.path.abspath(file), os.path.realpath(file)
        return any(name.startswith(self.folder + os.sep) for name in names)

    def builtins(self) -> dict[str, Any]:
        """What modules of this folder have for built-in names: ``import`` looks here, whenever it is reached."""
        return {**vars(builtins), "__import__": self._import}

    def _import(self, *args: Any, **kwargs: Any) -> Any:
        with self.first():
            return builtins.__import__(*args, **kwargs)

    def _of_others(self) -> dict[str, ModuleType]:
        """Modules of the user's that have a name for which this folder has a file of its own."""
        here = {Path(entry).stem for entry in os.listdir(self.folder)}
        named = [(name, module) for name, module in sys.modules.items() if _top(name) in here]
        foreign = {_top(name) for name, module in named if self._is_foreign(module)}
        found = set(filter(self._has, foreign))
        return {name: module for name, module in named if _top(name) in found}

    def _has(self, top: str) -> bool:
        spec = PathFinder.find_spec(top, self.path)
        if spec is not None and spec.origin is None and file_of(sys.modules.get(top)) and not was_imported(top):
            return False  # a folder without __init__.py hides no package that the user has imported
        return spec is not None and self.hold(home_of(spec))

    def _is_foreign(self, module: ModuleType) -> bool:
        file = file_of(module)
        return bool(file) and is_users(file) and not self.hold(file)


class _Finder:
    """Finds modules of the folder, and gives them its own ``import``."""

    def __init__(self, siblings: Siblings):
        self._siblings = siblings

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See ``importlib.abc.MetaPathFinder``."""
        spec = PathFinder.find_spec(name, self._siblings.path if path is None else path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or not self._siblings.hold(spec.loader.path):
            return None
        spec.loader = _Loader(name, spec.loader.path, self._siblings)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, siblings: Siblings):
        super().__init__(name, path)
        self._siblings = siblings

    def exec_module(self, module: ModuleType) -> None:
        # Functions take their built-in names from the module when they are made.
        vars(module)["__builtins__"] = self._siblings.builtins()
        super().exec_module(module)


def home_of(spec: ModuleSpec | None) -> str:
    """The file of a module, or the folder of a package without one; empty where there is neither."""
    if spec is None:
        return ""
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "")


def _top(name: str) -> str:
    return name.partition(".")[0]

"""``package.module:name`` and ``file.py:name``: the user's own code, imported on request."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import re
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path as FilePath
from types import ModuleType
from typing import TYPE_CHECKING, Any

from driftscope.errors import DriftscopeError, InputError, ProgramError
from driftscope.programs.loading.sibling_modules import Siblings, forget_outdated, home_of, was_imported
from driftscope.programs.state.process import drawn_alike, generators, put_back
from driftscope.programs.state.setting import Setting
from driftscope.records.user_code import file_of, is_users

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

#: Of files that hold no Python code to call.
_MODEL_FILES = (".onnx", ".pt2", ".pt", ".pth", ".xml", ".safetensors", ".ckpt", ".bin")
#: The random generators as the import of a module left them.
_AFTER_IMPORT: weakref.WeakKeyDictionary[ModuleType, list[tuple[Setting, Any]]] = weakref.WeakKeyDictionary()
_OUTSIDE = "no known parent package"  # what Python says of a relative import in a file of its own
_REFERENCE = re.compile(r"(?P<home>.+\.py|[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)$")


@dataclass(frozen=True, slots=True)
class Found:
    """What a reference led to.

    Parameters
    ----------
    program : object
        Anything ``ds.program`` takes.
    name : str
    inputs : object or None
        What the factory returned beside the program.
    """

    program: Any
    name: str
    inputs: Any = None


def of_python_itself(reference: str) -> bool:
    """Whether a reference names something of Python's own library, which no list and no study has a reason to call."""
    home = reference.rpartition(":")[0]
    root = home.partition(".")[0]
    return not home.endswith(".py") and (root in sys.stdlib_module_names or root == "builtins")


def is_reference(text: str) -> bool:
    """Whether ``text`` reads like ``package.module:name`` or ``file.py:name``."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str) -> Found:
    """Import what a reference names and call it if it is a factory.

    A factory is a function or class without required arguments; it returns a program, or a program and its inputs. A
    module made of its class is set to eval(), as nobody else can do it; what a factory returns stays in its mode. What
    is drawn meanwhile (weights that nobody trained) is what seed 0 gives, for A, for B and the next time.

    Raises
    ------
    ProgramError
        If the module or name does not exist, or the user's code fails while it is imported or called.
    """
    home, _, name = text.rpartition(":")
    before = sys.modules.get(home)
    with drawn_alike():
        found = find(text)
        module = sys.modules.get(home)
        if module is not None and module is not before:
            _AFTER_IMPORT[module] = generators()
        elif module is not None:  # its own seed, where it has one, was set when it was imported
            put_back(_AFTER_IMPORT.get(module, []))
        return _opened(found, name, text)


def resolve_to_call(text: str, given: Sequence[str] = (), *, seed: int = 0) -> tuple[Found, Inputs]:
    """Resolve a reference to a module or function, with the inputs given, or else those of its factory.

    Raises
    ------
    InputError
        If it is neither, or there are no inputs.
    ProgramError
        As :func:`resolve`.
    """
    from driftscope.programs.feeding.feeds import make_inputs  # loads torch

    found = resolve(text)
    if not callable(found.program):
        raise InputError(f"{text} is not a function or module but {type(found.program).__name__}")
    inputs = list(given) or found.inputs
    if inputs is None:
        raise InputError(f"{text} needs example inputs: --input NAME=2x5:float32 for each argument")
    return found, make_inputs(inputs, seed=seed).realise()


def find(text: str) -> Any:
    """Import what a reference names, and call nothing.

    Raises
    ------
    ProgramError
        If the module or name does not exist, or the user's code fails while it is imported.
    """
    parts = _REFERENCE.fullmatch(text)
    if parts is None:
        raise ProgramError(_no_reference(text))
    home, name = parts["home"], parts["name"]
    forget_outdated()
    found: Any = _import_file(home) if home.endswith(".py") else _import_module(home)
    for step in name.split("."):
        if not hasattr(found, step):
            near = [n for n in dir(found) if not n.startswith("_")][:8]
            raise ProgramError(f"{home} has no {name!r}; it has {', '.join(near) or 'nothing'}")
        found = getattr(found, step)
    return found


def _no_reference(text: str) -> str:
    """Say what to give instead, where a file of a model or of Python was given."""
    suffix = FilePath(text).suffix.lower()
    if suffix == ".py":
        return f"{text} needs the name of an object or a factory inside: {text}:name"
    if suffix in _MODEL_FILES:
        return (
            f"{text} is a model that was exported or saved; give the module or function that it was made of, as"
            " package.module:name or file.py:name"
        )
    return f"{text!r} is not package.module:name or file.py:name"


def _opened(found: Any, name: str, text: str) -> Found:
    made = _call(found, text) if _is_factory(found) else found
    if inspect.isclass(found) and callable(getattr(made, "eval", None)) and hasattr(made, "training"):
        made.eval()  # nobody else could: a factory decides for itself
    if isinstance(made, tuple) and len(made) == 2:
        return Found(made[0], name, made[1])
    return Found(made, name)


def _is_factory(found: Any) -> bool:
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return False
    try:
        parameters = inspect.signature(found).parameters.values()
    except (ValueError, TypeError):
        return False
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    # A function of *args is a program, not a factory: it has inputs.
    takes_any = inspect.isfunction(found) and any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return not required and not takes_any


def _call(factory: Any, text: str) -> Any:
    try:
        return factory()
    except DriftscopeError:
        raise
    except Exception as error:
        raise ProgramError(f"{text} failed when called: {type(error).__name__}: {error}") from error


def _import_module(home: str) -> ModuleType:
    root = home.split(".")[0]
    of_user = root in sys.modules and not was_imported(root)
    # Modules in the working folder, as `python -m` finds them.
    spec = None if of_user else PathFinder.find_spec(root, [*sys.path, str(FilePath.cwd())])
    place = home_of(spec)
    with _imports(f"module {home!r}", absent="cannot be imported"):
        if spec is None or not is_users(place):
            return importlib.import_module(home)
        folder = FilePath(place).parents[1 if spec.origin and spec.submodule_search_locations else 0]
        with Siblings(folder, before=str(folder) not in sys.path).first():
            return importlib.import_module(home)


def _import_file(home: str) -> ModuleType:
    path = FilePath(home)
    try:
        exists = path.is_file()
    except OSError as error:  # a name longer than the system takes
        raise ProgramError(f"{home} cannot be read: {error.strerror or error}") from error
    if not exists:
        raise ProgramError(f"{home}: no such file")
    with _imports(home):
        try:
            return _executed(path)
        except ImportError as error:
            if _OUTSIDE not in str(error) or not (path.parent / "__init__.py").is_file():
                raise
        return _within_its_package(path.resolve())


@contextlib.contextmanager
def _imports(what: str, absent: str = "") -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if absent and isinstance(error, ModuleNotFoundError):
            raise ProgramError(f"{what} {absent}: {error}") from error
        raise ProgramError(f"{what} fails when imported: {type(error).__name__}: {error}") from error


def _executed(path: FilePath) -> ModuleType:
    """Import a file as a module of its own, whatever it is part of."""
    name = _free_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a file of Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up
    siblings = Siblings(path.resolve().parent)
    try:
        with siblings.first() as apart:
            if apart:
                vars(module)["__builtins__"] = siblings.builtins()
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _within_its_package(path: FilePath) -> ModuleType:
    """Import a file as the part of a package that it is: only so may it import relatively."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    with Siblings(root).first():
        return importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def _free_name(path: FilePath) -> str:
    """A module's name for a file: the same for the same file, and no other file's."""
    for number in itertools.count(1):
        name = f"_driftscope_{path.stem}" + f"_{number}" * (number > 1)
        if name not in sys.modules or file_of(sys.modules[name]) in (str(path), str(path.resolve())):
            return name
    raise AssertionError

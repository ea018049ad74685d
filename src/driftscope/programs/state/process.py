"""The settings that all code of a process shares: read, and put back whatever happened.

Much of what decides a number belongs to the whole process: the default dtype, the random generators, precision flags,
warning filters. Two threads that save and restore such a setting at once leave the other's value behind, so every
public function that may set one holds the same lock while it works.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from driftscope.programs.state.printing import put_back_streams, streams
from driftscope.programs.state.setting import Setting

_ALONE = threading.RLock()
_INSIDE = 0  # how many hold the lock, one inside the other
_KEEPING = 0  # how many of those keep the state
_AT_END: list[Callable[[], None]] = []


def _renew_lock() -> None:
    global _ALONE, _INSIDE, _KEEPING
    _ALONE, _INSIDE, _KEEPING = threading.RLock(), 0, 0  # of a thread that does not exist in a forked child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def readings(*, generators: bool = True) -> list[tuple[Setting, Any]]:
    """Read every setting of this process and thread."""
    return [(s, s.read()) for s in _settings() if generators or not s.random]


def generators() -> list[tuple[Setting, Any]]:
    """Read the random generators alone."""
    return [(s, s.read()) for s in _settings() if s.random]


def put_back(kept: list[tuple[Setting, Any]]) -> list[str]:
    """Write back what differs from a reading, and name it."""
    changed = []
    for setting, before in kept:
        if not _equal(setting.read(), before):
            changed.append(setting.name)
            setting.write(before)
    return changed


def differing(kept: list[tuple[Setting, Any]]) -> list[str]:
    """Name the settings that are not as they were read."""
    return [setting.name for setting, before in kept if not _equal(setting.read(), before)]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep other threads out of what sets, or depends on, a setting of the process."""
    global _INSIDE
    with _ALONE:
        _INSIDE += 1
        try:
            yield
        finally:
            _INSIDE -= 1
            for function in () if _INSIDE else _AT_END:
                function()


def at_end(function: Callable[[], None]) -> None:
    """Have a function called whenever the outermost public function ends: it drops what was kept for one call."""
    _AT_END.append(function)


@contextlib.contextmanager
def state_kept(*, exclusive: bool = True, generators: bool = True) -> Iterator[None]:
    """Leave the process as it was; as a decorator, around a public function.

    Parameters
    ----------
    exclusive : bool
        Also hold the lock meanwhile. False for what waits for other threads that need it.
    generators : bool
        Also put the random generators back. False for one of many runs that are each seeded, inside of another call.
    """
    global _KEEPING
    with alone() if exclusive else contextlib.nullcontext():
        kept = readings(generators=generators)
        if not (exclusive and _KEEPING):  # once around all: there are as many loggers as modules
            kept.append((LOGGING, LOGGING.read()))
            linecache.checkcache()  # a module may have been edited and loaded anew: its old lines are nobody's
        _KEEPING += exclusive
        try:
            with warnings.catch_warnings():
                yield
        finally:
            _KEEPING -= exclusive
            put_back(kept)


@contextlib.contextmanager
def drawn_alike() -> Iterator[None]:
    """Let what is drawn at random inside be the same every time; the generators are put back."""
    kept = generators()
    random.seed(0)
    for library, name in (("numpy.random", "seed"), ("torch", "manual_seed")):
        seed = getattr(sys.modules.get(library), name, None)
        if seed is not None:
            seed(0)
    try:
        yield
    finally:
        put_back(kept)


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, (tuple, list)):
        try:
            return bool(left == right)  # in C where nothing inside is an array
        except (ValueError, RuntimeError):
            pass
        return len(left) == len(right) and all(_equal(a, b) for a, b in zip(left, right, strict=True))
    if hasattr(left, "tobytes"):  # numpy arrays
        return bool(left.tobytes() == right.tobytes())
    if hasattr(left, "data_ptr"):
        return bool(left.equal(right))
    return bool(left == right)


# --- settings of Python ----------------------------------------------------------------------------------------


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was deleted
        return None


def _go_back(folder: str | None) -> None:
    if folder is not None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.chdir(folder)


def environment() -> dict[Any, Any]:
    """Read the environment variables as they are stored: decoding them all takes longer than all other readings."""
    return dict(getattr(os.environ, "_data", os.environ))


def _put_environment_back(kept: dict[Any, Any]) -> None:
    if hasattr(os.environ, "_data"):
        kept = {os.environ.decodekey(name): os.environ.decodevalue(value) for name, value in kept.items()}
    for name in [name for name in os.environ if name not in kept]:
        del os.environ[name]
    for name, value in kept.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _restore_list(live: list[Any]) -> Callable[[Any], None]:
    def write(kept: tuple[Any, ...]) -> None:
        live[:] = kept

    return write


_HANDLED = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGALRM", "SIGABRT") if hasattr(signal, n))


def _handlers() -> tuple[Any, ...]:
    return tuple(signal.getsignal(number) for number in _HANDLED)


def _set_handlers(kept: tuple[Any, ...]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # Python sets them from the main thread alone, so this one cannot have changed them
    for number, handler in zip(_HANDLED, kept, strict=True):
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _log_levels() -> dict[str, tuple[int, bool]]:
    found = {
        name: (logger.level, logger.disabled)
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger)
    }
    # "/" is no name that a module could have.
    return found | {"/": (logging.root.level, logging.root.disabled), "/all": (logging.root.manager.disable, False)}


def _set_log_levels(kept: dict[str, tuple[int, bool]]) -> None:
    logging.disable(kept["/all"][0])
    for name, (level, disabled) in kept.items():
        if name == "/all":
            continue
        logger = logging.root if name == "/" else logging.getLogger(name)
        if logger.level != level:
            logger.setLevel(level)
        logger.disabled = disabled


#: Not part of a run's reading: libraries make loggers whenever they are imported.
LOGGING = Setting("logging levels", _log_levels, _set_log_levels)

_PYTHON = (
    Setting("the state of Python's random", random.getstate, random.setstate, random=True),
    Setting("the working folder", _folder, _go_back),
    Setting("environment variables", environment, _put_environment_back),
    Setting("the module search path", lambda: tuple(sys.path), _restore_list(sys.path)),
    Setting("standard streams", streams, put_back_streams),
    Setting("signal handlers", _handlers, _set_handlers),
    Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("the trace function", sys.gettrace, sys.settrace),
    Setting("garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
)


# --- settings of numpy and torch, where they are loaded --------------------------------------------------------


def _settings() -> tuple[Setting, ...]:
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    found: tuple[Setting, ...] = _PYTHON
    # A library whose import has not come to its end has no settings yet.
    if numpy is not None and hasattr(numpy, "set_printoptions") and hasattr(numpy, "random"):
        found += _numpy_settings(numpy)
    if torch is not None and hasattr(torch, "export"):
        found += _torch_settings(torch)
    jax = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "config"):
        found += (_wide_jax(jax),)
    return found


def _wide_jax(jax: Any) -> Setting:
    def write(on: bool) -> None:
        jax.config.update("jax_enable_x64", on)

    return Setting("JAX's numbers of 64 bits", lambda: bool(jax.config.jax_enable_x64), write)


_TABLES: dict[str, tuple[Setting, ...]] = {}


def _numpy_settings(numpy: Any) -> tuple[Setting, ...]:
    if "numpy" not in _TABLES:
        state, errors, printing = numpy.random, numpy, numpy
        _TABLES["numpy"] = (
            Setting("the state of numpy.random", state.get_state, state.set_state, random=True),
            Setting("numpy's floating-point errors", errors.geterr, lambda kept: errors.seterr(**kept)),
            Setting("numpy's print options", printing.get_printoptions, lambda k: printing.set_printoptions(**k)),
        )
    return _TABLES["numpy"]


def _torch_settings(torch: Any) -> tuple[Setting, ...]:
    if "torch" not in _TABLES:
        from driftscope.programs.state.torch_settings import torch_settings

        _TABLES["torch"] = torch_settings()
    return _TABLES["torch"]

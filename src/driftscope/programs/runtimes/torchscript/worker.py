"""The worker's side of TorchScript: loads, runs and exports a file's program in a process of its own."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import torch

from driftscope.errors import CannotLift, ProgramError, RuntimeRefused
from driftscope.programs.loading.torchscript import check_graph, packed_script
from driftscope.programs.pytrees import tree_leaves
from driftscope.programs.runtimes.torchscript.recording import recorded_graph
from driftscope.programs.torch_run import words_of
from driftscope.records.files import in_place

RUNTIME = "TorchScript"


@dataclass(frozen=True, slots=True)
class Named:
    """A named tuple on its way to another process, where its class does not exist."""

    name: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A file and the stamp of what was read from it: a worker that is started anew reads it again."""

    path: str
    stamp: tuple[int, int, int]


_HELD: dict[int, torch.jit.ScriptModule] = {}
# What is sent as it is; of anything else, its text.
_ATOMS = (torch.Tensor, int, float, bool, complex, str, type(None))

#: An argument of ``forward``: name, whether it may be left out, and its value then.
Argument = tuple[str, bool, Any]


def make(number: int, file: ScriptFile) -> list[Argument]:
    """Load a file under a number and return what its ``forward`` takes.

    Raises
    ------
    ProgramError
        If it holds more than a program of pure operators, or is another file by now.
    RuntimeRefused
        If torch does not load it.
    """
    path = FilePath(file.path)
    if not in_place(path, file.stamp):
        raise ProgramError(f"{path} was deleted or written anew since it was read, and is needed again; read it again")
    packed = packed_script(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.load(packed, map_location="cpu")
    except Exception as error:  # whatever a parser of programs may raise; the file is the user's
        raise RuntimeRefused(RUNTIME, "load", _words(error)) from None
    if not hasattr(module, "forward"):
        raise ProgramError(f"{path} is a TorchScript program without a forward method")
    check_graph(module.forward, path)
    _HELD[number] = module
    found = module.forward.schema.arguments[1:]
    return [(a.name, a.has_default_value(), _plain(a.default_value)) for a in found]


def run(number: int, file: ScriptFile, args: tuple[Any, ...], kwargs: Mapping[str, Any], threads: int) -> Any:
    """Call the program once; a worker that was started anew loads it first.

    Raises
    ------
    RuntimeRefused
        In TorchScript's own words.
    """
    torch.set_num_threads(threads)
    module = _module(number, file)
    try:
        with _buffers_kept(module), torch.no_grad():
            return _plain(module(*args, **kwargs))
    except Exception as error:  # the program's own
        raise RuntimeRefused(RUNTIME, "run", _words(error)) from None


def exported(number: int, file: ScriptFile, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Return the graph of one run as torch.export writes it: flat tensors in, flat outputs; to be read as data.

    Raises
    ------
    CannotLift
        If its run cannot be recorded, or torch cannot export it.
    """
    module = _module(number, file)
    made = io.BytesIO()
    try:
        with _buffers_kept(module), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = recorded_graph(module, args, kwargs)
    except RuntimeError as error:  # what TorchScript's interpreter makes of any error of a program
        raise CannotLift(f"the TorchScript program cannot be recorded: {_words(error)[:200]}") from None
    tensors = tuple(leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(graph, tensors), made)
    except Exception as error:  # nothing but torch runs here, and its exporter raises a dozen classes
        raise CannotLift(f"torch cannot export the TorchScript program: {_words(error)[:200]}") from None
    return made.getvalue()


def drop(numbers: tuple[int, ...]) -> None:
    """Let go of programs that nobody holds any more."""
    for number in numbers:
        _HELD.pop(number, None)


@contextlib.contextmanager
def _buffers_kept(module: torch.jit.ScriptModule) -> Iterator[None]:
    """Put buffers back: what a call writes into (counters, caches) must not reach the next one."""
    kept = [
        (owner, name, tensor, tensor.clone())
        for owner in module.modules()
        for name, tensor in owner.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, name, tensor, before in kept:
                setattr(owner, name, tensor.copy_(before))


def _module(number: int, file: ScriptFile) -> torch.jit.ScriptModule:
    if number not in _HELD:
        make(number, file)
    return _HELD[number]


def _plain(value: Any) -> Any:
    """Return a value made of tensors, Python's own types and :class:`Named`."""
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple) and fields:
        return Named(type(value).__name__, tuple(fields), tuple(_plain(item) for item in value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, torch.Tensor):
        return value.detach()
    return value if isinstance(value, _ATOMS) else str(value)


def _words(error: Exception) -> str:
    """Return what an error says, without the two tracebacks that TorchScript puts before it."""
    text = str(error)
    return text.rpartition("RuntimeError:")[2].strip() or words_of(error)

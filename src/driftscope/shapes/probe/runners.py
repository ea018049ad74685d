"""Targets: whatever runs in place of the original, asked at many points."""

from __future__ import annotations

import atexit
import functools
import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from driftscope.errors import DependencyMissing, DriftscopeError, InputError, RuntimeRefused
from driftscope.programs import pytrees as pytree
from driftscope.programs.arrays import real_array_of, tensor_of
from driftscope.programs.isolation.failures import WorkerDied
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.workers import WorkerPool
from driftscope.records.files import in_place, stamp
from driftscope.shapes.model_state import ModelState
from driftscope.shapes.private_torch import input_nodes, output_values
from driftscope.shapes.probe import onnx_serving
from driftscope.shapes.probe.judging_runs import Answer, Crashed, NotAsked, Ran, Refused
from driftscope.shapes.probe.original import Original

Call = tuple[tuple[Any, ...], dict[str, Any]]

SECONDS_PER_BATCH = 120.0
#: After so many crashes on inputs that are empty along the same axes, such inputs are left alone: each costs a process.
CRASHES_BELIEVED = 2

#: Which axes of which inputs are empty, and how often that took a worker down.
Crashes = Counter[frozenset[tuple[str, int]]]


class ExportTarget(Protocol):
    """A target of an export."""

    name: str

    def answers(self, calls: Sequence[Call]) -> list[Answer]:
        """Run at each call, in order; never raises for what the target does."""


class TorchRunner:
    """Anything called like the model in this process."""

    def __init__(self, name: str, function: Callable[..., Any], original: Original):
        self.name = name
        self.function = function
        self.original = original
        self.state = ModelState(function)

    def answers(self, calls: Sequence[Call]) -> list[Answer]:
        """See :class:`ExportTarget`."""
        found: list[Answer] = []
        for args, kwargs in calls:
            with self.state.kept():
                found.append(self.original.ask(self.function, args, kwargs))
        return found


class OnnxRunner:
    """An ONNX file in a worker process that is started again when onnxruntime takes it down.

    Parameters
    ----------
    path : Path
    exported : ExportedProgram
        What the file was made of: it tells which input is which leaf.
    crashes : Crashes, optional
        Shared by files of one model: what crashed one is not tried on the next.

    Raises
    ------
    RuntimeRefused
        If onnxruntime does not load the file.
    """

    def __init__(self, path: Path, exported: ExportedProgram, name: str = "onnx", crashes: Crashes | None = None):
        self.name = name
        self.path = path
        self._stamp = stamp(path)
        self.crashes: Crashes = Counter() if crashes is None else crashes
        if not _installed("onnxruntime"):
            raise DependencyMissing("running ONNX", "onnxruntime", "onnx")
        try:
            wanted = pool().submit(onnx_serving.input_names, str(path)).result()
        except WorkerDied as error:
            raise RuntimeRefused("onnxruntime", "load", error.words) from error
        except DriftscopeError:
            raise
        except Exception as error:  # onnxruntime's errors share no class of their own
            raise RuntimeRefused("onnxruntime", "load", str(error)) from error
        self.feeder = OnnxFeeder(exported, wanted)

    def in_place(self) -> bool:
        """Whether its file is still there, and not another one."""
        return in_place(self.path, self._stamp)

    def answers(self, calls: Sequence[Call]) -> list[Answer]:
        """See :class:`ExportTarget`."""
        return [self._whole(answer) for answer in self._answers([self.feeder.feed(*call) for call in calls])]

    def _whole(self, answer: Answer) -> Answer:
        """Complex numbers put together again from the pairs of real ones that the file returns."""
        if not isinstance(answer, Ran) or not self.feeder.complex_outputs:
            return answer
        return Ran([from_pairs(v, i in self.feeder.complex_outputs) for i, v in enumerate(answer.value)], flat=True)

    def _answers(self, feeds: list[dict[str, Any]]) -> list[Answer]:
        # Runtimes crash on empty tensors: those go one by one, so that a crash costs nothing else.
        whole = [i for i, feed in enumerate(feeds) if not _empty_axes(feed)]
        found = dict(zip(whole, _served(str(self.path), [feeds[i] for i in whole]), strict=True))
        for i, feed in enumerate(feeds):
            if i not in found:
                found[i] = self._answer_to_empty(feed)
        return [found[i] for i in range(len(feeds))]

    def _answer_to_empty(self, feed: dict[str, Any]) -> Answer:
        kind = _empty_axes(feed)
        if self.crashes[kind] >= CRASHES_BELIEVED:
            return NotAsked()
        (answer,) = _served(str(self.path), [feed])
        if isinstance(answer, Crashed):
            self.crashes[kind] += 1
        return answer


def _empty_axes(feed: dict[str, Any]) -> frozenset[tuple[str, int]]:
    """Input and axis of every size that is 0."""
    return frozenset((name, axis) for name, array in feed.items() for axis, size in enumerate(array.shape) if not size)


class OnnxFeeder:
    """Turns a call of the model into what an ONNX file made from its export is fed.

    Parameters
    ----------
    exported : ExportedProgram
    wanted : sequence of str
        Names of the file's inputs.
    """

    def __init__(self, exported: ExportedProgram, wanted: Sequence[str]):
        names = [node.name for node in input_nodes(exported)]
        missing = [name for name in wanted if name not in names]
        self.places = (
            {name: names.index(name) for name in wanted}
            if not missing
            else {name: place for place, name in enumerate(wanted)}
        )
        #: Outputs that are complex in the model. ONNX operators are real: the file has a last axis of 2 there.
        self.complex_outputs = frozenset(i for i, value in enumerate(output_values(exported)) if is_complex(value))
        if missing and len(wanted) != len(names):
            raise InputError(
                f"the ONNX file wants inputs named {', '.join(missing)}, which the exported program does not have"
                f" ({', '.join(names)}); give the file that was made from this program"
            )

    def feed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return arrays by the file's input names."""
        leaves = pytree.tree_leaves((args, kwargs))
        return {name: real_array_of(leaves[place]) for name, place in self.places.items()}


def is_complex(value: Any) -> bool:
    """Whether a value is a complex tensor."""
    return isinstance(value, torch.Tensor) and value.is_complex()


def from_pairs(value: Any, wanted: bool) -> Any:
    """Complex numbers from a last axis of real and imaginary part, where the model has complex ones."""
    pairs = isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape[-1:] == (2,)
    return torch.view_as_complex(value.contiguous()) if wanted and pairs else value


def _served(path: str, feeds: list[dict[str, Any]]) -> list[Answer]:
    """Ask for all at once; where that took the worker down, for each half alone, down to the point that did it."""
    if not feeds:
        return []
    try:
        served = pool().submit(onnx_serving.serve, path, feeds).result()
    except WorkerDied as error:
        if len(feeds) == 1:
            return [Crashed(error.words)]
        half = len(feeds) // 2
        return _served(path, feeds[:half]) + _served(path, feeds[half:])
    return [
        Ran([tensor_of(value) for value in answer[1]], flat=True)
        if answer[0] == "ran"
        else Refused(answer[1], answer[2])
        for answer in served
    ]


@functools.cache
def pool() -> WorkerPool:
    """The one worker of this process that runs what may crash; started when it is needed, ended with the process."""
    made = WorkerPool(
        1,
        limits=Limits(seconds=SECONDS_PER_BATCH),
        preload=("onnxruntime",) if _installed("onnxruntime") else (),
        environment={"OMP_NUM_THREADS": "1"},
    )
    atexit.register(made.stop)
    return made


def scratch_file(suffix: str) -> Path:
    """A path that no other file of this process has had, in a folder that lives as long as the process."""
    return _scratch() / f"{secrets.token_hex(8)}{suffix}"


@functools.cache
def _scratch() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="driftscope-shapes-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _installed(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None

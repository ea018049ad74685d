"""TorchScript files (``torch.jit.save``): run in a worker process, lifted from the graph that torch.export makes."""

from __future__ import annotations

import inspect
import os
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import torch

from driftscope.errors import CannotLift, DriftscopeError, RuntimeCrashed
from driftscope.programs import pytrees as pytree
from driftscope.programs.feeding.binding import bind_call, ready
from driftscope.programs.feeding.files import file_digest
from driftscope.programs.isolation.choice import MARK
from driftscope.programs.isolation.failures import CODES, WorkerDied
from driftscope.programs.isolation.workers import WorkerPool
from driftscope.programs.loading.pt2 import read_exported_bytes
from driftscope.programs.protocol import Bound, Program, TorchSource
from driftscope.programs.runtimes.native.kept import KeptThere
from driftscope.programs.runtimes.torchscript import worker
from driftscope.programs.state.threads import own_threads
from driftscope.programs.torch_run import fresh
from driftscope.programs.value_trees import flatten, unflatten
from driftscope.records.files import stamp

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

_KEPT = KeptThere()
_POOLS: dict[int, WorkerPool] = {}


class TorchScriptProgram(Program):
    """A file that ``torch.jit.save`` wrote.

    Parameters
    ----------
    path : path
    name : str
    default_inputs : Inputs or None

    Raises
    ------
    ProgramError
        If the file is damaged, or holds more than a program of pure operators.
    RuntimeRefused
        If torch does not load it.
    """

    kind = "torchscript"

    def __init__(self, path: FilePath, name: str, default_inputs: Inputs | None = None):
        super().__init__(name, default_inputs)
        self._file, self._given = worker.ScriptFile(str(path.resolve()), stamp(path)), str(path)
        self._number = _KEPT.number_for(self)
        found: list[worker.Argument] = _asked("load", worker.make, self._number, self._file)
        self._digest = file_digest(path)
        self.signature = inspect.Signature([_parameter(*argument) for argument in found])

    @property
    def runtime(self) -> str:
        return f"TorchScript, torch {torch.__version__}, CPU"

    @property
    def isolated(self) -> bool:
        return True

    def bind(self, inputs: Any = None) -> Bound:
        if isinstance(inputs, Bound) and inputs.program is self:
            return inputs
        return bind_call(self, self.signature, ready(self, inputs))

    def __call__(self, inputs: Any = None) -> Any:
        args, kwargs = _on_cpu(*fresh(self.bind(inputs)))
        return self._run(args, kwargs)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if dropped := _KEPT.dropped():
            _asked("run", worker.drop, dropped)
        with own_threads():
            threads = torch.get_num_threads()
        return _rebuilt(_asked("run", worker.run, self._number, self._file, args, kwargs, threads))

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "torch": torch.__version__,
            "path": self._given,
            "sha256": self._digest,
            "inputs": list(self.signature.parameters),
        }

    def lift_source(self, inputs: Any = None) -> TorchSource:
        args, kwargs = _on_cpu(*fresh(self.bind(inputs)))
        data: bytes = _asked("run", worker.exported, self._number, self._file, args, kwargs)
        try:
            # Read as any stranger's .pt2 is: the graph comes from a process that ran the file.
            exported = read_exported_bytes(data, f"the graph of {self.name}")
        except DriftscopeError as error:
            raise CannotLift(f"the graph that torch.export makes of {self.name} is not read: {error}") from error
        # The graph hands outputs on as a flat tuple; the program's own containers are put back.
        leaves, containers = pytree.tree_flatten(self._run(args, kwargs))
        signature = exported.module_call_graph[0].signature
        if signature is None or len(leaves) != len(exported.graph_signature.user_outputs):
            raise CannotLift(f"{self.name} returns values that torch.export leaves out")
        module = exported.module()
        signature.out_spec = containers
        tensors = tuple(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        return TorchSource(module, tensors, {}, module, exported)


def _parameter(name: str, optional: bool, default: Any) -> inspect.Parameter:
    value = default if optional else inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)


def _rebuilt(value: Any) -> Any:
    if isinstance(value, worker.Named):
        # Names come from the file: fields that are no identifiers are renamed, its class name is not taken.
        kind: Any = namedtuple("Outputs", value.fields, rename=True)  # type: ignore[misc]
        return kind(*map(_rebuilt, value.values))
    if isinstance(value, dict):
        return {key: _rebuilt(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_rebuilt, value))
    return value


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    leaves, spec = flatten((args, kwargs), "in")
    moved = [leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf for _, leaf in leaves]
    found: tuple[tuple[Any, ...], dict[str, Any]] = unflatten(moved, spec)
    return found


def _asked(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    if MARK in os.environ:
        return function(*arguments)  # this is a worker already, with nobody's work beside
    pool = _POOLS.get(os.getpid())
    if pool is None:
        pool = _POOLS.setdefault(
            os.getpid(), WorkerPool(1, preload=("driftscope.programs.runtimes.torchscript.worker",))
        )
    try:
        return pool.submit(function, *arguments).result()
    except (KeyboardInterrupt, SystemExit):
        # Nobody waits for the answer any more, and the next request must not wait for it either.
        pool.stop()
        _POOLS.pop(os.getpid(), None)
        raise
    except WorkerDied as died:
        raise RuntimeCrashed(worker.RUNTIME, stage, died.words, CODES[died.fate]) from died

"""The same program loaded and run in fresh processes, each with other hash seeds."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from driftscope.errors import DriftscopeError, InputError
from driftscope.invariance.running import Leaves, Runner, RunResult
from driftscope.invariance.trials.trial import AxisPlan, AxisTrial, RunVariant
from driftscope.programs.isolation.choice import MARK
from driftscope.programs.isolation.workers import WorkerPool
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import LoadedFrom, Program
from driftscope.programs.value_trees import flatten

#: Of Python's hashes of strings, by which sets are ordered.
_HASH_SEEDS = ("1", "2")
_NAMED = "name it, as file.py:name, or give a file: an object in memory cannot be made again in another process"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What a fresh process answered.

    Parameters
    ----------
    leaves : list of (Path, leaf)
        Outputs; what is no tensor as its text.
    weights : mapping of str to str
        Digest of each parameter and buffer.
    """

    leaves: Leaves
    weights: Mapping[str, str]


class FreshProcesses:
    """One program in two fresh processes at once.

    Parameters
    ----------
    runner : Runner
    origin : LoadedFrom
    """

    def __init__(self, runner: Runner, origin: LoadedFrom):
        self.runner, self.origin = runner, origin
        self._answers: list[Elsewhere | str] = []

    @property
    def answers(self) -> list[Elsewhere | str]:
        """What each process gave, or why it gave nothing."""
        if not self._answers:
            pools = [WorkerPool(1, environment={"PYTHONHASHSEED": seed}) for seed in _HASH_SEEDS]
            inputs = self.runner.inputs
            try:
                found = [pool.submit(run_again, self.origin.obj, dict(self.origin.options), inputs) for pool in pools]
                self._answers = [_answer(future.result) for future in found]
            except InputError as error:
                self._answers = [str(error)] * len(pools)
            finally:
                for pool in pools:
                    pool.stop()
            self.runner.runs += len(pools)
        return self._answers

    def result(self, k: int) -> RunResult:
        """Return the outputs of one of them."""
        answer = self.answers[k]
        return RunResult(refusal=answer) if isinstance(answer, str) else RunResult(answer.leaves)

    @property
    def other_weights(self) -> list[str]:
        """Names of the parameters and buffers that the processes hold with other values."""
        one, other = self.answers
        if isinstance(one, str) or isinstance(other, str):
            return []
        return [name for name, digest in one.weights.items() if other.weights.get(name) != digest]


def processes(runner: Runner) -> AxisPlan:
    """Load and run the program in two fresh processes."""
    origin = runner.program.loaded_from
    if origin is None:
        return AxisPlan("processes", reason=_NAMED)
    if MARK in os.environ:
        return AxisPlan("processes", reason="this process is a worker, which starts no others")
    both = FreshProcesses(runner, origin)
    one, other = (RunVariant(fresh=_result(both, k)) for k in range(len(_HASH_SEEDS)))
    positions = tuple(range(len(runner.base.leaves)))
    trial = AxisTrial("processes", "two fresh processes with other hash seeds", one, other, positions,
                      told=lambda: _told(both.other_weights))  # fmt: skip
    return AxisPlan("processes", [trial])


def _result(both: FreshProcesses, k: int) -> Callable[[], RunResult]:
    return lambda: both.result(k)


def _told(names: list[str]) -> tuple[str, str] | None:
    if not names:
        return None
    more = f" and {len(names) - 1} more" * (len(names) > 1)
    return names[0].rpartition(".")[0], f"its weights differ between the processes: {names[0]}{more}"


def _answer(result: Callable[[], Any]) -> Elsewhere | str:
    try:
        found: Elsewhere = result()
        return found
    except DriftscopeError as error:
        return " ".join(str(error).split())[:300]


# --- in the fresh process --------------------------------------------------------------------------------------------


def run_again(obj: Any, options: dict[str, Any], inputs: Any) -> Elsewhere:
    """Load a program and run it, with every generator of random numbers at the same seed: weights may be drawn."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    program = load_program(obj, **options)
    leaves = flatten(program(inputs))[0]
    return Elsewhere([(path, _sent(leaf)) for path, leaf in leaves], _weights(program))


def _sent(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu()
    try:
        return pickle.loads(pickle.dumps(leaf))  # noqa: S301  (what this process wrote itself)
    except Exception:  # pickling runs code of the leaf's class, which may raise anything
        return type(leaf).__name__


def _weights(program: Program) -> dict[str, str]:
    module = getattr(program, "module", None)
    if not isinstance(module, torch.nn.Module):
        return {}
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: _digest(x) for name, x in held.items() if x.layout is torch.strided and not x.is_quantized}


def _digest(x: torch.Tensor) -> str:
    data = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()

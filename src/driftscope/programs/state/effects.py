"""One native run of a program: the process and its modules as they were afterwards, and word of what it changed."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from driftscope.programs.state import process
from driftscope.programs.state.modules import ModuleState, modules_of
from driftscope.programs.state.threads import own_threads
from driftscope.records.finding import Finding

# Written by libraries when they are first used, whatever the program.
_LIBRARIES = ("the module search path", "environment variables", "signal handlers")
_THEIR_VARIABLES = ("TORCH", "PYTORCH", "TRITON", "KMP_", "OMP_", "MKL_", "CUDA_", "XLA_", "TF_", "TOKENIZERS_", "LC_")


@dataclass(slots=True)
class Effects:
    """What the runs of one program changed and had put back, beside its results.

    Parameters
    ----------
    changed : list of str
        In words, each once.
    """

    changed: list[str] = field(default_factory=list)

    def note(self, words: list[str]) -> None:
        """Add what one more run changed."""
        self.changed += [w for w in words if w not in self.changed]

    def note_seeds(self, states: list[dict[str, Any]]) -> None:
        """Add the generators that are in another state than before, and in the same after each of two runs."""
        before, first, second = states
        self.note([name for name in before if first[name] == second[name] != before[name]])


_WITNESS: ContextVar[Effects | None] = ContextVar("driftscope_witness", default=None)


@contextlib.contextmanager
def witnessed(effects: Effects) -> Iterator[None]:
    """Have the runs inside tell what they changed."""
    token = _WITNESS.set(effects)
    try:
        yield
    finally:
        _WITNESS.reset(token)


def generator_states() -> dict[str, Any]:
    """Read the random generators, by name, as values that can be compared."""
    return {setting.name: _comparable(value) for setting, value in process.generators()}


def advance_generators() -> None:
    """Draw one number of each generator: one that stands where a program's own seed put it shows no seeding."""
    random.random()
    np.random.random()
    torch.rand(())


def _comparable(state: Any) -> Any:
    if isinstance(state, tuple) and set(map(type, state)) == {int}:  # 624 words of Python's own generator
        return state
    if hasattr(state, "tobytes"):
        return state.tobytes()
    if hasattr(state, "numpy"):
        return state.cpu().numpy().tobytes()
    return tuple(map(_comparable, state)) if isinstance(state, (tuple, list)) else state


@contextlib.contextmanager
def contained(program: Any) -> Iterator[None]:
    """Run a program inside: afterwards the process, but for its random generators, and the modules are as they were.

    Parameters
    ----------
    program : module or callable
    """
    # Another thread may have torch's default dtype at float64 while it lifts.
    with process.alone(), own_threads():
        kept = process.readings(generators=False)
        variables = process.environment()
        states = [ModuleState(module) for module in modules_of(program)]
        try:
            yield
        finally:
            changed = _variables_since(variables)
            changed += [name for name in process.put_back(kept) if name not in _LIBRARIES]
            for state in states:
                changed += state.put_back()
            witness = _WITNESS.get()
            if witness is not None and changed:
                witness.note(changed)


def _variables_since(before: dict[Any, Any]) -> list[str]:
    names = {os.fsdecode(name) for name, _ in before.items() ^ process.environment().items()}
    return [f"the environment variable {name}" for name in sorted(names) if not name.startswith(_THEIR_VARIABLES)]


def finding_of(effects: Effects, side: str) -> list[Finding]:
    """Report once what the runs of a side changed; nothing where they changed nothing."""
    if not effects.changed:
        return []
    named = effects.changed[:6] + ([f"{len(effects.changed) - 6} more"] if len(effects.changed) > 6 else [])
    return [
        Finding(
            "O021",
            f"running {side} changes {', '.join(named)}; that was put back after each run",
            "It sets what belongs to the whole process, or keeps something from one call for the next.",
            "Where that is not intended: set it outside the program and pass state in and out as inputs and outputs.",
            evidence={"side": side, "changed": list(effects.changed)},
            note=True,
        )
    ]

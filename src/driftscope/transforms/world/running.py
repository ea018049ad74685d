"""One run from the same start: world rewound, generators reseeded, output captured, time limited, calls traced."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import random
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from driftscope.programs.state.printing import caught
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.world.places import Place, raising_place
from driftscope.transforms.world.process_state import TimeLimit, process_kept, reseed, time_limit
from driftscope.transforms.world.snapshot import World
from driftscope.transforms.world.trace import Event, Trace

SEED = 20_261


@dataclass
class WatchedRun:
    """What one run did.

    Parameters
    ----------
    value : tree
        What was returned; meaningless when ``error`` is set.
    error : BaseException or None
    place : Place or None
        The innermost user place of the error.
    events : list of Event
        Torch calls, in order.
    parts : tuple of list of Event
        The same cut by call, when several calls were made (one per example in the loop).
    printed : str
        What went to stdout.
    state : mapping
        The world's fingerprint after the run, the arguments included.
    moved : frozenset of str
        Process-wide generators that were advanced: ``"torch"``, ``"numpy"``, ``"python"``.
    escaped : tuple of (Event or None, tensor)
        Wrapped tensors that outlived the run, with the call that made them.
    seconds : float
    """

    value: Any = None
    error: BaseException | None = None
    place: Place | None = None
    events: list[Event] = field(default_factory=list)
    parts: tuple[list[Event], ...] = ()
    printed: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    escaped: tuple[tuple[Event | None, Any], ...] = ()
    seconds: float = 0.0

    @property
    def result(self) -> object:
        """One call's result, or those of several calls in a row."""
        return self.value[0] if len(self.value) == 1 else list(self.value)


def cloned(tree: Any) -> Any:
    """Clone the tensors of a tree and copy its containers, so that a run cannot reach the caller's."""
    return internals.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, tree)


def run_once(
    world: World,
    calls: Sequence[Callable[[], Any]],
    trace: Trace | None = None,
    *,
    arguments: Any = (),
    seconds: float | None = None,
    listen: Callable[..., None] | None = None,
) -> WatchedRun:
    """Make ``calls`` one after the other from the world's saved start and say what happened.

    Parameters
    ----------
    world : World
        Rewound before the run; left as the run left it, so that the caller can look, and must rewind.
    calls : sequence of callables without arguments
    trace : Trace or None
        The trace the calls record into.
    arguments : tree
        What the calls were given: read after the run, because a function may write to its arguments.
    seconds : float or None
        Time limit of the whole run.
    listen : callable or None
        Receives the warnings of the run as ``warnings.showwarning`` does; they are silenced otherwise.
    """
    world.rewind()
    run = WatchedRun()
    start, depth = time.perf_counter(), internals.stack_depth()
    with process_kept(generators=False), _heard(listen), logs_silenced():
        reseed(SEED)
        before = _seeded_states()
        values, cuts = [], [0]
        try:
            with caught() as out, caught("stderr"), time_limit(seconds):
                for call in calls:
                    values.append(call())
                    cuts.append(len(trace.events) if trace else 0)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            run.error, run.place = error, raising_place(error.__traceback__)
        finally:
            internals.unwind(depth)
        after = _generator_states()
    run.moved = frozenset(name for name in before if before[name] != after[name])
    run.seconds, run.printed, run.value = time.perf_counter() - start, out.getvalue(), values
    if trace is not None:
        run.events = trace.events
        if run.error is not None:
            cuts.append(len(trace.events))
        run.parts = tuple(trace.events[a:b] for a, b in itertools.pairwise(cuts))
    run.state = world.fingerprint()
    run.state.update(_argument_state(arguments))
    return run


@contextlib.contextmanager
def _heard(listen: Callable[..., None] | None) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always" if listen else "ignore")
        if listen is not None:
            warnings.showwarning = listen
        yield


@contextlib.contextmanager
def logs_silenced() -> Iterator[None]:
    # torch's compilers log every graph break and failed guard; the report says what matters of it.
    kept = logging.root.manager.disable
    if kept >= logging.CRITICAL:  # silenced around many runs: every change empties the cache of every logger
        yield
        return
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(kept)


def _argument_state(arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for i, argument in enumerate(arguments):
        for j, leaf in enumerate(internals.tree_leaves(argument)):
            if isinstance(leaf, torch.Tensor) and not internals.is_wrapped(leaf):
                found[f"argument {i}" + (f" leaf {j}" if j else "")] = leaf.detach().clone()
        if isinstance(argument, (list, dict, set)):
            found[f"length of argument {i}"] = str(len(argument))
    return found


@functools.cache
def _seeded_states() -> dict[str, Any]:
    """Return the generators' states right after they were seeded, the same for every run."""
    return _generator_states()


def _generator_states() -> dict[str, Any]:
    numpy = np.random.get_state(legacy=False)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": (numpy["state"]["key"].tobytes(), numpy["state"]["pos"], numpy["has_gauss"]),
        "python": random.getstate(),
    }


def outliving(tensors: list[tuple[weakref.ref[torch.Tensor], Event | None]]) -> list[tuple[Event | None, torch.Tensor]]:
    """Return the wrapped tensors among those seen that are still alive."""
    found = []
    for reference, event in tensors:
        tensor = reference()
        if tensor is not None and internals.is_wrapped(tensor):
            found.append((event, tensor))
    return found


def timed_out(run: WatchedRun) -> bool:
    """Whether a run was stopped by its time limit."""
    return isinstance(run.error, TimeLimit)

"""States that a program takes as inputs and returns as outputs: a cache of keys and values, what an RNN carries on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.invariance.rows import BatchRows, read_axes
from driftscope.invariance.running import Runner, RunResult
from driftscope.lift.sources import lift_source
from driftscope.lift.steps import Lifted, LiftedOutput
from driftscope.lift.torch.tape import lift_torch
from driftscope.programs.protocol import OnnxSource, TorchSource
from driftscope.programs.value_trees import flatten, unflatten
from driftscope.records.paths import Attribute, Path
from driftscope.records.words import counted

#: Words of an input's name that say it takes what an earlier call left; and words that say it does not.
_STATE = frozenset(("past", "cache", "caches", "state", "states", "hidden", "hx", "cx", "hn", "cn", "mem", "mems"))
_NO_STATE = frozenset(("position", "positions", "encoder", "mask", "ids", "length", "lengths", "branch"))
#: What a name says beside which state it is, on either side of the program.
_SIDES = frozenset(
    ("past", "present", "cache", "state", "states", "in", "input", "out", "output", "new", "next", "prev", "previous",
     "old", "updated", "init", "initial", "final")
)  # fmt: skip

#: The input tensors by position.
Tensors = Mapping[int, torch.Tensor] | Sequence[torch.Tensor]
#: Replaces input tensors, by position, and returns what the program gives.
Call = Callable[[Mapping[int, torch.Tensor]], Sequence[Any]]
#: Evaluates a lifted graph.
Evaluate = Callable[[Lifted], Sequence[LiftedOutput]]


@dataclass(frozen=True, slots=True)
class HandedStates:
    """A program that takes a sequence in pieces, its states among its inputs and outputs.

    Parameters
    ----------
    runner : Runner
    inputs : mapping of int to int
        Position of an input tensor to the axis along which a piece is taken.
    totals : mapping of int to int
        Position of an input tensor to its axis that also counts what the states hold: a mask of all positions.
    states : mapping of int to int
        Position of an input tensor to that of the output it is given from the call before.
    outputs : mapping of int to int
        Position of an output to its sequence axis.
    length : int
        Of the sequence in the inputs as given.
    held : int
        Positions that the states hold from the start.
    """

    runner: Runner
    inputs: Mapping[int, int]
    totals: Mapping[int, int]
    states: Mapping[int, int]
    outputs: Mapping[int, int]
    length: int
    held: int
    _left: dict[tuple[int, ...], dict[int, torch.Tensor]] = field(default_factory=dict, repr=False)

    @property
    def handed(self) -> frozenset[int]:
        """Positions of the outputs that are handed on."""
        return frozenset(self.states.values())

    def piece(self, start: int, end: int, tensors: Tensors | None = None) -> dict[int, torch.Tensor]:
        """Return the inputs of one piece, without states; ``tensors`` stand for the inputs as given."""
        found = {}
        for k in {**self.inputs, **self.totals}:
            x = (self.runner.tensors if tensors is None else tensors)[k]
            x = x.narrow(self.totals[k], 0, self.held + end) if k in self.totals else x
            found[k] = x.narrow(self.inputs[k], start, end - start) if k in self.inputs else x
        return found

    def steps(self, pieces: Sequence[int], call: Call, tensors: Tensors | None = None) -> list[Sequence[Any]]:
        """Call the program with one piece after the other and return what it gives for each."""
        found: list[Sequence[Any]] = []
        start = 0
        for size in pieces:
            states = {k: found[-1][at] for k, at in self.states.items()} if found else {}
            found.append(call({**self.piece(start, start + size, tensors), **states}))
            start += size
        return found

    def run(self, pieces: Sequence[int]) -> RunResult:
        """Run the program on the pieces and join its outputs."""
        try:
            found = self.steps(pieces, self._called)
        except _Refused as refused:
            return RunResult(refusal=str(refused))
        if len(found) > 1:
            self._left[tuple(pieces)] = {k: found[-2][at] for k, at in self.states.items()}
        leaves = [(path, x) for path, x in self.runner.base.leaves]
        return RunResult([(path, self._joined(k, [f[k] for f in found])) for k, (path, _) in enumerate(leaves)])

    def last(self, pieces: Sequence[int]) -> dict[int, torch.Tensor]:
        """Return the inputs of the last piece, with the states that the pieces before it leave."""
        states = self._left.get(tuple(pieces))
        if states is None:
            found = self.steps(pieces[:-1], self._called)
            states = {k: found[-1][at] for k, at in self.states.items()}
        return {**self.piece(self.length - pieces[-1], self.length), **states}

    def _called(self, changed: Mapping[int, torch.Tensor]) -> Sequence[Any]:
        result = self.runner.run(changed)
        if not result.ran or len(result.leaves) != len(self.runner.base.leaves):
            raise _Refused(result.refusal or f"a piece gives {counted(len(result.leaves), 'output')}")
        return [x for _, x in result.leaves]

    def _joined(self, k: int, parts: Sequence[Any]) -> Any:
        return torch.cat(list(parts), dim=self.outputs[k]) if k in self.outputs else parts[-1]

    def lifted(self, pieces: Sequence[int], evaluate: Evaluate) -> Sequence[LiftedOutput]:
        """Evaluate the program on the pieces in float64, its states in float64 too.

        Raises
        ------
        CannotLift
            If it has no graph, or not on every piece.
        """
        source = self.runner.program.lift_source(self.runner.bound)
        if isinstance(source, TorchSource):
            return evaluate(lift_torch(self._chained(source, pieces), source.args, source.kwargs, module=source.module))
        if not isinstance(source, OnnxSource):
            raise CannotLift("its states cannot be handed on in float64")
        outputs: list[Sequence[LiftedOutput]] = []

        def call(changed: Mapping[int, torch.Tensor]) -> Sequence[Any]:
            outputs.append(evaluate(self._graph(changed)))
            return [o.value for o in outputs[-1]]

        values = self.steps(pieces, call)
        return [replace(o, value=self._joined(k, [v[k] for v in values])) for k, o in enumerate(outputs[-1])]

    def _graph(self, changed: Mapping[int, torch.Tensor]) -> Lifted:
        """The graph on inputs of which some are float64: the program is bound to them in its own formats first."""
        native = {k: x.to(self.runner.tensors[k].dtype) for k, x in changed.items()}
        bound = self.runner.binding(native)
        source = bound.program.lift_source(bound)
        if not isinstance(source, OnnxSource):
            raise CannotLift("it is another program on other inputs")
        wide = {id(native[k]): x for k, x in changed.items() if x.dtype is torch.float64}
        feeds = {name: wide.get(id(x), x) for name, x in source.feeds.items()}
        return lift_source(replace(source, feeds=feeds))

    def _chained(self, source: TorchSource, pieces: Sequence[int]) -> Callable[..., Any]:
        """Return a function of the whole inputs that calls the program with one piece after the other."""
        known = {id(x): k for k, x in enumerate(self.runner.tensors)}
        bound = self.runner.bound
        places = [known.get(id(leaf)) for _, leaf in flatten((bound.args, bound.kwargs), "in")[0]]

        def chained(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = flatten((args, kwargs), "in")
            tensors = {k: leaf for k, (_, leaf) in zip(places, leaves, strict=True) if k is not None}
            tree: Any = None

            def call(changed: Mapping[int, torch.Tensor]) -> Sequence[Any]:
                nonlocal tree
                given = [
                    leaf if k is None else changed.get(k, leaf) for k, (_, leaf) in zip(places, leaves, strict=True)
                ]
                own_args, own_kwargs = unflatten(given, spec)
                found, tree = flatten(source.function(*own_args, **own_kwargs))
                return [x for _, x in found]

            found = self.steps(pieces, call, tensors)
            return unflatten([self._joined(k, [f[k] for f in found]) for k in range(len(found[-1]))], tree)

        return chained


class _Refused(RuntimeError):
    """A piece that the program does not run on."""


def find_states(runner: Runner, rows: BatchRows | str, sequence: object = None) -> HandedStates | str | None:
    """Find the states of a program among its inputs, by name, and how it is given a sequence in pieces.

    Parameters
    ----------
    runner : Runner
    rows : BatchRows or str
        Its batch, which is no sequence.
    sequence : str, mapping or None
        ``"x=1"``: the sequence axis of an input.

    Returns
    -------
    HandedStates, str or None
        Or why there are none; None where no input is named like one.
    """
    inputs = _state_inputs(runner)
    if not inputs:
        return None
    states = _paired(runner, inputs)
    if states is None:
        names = ", ".join(runner.names[k] for k in inputs)
        return f"no outputs have the shapes of what it takes as {names}"
    named = read_axes(sequence, runner, "sequence") if sequence is not None else {}
    for dims in [named] if named else _candidates(runner, rows, states):
        for found in _readings(runner, rows, states, dims):
            followed = _following(found)
            if followed is not None:
                return replace(found, outputs=followed)
    return "no input has an axis along which it takes a shorter sequence; name it, as sequence='x=1'"


def handed_outputs(runner: Runner) -> frozenset[int]:
    """Return the outputs that a program takes again as inputs: what stands there is judged by what is made of it."""
    inputs = _state_inputs(runner)
    return frozenset((_paired(runner, inputs) or {}).values()) if inputs else frozenset()


def _state_inputs(runner: Runner) -> list[int]:
    """Positions of the inputs that are named like a state; a single letter is one only beside the other."""
    names = [name.lower() for name in runner.names]
    both = {"h", "c"} <= set(names)
    return [k for k, name in enumerate(names) if _is_state(name) or (both and name in ("h", "c"))]


def _is_state(name: str) -> bool:
    if name.endswith("hidden_states"):  # what layers call the sequence itself
        return False
    words = set(re.findall(r"[a-z]+", name))
    return bool(words & _STATE or re.fullmatch(r"[hc]_?(0|in|t|prev)", name)) and not words & _NO_STATE


# --- which output is handed on to which input ------------------------------------------------------------------------


def _paired(runner: Runner, inputs: Sequence[int]) -> dict[int, int] | None:
    """Pair states by what their names say beside the side; else by order, the last outputs that have their shapes."""
    outputs = [(k, path, x) for k, (path, x) in enumerate(runner.base.leaves) if isinstance(x, torch.Tensor)]
    named: dict[tuple[str, ...], list[int]] = {}
    for k, path, _ in outputs:
        named.setdefault(_words(_spelled(path)), []).append(k)
    found = {}
    for k in inputs:
        alike = [m for m in named.get(_words(runner.names[k]), []) if _continues(runner, k, m)]
        if len(alike) == 1:
            found[k] = alike[0]
    if len(found) == len(inputs) == len(set(found.values())):
        return found
    found, free = {}, [k for k, _, _ in outputs]
    for k in reversed(inputs):
        fitting = [m for m in free if _continues(runner, k, m)]
        if not fitting:
            return None
        found[k], free = fitting[-1], free[: free.index(fitting[-1])]
    return found


def _continues(runner: Runner, k: int, output: int) -> bool:
    """Whether an output has the shape of a state, or a longer one along a single axis."""
    x, y = runner.tensors[k], runner.base.leaves[output][1]
    if x.dim() != y.dim() or x.dtype is not y.dtype:
        return False
    grown = [d for d in range(x.dim()) if x.shape[d] != y.shape[d]]
    return not grown or (len(grown) == 1 and y.shape[grown[0]] > x.shape[grown[0]])


def _spelled(path: Path) -> str:
    return ".".join(str(key.name if isinstance(key, Attribute) else key) for key in path.keys)


def _words(name: str) -> tuple[str, ...]:
    plain = re.sub(r"past_?key_?values?|key_?values", " ", name.lower())
    return tuple(w for w in re.findall(r"[a-z]+|\d+", plain) if w not in _SIDES)


# --- along which axes ------------------------------------------------------------------------------------------------


def _candidates(runner: Runner, rows: BatchRows | str, states: Mapping[int, int]) -> Iterator[dict[int, int]]:
    """Yield an axis of the first input that is no state, with those of others that are as long."""
    batch = dict(rows.inputs) if isinstance(rows, BatchRows) else {}
    free = [k for k in range(len(runner.tensors)) if k not in states]
    leading = [k for k in free if "mask" not in runner.names[k].lower()] or free
    for first in leading[:1]:
        shape = runner.tensors[first].shape
        for axis in sorted(range(len(shape)), key=lambda d: batch.get(first) == d):  # the batch is a guess itself
            if (length := shape[axis]) > 1:
                yield {first: axis} | {
                    k: d for k in free if k != first
                    for d in [d for d, n in enumerate(runner.tensors[k].shape) if n == length and batch.get(k) != d][:1]
                }  # fmt: skip


def _readings(
    runner: Runner, rows: BatchRows | str, states: Mapping[int, int], dims: Mapping[int, int]
) -> Iterator[HandedStates]:
    """Yield what masks may mean: all positions so far, or those of a piece."""
    batch = dict(rows.inputs) if isinstance(rows, BatchRows) else {}
    lengths = {runner.tensors[k].shape[d] for k, d in dims.items()}
    if len(lengths) != 1:
        return
    (length,) = lengths
    held = _held(runner, states, length)
    totals = {}
    for k, x in enumerate(runner.tensors):
        axes = [d for d, n in enumerate(x.shape) if n == held + length and batch.get(k) != d]
        if k not in states and axes and ("mask" in runner.names[k].lower() or (held and k not in dims)):
            totals[k] = axes[-1]
    grows = any(runner.tensors[k].shape != runner.base.leaves[m][1].shape for k, m in states.items())
    pieces = {k: d for k, d in dims.items() if totals.get(k) != d}
    whole = HandedStates(runner, pieces, totals, states, {}, int(length), held)
    alone = HandedStates(
        runner, dims, {k: d for k, d in totals.items() if k not in dims}, states, {}, int(length), held
    )
    yield from (whole, alone) if grows else (alone, whole)


def _held(runner: Runner, states: Mapping[int, int], length: int) -> int:
    """Positions that growing states hold from the start."""
    for k, m in states.items():
        x, y = runner.tensors[k], runner.base.leaves[m][1]
        for d in range(x.dim()):
            if y.shape[d] == x.shape[d] + length:
                return int(x.shape[d])
    return 0


def _following(found: HandedStates) -> dict[int, int] | None:
    """Return the outputs' axes that shrink with the sequence; None where it takes no shorter one, or none says so."""
    probe = found.runner.run(found.piece(0, found.length - 1))
    if not probe.ran or len(probe.leaves) != len(found.runner.base.leaves):
        return None
    shrunk: dict[int, int] = {}
    for k, ((_, x), (_, y)) in enumerate(zip(found.runner.base.leaves, probe.leaves, strict=True)):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dim() == y.dim():
            for d in range(x.dim()):
                if (x.shape[d] - y.shape[d], x.shape[d]) in ((1, found.length), (1, found.held + found.length)):
                    shrunk.setdefault(k, d)
    return {k: d for k, d in shrunk.items() if k not in found.handed} if shrunk else None

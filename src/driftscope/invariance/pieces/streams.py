"""A sequence given to a program in pieces, each with the cache or the state that the last one left."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.invariance.rows import BatchRows
from driftscope.invariance.running import Runner
from driftscope.invariance.sequences import Sequence as Steps
from driftscope.invariance.sequences import find_sequence
from driftscope.programs.value_trees import flatten, unflatten

#: Parameters that take what an earlier call left, in the libraries' own words; the first takes masks of all positions.
CACHE = "past_key_values"
STATES = (CACHE, "cache", "cache_params", "state", "states", "hx", "hidden")

#: Names of outputs that hold what the next call is given.
_HANDED_ON = ("past_key_values", "cache", "present")


def handed_on(path: object) -> bool:
    """Whether an output, by its path, holds what the next call is given."""
    return any(word in str(path) for word in _HANDED_ON)


#: Called like the program with a piece of its inputs and ``state=`` (None at first); returns outputs and a state.
Step = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Stream:
    """A program that can be given a sequence in pieces.

    Parameters
    ----------
    runner : Runner
    inputs : mapping of int to int
        Position of an input tensor to its sequence axis.
    mask : int or None
        Position of a mask, of which a piece is given all positions up to its end.
    outputs : mapping of int to int
        Position of an output to its sequence axis.
    length : int
    parameter : str
        The program's parameter that takes the state; empty where ``step`` is called instead.
    step : callable or None
    """

    runner: Runner
    inputs: Mapping[int, int]
    mask: int | None
    outputs: Mapping[int, int]
    length: int
    parameter: str
    step: Step | None

    def calling(self, pieces: Sequence[int]) -> Callable[..., Any]:
        """Return what calls a program with pieces of these lengths and joins their outputs."""

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return self._joined([flatten(outputs) for outputs, _ in self._steps(function, args, kwargs, pieces)])

        return call

    def parted(self, pieces: Sequence[int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return what calls a program with all pieces but the last, and then what calls it with the last alone."""
        states: list[Any] = []

        def before(function: Any, *args: Any, **kwargs: Any) -> Any:
            found = list(self._steps(function, args, kwargs, pieces[:-1]))
            states.append(found[-1][1])
            return found[-1][0]

        def last(function: Any, *args: Any, **kwargs: Any) -> Any:
            ((outputs, _),) = self._steps(function, args, kwargs, pieces[-1:], sum(pieces[:-1]), states[-1])
            return outputs

        return before, last

    def _steps(
        self, function: Any, args: Any, kwargs: Any, pieces: Sequence[int], start: int = 0, state: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Yield what each piece gives, and the state after it."""
        bound = self.runner.bound
        known = {id(x): k for k, x in enumerate(self.runner.tensors)}
        places = [known.get(id(leaf)) for _, leaf in flatten((bound.args, bound.kwargs), "in")[0]]
        leaves, spec = flatten((args, kwargs), "in")
        for size in pieces:
            cut = [self._cut(k, leaf, start, start + size) for k, (_, leaf) in zip(places, leaves, strict=True)]
            own_args, own_kwargs = unflatten(cut, spec)
            outputs, state = self._called(function, own_args, own_kwargs, state)
            yield outputs, state
            start += size

    def _cut(self, k: int | None, leaf: Any, start: int, end: int) -> Any:
        if k is None or k not in self.inputs:
            return leaf
        begin = 0 if k == self.mask and self.parameter == CACHE else start
        return leaf.narrow(self.inputs[k], begin, end - begin)

    def _called(self, function: Any, args: Any, kwargs: Any, state: Any) -> tuple[Any, Any]:
        if self.step is not None:
            outputs, state = self.step(*args, state=state, **kwargs)
            return outputs, state
        signature = getattr(self.runner.program, "signature", inspect.Signature())
        given = dict(zip(signature.parameters, args, strict=False)) | kwargs
        if self.parameter == CACHE and "use_cache" in signature.parameters:
            given["use_cache"] = True
        outputs = function(**(given | ({} if state is None else {self.parameter: state})))
        return outputs, state_of(outputs, self.parameter)

    def _joined(self, found: Sequence[tuple[list[Any], Any]]) -> Any:
        leaves, spec = found[-1]
        joined = []
        for k, (_, last) in enumerate(leaves):
            parts = [piece[0][k][1] for piece in found]
            dim = self.outputs.get(k)
            joined.append(last if dim is None else torch.cat(parts, dim=dim))
        return unflatten(joined, spec)


def state_of(outputs: Any, parameter: str) -> Any:
    """Return what a program hands on: the output of the parameter's name, or the last of several.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    found = outputs.get(parameter) if isinstance(outputs, Mapping) else getattr(outputs, parameter, None)
    if found is None and isinstance(outputs, (tuple, list)) and len(outputs) > 1 and parameter != CACHE:
        found = outputs[-1]
    if found is None:
        raise RuntimeError(f"the program takes {parameter}, and returns none")
    return found


def find_stream(
    runner: Runner, rows: BatchRows | str, sequence: object = None, mask: str | None = None, step: Step | None = None
) -> Stream | str:
    """Find how a program is given a sequence in pieces.

    Parameters
    ----------
    runner : Runner
    rows : BatchRows or str
    sequence, mask
        As for :func:`~driftscope.invariance.sequences.find_sequence`.
    step : callable or None
        The user's own way to run one piece.

    Returns
    -------
    Stream or str
        Or why there is none.
    """
    if runner.program.kind != "torch":
        return "no input is named like a state (past, cache, state, hidden) that could be handed on from piece to piece"
    signature = getattr(runner.program, "signature", inspect.Signature())
    parameter = next((p for p in STATES if p in signature.parameters and p not in runner.bound.arguments), "")
    if step is None and not parameter:
        return f"it takes no state ({', '.join(STATES)}); give a function that runs one piece, as step=function"
    decoding = [k for k, name in enumerate(runner.names) if "decoder" in name.lower()]
    if decoding and sequence is None:
        # The decoder's steps are what is given in pieces; the encoder sees all of its sequence each time.
        steps: Steps | str = "an encoder and a decoder"
    else:
        steps = find_sequence(runner, rows, sequence, mask)
    at = steps.mask if isinstance(steps, Steps) and not steps.lengths else None
    guesses = [{k: dims[-1] if k == at else dims[0] for k, dims in steps.inputs.items()}] if isinstance(
        steps, Steps) else _guesses(runner, rows, decoding)  # fmt: skip
    for dims in guesses:
        length = next(runner.tensors[k].shape[d] for k, d in dims.items())
        outputs = _following(runner, dims, length) if length > 1 else {}
        if step is None:
            outputs = {k: d for k, d in outputs.items() if k not in _states(runner, parameter)}
        if outputs:
            return Stream(runner, dims, at, outputs, length, "" if step is not None else parameter, step)
    return "no output has an axis that grows with the sequence; name the axis, as sequence='x=1'"


def _guesses(runner: Runner, rows: BatchRows | str, among: Sequence[int]) -> list[dict[int, int]]:
    """Axes of the first input that are not its batch, each with those of other inputs of the same length.

    ``among``: the inputs to look at; all of them where there are none.
    """
    batch = dict(rows.inputs) if isinstance(rows, BatchRows) else {}
    found, first = [], among[0] if among else 0
    for axis, length in enumerate(runner.tensors[first].shape if runner.tensors else ()):
        if batch.get(first) != axis and length > 1:
            found.append({
                k: next(d for d, n in enumerate(x.shape) if n == length and batch.get(k) != d)
                for k, x in enumerate(runner.tensors)
                if k != first and (not among or k in among)
                and any(n == length and batch.get(k) != d for d, n in enumerate(x.shape))
            } | {first: axis})  # fmt: skip
    return found


def _states(runner: Runner, parameter: str) -> set[int]:
    """Positions of the outputs that are handed on: under the parameter's name, or in the last of several."""
    paths = [str(path) for path, _ in runner.base.leaves]
    tops = [re.match(r"out\[(\d+)\]", path) for path in paths]
    last = max((int(top[1]) for top in tops if top), default=0)
    return {
        k for k, path in enumerate(paths)
        if path.startswith(f"out['{parameter}']") or (last and path.startswith(f"out[{last}]"))
    }  # fmt: skip


def _following(runner: Runner, dims: Mapping[int, int], length: int) -> dict[int, int]:
    """Return the outputs' axes that shrink with the sequence."""
    shorter = {k: runner.tensors[k].narrow(d, 0, length - 1) for k, d in dims.items()}
    probe = runner.run(shorter)
    found = {}
    for k, ((path, x), (_, y)) in enumerate(zip(runner.base.leaves, probe.leaves, strict=False)):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dim() == y.dim():
            changed = [d for d in range(x.dim()) if x.shape[d] != y.shape[d]]
            whole = len(changed) == 1 and (x.shape[changed[0]], y.shape[changed[0]]) == (length, length - 1)
            if whole and not handed_on(path):
                found[k] = changed[0]
    return found

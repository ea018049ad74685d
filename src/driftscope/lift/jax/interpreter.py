"""Walks a traced JAX function: each primitive is computed by JAX, and by the torch operations that mean the same.

The loops and branches of JAX are walked as its own values say. After every primitive the tensor takes over JAX's bits,
so that the tape's native values are the program's, computed one primitive at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from driftscope.errors import CannotLift
from driftscope.lift.arrays.tracing import NamedOperation, Tracer
from driftscope.lift.jax.rules import RULES
from driftscope.lift.torch.entries import CallPlace
from driftscope.lift.torch.places import is_internal
from driftscope.programs.arrays import jax_array_of, tensor_of
from driftscope.records.user_code import is_users

_JAX = os.path.join(os.path.dirname(jax.__file__), "")

# Primitives that only call: where their parameters hold what is called.
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint"}
    | {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
)
# Bodies of loops that are walked; numbers of steps beyond it would take minutes.
_MOST_ROUNDS = 4096


@dataclass(slots=True, eq=False)
class Followed:
    """What JAX has, the tensor beside it (None where torch has no such format), whether the inputs reach it."""

    native: Any
    tensor: torch.Tensor | None
    dependent: bool


@dataclass(slots=True)
class Interpreter:
    """Walks the equations of one function.

    Parameters
    ----------
    tracer : Tracer
        Makes tensors of arrays, and holds results against JAX's.
    """

    tracer: Tracer
    _places: list[CallPlace | None] = field(default_factory=list)
    _modules: list[str] = field(default_factory=list)
    _here: CallPlace = field(default_factory=CallPlace)

    def place(self) -> CallPlace:
        """Give the place of the primitive in progress."""
        return self._here

    def given(self, tensor: torch.Tensor) -> Followed:
        """Take an input."""
        with _disable_current_modes():
            native = jax_array_of(tensor.detach().clone())
        dtype = self.tracer.dtype_of(native)
        return Followed(native, tensor if tensor.dtype == dtype else tensor.to(dtype), dependent=True)

    def constant(self, array: Any) -> Followed:
        """Take an array that the function holds, or that JAX made from nothing that depends on the inputs."""
        if not isinstance(array, jax.Array):
            array = jax.numpy.asarray(array)
        try:
            return Followed(array, self.tracer.tensor(array), dependent=False)
        except (CannotLift, TypeError, NotImplementedError):  # a random key
            return Followed(array, None, dependent=False)

    def run(self, closed: Any, values: Sequence[Followed]) -> list[Followed]:
        """Walk the equations of a closed expression."""
        return self._run(closed.jaxpr, [self.constant(c) for c in closed.consts], values)

    def _run(self, jaxpr: Any, consts: Sequence[Followed], values: Sequence[Followed]) -> list[Followed]:
        known: dict[Any, Followed] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *values), strict=True))

        def read(variable: Any) -> Followed:
            if hasattr(variable, "val"):  # a literal
                return self.constant(np.asarray(variable.val, variable.aval.dtype))
            return known[variable]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(v) for v in equation.invars])
            known.update(zip(equation.outvars, results, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, equation: Any, values: list[Followed]) -> list[Followed]:
        name, parameters = equation.primitive.name, equation.params
        module = str(equation.source_info.name_stack)
        self._modules.append(module)
        try:
            if name in _CALLS:
                called = next(parameters[key] for key in _CALLED if parameters.get(key) is not None)
                with self._inside(equation, called):
                    return self.run(called, values) if hasattr(called, "consts") else self._run(called, (), values)
            if name in _WALKED:
                with self._inside(equation, None):
                    return _WALKED[name](self, parameters, values)
            self._here = self._place_of(equation, f"jax.lax.{name}")
            return self._primitive(equation, values)
        finally:
            self._modules.pop()

    def _primitive(self, equation: Any, values: list[Followed]) -> list[Followed]:
        name = equation.primitive.name
        bound = equation.primitive.get_bind_params(equation.params)
        functions, parameters = bound if isinstance(bound, tuple) else ((), bound)  # a pair before JAX 0.10
        native = equation.primitive.bind(*functions, *(v.native for v in values), **parameters)
        several = equation.primitive.multiple_results
        natives = list(native) if several else [native]
        dependent = any(v.dependent for v in values)
        rule = RULES.get(name)
        if rule is None or any(v.tensor is None for v in values):
            if dependent:
                raise CannotLift(f"jax.lax.{name} has no float64 evaluation")
            return [self.constant(n) for n in natives]
        with NamedOperation(f"jax.lax.{name}"):
            found = rule(*(_countable(name, v.tensor) for v in values if v.tensor is not None), **equation.params)
            made = list(found) if several else [found]
            if name == "eigh":
                made[0] = _turned(made[0], natives[0])
            results = self.tracer.results(natives, made)
        return [Followed(n, t, dependent) for n, t in zip(natives, results, strict=True)]

    # -- places ------------------------------------------------------------------------------------------------

    def _inside(self, equation: Any, called: Any) -> _Inside:
        """Keep the caller's line for what JAX's own functions do; their traces are older than the call."""
        file = str(getattr(getattr(getattr(called, "jaxpr", called), "debug_info", None), "func_filename", None) or "")
        own = called is not None and file.startswith(_JAX)
        return _Inside(self._places, self._line(equation) if own else None)

    def _line(self, equation: Any) -> CallPlace:
        held = next((p for p in reversed(self._places) if p is not None), None)
        return held if held is not None else _line_of(equation.source_info)

    def _place_of(self, equation: Any, operator: str) -> CallPlace:
        line = self._line(equation)
        module = ".".join(part.replace("/", ".") for part in self._modules if part) or None
        return CallPlace(module, line.file, line.line, operator=operator)


def _countable(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Integers in a format that torch can count with; results go back to theirs."""
    counts = tensor.dtype not in (torch.uint16, torch.uint32, torch.uint64) or name == "bitcast_convert_type"
    return tensor if counts else tensor.to(torch.int64)


def _turned(vectors: torch.Tensor, native: Any) -> torch.Tensor:
    """Eigenvectors with JAX's signs: either is one, and two libraries may choose otherwise."""
    with _disable_current_modes():
        theirs = tensor_of(np.array(native))
        along = (theirs.conj() * vectors.detach()).sum(-2, keepdim=True)
        signs = torch.where(along.real < 0, -1.0, 1.0).to(vectors.dtype)
    return vectors * signs if bool((signs.real < 0).any()) else vectors


@dataclass(slots=True)
class _Inside:
    places: list[CallPlace | None]
    place: CallPlace | None

    def __enter__(self) -> None:
        self.places.append(self.place)

    def __exit__(self, *_: Any) -> None:
        self.places.pop()


def _line_of(info: Any) -> CallPlace:
    """The user's innermost line of a trace; where there is none, a library's."""
    library: CallPlace | None = None
    for file, line in _frames(info):
        if file.startswith(_JAX) or is_internal(file):
            continue
        if is_users(file):
            return CallPlace(None, file, line)
        library = library or CallPlace(None, file, line)
    return library or CallPlace()


def _frames(info: Any) -> Iterator[tuple[str, int]]:
    traceback = getattr(info, "traceback", None)
    for frame in getattr(traceback, "frames", None) or ():
        yield str(frame.file_name), int(getattr(frame, "line_num", 0))


# -- loops and branches ------------------------------------------------------------------------------------------


def _scan(walk: Interpreter, parameters: Any, values: list[Followed]) -> list[Followed]:
    consts, carried, length = parameters["num_consts"], parameters["num_carry"], int(parameters["length"])
    if not 0 < length <= _MOST_ROUNDS:
        raise CannotLift(f"a loop of {length} rounds is not followed, but one of 1 to {_MOST_ROUNDS} is")
    held, carry, over = values[:consts], values[consts : consts + carried], values[consts + carried :]
    rows: list[list[Followed]] = []
    order = range(length - 1, -1, -1) if parameters["reverse"] else range(length)
    for k in order:
        out = walk.run(parameters["jaxpr"], [*held, *carry, *(_row(x, k) for x in over)])
        carry = out[:carried]
        rows.append(out[carried:])
    if parameters["reverse"]:
        rows.reverse()
    return [*carry, *(_stacked(walk, column) for column in zip(*rows, strict=True))]


def _row(x: Followed, k: int) -> Followed:
    return Followed(x.native[k], None if x.tensor is None else x.tensor.select(0, k), x.dependent)


def _stacked(walk: Interpreter, column: Sequence[Followed]) -> Followed:
    native = jax.numpy.stack([v.native for v in column])
    dependent = any(v.dependent for v in column)
    if any(v.tensor is None for v in column):
        return walk.constant(native)
    return Followed(native, torch.stack([v.tensor for v in column if v.tensor is not None]), dependent)


def _while(walk: Interpreter, parameters: Any, values: list[Followed]) -> list[Followed]:
    conditions, bodies = parameters["cond_nconsts"], parameters["body_nconsts"]
    asked, held, state = values[:conditions], values[conditions : conditions + bodies], values[conditions + bodies :]
    for _ in range(_MOST_ROUNDS):
        if not bool(walk.run(parameters["cond_jaxpr"], [*asked, *state])[0].native):
            return state
        state = walk.run(parameters["body_jaxpr"], [*held, *state])
    raise CannotLift(f"a loop takes more than the {_MOST_ROUNDS} rounds that are followed")


def _cond(walk: Interpreter, parameters: Any, values: list[Followed]) -> list[Followed]:
    branches = parameters["branches"]
    chosen = min(max(int(values[0].native), 0), len(branches) - 1)
    return walk.run(branches[chosen], values[1:])


def _linear_solve(walk: Interpreter, parameters: Any, values: list[Followed]) -> list[Followed]:
    """A solver with what is known of its product for derivatives: the solver alone computes the result."""
    lengths, solve = parameters["const_lengths"], parameters["jaxprs"].solve
    before = lengths.matvec + lengths.vecmat
    return walk.run(solve, [*values[before : before + lengths.solve], *values[sum(lengths) :]])


_WALKED = {
    "scan": _scan, "while": _while, "cond": _cond, "custom_linear_solve": _linear_solve,
    "debug_callback": lambda *_: [],
}  # fmt: skip

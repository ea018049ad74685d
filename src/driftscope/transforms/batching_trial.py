"""How a function behaves on three examples: is it pure, is torch.vmap right for it. Asked once, remembered.

Remembered by code object (and what it closes over), and for each by the dtypes and ranks of the arguments: torch's
rules depend on those, not on the values.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import io
import random
import types
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from driftscope.errors import ImpureFunction
from driftscope.records.finding import Finding, Where
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching_call import BatchedCall, Request, run_loop
from driftscope.transforms.batching_results import Piece
from driftscope.transforms.process_state import process_kept, reseed
from driftscope.transforms.reach import Reached, names_in, reach, unwrapped
from driftscope.transforms.world import Escaped, World, held_by_cache, same_bits

#: Results that agree within this are the same up to rounding (relative, and absolute at the result's scale).
ROUNDING = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 1e-4, torch.complex64: 1e-4}
_HALF_ROUNDING = 2e-2

#: Calls whose batching rule is wrong for some values, so that three examples need not show it. Read in torch 2.13.0.
WRONG_RULES = frozenset({"torch.index_fill", "Tensor.index_fill", "Tensor.index_fill_", "torch.linalg.pinv"})

#: Functions remembered; the oldest are forgotten first.
_REMEMBERED = 1024

Signature = tuple[Any, ...]


class Plan(enum.Enum):
    """How calls of one signature are run."""

    TORCH = "torch.vmap"
    PATHS = "by path, not yet compared with the loop"
    VERIFIED_PATHS = "by path"
    LOOP = "the loop"
    WRITING_LOOP = "the loop, which writes into the batch"


# --- remembering -----------------------------------------------------------------------------------------------------

_PLANS: dict[Any, dict[Signature, Plan]] = {}


def plans_of(request: Request) -> dict[Signature, Plan]:
    """Return what is known of a function under these options; shared by all who ask for the same."""
    key = (_key_of(request.function), repr(request.in_dims), repr(request.out_dims), request.randomness)
    known = _PLANS.get(key)
    if known is None:
        while len(_PLANS) >= _REMEMBERED:
            _PLANS.pop(next(iter(_PLANS)))
        known = _PLANS[key] = {}
    return known


def _key_of(function: Any, depth: int = 3) -> Any:
    if isinstance(function, types.FunctionType):
        cells = function.__closure__ or ()
        return (function.__code__, tuple(_captured_key(cell, depth) for cell in cells))
    if isinstance(function, functools.partial):
        held = (function.func, *function.args, *function.keywords.values())
        return ("partial", tuple(_value_key(value, depth - 1) for value in held))
    if isinstance(function, types.BuiltinFunctionType):
        return function
    return _identity(function)


def _captured_key(cell: types.CellType, depth: int) -> Any:
    try:
        return _value_key(cell.cell_contents, depth - 1)
    except ValueError:
        return None


def _value_key(value: Any, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim())
    if isinstance(value, (bool, int, str, type(None))):
        return value
    if callable(value) and depth > 0:
        return _key_of(value, depth)
    return type(value)


_ALIVE: dict[int, tuple[Any, int]] = {}
_COUNTER = iter(range(1 << 62))


def _identity(thing: Any) -> tuple[str, int]:
    """Return a number of its own for an object; an address alone is given to another object once this one is gone."""
    known = _ALIVE.get(id(thing))
    if known is not None and known[0]() is thing:
        return ("object", known[1])
    number = next(_COUNTER)
    try:
        address = id(thing)
        _ALIVE[address] = (weakref.ref(thing, lambda _: _ALIVE.pop(address, None)), number)
    except TypeError:
        return ("object", number)
    return ("object", number)


def signature_of(function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Signature:
    """Return what torch's rules depend on: dtypes and ranks of tensors, the other arguments by value or type."""
    placed = tuple(
        [(a.dtype, a.ndim) if a.__class__ is torch.Tensor else other_signature(a) for a in arguments]
    )  # fmt: skip
    if not keywords and not isinstance(function, torch.nn.Module):
        return placed
    named = tuple([(name, other_signature(value)) for name, value in keywords.items()])
    return (getattr(function, "training", None), placed, named)


def other_signature(argument: Any) -> Any:
    """Return the part of a signature that one argument is."""
    if argument.__class__ is dict:
        # Written out: a dict of parameters is the largest argument there is, and this runs on every call.
        return tuple(argument), tuple(
            [(a.dtype, a.ndim) if a.__class__ is torch.Tensor else other_signature(a) for a in argument.values()]
        )
    if isinstance(argument, torch.Tensor):
        return (argument.dtype, argument.ndim)
    if isinstance(argument, (list, tuple)):
        return tuple([other_signature(item) for item in argument])
    if isinstance(argument, (bool, int, str, type(None))):
        return argument
    return type(argument)


# --- trying ----------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """What one loop over the tried examples did."""

    pieces: list[Piece]
    changed: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    printed: str = ""
    drew_torch: bool = False
    drew_others: bool = False
    wrote_mapped: bool = False
    wrote_shared: list[str] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)


def try_out(call: BatchedCall, theirs: Callable[..., Any]) -> Plan | None:
    """Decide how a call is run; None when the function raises by itself on a tried example.

    Raises
    ------
    ImpureFunction
        If the function changes state, prints, draws from numpy's or Python's generators, or does not repeat itself.
    """
    rows = sorted({0, call.size // 2, call.size - 1})
    with internals.outside_transforms(), process_kept():
        warnings.simplefilter("ignore")  # the run itself will say it
        world = World(call.request.function, call.given)
        try:
            first = _watched(call.plain(rows), world)
            second = _watched(call.plain(rows), world)
        except Exception:
            world.rewind()
            return None
        refuse_impure(call.request.function, first, second)
        return _plan(call.plain(rows), theirs, world, first)


def _plan(call: BatchedCall, theirs: Callable[..., Any], world: World, loop: Trial) -> Plan:
    slower = Plan.WRITING_LOOP if loop.wrote_mapped else Plan.PATHS
    try:
        got, names = _asked(call, theirs)
    except Exception as error:
        if loop.drew_torch and call.request.randomness == "error":
            raise ImpureFunction(_random_finding(call.request.function, error)) from error
        return Plan.LOOP if loop.drew_torch else slower
    finally:
        world.rewind()
    if loop.drew_torch:
        return Plan.TORCH
    if names & WRONG_RULES:
        return Plan.LOOP
    if _agrees(got, loop.pieces, call):
        return Plan.TORCH
    return slower


def _asked(call: BatchedCall, theirs: Callable[..., Any]) -> tuple[Any, set[str]]:
    """Run torch.vmap, and say which functions of torch were called, where that can be watched."""
    calls = _CallNames()
    with contextlib.redirect_stdout(io.StringIO()):
        reseed()
        try:
            with calls:
                return theirs(*call.given, **call.keywords), calls.names
        except Exception:
            # Higher-order operators are traced by Dynamo, which refuses to work while calls are watched.
            reseed()
            return theirs(*call.given, **call.keywords), set()


class _CallNames(TorchFunctionMode):
    """Collects the names of torch's functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(internals.torch_name(func))
        return func(*args, **(kwargs or {}))


def _watched(call: BatchedCall, world: World) -> Trial:
    """Run the loop on copies and see what it leaves behind; the world is put back."""
    before, names = world.fingerprint(), _bindings(call)
    reseed()
    versions = [tensor._version for tensor in call.tensors]
    torch_draws, other_draws = torch.get_rng_state(), _other_generators()
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            pieces = run_loop(call, writing=True)
        after, later = world.fingerprint(), _bindings(call)
        harmless = [path for path, thing in _reached(call).things if _remembers_numbers(thing)]
    finally:
        world.rewind()
    changed = [path for path in {**before, **after} if not _same_state(before.get(path), after.get(path))]
    things = dict(_reached(call).things)
    drawn = [path for path in changed if isinstance(things.get(path), torch.Generator)]
    changed = [path for path in changed if path not in drawn and path not in harmless]
    written = [path for path in changed if isinstance(before.get(path), torch.Tensor)]
    written = [path for path in written if names.get(path) is later.get(path)]
    wrote = [
        i for i, (tensor, version) in enumerate(zip(call.tensors, versions, strict=True)) if tensor._version != version
    ]
    mapped = [
        dim is not None for leaf, dim in zip(call.leaves, call.dims, strict=True) if isinstance(leaf, torch.Tensor)
    ]
    mapped += [False] * (len(call.tensors) - len(mapped))
    return Trial(
        pieces,
        changed=changed,
        written=written,
        calls={name for function in world.functions for name in names_in(function.__code__)},
        kept=[path for path in changed if path not in written and _keeps_tensors(after.get(path))],
        printed=printed.getvalue(),
        drew_torch=bool(drawn) or not torch.equal(torch_draws, torch.get_rng_state()),
        drew_others=other_draws != _other_generators(),
        wrote_mapped=any(mapped[i] for i in wrote),
        wrote_shared=[f"argument {i}" for i in wrote if not mapped[i]],
    )


def _other_generators() -> tuple[Any, ...]:
    name, key, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(key).tobytes(), *rest, random.getstate())


def _bindings(call: BatchedCall) -> dict[str, Any]:
    """Return what the names that the function reaches are bound to: a tensor that is written to stays the same one."""
    return {binding.path: binding.get() for binding in _reached(call).bindings}


def _remembers_numbers(thing: Any) -> bool:
    """Whether a thing is a cache without tensors: it makes the function faster and nothing else."""
    return hasattr(thing, "cache_info") and not held_by_cache(thing)


def _reached(call: BatchedCall) -> Reached:
    return reach(call.request.function, tuple(a for a in call.given if not isinstance(a, torch.Tensor)))


def _keeps_tensors(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, Escaped)) or (isinstance(value, str) and value.startswith("cache of"))


def _same_state(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and same_bits(left, right)
    if isinstance(left, (torch.Tensor, Escaped)) or isinstance(right, (torch.Tensor, Escaped)):
        return False
    return bool(left == right)


def _agrees(got: Any, pieces: list[Piece], call: BatchedCall) -> bool:
    """Whether torch.vmap's results are the loop's, up to rounding."""
    leaves, spec = pytree.tree_flatten(got)
    if len(pieces) != 1 or spec != pieces[0].spec:
        return False
    dims = internals.spread_over(call.request.out_dims, spec)
    if dims is None:
        # torch accepts out_dims of one entry for a bare tensor.
        dims = list(call.request.out_dims)
    return all(_close(leaf, mine, dim) for leaf, mine, dim in zip(leaves, pieces[0].leaves, dims, strict=True))


def _close(got: Any, loop: Any, dim: int | None) -> bool:
    if not isinstance(got, torch.Tensor) or not isinstance(loop, torch.Tensor):
        return bool(got == loop)
    with torch.no_grad():
        left = got.unsqueeze(0).expand_as(loop) if dim is None else got.movedim(dim, 0)
        if left.shape != loop.shape or left.dtype != loop.dtype:
            return False
        if not (loop.is_floating_point() or loop.is_complex()):
            return torch.equal(left, loop)
        tolerance = ROUNDING.get(loop.dtype, _HALF_ROUNDING)
        finite = loop[torch.isfinite(loop)].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        return torch.allclose(left, loop, rtol=tolerance, atol=tolerance * 0.1 * scale, equal_nan=True)


# --- refusing --------------------------------------------------------------------------------------------------------


def refuse_impure(function: Any, first: Trial, second: Trial) -> None:
    """Raise :class:`ImpureFunction` with a finding if a trial left something behind or does not repeat itself."""
    name, where = internals.name_of(function), _definition(function)
    told = None
    if first.printed:
        told = ("T003", f"{name} prints; batched, it is not run once per example", "return it and print outside")
    elif first.drew_others:
        what = f"{name} draws from numpy's or Python's random generator, which a batch shares"
        told = ("T004", what, "draw with torch, or pass the numbers as mapped arguments")
    elif first.wrote_shared:
        what = f"{name} writes into {first.wrote_shared[0]}, which all examples share"
        told = ("T007", what, "return the new value instead of writing it")
    elif first.changed:
        told = _state_finding(name, first)
    elif not _repeats(first.pieces, second.pieces):
        told = ("T023", f"{name} does not repeat itself on the same examples", "make it depend on its arguments alone")
    if told is not None:
        code, what, fix = told
        raise ImpureFunction(
            Finding(code=code, what=what, fix=fix, where=where, evidence={"changed": first.changed[:8]})
        )


def _state_finding(name: str, trial: Trial) -> tuple[str, str, str]:
    shown = ", ".join(trial.changed[:3]) + (" ..." if len(trial.changed) > 3 else "")
    if any("running_" in path or "num_batches_tracked" in path for path in trial.changed):
        what = f"{name} updates the running statistics of a normalisation layer ({shown})"
        return ("T024", what, "call .eval(), or use track_running_stats=False or GroupNorm")
    if trial.written and "batch_norm" in trial.calls:
        what = f"{name} updates the running statistics of a normalisation layer ({shown})"
        return ("T024", what, "call it with training=False, or without running statistics")
    if trial.written:
        what = f"{name} writes into {trial.written[0]}, which all examples share"
        return ("T007", what, "return the new value instead of writing it")
    if trial.kept:
        return ("T001", f"{name} keeps a tensor outside of itself ({trial.kept[0]})", "return the tensor as well")
    what = f"{name} changes what lives outside of it ({shown}), once per example in a loop and once per run in a batch"
    return ("T002", what, "pass it as an argument and return the new value")


def _repeats(first: list[Piece], second: list[Piece]) -> bool:
    if len(first) != len(second):
        return False
    for left, right in zip(first, second, strict=True):
        if left.spec != right.spec:
            return False
        for a, b in zip(left.leaves, right.leaves, strict=True):
            if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
                return False
            if isinstance(a, torch.Tensor) and not _same_state(a, b):
                return False
    return True


def _random_finding(function: Any, error: Exception) -> Finding:
    what = f"{internals.name_of(function)} draws random numbers, and randomness='error' forbids it"
    fix = "give randomness='different' or 'same', or draw outside and pass the numbers"
    said = str(error).partition("\n")[0]
    return Finding(code="T005", what=what, fix=fix, where=_definition(function), evidence={"torch": said})


def _definition(function: Any) -> Where:
    code = getattr(unwrapped(function), "__code__", None)
    return Where() if code is None else Where(file=code.co_filename, line=code.co_firstlineno)

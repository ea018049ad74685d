"""How a function behaves on three examples: is it pure, and is torch.vmap right for it."""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching_call import BatchedCall, run_loop
from driftscope.transforms.batching_memory import Plan
from driftscope.transforms.batching_refusal import refuse_impure, refuse_random, same_state
from driftscope.transforms.batching_results import Piece
from driftscope.transforms.process_state import process_kept, reseed
from driftscope.transforms.reach import Reached, names_in, reach
from driftscope.transforms.world import Escaped, World, held_by_cache

#: Results that agree within this are the same up to rounding (relative, and absolute at the result's scale).
ROUNDING = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 1e-4, torch.complex64: 1e-4}
_HALF_ROUNDING = 2e-2

#: Calls whose batching rule is wrong for some values, so that three examples need not show it. Read in torch 2.13.0.
WRONG_RULES = frozenset({"torch.index_fill", "Tensor.index_fill", "Tensor.index_fill_", "torch.linalg.pinv"})


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
        refuse_impure(call.plain(rows), first, second)
        return _plan(call.plain(rows), theirs, world, first)


def _plan(call: BatchedCall, theirs: Callable[..., Any], world: World, loop: Trial) -> Plan:
    slower = Plan.WRITING_LOOP if loop.wrote_mapped else Plan.PATHS
    try:
        got, names = _asked(call, theirs)
    except Exception as error:
        if loop.drew_torch and call.request.randomness == "error":
            raise refuse_random(call, error) from error
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
    changed = [path for path in {**before, **after} if not same_state(before.get(path), after.get(path))]
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

"""How a function behaves on three examples: is it pure, and is torch.vmap right for it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from driftscope.errors import InputError
from driftscope.programs.state.printing import caught
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import differ
from driftscope.transforms.batching.call import BatchedCall, LoopTrial, run_loop
from driftscope.transforms.batching.guard import Guard, Guarded, Steps
from driftscope.transforms.batching.memory import CallPlan, Known
from driftscope.transforms.batching.mode import PathMode
from driftscope.transforms.batching.paths import by_path
from driftscope.transforms.batching.refusal import refuse_impure, refuse_random, same_state
from driftscope.transforms.batching.results import put_together
from driftscope.transforms.batching.slopes import WantedSlopes, agree_in_rounding, agrees, wanted_derivatives
from driftscope.transforms.world.captured import Captured
from driftscope.transforms.world.places import is_own_mistake
from driftscope.transforms.world.process_state import process_kept, reseed
from driftscope.transforms.world.reach import Reached, names_in, reach
from driftscope.transforms.world.snapshot import Escaped, World, held_by_cache

#: Calls whose batching rule is wrong for some values, so that three examples need not show it. Read in torch 2.13.0.
WRONG_RULES = frozenset({"torch.index_fill", "Tensor.index_fill", "Tensor.index_fill_", "torch.linalg.pinv"})


#: Maps a function with ``torch.vmap`` under the options of a call.
Theirs = Callable[[Callable[..., Any]], Callable[..., Any]]

#: What a function mentions that may seed torch's generator, on the examples tried or later.
_SEEDING = frozenset({"manual_seed", "set_rng_state", "fork_rng", "seed_everything", "set_seed"})

#: Examples tried before a plan is made.
TRIED = 4


def try_out(call: BatchedCall, theirs: Theirs) -> Known | None:
    """Decide how a call is run; None when the function raises by itself on a tried example.

    Parameters
    ----------
    call : BatchedCall
    theirs : callable
        Maps a function with ``torch.vmap`` under the options of the call.

    Raises
    ------
    ImpureFunction
        If the function changes state, prints, draws from numpy's or Python's generators, or does not repeat itself.
    """
    if not Captured(call.request.function, call.given).whole:
        return Known(CallPlan.LOOP)  # a trial would use up what cannot be put back
    rows = sorted({k * (call.size - 1) // (TRIED - 1) for k in range(TRIED)})
    derivatives = wanted_derivatives(call)
    with internals.outside_transforms(), internals.without_own_modes((Guard, PathMode)), process_kept():
        warnings.simplefilter("ignore")  # the run itself will say it
        world = World(call.request.function, call.given)
        try:
            first, second = _twice(call, rows, world)
        except Exception as error:
            world.rewind()
            if is_own_mistake(error):
                raise
            return None
        if first.cached and not _in_any_order(call, rows, world, first):
            first = replace(first, changed=[*first.changed, *first.cached], kept=[*first.kept, *first.cached])
        refuse_impure(call.plain(rows), first, second)
        if call.size == 1 or not all(map(internals.is_of_torch, call.mapped)):
            # One example proves nothing for a batch, and is no slower alone. Rows of a class of its own are of it
            # again, which torch.vmap's are not, and the class decides what its operators do.
            return Known(CallPlan.LOOP)
        proof = _Proof(call, rows, theirs, world, first, derivatives)
        return proof.plan()


def _twice(call: BatchedCall, rows: list[int], world: World) -> list[LoopTrial]:
    try:
        return [_tried(call.plain(rows), world, watch=True) for _ in range(2)]
    except Exception as error:
        # Higher-order operators are traced by Dynamo, which refuses to work while calls are watched.
        world.rewind()
        if is_own_mistake(error):
            raise
        return [_tried(call.plain(rows), world, watch=False) for _ in range(2)]


def _in_any_order(call: BatchedCall, rows: list[int], world: World, first: LoopTrial) -> bool:
    """Whether caches that the function fills with tensors make it faster and nothing else.

    A cached constant is the same whichever example comes first, and is not made for every one of them.
    """
    if len(rows) > 1 and any(grown >= len(rows) for grown in first.grown):
        return False
    backwards = _tried(call.plain(rows[::-1]), world, watch=False)
    if len(backwards.pieces) != 1 or len(first.pieces) != 1:
        return False
    turned = [leaf.flip(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in backwards.pieces[0].leaves]
    return differ(first.pieces[0].leaves, turned).agrees


@dataclass
class _Proof:
    """What ``torch.vmap`` and the groups do on the tried examples, beside the loop."""

    call: BatchedCall
    rows: list[int]
    theirs: Theirs
    world: World
    loop: LoopTrial
    derivatives: WantedSlopes
    left_wrappers: bool = False

    def plan(self) -> Known:
        """Return the cheapest plan that is the loop in steps, values and derivatives."""
        loop, request = self.loop, self.call.request
        guarded = Guarded(request.opening)
        try:
            got = self._run(lambda call: self.theirs(guarded)(*call.given, **call.keywords))
        except Exception as error:
            if is_own_mistake(error):
                raise
            if loop.drew_torch and request.randomness == "error":
                raise refuse_random(self.call.plain(self.rows), error) from error
            return self.without_torch()
        steps = guarded.steps()
        alike = steps is not None and all(taken == steps for taken in loop.steps) and not self.left_wrappers
        if _calls(steps) & WRONG_RULES and not loop.wrote_mapped:
            return Known(CallPlan.LOOP, draws=loop.drew_torch)
        if not alike or loop.wrote_mapped:
            return self.without_torch()
        if loop.drew_torch:
            return (
                Known(CallPlan.TORCH, {steps}, draws=True) if self._draws_alike() else Known(CallPlan.LOOP, draws=True)
            )
        if agrees(got, loop.pieces, request.out_dims) and self._same_derivatives(
            lambda call: self.theirs(request.opening)(*call.given, **call.keywords)
        ):
            return Known(CallPlan.TORCH, {steps})
        return self.without_torch()

    def without_torch(self) -> Known:
        """Return the plan for what ``torch.vmap`` refuses or gets wrong: groups, or the loop."""
        loop = self.loop
        if loop.wrote_mapped:
            return Known(CallPlan.WRITING_LOOP, draws=loop.drew_torch)
        watchable = None not in loop.steps
        if loop.drew_torch or not watchable or (self.derivatives.any and not self._same_derivatives(_grouped)):
            return Known(CallPlan.LOOP, draws=loop.drew_torch)
        return Known(CallPlan.PATHS)

    def _run(self, mapped: Callable[[BatchedCall], Any]) -> Any:
        with caught():
            reseed()
            before = {p: v for p, v in self.world.fingerprint().items() if isinstance(v, Escaped)}
            try:
                result = mapped(self.call.plain(self.rows))
                after = self.world.fingerprint()
                self.left_wrappers = any(isinstance(v, Escaped) and before.get(p) != v for p, v in after.items())
                return result
            finally:
                self.world.rewind()

    def _seeds(self) -> bool:
        """Whether the function seeds torch's generator itself, so that every example draws the same numbers."""
        left = []
        for seed in (0, 1):
            reseed(seed)
            try:
                run_loop(self.call.plain(self.rows), writing=True)
            finally:
                left.append(torch.get_rng_state())
                self.world.rewind()
        return torch.equal(*left)

    def _draws_alike(self) -> bool:
        """Whether the values are the loop's when both draw the same numbers for every example."""
        if self.loop.calls & _SEEDING or self._seeds():
            return False
        call = self.call.plain(self.rows)
        call = replace(call, request=replace(call.request, randomness="same"))
        mapped = torch.vmap(call.request.opening, call.request.in_dims, call.request.out_dims, "same")
        try:
            got = self._run(lambda _: mapped(*call.given, **call.keywords))
            reseed()
            pieces = run_loop(call, writing=True)
        except Exception as error:
            if is_own_mistake(error):
                raise
            return False  # torch draws a mapped distribution for all examples at once, or not at all: the loop can
        finally:
            self.world.rewind()
        return agrees(got, pieces, call.request.out_dims)

    def _same_derivatives(self, mapped: Callable[[BatchedCall], Any]) -> bool:
        if not self.derivatives.any:
            return True
        found = []
        for run in (mapped, _looped):
            reseed()
            try:
                found.append(self.derivatives.of(run, self.call.plain(self.rows)))
            except Exception as error:
                if is_own_mistake(error):
                    raise
                return False  # what torch cannot differentiate in a batch, the loop may
            finally:
                self.world.rewind()
        return agree_in_rounding(*found)


def _looped(call: BatchedCall) -> Any:
    return put_together(run_loop(call), call.size, call.request.shape)


def _grouped(call: BatchedCall) -> Any:
    pieces = by_path(call)
    if isinstance(pieces, CallPlan):
        raise InputError(f"run by {pieces.value}")
    return put_together(pieces, call.size, call.request.shape)


def _calls(steps: Steps | None) -> set[str]:
    return {internals.torch_name(func) for func, _ in steps or ()}


def _tried(call: BatchedCall, world: World, *, watch: bool) -> LoopTrial:
    """Run the loop on copies and see what it leaves behind; the world is put back."""
    before, names = world.fingerprint(), _bindings(call)
    held = {path: thing.cache_info().currsize for path, thing in _reached(call).things if hasattr(thing, "cache_info")}
    reseed()
    versions = [tensor._version for tensor in call.tensors]
    torch_draws, other_draws = torch.get_rng_state(), other_generators()
    try:
        with caught() as printed:
            steps: list[Steps | None] = []
            pieces = run_loop(call, writing=True, watched=steps if watch else None)
        after, later = world.fingerprint(), _bindings(call)
        caches = [(path, thing) for path, thing in _reached(call).things if hasattr(thing, "cache_info")]
        sizes = {path: thing.cache_info().currsize for path, thing in caches}
        holding = [path for path, thing in caches if held_by_cache(thing)]
    finally:
        world.rewind()
    changed = [path for path in {**before, **after} if not same_state(before.get(path), after.get(path))]
    things = dict(_reached(call).things)
    drawn = [path for path in changed if isinstance(things.get(path), torch.Generator)]
    cached = [path for path in changed if path in holding and not isinstance(after.get(path), Escaped)]
    changed = [path for path in changed if path not in drawn and path not in sizes]
    written = [path for path in changed if isinstance(before.get(path), torch.Tensor)]
    written = [path for path in written if names.get(path) is later.get(path)]
    wrote = [
        i for i, (tensor, version) in enumerate(zip(call.tensors, versions, strict=True)) if tensor._version != version
    ]
    mapped = [
        dim is not None for leaf, dim in zip(call.leaves, call.dims, strict=True) if isinstance(leaf, torch.Tensor)
    ]
    mapped += [False] * (len(call.tensors) - len(mapped))
    return LoopTrial(
        pieces,
        changed=changed,
        written=written,
        calls={name for function in world.functions for name in names_in(function.__code__)},
        kept=[path for path in changed if path not in written and _keeps_tensors(after.get(path))],
        printed=printed.getvalue(),
        drew_torch=bool(drawn) or not torch.equal(torch_draws, torch.get_rng_state()),
        drew_others=other_draws != other_generators(),
        wrote_mapped=any(mapped[i] for i in wrote),
        wrote_shared=[f"argument {i}" for i in wrote if not mapped[i]],
        steps=list(steps) if watch else [None] * call.size,
        cached=cached,
        grown=[sizes[path] - held.get(path, 0) for path in cached],
    )


def other_generators() -> tuple[Any, ...]:
    """Read where numpy's and Python's generators stand."""
    name, key, *rest = np.random.get_state(legacy=True)
    return (random.getstate(), name, np.asarray(key).tobytes(), *rest)


def put_back_generators(state: tuple[Any, ...]) -> None:
    """Return numpy's and Python's generators to what :func:`other_generators` read."""
    python, name, key, *rest = state
    random.setstate(python)
    np.random.set_state((name, np.frombuffer(key, np.uint32), *rest))


def _bindings(call: BatchedCall) -> dict[str, Any]:
    """Return what the names that the function reaches are bound to: a tensor that is written to stays the same one."""
    return {binding.path: binding.get() for binding in _reached(call).bindings}


def _reached(call: BatchedCall) -> Reached:
    return reach(call.request.function, tuple(a for a in call.given if not isinstance(a, torch.Tensor)))


def _keeps_tensors(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, Escaped)) or (isinstance(value, str) and value.startswith("cache of"))

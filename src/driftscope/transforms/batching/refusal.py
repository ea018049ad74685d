"""Why a function cannot be batched: what it does beside computing its result, and on which line."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import torch

from driftscope.errors import DriftscopeError, ImpureFunction
from driftscope.programs import pytrees as pytree
from driftscope.records.finding import Finding, Where
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import differ
from driftscope.transforms.batching.call import BatchedCall, LoopTrial
from driftscope.transforms.batching.results import Piece
from driftscope.transforms.investigation import findings_without_repairs
from driftscope.transforms.world.reach import unwrapped
from driftscope.transforms.world.snapshot import Escaped, same_bits


def same_state(left: Any, right: Any) -> bool:
    """Whether two readings of one thing are the same, tensors by their bits."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and same_bits(left, right)
    if isinstance(left, Escaped) and isinstance(right, Escaped):
        return left == right  # captured inside of another transform, to which it belongs
    if isinstance(left, (torch.Tensor, Escaped)) or isinstance(right, (torch.Tensor, Escaped)):
        return False
    return bool(left == right)


def refuse_impure(call: BatchedCall, first: LoopTrial, second: LoopTrial) -> None:
    """Raise :class:`ImpureFunction` with a finding if a trial left something behind or does not repeat itself.

    Parameters
    ----------
    call : BatchedCall
        On copies of the tried examples.
    first, second : LoopTrial
        Of the same examples.
    """
    name = internals.name_of(call.request.function)
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
        where = _definition(call.request.function)
        finding = Finding(code=code, what=what, fix=fix, where=where, evidence={"changed": first.changed[:8]})
        raise ImpureFunction(_placed(finding, call))


#: Examples that are looked at for the place of a refusal.
SHOWN = 4


def refuse_written(call: BatchedCall) -> ImpureFunction:
    """Return the refusal of a function that wrote into a shared tensor on a way that was not tried before."""
    what = f"{internals.name_of(call.request.function)} writes into a tensor that all examples share, and has done so"
    fix = "return the new value instead of writing it; what it wrote to may hold the writes of several runs"
    return ImpureFunction(Finding(code="T007", what=what, fix=fix, where=_definition(call.request.function)))


def refuse_random(call: BatchedCall, error: Exception | None) -> ImpureFunction:
    """Return the refusal of a function that draws although ``randomness="error"``."""
    what = f"{internals.name_of(call.request.function)} draws random numbers, and randomness='error' forbids it"
    fix = "give randomness='different' or 'same', or draw outside and pass the numbers"
    evidence = {"torch": str(error).partition("\n")[0]} if error is not None else {}
    finding = Finding(code="T005", what=what, fix=fix, where=_definition(call.request.function), evidence=evidence)
    return ImpureFunction(_placed(finding, call))


def _placed(finding: Finding, call: BatchedCall) -> Finding:
    """Put a finding on the expression that causes it, where the check of transforms finds the same cause."""
    if call.keywords:
        return finding
    request = call.request
    hooked = internals.saving_hooked()
    with internals.outside_transforms(), internals.unhooked():
        call = call.plain(range(min(call.size, SHOWN)))
        examples = pytree.tree_unflatten(call.leaves, call.spec)
        try:
            found = findings_without_repairs(
                request.function, *examples, in_dims=request.in_dims, randomness=request.randomness
            )
        except DriftscopeError:
            return finding
    if hooked:
        # The errors of these runs hold the frames below: torch 2.8 takes a checkpoint's hooks away when its frame goes.
        gc.collect()
    same = [f for f in found if f.code == finding.code and f.where.line]
    return replace(finding, where=same[0].where, fix=same[0].fix or finding.fix) if same else finding


def _state_finding(name: str, trial: LoopTrial) -> tuple[str, str, str]:
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
            if isinstance(a, torch.Tensor) and not differ(a, b).agrees:
                return False
    return True


def _definition(function: Any) -> Where:
    code = getattr(unwrapped(function), "__code__", None)
    return Where() if code is None else Where(file=code.co_filename, line=code.co_firstlineno)

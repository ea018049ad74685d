"""``ds.vmap``: torch.vmap where torch.vmap is right, the batch split by path where it is not, the loop at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching_call import BatchedCall, Request, run_loop
from driftscope.transforms.batching_memory import Plan, Signature, plans_of, signature_of
from driftscope.transforms.batching_paths import by_path, same_as_loop
from driftscope.transforms.batching_results import RAGGED, put_together
from driftscope.transforms.batching_trial import try_out


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    ragged: str = "error",
    padding: float = 0.0,
) -> Callable[..., Any]:
    """Map a function over a batch: what the loop over the examples gives, also where ``torch.vmap`` refuses.

    Where ``torch.vmap`` works and agrees with the loop, the call *is* ``torch.vmap``. Where data-dependent control
    flow, ``.item()``, shapes that depend on values, or a buffer made without the batch stop it, examples that take
    the same decisions are run together; where that does not pay, or a batched kernel has other bits than the kernel
    for one example, the examples are run one by one.

    Parameters
    ----------
    func : callable
        Takes one example: tensors without the mapped axis. It must be pure, since it may be run more or fewer times
        than there are examples; this is tried once per code object, on three examples.
    in_dims, out_dims, randomness, chunk_size
        As for ``torch.vmap``.
    ragged : {"error", "jagged", "pad", "list"}
        What to return where examples give different shapes: nothing, a nested tensor of layout ``torch.jagged``,
        a tensor padded with ``padding`` at the ends, or a list of tensors.
    padding : float
        What ``ragged="pad"`` fills with.

    Returns
    -------
    callable
        Takes the batch. Derivatives of its results are the loop's.

    Raises
    ------
    InputError
        When ``ragged`` is unknown; when called, for results that cannot be put together.
    ImpureFunction
        When called with a function that changes state, prints, or draws from numpy's or Python's generators; its
        ``finding`` says which.

    Notes
    -----
    Results that are Python numbers become tensors of 64 bits, which hold what the loop returned exactly; beside tensors
    they take the tensors' dtype. ``randomness="different"`` outside of ``torch.vmap`` draws as the loop draws.
    """
    if ragged not in RAGGED:
        raise InputError(f"ragged={ragged!r} is not one of {', '.join(map(repr, RAGGED))}")
    if not callable(func):
        raise InputError(f"ds.vmap needs a function, not {type(func).__name__}")
    if torch.compiler.is_compiling():
        return torch.vmap(func, in_dims, out_dims, randomness, chunk_size=chunk_size)
    request = Request(func, in_dims, out_dims, randomness, chunk_size, ragged, padding)
    theirs = torch.vmap(func, in_dims, out_dims, randomness, chunk_size=chunk_size)
    plans = plans_of(request)
    # What stands in the loop below runs on every call, beside some 30 microseconds of torch.vmap on a small function:
    # the tensors of the last call that torch.vmap was right for are recognised without making a key.
    call, tensor, module = internals.vmap_call, torch.Tensor, isinstance(func, torch.nn.Module)
    last: list[tuple[torch.dtype, int]] = []

    def mapped(*arguments: Any, **keywords: Any) -> Any:
        if not keywords and len(last) == len(arguments):
            for argument, (dtype, ndim) in zip(arguments, last):  # noqa: B905  strict costs a tenth of all this
                if argument.__class__ is not tensor or argument.dtype is not dtype or argument.ndim != ndim:
                    break
            else:
                try:
                    return call(func, in_dims, out_dims, randomness, chunk_size, *arguments)
                except Exception:
                    last.clear()
        if torch.compiler.is_compiling():
            return theirs(*arguments, **keywords)
        signature = signature_of(func, arguments, keywords)
        if plans.get(signature) is Plan.TORCH:
            if not module and not keywords and all(argument.__class__ is tensor for argument in arguments):
                last[:] = [(argument.dtype, argument.ndim) for argument in arguments]
            try:
                return theirs(*arguments, **keywords)
            except Exception:
                # Other values took the function down another road than the examples it was tried on.
                last.clear()
                plans[signature] = Plan.PATHS
        return _planned(request, theirs, signature, arguments, keywords)

    return functools.update_wrapper(mapped, func) if hasattr(func, "__name__") else mapped


def _planned(
    request: Request, theirs: Callable[..., Any], signature: Signature, arguments: tuple[Any, ...], keywords: Any
) -> Any:
    """Run a call as its plan says; make the plan first where there is none."""
    call = BatchedCall.read(request, arguments, keywords)
    if any(internals.is_mapped(tensor) for tensor in call.tensors):
        return _inside_another(call, theirs, arguments, keywords)
    if not call.size:
        return theirs(*arguments, **keywords)
    plans = plans_of(request)
    plan = plans.get(signature) or try_out(call, theirs)
    if plan is None:
        # It raises by itself on one of the tried examples, so the loop will, and nothing was learned.
        return _looped(call, Plan.LOOP)
    plans[signature] = plan
    if plan is Plan.TORCH:
        return theirs(*arguments, **keywords)
    if plan in (Plan.PATHS, Plan.VERIFIED_PATHS):
        pieces = by_path(call)
        if not isinstance(pieces, Plan) and same_as_loop(call, pieces, first=plan is Plan.PATHS):
            plans[signature] = Plan.VERIFIED_PATHS
            return put_together(pieces, call.size, request.shape)
        plan = pieces if isinstance(pieces, Plan) else Plan.LOOP
    result = _looped(call, plan)
    plans[signature] = plan
    return result


def _looped(call: BatchedCall, plan: Plan) -> Any:
    pieces = run_loop(call, writing=plan is Plan.WRITING_LOOP)
    return put_together(pieces, call.size, call.request.shape)


def _inside_another(call: BatchedCall, theirs: Callable[..., Any], arguments: tuple[Any, ...], keywords: Any) -> Any:
    """Run under another ``vmap``: values belong to it, so it is the one that splits; here there is only the loop."""
    try:
        return theirs(*arguments, **keywords)
    except Exception:
        return _looped(call, Plan.LOOP)

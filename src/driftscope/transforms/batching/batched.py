"""``ds.vmap``: torch.vmap where torch.vmap is right, the batch split by path where it is not, the loop at the end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.audit import Audit
from driftscope.transforms.batching.call import Request
from driftscope.transforms.batching.results import RAGGED
from driftscope.transforms.batching.runner import CallRunner


def vmap(
    func: Callable[..., Any],
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    ragged: str = "error",
    padding: float = 0.0,
    audit: float = 0.0,
) -> Callable[..., Any]:
    """Map a function over a batch: what the loop over the examples gives, also where ``torch.vmap`` refuses.

    Where ``torch.vmap`` works and agrees with the loop, in its steps, its values and its derivatives, the call *is*
    ``torch.vmap``. Where data-dependent control flow, ``.item()``, shapes that depend on values, or a buffer made
    without the batch stop it, examples that take the same decisions are run together; where that does not pay, or a
    batched kernel has other bits than the kernel for one example, the examples are run one by one.

    Parameters
    ----------
    func : callable
        Takes one example: tensors without the mapped axis. It must be pure, since it may be run more or fewer times
        than there are examples; this is tried on four examples, and again when what it has captured changes.
    in_dims, out_dims, randomness, chunk_size
        As for ``torch.vmap``.
    ragged : {"error", "jagged", "pad", "list"}
        What to return where examples give different shapes: nothing, a nested tensor of layout ``torch.jagged``,
        a tensor padded with ``padding`` at the ends, or a list of tensors.
    padding : float
        What ``ragged="pad"`` fills with.
    audit : float
        The share of examples, chosen at random on every call, that are run again by the loop and compared, from 0 to 1.

    Returns
    -------
    callable
        Takes the batch. Derivatives of its results are the loop's.

    Raises
    ------
    InputError
        When ``randomness``, ``chunk_size``, ``ragged`` or ``audit`` cannot be used; when called, for results that
        cannot be put together, and inside another ``torch.vmap`` that maps values on which the function decides.
    ImpureFunction
        When called with a function that changes state, prints, or draws from numpy's or Python's generators; its
        ``finding`` says which.
    AuditFailed
        When an audited example differs from the loop; its ``row`` says which.

    Notes
    -----
    Results that are Python numbers become tensors of 64 bits, whole numbers beside fractions float64; beside tensors
    they take the tensors' dtype. Dataclasses are filled as the loop's are, without running their ``__init__``; None
    stays None. ``randomness="different"`` draws anew for every example: the loop's numbers only where the loop is run.
    Examples of a tensor class of the user's are run one by one. While a function is tried, generators are seeded
    and put back: another thread that draws in these milliseconds may draw the same numbers twice.
    ``torch.compile`` leaves the graph for it.
    """
    if ragged not in RAGGED:
        raise InputError(f"ragged={ragged!r} is not one of {', '.join(map(repr, RAGGED))}")
    if not callable(func):
        raise InputError(f"ds.vmap needs a function, not {type(func).__name__}")
    if randomness not in internals.RANDOMNESS:
        raise InputError(f"randomness={randomness!r} is not one of {', '.join(map(repr, internals.RANDOMNESS))}")
    if chunk_size is not None and chunk_size < 1:
        raise InputError(f"chunk_size={chunk_size} has to be above zero, or None for all examples at once")
    runner = CallRunner(Request(func, in_dims, out_dims, randomness, chunk_size, ragged, padding), Audit(audit))

    def run(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return runner.run(arguments, keywords)

    outside = internals.outside_dynamo(run)

    def mapped(*arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return outside(arguments, keywords)
        return run(arguments, keywords)

    return functools.update_wrapper(mapped, func) if hasattr(func, "__name__") else mapped

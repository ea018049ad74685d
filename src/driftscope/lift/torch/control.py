"""Operators that call others: the branch taken, the iterations run, the function mapped or called are recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.errors import CannotLift

Run = Callable[[Any, list[Any]], Any]

#: Operators that only call a function, and where its operands lie.
_CALLING: dict[str, Callable[[tuple[Any, ...]], list[Any]]] = {
    "invoke_subgraph": lambda args: list(args[2:]),
    "strict_mode": lambda args: list(args[1]),
    "invoke_quant_packed": lambda args: list(args[1:]),
    "tag_activation_checkpoint": lambda args: list(args[1:]),
}


def call_higher_order(
    recorder: AbstractContextManager[Any], operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a higher-order operator that an eager program called, its insides recorded.

    Raises
    ------
    CannotLift
        If the operator has no implementation in terms of ordinary calls.
    """
    with recorder:
        handled, result = control_flow(operator, args, kwargs, lambda body, operands: body(*operands))
        if handled:
            return result
        kernel = operator.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if kernel is None:
            raise CannotLift(f"The higher-order operator {operator.name()} has no float64 evaluation.")
        return kernel(*args, **kwargs)


def call_custom(
    recorder: AbstractContextManager[Any], operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """Run the Python function that a custom operator stands for, the calls it makes recorded.

    ``torch.library.custom_op`` keeps such functions by device in a table that is private, seen in torch 2.8 to 2.13.

    Returns
    -------
    followed : bool
        False where the operator is no such one: what it computes is not seen.
    result : object
    """
    definition = getattr(torch._library.custom_ops, "OPDEFS", {}).get(operator._name)
    bodies = {} if definition is None else definition._backend_fns
    device = next((x.device.type for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)
    body = bodies.get(device, bodies.get(None))
    if body is None:
        return False, None
    with recorder:
        return True, body(*args, **kwargs)


def seen_by(mode: type[TorchDispatchMode]) -> None:
    """Let modes of a class see higher-order operators in torch 2.8, which asks every operator for the class's rule.

    Later versions call ``__torch_dispatch__`` of modes that say ``supports_higher_order_operators``.
    """
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for operator in list(getattr(torch._ops, "_higher_order_ops", {}).values()):
        if mode not in operator.python_key_table:
            operator.py_impl(mode)(_rule(operator))


def _rule(operator: Any) -> Callable[..., Any]:
    return lambda mode, *args, **kwargs: call_higher_order(mode, operator, args, kwargs)


def control_flow(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> tuple[bool, Any]:
    """Evaluate a branch or a loop, natively decided.

    Parameters
    ----------
    operator : HigherOrderOperator
    args, kwargs
    run : callable
        ``run(body, operands)`` calls a branch or a body.

    Returns
    -------
    handled : bool
    result : object
    """
    name = operator.name()
    if name == "cond":
        predicate, yes, no, operands = args
        return True, run(yes if bool(predicate) else no, list(operands))
    if name == "scan":
        return True, _scanned(run, *args, **kwargs)
    if name in _CALLING:
        return True, run(args[0], _CALLING[name](args))
    if name == "while_loop":
        names = ("cond_fn", "body_fn", "carried_inputs", "additional_inputs")
        given = dict(zip(names, args, strict=False)) | kwargs
        carried, extra = list(given["carried_inputs"]), list(given.get("additional_inputs") or ())
        while bool(_single(run(given["cond_fn"], carried + extra))):
            carried = list(run(given["body_fn"], carried + extra))
        return True, tuple(carried)
    return False, None


def _scanned(run: Run, combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> tuple[Any, ...]:
    """Call a function along the first dimension of tensors, and carry on what it returns first.

    torch's own loop refuses to run where somebody looks on.
    """
    carried, made = list(init), list[list[Any]]()
    for i in range(len(xs[0]) if xs else 0):
        found = list(run(combine_fn, [*carried, *(x.select(0, i) for x in xs), *additional_inputs]))
        carried = found[: len(init)]
        made.append(found[len(init) :])
    return (*carried, *(torch.stack(c) if isinstance(c[0], torch.Tensor) else None for c in zip(*made, strict=True)))


def _single(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) else result

"""Derivatives by torch.func beside the same derivatives by plain autograd, and by finite differences.

Every derivative is with respect to the floating tensors of the first argument. ``grad`` and ``hessian`` differentiate
the sum of all outputs; the others keep the outputs apart. Results are tuples of tensors in the order of the leaves,
so that both sides can be compared without knowing how torch.func nests them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from driftscope.transforms import torch_internals as internals

Function = Callable[..., Any]

# Jacobians with more rows than this are taken of a fixed projection of the outputs: as telling, and affordable.
MAX_ROWS = 64


class NotDifferentiable(TypeError):
    """There is no floating tensor to differentiate, in the first argument or in the outputs."""


def float_leaves(tree: Any) -> list[torch.Tensor]:
    """Return the floating or complex tensors of a tree, in order."""
    leaves = internals.tree_leaves(tree)
    return [x for x in leaves if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]


def _differentiated(tree: Any) -> list[torch.Tensor]:
    """Return the real floating outputs of a function; where it has none, its other tensors as float64.

    Raises
    ------
    NotDifferentiable
        If the function returns no tensor at all.
    """
    leaves = float_leaves(tree)
    if not leaves:
        leaves = [x.to(torch.float64) for x in internals.tree_leaves(tree) if isinstance(x, torch.Tensor)]
    if not leaves:
        raise NotDifferentiable("the function returns no tensor to differentiate")
    return [torch.view_as_real(x) if x.is_complex() else x for x in leaves]


def total(tree: Any) -> torch.Tensor:
    """Sum every element of every tensor of a tree to one number that can be differentiated."""
    leaves = _differentiated(tree)
    return torch.stack([x.sum().to(leaves[0].dtype) for x in leaves]).sum() if len(leaves) > 1 else leaves[0].sum()


def probe(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fixed direction of the shape and dtype of ``tensor``, without zeros or symmetry."""
    n = tensor.numel()
    line = torch.linspace(0.6, 1.4, n, dtype=torch.float64) * (1 - 2 * (torch.arange(n) % 3 == 1).double())
    return line.reshape(tensor.shape).to(tensor.device, tensor.dtype)


def outputs_of(function: Function) -> Function:
    """Return ``function`` with its outputs reduced to a tuple of floating tensors."""

    def outputs(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(_differentiated(function(*args)))

    return outputs


def narrowed(function: Function) -> Function:
    """Return ``function`` with wide outputs projected to :data:`MAX_ROWS` numbers each."""

    def outputs(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(x if x.numel() <= MAX_ROWS else _project(x) for x in outputs_of(function)(*args))

    return outputs


def _project(tensor: torch.Tensor) -> torch.Tensor:
    n = tensor.numel()
    weights = torch.cos(torch.arange(n, dtype=torch.float64)[:, None] * torch.arange(1, MAX_ROWS + 1) * 0.7)
    return tensor.reshape(-1) @ weights.to(tensor.device, tensor.dtype)


def _one(values: Any) -> Any:
    leaves = internals.tree_leaves(values)
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _as_torch_takes(function: Function, *, narrow: bool = False) -> Function:
    """Return ``function`` with its tensors reduced; what torch refuses to differentiate is returned as it is."""

    def outputs(*args: Any) -> Any:
        tree = function(*args)
        if not all(isinstance(leaf, torch.Tensor) for leaf in internals.tree_leaves(tree)):
            return tree
        found = tuple(_differentiated(tree))
        return tuple(x if x.numel() <= MAX_ROWS else _project(x) for x in found) if narrow else found

    return outputs


# ---- by torch.func -------------------------------------------------------------------------------------------------


def _check(first: Any) -> None:
    if not float_leaves(first):
        raise NotDifferentiable("the first argument holds no floating tensor to differentiate")


def _func_grad(function: Function) -> Function:
    return lambda *args: _one(torch.func.grad(lambda *inner: total(function(*inner)))(*args))


def _func_vjp(function: Function) -> Function:
    def pulled(*args: Any) -> Any:
        outputs, pull = torch.func.vjp(lambda first: _as_torch_takes(function)(first, *args[1:]), args[0])[:2]
        return _one(pull(tuple(probe(out) for out in outputs)))

    return pulled


def _func_jvp(function: Function) -> Function:
    def pushed(*args: Any) -> Any:
        tangent = internals.tree_map(probe, args[0])
        return _one(
            torch.func.jvp(lambda first: _as_torch_takes(function)(first, *args[1:]), (args[0],), (tangent,))[1]
        )

    return pushed


def _func_linearize(function: Function) -> Function:
    def pushed(*args: Any) -> Any:
        push = torch.func.linearize(lambda first: _as_torch_takes(function)(first, *args[1:]), args[0])[1]
        return _one(push(internals.tree_map(probe, args[0])))

    return pushed


def _func_jacobian(take: Callable[..., Any]) -> Callable[[Function], Function]:
    return lambda function: lambda *args: _one(take(_as_torch_takes(function, narrow=True))(*args))


def _func_hessian(function: Function) -> Function:
    return lambda *args: _one(torch.func.hessian(lambda *inner: total(function(*inner)))(*args))


LIFTED: dict[str, Callable[[Function], Function]] = {
    "grad": _func_grad,
    "vjp": _func_vjp,
    "jvp": _func_jvp,
    "linearize": _func_linearize,
    "jacrev": _func_jacobian(torch.func.jacrev),
    "jacfwd": _func_jacobian(torch.func.jacfwd),
    "hessian": _func_hessian,
}


# ---- by plain autograd ---------------------------------------------------------------------------------------------


def watched(first: Any) -> tuple[Any, list[torch.Tensor], bool]:
    """Return the argument with leaves that require grad, those leaves, and whether a level outside already asked."""
    _check(first)
    nested = any(x.requires_grad for x in float_leaves(first))

    def watch(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.requires_grad:
            return leaf
        # Not a clone: a function may look at strides, and a clone of a slice has others.
        return leaf.detach().requires_grad_()

    tree = internals.tree_map(watch, first)
    return tree, float_leaves(tree), nested


def pullback(
    outputs: list[torch.Tensor], leaves: list[torch.Tensor], cotangents: list[torch.Tensor], *, keep: bool
) -> list[torch.Tensor]:
    """Pull cotangents back to the leaves; what does not depend on a leaf gives zeros."""
    pairs = [(y, c) for y, c in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in leaves]
    ys, cs = zip(*pairs, strict=True)
    found = torch.autograd.grad(ys, leaves, cs, allow_unused=True, create_graph=keep, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def _plain_grad(function: Function) -> Function:
    def run(*args: Any) -> Any:
        first, leaves, nested = watched(args[0])
        with torch.enable_grad():
            y = total(function(first, *args[1:]))
            return _one(pullback([y], leaves, [torch.ones_like(y)], keep=nested))

    return run


def _plain_vjp(function: Function) -> Function:
    def run(*args: Any) -> Any:
        first, leaves, nested = watched(args[0])
        with torch.enable_grad():
            ys = list(outputs_of(function)(first, *args[1:]))
            return _one(pullback(ys, leaves, [probe(y) for y in ys], keep=nested))

    return run


def _rows(outputs: list[torch.Tensor], leaves: list[torch.Tensor], *, keep: bool) -> list[list[torch.Tensor]]:
    """Return the Jacobian blocks ``[output][leaf]``, shape ``output.shape + leaf.shape``, one backward run per row."""
    blocks = []
    for y in outputs:
        rows = []
        for i in range(y.numel()):
            unit = torch.zeros(y.numel(), dtype=y.dtype, device=y.device)
            unit[i] = 1
            rows.append(pullback([y], leaves, [unit.reshape(y.shape)], keep=keep))
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in leaves]
        blocks.append(
            [
                torch.stack(list(column)).reshape((*y.shape, *x.shape)) if column else x.new_zeros((*y.shape, *x.shape))
                for column, x in zip(columns, leaves, strict=True)
            ]
        )
    return blocks


def _plain_jacobian(function: Function) -> Function:
    def run(*args: Any) -> Any:
        first, leaves, nested = watched(args[0])
        with torch.enable_grad():
            return _one(_rows(list(narrowed(function)(first, *args[1:])), leaves, keep=nested))

    return run


def _plain_jvp(function: Function) -> Function:
    def run(*args: Any) -> Any:
        first, leaves, nested = watched(args[0])
        tangents = [probe(x) for x in leaves]
        with torch.enable_grad():
            ys = list(outputs_of(function)(first, *args[1:]))
            return _one([_push(y, leaves, tangents, keep=nested) for y in ys])

    return run


def _push(y: torch.Tensor, leaves: list[torch.Tensor], tangents: list[torch.Tensor], *, keep: bool) -> torch.Tensor:
    if y.numel() > MAX_ROWS and y.requires_grad:
        try:
            # The pullback is linear in its cotangent: differentiated by the cotangent it gives the pushforward. Not at
            # zero, where some backward formulas take a logarithm.
            cotangent = probe(y).requires_grad_()
            pulled = pullback([y], leaves, [cotangent], keep=True)
            return pullback(pulled, [cotangent], tangents, keep=keep)[0]
        except (RuntimeError, NotImplementedError):
            pass  # a backward that cannot be differentiated itself; the rows need only the backward
    (block,) = _rows([y], leaves, keep=keep)
    # The gradient of a real output by a complex input is the conjugate of what its differential multiplies.
    parts = [
        torch.real(j.conj().reshape(y.numel(), -1) @ t.reshape(-1).to(j.dtype)).reshape(y.shape)
        for j, t in zip(block, tangents, strict=True)
    ]
    return sum(parts[1:], parts[0]).to(y.dtype)


def _plain_hessian(function: Function) -> Function:
    def run(*args: Any) -> Any:
        first, leaves, nested = watched(args[0])
        with torch.enable_grad():
            y = total(function(first, *args[1:]))
            slopes = pullback([y], leaves, [torch.ones_like(y)], keep=True)
            return _one(_rows(slopes, leaves, keep=nested))

    return run


PLAIN: dict[str, Callable[[Function], Function]] = {
    "grad": _plain_grad,
    "vjp": _plain_vjp,
    "jvp": _plain_jvp,
    "linearize": _plain_jvp,
    "jacrev": _plain_jacobian,
    "jacfwd": _plain_jacobian,
    "hessian": _plain_hessian,
}

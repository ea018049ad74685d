"""Derivatives of a batched run beside the loop's: compared before they are promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import differ
from driftscope.transforms.batching.call import BatchedCall
from driftscope.transforms.batching.results import Piece
from driftscope.transforms.derivatives import float_leaves, probe
from driftscope.transforms.world.captured import Captured

Run = Callable[[BatchedCall], Any]


@dataclass(frozen=True)
class WantedSlopes:
    """Which derivatives a call may be asked for.

    Parameters
    ----------
    reverse, forward : bool
    captured : tuple of Tensor
        Captured tensors whose derivative is wanted.
    """

    reverse: bool
    forward: bool
    captured: tuple[torch.Tensor, ...]

    @property
    def any(self) -> bool:
        """Whether any derivative is wanted."""
        return self.reverse or self.forward

    def of(self, run: Run, call: BatchedCall) -> list[Any]:
        """Return the derivatives of a run along fixed directions, first order."""
        found: list[Any] = []
        if self.reverse:
            found += self._backward(run, call)
        if self.forward:
            found += self._along(run, call)
        return found

    def _backward(self, run: Run, call: BatchedCall) -> list[Any]:
        with torch.enable_grad():
            out = float_leaves(run(call))
            tracked = [leaf for leaf in out if leaf.requires_grad]
            inputs = [leaf for leaf in call.tensors if leaf.requires_grad] + list(self.captured)
            if not tracked or not inputs:
                return [len(tracked)]
            total = torch.stack([(leaf * probe(leaf)).sum().real.double() for leaf in tracked]).sum()
            slopes = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
        return [len(tracked), *(slope.detach() for slope in slopes)]

    @staticmethod
    def _along(run: Run, call: BatchedCall) -> list[Any]:
        at = [i for i, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]

        def through(*floats: torch.Tensor) -> Any:
            leaves = list(call.leaves)
            for i, leaf in zip(at, floats, strict=True):
                leaves[i] = leaf
            given = tuple(internals.tree_unflatten(leaves, call.spec))
            return tuple(float_leaves(run(replace(call, leaves=leaves, given=given))))

        primals = tuple(call.leaves[i].detach() for i in at)
        tangents: tuple[torch.Tensor, ...] = torch.func.jvp(through, primals, tuple(map(probe, primals)))[1]
        return list(tangents)


def wanted_derivatives(call: BatchedCall) -> WantedSlopes:
    """Return which derivatives of a call may be taken, asked where it is made."""
    captured = Captured(call.request.function, call.given).tensors if torch.is_grad_enabled() else []
    tracked = tuple(tensor for tensor in captured if tensor.requires_grad and not internals.is_wrapped(tensor))
    asked = any(internals.wants_derivative(tensor) for tensor in call.tensors)
    reverse = torch.is_grad_enabled() and bool(asked or tracked)
    return WantedSlopes(reverse, internals.forward_wanted(), tracked)


def agrees(got: Any, pieces: list[Piece], out_dims: Any) -> bool:
    """Whether results of ``torch.vmap`` are the loop's, up to rounding."""
    leaves, spec = internals.tree_flatten(got)
    if len(pieces) != 1 or spec != pieces[0].spec:
        return False
    dims = internals.spread_over(out_dims, spec)
    if dims is None:
        dims = list(out_dims)  # torch accepts out_dims of one entry for a bare tensor
    moved = [_as_the_loop(leaf, dim, mine) for leaf, dim, mine in zip(leaves, dims, pieces[0].leaves, strict=True)]
    return differ(pieces[0].leaves, moved).agrees


def _as_the_loop(leaf: Any, dim: int | None, mine: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not isinstance(mine, torch.Tensor):
        return leaf
    return leaf.unsqueeze(0).expand_as(mine) if dim is None else leaf.movedim(dim, 0)


def agree_in_rounding(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of derivatives are the same up to rounding."""
    return len(one) == len(other) and differ(one, other, any_float=True).agrees

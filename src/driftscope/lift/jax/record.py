"""A function on JAX arrays in float64: JAX traces it once, and what it does is a tape of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import torch

from driftscope.errors import CannotLift
from driftscope.lift.arrays.record import FollowedFunction
from driftscope.lift.jax.interpreter import Interpreter
from driftscope.lift.jax.rounding import jax_rounding
from driftscope.lift.torch.entries import CallPlace
from driftscope.lift.torch.tape import TorchTape, lift_torch
from driftscope.programs.arrays import is_array, jax_array_of
from driftscope.programs.value_trees import flatten, unflatten

# Stands where the function returns an array, among what it returns as it is.
_TRACED = object()


def lift_jax(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TorchTape:
    """Record a function on JAX arrays, ready to be evaluated in float64.

    Parameters
    ----------
    function : callable
        Takes and returns JAX arrays.
    args, kwargs
        Trees of torch tensors, which the function gets as arrays, and of Python values.

    Raises
    ------
    CannotLift
        If JAX cannot trace it (it turns values into Python numbers), or a primitive has no counterpart in torch.
    """
    call = _JaxFunction(function)
    found = lift_torch(call, args, kwargs, names=call.name_of, place=call.place)
    found.tape.rounds = jax_rounding
    return found


@dataclass
class _JaxFunction(FollowedFunction):
    """A function on JAX arrays, traced by JAX and walked."""

    _walk: Interpreter | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._walk = walk = Interpreter(self.tracer(lambda _native, tensor, _tracer: tensor))
        leaves, spec = flatten((args, kwargs), "in")
        inputs = [walk.given(leaf) for _, leaf in leaves if isinstance(leaf, torch.Tensor)]
        outputs: list[Any] = []

        def flat(*arrays: Any) -> list[Any]:
            taken = iter(arrays)
            given = [next(taken) if isinstance(leaf, torch.Tensor) else jax_array_of(leaf) for _, leaf in leaves]
            positional, named = unflatten(given, spec)
            found, tree = flatten(self.function(*positional, **named))
            outputs[:] = [tree, [_TRACED if is_array(leaf) else leaf for _, leaf in found]]
            return [leaf for _, leaf in found if is_array(leaf)]

        try:
            closed = jax.make_jaxpr(flat)(*(v.native for v in inputs))
        except jax.errors.JAXTypeError as error:
            words = (str(error).strip().splitlines() or [""])[0]
            raise CannotLift(f"JAX cannot trace it: {words}") from error
        results = iter(walk.run(closed, inputs))
        tree, returned = outputs
        return unflatten([next(results).tensor if leaf is _TRACED else leaf for leaf in returned], tree)

    def place(self) -> CallPlace:
        """Give the place of the primitive in progress."""
        return CallPlace() if self._walk is None else self._walk.place()

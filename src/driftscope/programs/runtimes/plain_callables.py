"""Functions on numpy or JAX arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from driftscope.errors import DependencyMissing, DriftscopeError, ProgramError, RuntimeRefused, ends_us
from driftscope.programs.arrays import array_of, jax_array_of, jax_available, jax_in_64_bits
from driftscope.programs.feeding.binding import bind_call, ready, signature_of
from driftscope.programs.protocol import ArraySource, Bound, Program, Slot
from driftscope.programs.state.effects import contained
from driftscope.programs.torch_run import own
from driftscope.programs.value_trees import flatten, unflatten

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs


class ArrayProgram(Program):
    """A function that takes numpy or JAX arrays.

    Parameters
    ----------
    function : callable
    name : str
    framework : str
        ``"numpy"`` or ``"jax"``.
    default_inputs : Inputs or None
    """

    kind = "callable"

    def __init__(
        self, function: Callable[..., Any], name: str, framework: str = "numpy", default_inputs: Inputs | None = None
    ):
        super().__init__(name, default_inputs)
        if framework not in ("numpy", "jax"):
            raise ProgramError(f"unknown framework {framework!r}; choose torch, numpy or jax")
        if framework == "jax" and not jax_available():
            raise DependencyMissing(f"the JAX function {name}", "jax", "jax")
        self.function = function
        self.framework = framework
        self.signature = signature_of(function)

    @property
    def runtime(self) -> str:
        if self.framework == "numpy":
            return f"numpy {np.__version__}"
        import jax

        return f"jax {jax.__version__} {jax.default_backend().upper()}"

    def bind(self, inputs: Any = None) -> Bound:
        if isinstance(inputs, Bound) and inputs.program is self:
            return inputs
        return bind_call(self, self.signature, ready(self, inputs))

    def slots(self) -> list[Slot] | None:
        return None if self.signature.parameters else []

    def __call__(self, inputs: Any = None) -> Any:
        bound = self.bind(inputs)
        leaves, spec = flatten((bound.args, bound.kwargs), "in")
        convert = jax_array_of if self.framework == "jax" else _own_array
        args, kwargs = unflatten([convert(leaf) for _, leaf in leaves], spec)
        with contained(self.function):
            try:
                outputs = self.function(*args, **kwargs)
            except DriftscopeError:
                raise
            except BaseException as error:
                if ends_us(error):
                    raise
                raise RuntimeRefused(self.framework, "run", f"{type(error).__name__}: {error}") from error
        found, out_spec = flatten(outputs)
        return unflatten([own(leaf) for _, leaf in found], out_spec)

    def lift_source(self, inputs: Any = None) -> ArraySource:
        bound = self.bind(inputs)
        return ArraySource(self.function, bound.args, bound.kwargs, self.framework)

    def widened(self, bound: Bound, step: float = 0.0, seed: int = 0) -> Any:
        draw = torch.Generator().manual_seed(seed)
        leaves, spec = flatten((bound.args, bound.kwargs), "in")
        args, kwargs = unflatten([_wide(leaf, step, draw) for _, leaf in leaves], spec)
        with jax_in_64_bits() if self.framework == "jax" else contextlib.nullcontext():
            return self(replace(bound, args=args, kwargs=kwargs))


def _wide(leaf: Any, step: float, draw: torch.Generator) -> Any:
    """A floating tensor in float64, each element moved by a share of itself; anything else as it is."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    wide = leaf.detach().to("cpu", torch.float64)
    # One share for all and one for each: a mean has to move too.
    return wide * (1.0 + step * (1.0 + torch.randn(wide.shape, generator=draw, dtype=torch.float64)))


def _own_array(leaf: Any) -> Any:
    array = array_of(leaf)
    # A function may write into its arrays; the other program must not see that.
    return array.copy() if isinstance(array, np.ndarray) else array

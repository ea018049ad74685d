"""Functions on numpy or JAX arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from driftscope.errors import DependencyMissing, DriftscopeError, ProgramError, RuntimeRefused
from driftscope.programs.arrays import array_of, jax_array_of, jax_available, tensor_of
from driftscope.programs.binding import bind_call, ready, signature_of
from driftscope.programs.protocol import Bound, Program, Slot
from driftscope.programs.trees import flatten, unflatten

if TYPE_CHECKING:
    from driftscope.programs.feeds import Inputs


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
        try:
            outputs = self.function(*args, **kwargs)
        except DriftscopeError:
            raise
        except Exception as error:
            raise RuntimeRefused(self.framework, "run", f"{type(error).__name__}: {error}") from error
        found, out_spec = flatten(outputs)
        return unflatten([tensor_of(leaf) for _, leaf in found], out_spec)


def _own_array(leaf: Any) -> Any:
    array = array_of(leaf)
    # A function may write into its arrays; the other program must not see that.
    return array.copy() if isinstance(array, np.ndarray) else array

"""From a program to its lifted graph: one door for both kinds."""

from __future__ import annotations

from driftscope.errors import CannotLift
from driftscope.lift.steps import Lifted
from driftscope.programs.protocol import ArraySource, Bound, OnnxSource, TorchSource
from driftscope.programs.state.modules import forget_copies


def lift_bound(bound: Bound) -> Lifted:
    """Lift a program with the inputs bound to it.

    Raises
    ------
    CannotLift
        If the program has no graph, or an operator of it has no float64 evaluation.
    """
    found = lift_source(bound.program.lift_source(bound))
    forget_copies()  # nothing runs natively for a while, and float64 needs the room
    return found


def lift_source(source: TorchSource | OnnxSource | ArraySource) -> Lifted:
    """Lift a graph that a program handed out."""
    if isinstance(source, OnnxSource):
        from driftscope.lift.onnx.graph import lift_onnx

        return lift_onnx(source.model, source.feeds, directory=source.directory)
    if isinstance(source, TorchSource):
        from driftscope.lift.torch.tape import lift_torch

        return lift_torch(source.function, source.args, source.kwargs, module=source.module, exported=source.exported)
    if isinstance(source, ArraySource):
        if source.framework == "jax":
            from driftscope.lift.jax.record import lift_jax

            return lift_jax(source.function, source.args, source.kwargs)
        from driftscope.lift.arrays.record import lift_arrays

        return lift_arrays(source.function, source.args, source.kwargs)
    raise CannotLift(f"a {type(source).__name__} is not a graph driftscope can evaluate in float64")

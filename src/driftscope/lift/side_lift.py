"""One program in float64: its lift, one run as it is, and what ordinary rounding does to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.lift.noise.floor import (
    Allows,
    NoiseSample,
    Watch,
    floor64_sample,
    noise_sample,
    noise_samples,
)
from driftscope.lift.onnx.graph import LiftedOnnx
from driftscope.lift.onnx.registry import Value
from driftscope.lift.sources import lift_bound
from driftscope.lift.steps import Lifted, LiftedOutput
from driftscope.lift.torch.tape import lift_torch
from driftscope.numerics.groupings import Growth
from driftscope.programs.protocol import Bound
from driftscope.programs.state.threads import suit


@dataclass(slots=True)
class SideLift:
    """One program in float64.

    Parameters
    ----------
    graph : Lifted or None
        None when it cannot be lifted; ``reason`` then says why.
    clean : list of LiftedOutput
        One run as it is.
    noises : list of NoiseSample
        Per noise run, per output: what ordinary rounding did to it.
    widened : list of Tensor or None
        For a program without a graph that follows the format of its inputs: its outputs on float64 inputs.
    asked : dict of str to Value
        Values on the way of that run that somebody asked for, by name.
    """

    graph: Lifted | None = None
    reason: str = ""
    clean: list[LiftedOutput] = field(default_factory=list)
    noises: list[NoiseSample] = field(default_factory=list)
    widened: list[torch.Tensor | None] = field(default_factory=list)
    asked: dict[str, Value] = field(default_factory=dict)


def lift_side(bound: Bound, ask: Collection[str] = ()) -> SideLift:
    """Lift one program and run it once; a program that cannot be lifted is evidence, not an error.

    ``ask`` names values on the way of a graph that are to be kept.
    """
    asked: dict[str, Value] = {}

    def run(graph: Lifted) -> list[LiftedOutput]:
        suit(graph.largest)
        if not ask or not isinstance(graph, LiftedOnnx):
            return graph.run()
        outputs, found = graph.run_asked(ask)
        asked.update(found)
        return outputs

    side = attempt(lambda: lift_bound(bound), run)
    side.asked = asked
    return side


def measured_call(function: Callable[..., Any], args: tuple[Any, ...], most: int) -> SideLift:
    """Lift one call of a torch function and take one sample of its noise, if it takes no more than so many steps."""

    def build() -> Lifted:
        found = lift_torch(function, args, {})
        if len(found.tape.entries) > most:
            raise CannotLift(f"{len(found.tape.entries)} steps are more than {most}")
        return found

    side = attempt(build)
    if side.graph is not None:
        side.noises = [noise_sample(side.graph, side.clean)]
    return side


def attempt(
    build: Callable[[], Lifted], run: Callable[[Lifted], list[LiftedOutput]] = lambda graph: graph.run()
) -> SideLift:
    """Lift a program and run it; where that cannot be done, the reason."""
    try:
        graph = build()
        return SideLift(graph, clean=run(graph))
    except CannotLift as error:
        return SideLift(reason=error.reason)
    except DriftscopeError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError, LookupError, AttributeError) as error:
        # An operator torch has no float64 kernel for, or a graph outside what the evaluators know: say which.
        return SideLift(reason=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}")


def add_noise(
    side: SideLift,
    seed: int,
    revealed: Mapping[str, Growth] | None = None,
    watch: Watch | None = None,
    allows: Allows = lambda _step, _seconds: True,
) -> None:
    """Run the lifted program with the noise of ordinary rounding; more often when few elements carry it.

    With ``revealed``, by the names of steps, the noise of sums whose trees are known is that of these trees, and
    takes the place of what was measured before. ``watch`` sees every step of the first run.
    """
    if side.graph is None or (side.noises and revealed is None):
        return
    try:
        side.noises = noise_samples(side.graph, side.clean, seed=seed, revealed=revealed, watch=watch, allows=allows)
    except CannotLift as error:  # an operator that only the observed run takes apart
        side.graph, side.clean, side.reason = None, [], error.reason


def floor64_of(side: SideLift, seed: int) -> list[torch.Tensor | None]:
    """The float64 noise of each output, where it is known."""
    if side.graph is None:
        return [None] * len(side.clean)
    first = side.noises[0] if side.noises else None
    try:
        return floor64_sample(side.graph, side.clean, first, seed=seed)
    except CannotLift:  # a kernel that refuses a value with noise: no more than the usual limit is known
        return [None] * len(side.clean)

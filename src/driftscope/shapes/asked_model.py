"""The model that was asked about, ready to be probed: bound to its inputs, its sizes known, itself as an oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driftscope.errors import ProgramError
from driftscope.shapes.capture.containers import register, register_containers
from driftscope.shapes.capture.inference import WantedAxes, infer
from driftscope.shapes.probe.axes import Arguments, sets_of
from driftscope.shapes.probe.building import InputBuilder
from driftscope.shapes.probe.judging_runs import Ran, Refused, silence
from driftscope.shapes.probe.original import Original


@dataclass(frozen=True)
class AskedModel:
    """A model and its example.

    Parameters
    ----------
    model : callable
    arguments : Arguments
    wanted : WantedAxes
        Which axes may vary.
    original : Original
    """

    model: Callable[..., Any]
    arguments: Arguments
    wanted: WantedAxes
    original: Original

    @property
    def name(self) -> str:
        """What a person would call it."""
        return getattr(self.model, "__name__", None) or type(self.model).__name__


def asked_model(model: Callable[..., Any], inputs: Any, dynamic: Any = "all", seed: int = 0) -> AskedModel:
    """Bind inputs to a model and see that it runs.

    Raises
    ------
    ProgramError
        If the model is not callable or fails on its own example.
    InputError
        If the inputs do not bind, or a spec does not have their structure.
    """
    if not callable(model) or isinstance(model, type):
        raise ProgramError(f"{model!r:.60} cannot be called; give a module or a function")
    sets = sets_of(model, inputs)
    arguments = sets[0]
    register_containers(arguments)
    original = Original(model, InputBuilder(arguments), seed)
    with silence():
        answer = original.ask(model, *arguments.call())
    if isinstance(answer, Refused):
        raise ProgramError(
            f"the model fails on its own example ({answer.kind}: {answer.words}); give inputs that it runs on"
        )
    if isinstance(answer, Ran):
        register([answer.value])
    original.random = not original.repeats_itself()
    return AskedModel(model, arguments, infer(sets, dynamic), original)

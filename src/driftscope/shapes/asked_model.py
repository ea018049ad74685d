"""The model that was asked about, ready to be probed: bound to its inputs, its sizes known, itself as an oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driftscope.errors import ProgramError
from driftscope.shapes.axes import Arguments, sets_of
from driftscope.shapes.building import InputBuilder
from driftscope.shapes.containers import register_containers
from driftscope.shapes.inference import Wanted, infer
from driftscope.shapes.judging_runs import Ran, Refused, ask, difference, silence
from driftscope.shapes.original import Original


@dataclass(frozen=True)
class AskedModel:
    """A model and its example.

    Parameters
    ----------
    model : callable
    arguments : Arguments
    wanted : Wanted
        Which axes may vary.
    original : Original
    """

    model: Callable[..., Any]
    arguments: Arguments
    wanted: Wanted
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
    original.random = not repeats_itself(model, arguments)
    with silence():
        answer = ask(model, *arguments.call())
    if isinstance(answer, Refused):
        raise ProgramError(
            f"the model fails on its own example ({answer.kind}: {answer.words}); give inputs that it runs on"
        )
    return AskedModel(model, arguments, infer(sets, dynamic), original)


def repeats_itself(model: Callable[..., Any], arguments: Arguments) -> bool:
    """Whether two runs of the example, without a seed between them, give the same."""
    first = ask(model, *arguments.call())
    second = ask(model, *arguments.call())
    return not (isinstance(first, Ran) and isinstance(second, Ran)) or not difference(first.value, second)

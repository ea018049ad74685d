"""A torch program called in another way: twice, in pieces, inside a context; its inputs and outputs as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Program
from driftscope.programs.value_trees import flatten, unflatten

#: Takes the function and what it was to be called with, and returns what the call is to return.
Calling = Callable[..., Any]


def called_by(program: Program, calling: Calling) -> Program | None:
    """Make a program that takes the inputs of another and calls its function in a way of its own.

    Parameters
    ----------
    program : Program
    calling : callable
        ``calling(function, *args, **kwargs)``.

    Returns
    -------
    Program or None
        None where the program is not a function of torch's.
    """
    function: Any = getattr(program, "function", None)
    if program.kind != "torch" or not callable(function):
        return None
    wrapper = _Called(function, calling) if isinstance(function, torch.nn.Module) else _calling(function, calling)
    found = load_program(wrapper, name=program.name)
    found.signature = program.signature  # type: ignore[attr-defined]
    return found


def _calling(function: Any, calling: Calling) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        return calling(function, *args, **kwargs)

    return called


class _Called(torch.nn.Module):
    """Has the mode of the module it calls, and leaves every mode inside as it is."""

    def __init__(self, module: torch.nn.Module, calling: Calling) -> None:
        super().__init__()
        self.inner, self.calling, self.training = module, calling, module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.calling(self.inner, *args, **kwargs)


def copied(tree: Any) -> Any:
    """Copy the tensors of a tree: what is called with them may write into them."""
    leaves, spec = flatten(tree)
    return unflatten([x.clone() if isinstance(x, torch.Tensor) else x for _, x in leaves], spec)

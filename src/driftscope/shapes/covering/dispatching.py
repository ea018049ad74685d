"""A program made of programs: each with the sizes it is right at, and a dispatcher that asks them in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from driftscope.errors import DriftscopeError
from driftscope.programs.value_trees import flatten
from driftscope.shapes.conditions.expressions import Term, text
from driftscope.shapes.conditions.predicates import Sizes, all_of
from driftscope.shapes.private_torch import transforms_left
from driftscope.shapes.probe.axes import Arguments


class NotCovered(DriftscopeError):
    """No program of a cover is known to be right at these sizes."""


@dataclass(frozen=True, slots=True)
class Form:
    """What arguments must look like: the part of the original's call that a dispatcher needs.

    Parameters
    ----------
    names : tuple of str
        Parameters, in order.
    leaves : tuple of (str, int or None, str)
        Path, rank (None for a Python value) and dtype or class of every leaf, in order.
    constants : mapping of str to bool, float, str or None
        Python values by path that are part of the program; integers are sizes instead.
    """

    names: tuple[str, ...]
    leaves: tuple[tuple[str, int | None, str], ...]
    constants: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, arguments: Arguments) -> Form:
        """The form of an example."""
        leaves: list[tuple[str, int | None, str]] = []
        constants: dict[str, Any] = {}
        for path, value in arguments.leaves:
            if isinstance(value, torch.Tensor):
                leaves.append((str(path), value.dim(), str(value.dtype)))
                continue
            leaves.append((str(path), None, type(value).__name__))
            if value is None or isinstance(value, (bool, float, str)):
                constants[str(path)] = value
        return cls(arguments.names, tuple(leaves), constants)

    def flat(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call, in order."""
        given = dict(zip(self.names, args, strict=False)) | dict(kwargs)
        return [leaf for name in self.names if name in given for _, leaf in flatten(given[name], name)[0]]

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """Sizes by axis name.

        Raises
        ------
        NotCovered
            If the arguments are not built like the example.
        """
        leaves = self.flat(args, kwargs)
        if len(leaves) != len(self.leaves) or len(args) + len(kwargs) != len(self.names):
            raise NotCovered(f"the arguments are not built like the example, which has {', '.join(self.names)}")
        found: dict[str, int] = {}
        for (path, rank, kind), leaf in zip(self.leaves, leaves, strict=True):
            if isinstance(leaf, torch.Tensor) and rank == leaf.dim() and kind == str(leaf.dtype):
                for dim, size in enumerate(leaf.shape):
                    found[f"{path}.shape[{dim}]"] = int(size)
            elif rank is None and kind == type(leaf).__name__:
                if kind == "int":
                    found[path] = leaf
                elif path in self.constants and self.constants[path] != leaf:
                    raise NotCovered(f"{path} is {leaf!r}, and {self.constants[path]!r} is part of the program")
            else:
                raise NotCovered(f"{path} is not what it is in the example ({_kind_words(rank, kind)})")
        return found


def _kind_words(rank: int | None, kind: str) -> str:
    return kind if rank is None else f"a tensor of {rank} dimensions of {kind}"


@dataclass(frozen=True)
class CoverMember:
    """One program of a cover.

    Parameters
    ----------
    call : callable
        Called like the model; makes no check of its own that matters.
    conditions : tuple of Term
        Hold wherever it may be used.
    origin : str
        How it was made, in words.
    points : int
        Probed points at which it is the one that answers.
    payload : object
        What is saved: an ``ExportedProgram`` or an ONNX model.
    """

    call: Callable[..., Any]
    conditions: tuple[Term, ...]
    origin: str
    points: int = 0
    payload: Any = field(default=None, repr=False)

    @cached_property
    def admits(self) -> Callable[[Sizes], bool]:
        """Whether this program may be used at sizes given by axis name."""
        return all_of(self.conditions)

    @property
    def relation(self) -> str:
        """The conditions for people."""
        return ", ".join(text(term) for term in self.conditions) or "any sizes"


class Dispatcher:
    """Called like the model: the first program that is known to be right at these sizes answers.

    Parameters
    ----------
    form : Form
    members : sequence of CoverMember
    """

    def __init__(self, form: Form, members: Sequence[CoverMember]):
        self.form = form
        self.members = tuple(members)

    def choose(self, *args: Any, **kwargs: Any) -> CoverMember | None:
        """The program that would answer first; None where none would."""
        return next(self._admitting(self.form.sizes(args, kwargs)), None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = self.form.sizes(args, kwargs)
        said = ""
        for member in self._admitting(sizes):
            try:
                with transforms_left():
                    return member.call(*args, **kwargs)
            except Exception as error:
                # A program may refuse inside what its conditions let pass; another one may not.
                said = said or str(error).splitlines()[0][:200] if str(error) else said
        raise NotCovered(self._refusal(sizes, said))

    def _admitting(self, sizes: Sizes) -> Any:
        return (member for member in self.members if member.admits(sizes))

    def _refusal(self, sizes: Sizes, said: str) -> str:
        shown = ", ".join(f"{name}={size}" for name, size in list(sizes.items())[:8])
        wanted = "; or ".join(member.relation for member in self.members[:3])
        reason = f"the program said: {said}" if said else f"they want {wanted}"
        return f"no program here is known to be right at {shown}: {reason}"

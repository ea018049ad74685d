"""Axes: every size of every input that could be another number, named the way the user would index it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from driftscope.errors import InputError
from driftscope.programs.feeding.feeds import Inputs, make_inputs
from driftscope.programs.value_trees import Spec, flatten, unflatten
from driftscope.records.paths import Path


@dataclass(frozen=True, slots=True)
class Axis:
    """One size of one input: an axis of a tensor, or a Python integer.

    Parameters
    ----------
    leaf : int
        Position of the tensor or integer among :attr:`Arguments.leaves`.
    path : Path
        The leaf's place, rooted at the parameter's name.
    dim : int or None
        The tensor's axis; None for a Python integer.
    size : int
        Its size in the example.
    """

    leaf: int
    path: Path
    dim: int | None
    size: int

    @property
    def name(self) -> str:
        """``x.shape[1]``, ``cache.layers[0].keys.shape[2]``, or ``n`` for an integer."""
        return str(self)

    def __str__(self) -> str:
        return str(self.path) if self.dim is None else f"{self.path}.shape[{self.dim}]"


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, taken apart.

    Parameters
    ----------
    names : tuple of str
        Parameter of each top-level argument, in the order of the call; ``xs[0]``, ``xs[1]`` for what ``*xs`` gathers.
    positional : int
        How many of them are given by position; the others go by keyword.
    leaves : tuple of (Path, object)
        Every leaf of every argument.
    trees : tuple of Spec
        How each top-level argument is put together.
    """

    names: tuple[str, ...]
    positional: int
    leaves: tuple[tuple[Path, Any], ...]
    trees: tuple[Spec, ...]

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis of every tensor and every Python integer (booleans are no sizes), in order."""
        found: list[Axis] = []
        for number, (path, value) in enumerate(self.leaves):
            if isinstance(value, torch.Tensor):
                found += [Axis(number, path, dim, int(size)) for dim, size in enumerate(value.shape)]
            elif isinstance(value, int) and not isinstance(value, bool):
                found.append(Axis(number, path, None, value))
        return tuple(found)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The point at which the example stands: one size per axis."""
        return tuple(axis.size for axis in self.axes)

    def with_leaves(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the call together from other leaves, in fresh containers.

        Returns
        -------
        args : tuple
        kwargs : dict
        """
        rest = list(values)
        tops = []
        for tree in self.trees:
            count = tree.count
            tops.append(unflatten(rest[:count], tree))
            rest = rest[count:]
        named = zip(self.names[self.positional :], tops[self.positional :], strict=True)
        return tuple(tops[: self.positional]), dict(named)

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The example itself, with tensors that nobody else holds: a program may write into them."""
        return self.with_leaves([v.clone() if isinstance(v, torch.Tensor) else v for _, v in self.leaves])

    def by_parameter(self, values: Sequence[Any]) -> dict[str, Any]:
        """The same as :meth:`with_leaves`, everything by parameter name; what ``*args`` gathers is one tuple."""
        args, kwargs = self.with_leaves(values)
        found: dict[str, Any] = {}
        for name, value in zip(self.names, args, strict=False):
            parameter, gathered, _ = name.partition("[")
            found[parameter] = (*found.get(parameter, ()), value) if gathered else value
        return {**found, **kwargs}


def signature_of(model: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a module's forward or of a callable; None where Python does not know it."""
    try:
        return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except (TypeError, ValueError):
        return None


def arguments_of(model: Callable[..., Any], inputs: Any) -> Arguments:
    """Bind one set of inputs to a model's parameters and take it apart.

    Parameters
    ----------
    model : torch.nn.Module or callable
    inputs : object
        Whatever :func:`driftscope.inputs` accepts: a tuple of positional arguments, a dict by name, a tensor.

    Raises
    ------
    InputError
        If the inputs do not bind to the parameters, in Python's own words.
    """
    made = make_inputs(inputs).realise() if not isinstance(inputs, Inputs) else inputs.realise()
    named = _named(model, made)
    leaves: list[tuple[Path, Any]] = []
    trees: list[Spec] = []
    for name, value in named:
        found, spec = flatten(value, name)
        leaves += found
        trees.append(spec)
    return Arguments(tuple(name for name, _ in named), len(made.args), tuple(leaves), tuple(trees))


def _named(model: Callable[..., Any], made: Inputs) -> list[tuple[str, Any]]:
    """Each top-level argument with its parameter's name."""
    signature = signature_of(model)
    if signature is None:
        return [(f"args_{i}", value) for i, value in enumerate(made.args)] + list(made.kwargs.items())
    try:
        signature.bind(*made.args, **made.kwargs)
    except TypeError as error:
        raise InputError(
            f"the inputs do not fit {_words(model)}{signature}: {error}; give a tuple in its order, or a dict by name"
        ) from error
    by_position: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            missing = len(made.args) - len(by_position)
            by_position += [f"{parameter.name}[{i}]" for i in range(missing)]
        elif parameter.kind is not parameter.KEYWORD_ONLY and parameter.kind is not parameter.VAR_KEYWORD:
            by_position.append(parameter.name)
    return list(zip(by_position, made.args, strict=False)) + list(made.kwargs.items())


def _words(model: Callable[..., Any]) -> str:
    return f"{type(model).__name__}.forward" if isinstance(model, torch.nn.Module) else "the function"


def sets_of(model: Callable[..., Any], inputs: Any) -> list[Arguments]:
    """Return every set of inputs, taken apart; the first is the example.

    Parameters
    ----------
    model : torch.nn.Module or callable
    inputs : object
        One set, or a *list* whose items are all sets: tuples, dicts or :class:`Inputs`. A tuple is always one set.

    Raises
    ------
    InputError
        If a set does not bind, or if the sets are not built alike.
    """
    several = isinstance(inputs, list) and inputs and all(isinstance(i, (tuple, Mapping, Inputs)) for i in inputs)
    sets = [arguments_of(model, one) for one in (inputs if several else [inputs])]
    shape = _build(sets[0])
    for number, one in enumerate(sets[1:], start=1):
        if _build(one) != shape:
            raise InputError(
                f"set {number} of the inputs has other arguments, containers, dtypes or ranks than set 0;"
                " give sets that differ in sizes only"
            )
    return sets


def _build(arguments: Arguments) -> list[tuple[str, str]]:
    def kind(value: Any) -> str:
        return f"{value.dtype} {value.ndim}" if isinstance(value, torch.Tensor) else type(value).__name__

    return [(str(path), kind(value)) for path, value in arguments.leaves]


@dataclass(frozen=True, slots=True)
class AxisClasses:
    """A partition of the axes: those of one class have one size together.

    Parameters
    ----------
    axes : tuple of Axis
    groups : tuple of tuple of int
        Positions in ``axes``; every position is in exactly one group.
    """

    axes: tuple[Axis, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each class: its first axis."""
        return tuple(self.axes[group[0]].name for group in self.groups)

    @property
    def example(self) -> tuple[int, ...]:
        """Each class's size in the example."""
        return tuple(self.axes[group[0]].size for group in self.groups)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Give every axis its class's size.

        Parameters
        ----------
        values : ndarray of int64, shape (n, classes)

        Returns
        -------
        ndarray of int64, shape (n, axes)
            Points, one row each.
        """
        points = np.empty((len(values), len(self.axes)), np.int64)
        for number, group in enumerate(self.groups):
            points[:, list(group)] = values[:, number, None]
        return points

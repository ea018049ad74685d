"""Containers that torch's pytree does not know: dataclasses and transformers caches among the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.programs import pytrees as pytree
from driftscope.programs.value_trees import Spec, flatten, unflatten
from driftscope.shapes.probe.axes import Arguments


@dataclass(frozen=True)
class Shell:
    """A container without its leaves; two shells are equal if they are built alike.

    ``torch.export`` compares these to tell whether a call has the structure that was exported.
    """

    kind: type
    build: tuple[Any, ...]
    spec: Spec = field(compare=False, hash=False, repr=False)


def _build(spec: Spec) -> tuple[Any, ...]:
    return (spec.kind, spec.keys, tuple(_build(child) for child in spec.children))


def register_containers(arguments: Arguments) -> list[type]:
    """Make torch see into every container among the arguments, for the rest of the process.

    Only classes that torch does not know yet are registered. Their leaves are those of
    :func:`driftscope.programs.value_trees.flatten`.

    Returns
    -------
    list of type
        The classes registered now.
    """
    return register(*arguments.call())


def register(args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> list[type]:
    """Do the same for the arguments of a call; exporting code that was pasted needs it in its own process."""
    return [kind for value in [*args, *(kwargs or {}).values()] for kind in _register(value)]


def seen_through_us(arguments: Arguments) -> bool:
    """Whether any container among the arguments is known to torch only because it was registered here."""
    args, kwargs = arguments.call()
    return any(_through_us(value) for value in [*args, *kwargs.values()])


def _through_us(value: Any) -> bool:
    node = pytree.SUPPORTED_NODES.get(pytree.node_type_of(value))
    if node is None:
        return False
    children, context = node.flatten_fn(value)
    return isinstance(context, Shell) or any(_through_us(child) for child in children)


def _register(value: Any) -> list[type]:
    if isinstance(value, torch.Tensor) or value is None or isinstance(value, (bool, int, float, str)):
        return []
    node = pytree.SUPPORTED_NODES.get(pytree.node_type_of(value))
    if node is not None:
        children, _ = node.flatten_fn(value)
        return [kind for child in children for kind in _register(child)]
    _, spec = flatten(value)
    if spec.rebuild is None:
        return []
    kind = type(value)
    pytree.register_pytree_node(kind, _take_apart(kind), _put_together, flatten_with_keys_fn=_with_keys(kind))
    return [kind]


def _take_apart(kind: type) -> Callable[[Any], tuple[list[Any], Shell]]:
    def take_apart(value: Any) -> tuple[list[Any], Shell]:
        leaves, spec = flatten(value)
        return [leaf for _, leaf in leaves], Shell(kind, _build(spec), spec)

    return take_apart


def _with_keys(kind: type) -> Callable[[Any], tuple[list[tuple[Any, Any]], Shell]]:
    take_apart = _take_apart(kind)

    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Shell]:
        leaves, shell = take_apart(value)
        return [(pytree.SequenceKey(number), leaf) for number, leaf in enumerate(leaves)], shell

    return with_keys


def _put_together(leaves: Any, shell: Any) -> Any:
    return unflatten(list(leaves), shell.spec)

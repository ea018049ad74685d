"""What torch's trees leave closed in results: dataclasses and None are structure while a batch is put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from driftscope.programs import pytrees as pytree
from driftscope.transforms import torch_internals as internals


@dataclasses.dataclass
class _Fields:
    """A dataclass, its fields as children; ``kind`` is ``NoneType`` for None, which has none."""

    kind: type
    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


def _flatten(fields: _Fields) -> tuple[list[Any], tuple[type, tuple[str, ...]]]:
    return list(fields.values), (fields.kind, fields.names)


def _unflatten(values: Any, context: Any) -> _Fields:
    kind, names = context
    return _Fields(kind, names, tuple(values))


pytree.register_pytree_node(_Fields, _flatten, _unflatten)


class _Star:
    def __repr__(self) -> str:
        return "*"


class Opening:
    """A function whose results torch's trees go all the way into; :func:`closed` makes them what they were.

    Parameters
    ----------
    function : callable
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self.__name__ = internals.name_of(function)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return opened(self._function(*args, **keywords))


def opened(result: Any) -> Any:
    """Make dataclasses and None nodes of torch's trees; those whose class torch knows are nodes already."""
    if isinstance(result, torch.Tensor):
        return result
    return pytree.tree_map(_opened_leaf, result)


def _opened_leaf(leaf: Any) -> Any:
    if leaf is None:
        return _Fields(type(None))
    if isinstance(leaf, (torch.Tensor, type)) or not dataclasses.is_dataclass(leaf):
        return leaf
    held = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf) if hasattr(leaf, field.name)}
    held |= getattr(leaf, "__dict__", {})
    return _Fields(type(leaf), tuple(held), tuple(map(opened, held.values())))


def closed(result: Any) -> Any:
    """Make the user's dataclasses and None again, without running their ``__init__``: no value of it changed."""
    if isinstance(result, torch.Tensor):
        return result
    return pytree.tree_map(_closed_leaf, result, is_leaf=lambda part: isinstance(part, _Fields))


def _closed_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, _Fields):
        return leaf
    if leaf.kind is type(None):
        return None
    made: Any = object.__new__(leaf.kind)
    for name, value in zip(leaf.names, leaf.values, strict=True):
        object.__setattr__(made, name, closed(value))  # a frozen class refuses its own
    return made


def described(spec: Any) -> str:
    """Show a structure as its author would write it, every tensor or number a star."""
    return f"{closed(pytree.tree_unflatten([_Star()] * spec.num_leaves, spec))!r:.100}"

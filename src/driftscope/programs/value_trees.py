"""Trees of values: take apart any nesting of containers into leaves with paths, and put it together again.

Our own instead of ``torch.utils._pytree``: it needs no torch, keeps a path for every leaf that prints the way the
user would index it, and rebuilds *fresh* containers, so that a program that appends to a cache it was given never
changes what the next program sees.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.errors import InputError
from driftscope.records.paths import Attribute, Path

Key = str | int | Attribute


@dataclass(frozen=True, slots=True)
class Spec:
    """How a tree is put together.

    Parameters
    ----------
    kind : str
        The container's class name; ``""`` for a leaf.
    keys : tuple of str, int or Attribute
        The step from this container to each child.
    children : tuple of Spec
    rebuild : callable or None
        Takes the list of children and returns a fresh container; None for a leaf.
    """

    kind: str = ""
    keys: tuple[Key, ...] = ()
    children: tuple[Spec, ...] = ()
    rebuild: Callable[[list[Any]], Any] | None = None

    @property
    def count(self) -> int:
        """Number of leaves below."""
        return sum(child.count for child in self.children) if self.rebuild else 1


LEAF = Spec()


def flatten(tree: Any, root: str = "out") -> tuple[list[tuple[Path, Any]], Spec]:
    """Take a tree apart.

    Parameters
    ----------
    tree : object
        Tuples, lists, namedtuples, mappings, dataclasses, transformers caches and model outputs, and classes
        registered with torch's pytree are containers; everything else, None included, is a leaf.
    root : str
        Name of the root in the paths.

    Returns
    -------
    leaves : list of (Path, object)
        In order, containers' own order kept.
    spec : Spec
        For :func:`unflatten`.

    Raises
    ------
    InputError
        If the tree contains itself.
    """
    leaves: list[tuple[Path, Any]] = []
    try:
        spec = _take_apart(tree, Path((), root), leaves)
    except RecursionError as error:
        raise InputError(f"the tree of values at {root!r} contains itself; give a finite tree") from error
    return leaves, spec


def unflatten(leaves: Sequence[Any], spec: Spec) -> Any:
    """Put a tree together again from its leaves, with fresh containers.

    Parameters
    ----------
    leaves : sequence
        One value per leaf, in the order of :func:`flatten` (the values alone, without paths).
    spec : Spec

    Raises
    ------
    ValueError
        If the number of leaves is not the spec's.
    """
    if len(leaves) != spec.count:
        raise ValueError(f"the tree has {spec.count} leaves, not {len(leaves)}")
    return _put_together(iter(leaves), spec)


def _put_together(leaves: Iterator[Any], spec: Spec) -> Any:
    if spec.rebuild is None:
        return next(leaves)
    return spec.rebuild([_put_together(leaves, child) for child in spec.children])


def _take_apart(tree: Any, path: Path, leaves: list[tuple[Path, Any]]) -> Spec:
    opened = _open(tree)
    if opened is None:
        leaves.append((path, tree))
        return LEAF
    items, rebuild = opened
    children = tuple(_take_apart(value, path / key, leaves) for key, value in items)
    return Spec(type(tree).__name__, tuple(key for key, _ in items), children, rebuild)


Opened = tuple[list[tuple[Key, Any]], Callable[[list[Any]], Any]]


def _open(tree: Any) -> Opened | None:
    """Return a container's items and how to rebuild it, or None for a leaf."""
    if isinstance(tree, Mapping):
        return _open_mapping(tree)
    if isinstance(tree, tuple):
        return _open_tuple(tree)
    if isinstance(tree, (list, collections.deque)):
        return list(enumerate(tree)), type(tree)
    if _is_cache(tree):
        return _open_cache(tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not getattr(tree, "is_tree_leaf", False):
        return _open_fields(tree, [f.name for f in dataclasses.fields(tree)])
    return _open_registered(tree)


def _open_mapping(tree: Mapping[Any, Any]) -> Opened:
    names = list(tree)
    kind: Callable[..., Any] = type(tree)
    if isinstance(tree, collections.defaultdict):
        factory = tree.default_factory
        return _named(tree), lambda values: collections.defaultdict(factory, zip(names, values, strict=True))
    if dataclasses.is_dataclass(tree):
        # A transformers ModelOutput is a dict and a dataclass; it wants its fields as keywords.
        return _named(tree), lambda values: kind(**dict(zip(names, values, strict=True)))
    return _named(tree), lambda values: kind(dict(zip(names, values, strict=True)))


def _named(tree: Mapping[Any, Any]) -> list[tuple[Key, Any]]:
    return [(name if isinstance(name, (str, int)) else str(name), value) for name, value in tree.items()]


def _open_tuple(tree: tuple[Any, ...]) -> Opened:
    kind: Callable[..., Any] = type(tree)
    fields = getattr(tree, "_fields", None)
    if fields is not None:
        return [(Attribute(n), v) for n, v in zip(fields, tree, strict=True)], lambda values: kind(*values)
    return list(enumerate(tree)), kind


def _open_fields(tree: Any, names: list[str]) -> Opened:
    shell = copy.copy(tree)

    def rebuild(values: list[Any]) -> Any:
        fresh = copy.copy(shell)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(fresh, name, value)  # frozen dataclasses too
        return fresh

    return [(Attribute(name), getattr(tree, name)) for name in names], rebuild


_CACHE_PARTS = ("self_attention_cache", "cross_attention_cache")


def _is_cache(tree: Any) -> bool:
    # By name, not by import: transformers takes seconds to import and may not be installed.
    return any(c.__name__ in ("Cache", "CacheLayerMixin") and "cache_utils" in c.__module__ for c in type(tree).__mro__)


def _open_cache(tree: Any) -> Opened:
    parts = [name for name in _CACHE_PARTS if hasattr(tree, name)]
    if parts:
        return _open_fields(tree, parts)
    if hasattr(tree, "layers"):
        return _open_fields(tree, ["layers"])
    # A layer that has seen nothing has no tensors yet; whatever it has becomes leaves.
    states = ("keys", "values", "conv_states", "recurrent_states")
    return _open_fields(tree, [name for name in states if getattr(tree, name, None) is not None])


def _open_registered(tree: Any) -> Opened | None:
    """Open a class that its owner registered with torch's pytree."""
    pytree = sys.modules.get("torch.utils._pytree")
    node = pytree.SUPPORTED_NODES.get(type(tree)) if pytree is not None else None
    if node is None:
        return None
    children, context = node.flatten_fn(tree)
    return list(enumerate(children)), lambda values: node.unflatten_fn(values, context)

"""torch's pytree through one door: private in torch, seen in 2.8 to 2.15."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import (
    SERIALIZED_TYPE_TO_PYTHON_TYPE,
    SUPPORTED_NODES,
    SUPPORTED_SERIALIZED_TYPES,
    SequenceKey,
    TreeSpec,
    _broadcast_to_and_flatten,
    _get_node_type,
    keystr,
    register_pytree_node,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_structure,
    tree_unflatten,
)

__all__ = [
    "SERIALIZED_TYPE_TO_PYTHON_TYPE",
    "SUPPORTED_NODES",
    "SUPPORTED_SERIALIZED_TYPES",
    "SequenceKey",
    "TreeSpec",
    "broadcast_to_and_flatten",
    "children_of",
    "keystr",
    "node_type_of",
    "register_pytree_node",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_structure",
    "tree_unflatten",
]

broadcast_to_and_flatten = _broadcast_to_and_flatten
node_type_of = _get_node_type


def children_of(spec: TreeSpec) -> list[Any]:
    """Return the specs below a node; torch 2.8 keeps them in an attribute that later versions replaced."""
    return list(spec.children()) if hasattr(spec, "children") else list(spec.children_specs)

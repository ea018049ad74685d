"""Spell a spec: the ``dynamic_shapes`` tree that torch wants, and the Python to paste that makes it."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import Dim

from driftscope.programs import pytrees as pytree
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.containers import seen_through_us
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.probe.axes import Arguments


def spec_of(arguments: Arguments, attempt: Attempt) -> dict[str, Any]:
    """Return ``dynamic_shapes`` by parameter, in the structure of the arguments as torch flattens them.

    A leaf's spec is a dict from axis to Dim or hint, None for a leaf of fixed size, the hint itself for an integer.
    """
    said: dict[int, Any] = {}
    for axis, size in zip(arguments.axes, attempt.sizes, strict=True):
        if axis.dim is None:
            said[axis.leaf] = size
        elif size is not None:
            said.setdefault(axis.leaf, {})[axis.dim] = size
    values = [v.detach() if isinstance(v, torch.Tensor) else _SpelledLeaf() for _, v in arguments.leaves]
    numbers = {id(value): number for number, value in enumerate(values)}
    return {
        name: _like(value, {key: said.get(number) for key, number in numbers.items()})
        for name, value in arguments.by_parameter(values).items()
    }


class _SpelledLeaf:
    """Stands for a leaf that is no tensor."""


def _like(value: Any, said: dict[int, Any]) -> Any:
    """The same nesting in plain containers, with what is said of each leaf in its place."""
    node = pytree.SUPPORTED_NODES.get(pytree.node_type_of(value))
    if node is None:
        return said.get(id(value))
    children, _ = node.flatten_fn(value)
    if isinstance(value, dict):
        return {key: _like(child, said) for key, child in zip(value, children, strict=True)}
    made = [_like(child, said) for child in children]
    return made if isinstance(value, list) else tuple(made) if isinstance(value, tuple) else made


def code_of(arguments: Arguments, attempt: Attempt, relations: Relations) -> str:
    """Return Python to paste: imports, Dims, ``dynamic_shapes`` and ``export(model, args, kwargs)``."""
    spec = spec_of(arguments, attempt)
    dims = _dims(attempt)
    ours = seen_through_us(arguments)
    lines = ["import torch", "from torch.export import Dim", ""]
    if ours:
        lines[2:2] = ["", "from driftscope.shapes.capture.containers import register"]
    lines += [f"{name} = {_definition(dim)}" for name, dim in dims.items()]
    lines += ["", "dynamic_shapes = {"] if dims else ["dynamic_shapes = {"]
    lines += [f"    {name!r}: {_spelled(value)}," for name, value in spec.items()]
    lines += ["}", "", "", "def export(model, args, kwargs=None):"]
    if ours:
        lines.append("    register(args, kwargs)  # torch does not see into these containers by itself")
    call = "torch.export.export(model, args, kwargs, dynamic_shapes=dynamic_shapes)"
    if attempt.mode is Mode.OBLIVIOUS:
        lines += [
            "    # Sizes 0 and 1 are traced like any other.",
            "    with torch.fx.experimental._config.patch(backed_size_oblivious=True):",
            f"        return {call}",
        ]
    elif attempt.mode is Mode.UNBACKED:
        lines += _unbacked_lines(arguments, attempt)
    else:
        lines.append(f"    return {call}")
    return "\n".join(lines) + "\n"


def _unbacked_lines(arguments: Arguments, attempt: Attempt) -> list[str]:
    marked: dict[int, list[int]] = {}
    for axis, said in zip(arguments.axes, attempt.sizes, strict=True):
        if said is not None and axis.dim is not None:
            marked.setdefault(axis.leaf, []).append(axis.dim)
    tensors = [n for n, (_, v) in enumerate(arguments.leaves) if isinstance(v, torch.Tensor)]
    table = {tensors.index(leaf): tuple(dims) for leaf, dims in marked.items()}
    return [
        "    # Nothing is assumed of these sizes: tensor number -> axes. Marks exclude dynamic_shapes.",
        f"    marks = {table!r}",
        "    tensors = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]",
        "    for number, axes in marks.items():",
        "        for axis in axes:",
        "            torch._dynamo.decorators.mark_unbacked(tensors[number], axis)",
        "    return torch.export.export(model, args, kwargs, strict=True)",
    ]


def _dims(attempt: Attempt) -> dict[str, Any]:
    """Named Dims by name, roots before what is derived from them."""
    found: dict[str, Any] = {}
    for size in attempt.sizes:
        root = getattr(size, "root", None)
        named = root if root is not None else size
        if isinstance(named, Dim):
            found[named.__name__] = named
    return found


def _definition(dim: Any) -> str:
    bounds = []
    if dim.min not in (0, None):
        bounds.append(f"min={dim.min}")
    if isinstance(dim.max, int):
        bounds.append(f"max={dim.max}")
    return f"Dim({', '.join([repr(dim.__name__), *bounds])})"


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_spelled(v)}" for key, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_spelled(v) for v in value)
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Dim) or hasattr(value, "root"):
        return str(value.__name__)
    hint = getattr(value, "type", None)
    if hint is not None:
        return f"Dim.{hint.name}"
    return repr(value)

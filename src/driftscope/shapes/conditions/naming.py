"""From torch's names of sizes (``L['z'].size()[1]``) to the user's axes, and back."""

from __future__ import annotations

import ast
from typing import Any

import torch

from driftscope.shapes import private_torch
from driftscope.shapes.conditions.expressions import Size
from driftscope.shapes.probe.axes import Arguments, Axis


class Sources:
    """Torch's names for the inputs of one call.

    Parameters
    ----------
    arguments : Arguments

    Attributes
    ----------
    leaf_names : list of str
        Torch's name of every leaf, in the order of torch's placeholders.
    order : list of int
        Our number of each of them.
    """

    def __init__(self, arguments: Arguments):
        self._axes: dict[int, list[Axis]] = {}
        for axis in arguments.axes:
            self._axes.setdefault(axis.leaf, []).append(axis)
        self.leaf_names, self.order = _torch_leaves(arguments)
        self._number = dict(zip(self.leaf_names, self.order, strict=True))

    def axes_of(self, leaf: int) -> list[Axis]:
        """Axes of a leaf, by our number."""
        return self._axes.get(leaf, [])

    def size(self, words: str) -> Size | None:
        """From ``L['z'].size()[1]``, or ``L['n']`` for an integer, to its axis; None for what is no input's size."""
        words = private_torch.normal_source(words, self.leaf_names)
        try:
            node = ast.parse(words, mode="eval").body
        except SyntaxError:
            return None
        dim: int | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            function, index = node.value.func, node.slice
            if not (
                isinstance(function, ast.Attribute) and function.attr == "size" and isinstance(index, ast.Constant)
            ):
                return None
            dim = int(str(index.value))
            node = function.value
        leaf = self._number.get(ast.unparse(node))
        found = [axis for axis in self._axes.get(leaf, []) if axis.dim == dim] if leaf is not None else []
        return Size(found[0].name) if found else None


class _Marker:
    """Stands for a leaf that is no tensor, so that torch's order of leaves can be matched with ours."""


def _torch_leaves(arguments: Arguments) -> tuple[list[str], list[int]]:
    values: list[Any] = [v.detach() if isinstance(v, torch.Tensor) else _Marker() for _, v in arguments.leaves]
    numbers = {id(value): number for number, value in enumerate(values)}
    found = private_torch.leaf_names(arguments.by_parameter(values))
    known = [(name, numbers[id(leaf)]) for name, leaf in found if id(leaf) in numbers]
    return [ast.unparse(ast.parse(name, mode="eval")) for name, _ in known], [number for _, number in known]

"""Which axes may vary and how they go together: from what the user says, or from several sets of inputs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export import Dim

from driftscope.errors import InputError
from driftscope.programs import pytrees as pytree
from driftscope.records.words import counted
from driftscope.shapes.conditions.linear import Linear
from driftscope.shapes.probe.axes import Arguments, Axis, AxisClasses

# With fewer different sizes than this, any two axes lie on some line; only plain multiples are believed.
_POINTS_OF_A_LINE = 3
_LARGEST_SLOPE = 16
# Multiples of two sizes whose sum is looked for.
_SUMMED = (1, 2, 3, 4)


@dataclass(frozen=True)
class WantedAxes:
    """What is wanted of the axes.

    Parameters
    ----------
    axes : tuple of Axis
    free : tuple of bool
        Whether each may vary.
    classes : AxisClasses
        Axes that are equal in every set of inputs, or have one name in the user's spec.
    derived : mapping of int to Linear
        Axes (by position) that follow from others: ``2*s``, ``s - 1``, ``s + p``.
    said : tuple of object, or None
        The user's own words for each axis: a ``Dim``, a hint, or None.
    """

    axes: tuple[Axis, ...]
    free: tuple[bool, ...]
    classes: AxisClasses
    derived: Mapping[int, Linear]
    said: tuple[Any, ...] | None = None

    @property
    def places(self) -> list[int]:
        """Positions of the axes that may vary."""
        return [place for place, free in enumerate(self.free) if free]

    def __str__(self) -> str:
        lines = [
            " == ".join(self.axes[i].name for i in group)
            for group in self.classes.groups
            if len(group) > 1 and self.free[group[0]]
        ]
        lines += [f"{self.axes[place].name} == {line}" for place, line in self.derived.items()]
        fixed = [f"{axis.name} == {axis.size}" for axis, free in zip(self.axes, self.free, strict=True) if not free]
        return "\n".join(lines + fixed)


def infer(sets: Sequence[Arguments], dynamic: Any = "all") -> WantedAxes:
    """Decide which axes may vary.

    Parameters
    ----------
    sets : sequence of Arguments
        The first is the example. Several sets show what varies: what is constant in all of them is taken for fixed.
    dynamic : "all", torch spec or None
        ``"all"``: every axis of one set, what varies in several. A spec as for ``torch.export.export``: what it names.
        None: what varies in several sets; nothing in one.

    Raises
    ------
    InputError
        If a spec does not have the structure of the inputs.
    """
    example = sets[0]
    if dynamic is not None and not (isinstance(dynamic, str) and dynamic == "all"):
        return _from_spec(example, dynamic)
    if len(sets) > 1:
        return _from_sets(sets)
    axes = example.axes
    alone = tuple((place,) for place in range(len(axes)))
    return WantedAxes(axes, (dynamic == "all",) * len(axes), AxisClasses(axes, alone), {})


# --- several sets ---------------------------------------------------------------------------------------------


def _from_sets(sets: Sequence[Arguments]) -> WantedAxes:
    axes = sets[0].axes
    columns = np.array([one.sizes for one in sets], np.int64).T
    free = tuple(len(set(column)) > 1 for column in columns.tolist())
    groups: dict[tuple[int, ...] | int, list[int]] = {}
    for place, column in enumerate(columns.tolist()):
        groups.setdefault(tuple(column) if free[place] else place, []).append(place)
    classes = AxisClasses(axes, tuple(tuple(group) for group in groups.values()))
    derived: dict[int, Linear] = {}
    roots: list[int] = []
    # Small sizes first: a pool of 2*s is derived from s, not s from half the pool.
    for group in sorted((g for g in classes.groups if free[g[0]]), key=lambda g: (columns[g[0]].sum(), g)):
        line = _line_through(columns, roots, group[0], axes)
        if line is None:
            roots.append(group[0])
        else:
            derived.update(dict.fromkeys(group, line))
    return WantedAxes(axes, free, classes, derived)


def _line_through(columns: np.ndarray, roots: Sequence[int], place: int, axes: tuple[Axis, ...]) -> Linear | None:
    """The column as ``a*root + c`` or as the sum of two roots, or None."""
    column = columns[place]
    for root in roots:
        line = _linear(columns[root], column, axes[root].name)
        if line is not None:
            return line
    if len({tuple(row) for row in columns.T.tolist()}) < _POINTS_OF_A_LINE:
        return None
    for one, other in itertools.combinations(roots, 2):
        for a, b in itertools.product(_SUMMED, repeat=2):
            if bool((a * columns[one] + b * columns[other] == column).all()):
                return Linear({axes[one].name: a, axes[other].name: b})
    return None


def _linear(root: np.ndarray, column: np.ndarray, name: str) -> Linear | None:
    different = np.unique(root)
    low, high = int(root.argmin()), int(root.argmax())
    slope, rest = divmod(int(column[high] - column[low]), int(root[high] - root[low]))
    offset = int(column[low]) - slope * int(root[low])
    believed = len(different) >= _POINTS_OF_A_LINE or offset == 0
    if rest or not 1 <= slope <= _LARGEST_SLOPE or not believed:
        return None
    return Linear({name: slope}, offset) if bool((slope * root + offset == column).all()) else None


# --- a spec ---------------------------------------------------------------------------------------------------


def _from_spec(example: Arguments, dynamic: Any) -> WantedAxes:
    axes = example.axes
    said: dict[tuple[int, int | None], Any] = {}
    for leaf, words in _spec_leaves(example, dynamic):
        said.update(_said_of_leaf(leaf, words, example))
    words = tuple(_as_dim(said.get((axis.leaf, axis.dim))) for axis in axes)
    free = tuple(word is not None for word in words)
    groups: dict[Any, list[int]] = {}
    for place, word in enumerate(words):
        named = isinstance(word, Dim) and not hasattr(word, "root")
        groups.setdefault(word.__name__ if named else place, []).append(place)
    derived = _derived_by_spec(axes, words)
    return WantedAxes(axes, free, AxisClasses(axes, tuple(tuple(g) for g in groups.values())), derived, words)


def _derived_by_spec(axes: tuple[Axis, ...], words: Sequence[Any]) -> dict[int, Linear]:
    by_name = {word.__name__: place for place, word in enumerate(words) if isinstance(word, Dim)}
    found = {}
    for place, word in enumerate(words):
        root = getattr(word, "root", None)
        if root is not None and root.__name__ in by_name:
            offset = int(word.fn(0))
            slope = int(word.fn(1)) - offset
            found[place] = Linear({axes[by_name[root.__name__]].name: slope}, offset)
    return found


def _as_dim(word: Any) -> Any:
    """Words that make an axis vary; None for those that fix it."""
    if word is None or isinstance(word, int):
        return None
    if isinstance(word, str):
        return Dim(_identifier(word))
    hint = getattr(word, "type", None)
    return None if hint is not None and hint.name == "STATIC" else word


def _spec_leaves(example: Arguments, dynamic: Any) -> list[tuple[int, Any]]:
    """What a spec says of each leaf, by the leaf's number."""
    values = [v.detach() if isinstance(v, torch.Tensor) else _Leaf() for _, v in example.leaves]
    numbers = {id(value): number for number, value in enumerate(values)}
    arguments = example.by_parameter(values)
    if hasattr(dynamic, "dynamic_shapes"):
        raise InputError("give the dict of dynamic shapes itself: collection.dynamic_shapes(model, args)")
    if isinstance(dynamic, (tuple, list)):
        dynamic = dict(zip(arguments, dynamic, strict=False))
    if not isinstance(dynamic, Mapping):
        raise InputError(
            f"dynamic={dynamic!r} is not a spec; give 'all', or per parameter a dict from axis to Dim as for"
            " torch.export"
        )
    unknown = [name for name in dynamic if name not in arguments]
    if unknown:
        raise InputError(
            f"the spec names {', '.join(map(str, unknown))}; the inputs are {', '.join(arguments)}; use those names"
        )
    found: list[tuple[int, Any]] = []
    for name, value in arguments.items():
        _descend(value, dynamic.get(name), name, numbers, found)
    return found


class _Leaf:
    """Stands for a leaf that is no tensor."""


def _descend(value: Any, said: Any, where: str, numbers: Mapping[int, int], found: list[tuple[int, Any]]) -> None:
    if id(value) in numbers:
        found.append((numbers[id(value)], said))
        return
    if said is None:
        return
    node = pytree.SUPPORTED_NODES.get(pytree.node_type_of(value))
    if node is None:
        return
    children, _ = node.flatten_fn(value)
    keys = list(value) if isinstance(value, dict) else list(range(len(children)))
    parts = said if isinstance(said, Mapping) else dict(enumerate(said)) if isinstance(said, (tuple, list)) else None
    if parts is None:
        raise InputError(f"the spec says {said!r} of {where}, which is a container; say it of each tensor inside")
    for key, child in zip(keys, children, strict=True):
        _descend(child, parts.get(key), f"{where}[{key!r}]", numbers, found)


def _said_of_leaf(leaf: int, words: Any, example: Arguments) -> dict[tuple[int, int | None], Any]:
    path, value = example.leaves[leaf]
    if not isinstance(value, torch.Tensor):
        return {(leaf, None): words}
    if words is None:
        return {}
    if isinstance(words, (tuple, list)):
        words = dict(enumerate(words))
    if not isinstance(words, Mapping):
        said = "that it varies" if isinstance(words, type(torch.export.Dim.DYNAMIC)) else repr(words)
        way = f"a dict from axis to Dim, or None (on the command line, {path}=0 for its first axis)"
        raise InputError(
            f"the spec says of {path}, which has {counted(value.ndim, 'axis', 'axes')}, {said};"
            f" give {way if value.ndim else 'None'}"
        )
    wrong = [axis for axis in words if not isinstance(axis, int) or not -value.ndim <= axis < value.ndim]
    if wrong:
        raise InputError(f"the spec names axis {wrong[0]!r} of {path}, which has {counted(value.ndim, 'axis', 'axes')}")
    return {(leaf, axis % value.ndim): word for axis, word in words.items()}


def _identifier(words: str) -> str:
    name = re.sub(r"\W+", "_", words).strip("_")
    return name if name and not name[0].isdigit() else f"dim_{name}"


def dim_name(axis: Axis) -> str:
    """A name for a ``Dim`` of an axis: ``x_1``, ``d_ids_0``."""
    words = str(axis.path) if axis.dim is None else f"{axis.path}_{axis.dim}"
    return _identifier(words.replace("'", ""))

"""The grid of a study: axes, their cells, and the seed of each by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.errors import InputError
from driftscope.records.runs.rows import BOOKKEEPING, Plain


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of a grid.

    Parameters
    ----------
    index : int
        Place in grid order, from 0.
    name : str
        As ``"size=512 dtype=float16"``: the same on every machine, whatever the order of running.
    coordinates : mapping of axis to value
    """

    index: int
    name: str
    coordinates: Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class Grid:
    """The product of some axes; the last one varies fastest.

    Parameters
    ----------
    axes : mapping of name to sequence
        Plain values: strings, numbers, booleans, None.

    Raises
    ------
    InputError
        If an axis has no values, repeats one, holds something that is not plain, or has the name of a column that
        driftscope writes itself.
    """

    axes: Mapping[str, tuple[Plain, ...]]

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if not name.isidentifier() or name in BOOKKEEPING:
                taken = "is a column driftscope writes itself" if name in BOOKKEEPING else "is not a Python name"
                raise InputError(f"an axis cannot be called {name!r}: that {taken}")
            if not values:
                raise InputError(f"axis {name!r} has no values; give at least one")
            wrong = [v for v in values if not _is_plain(v)]
            if wrong:
                raise InputError(
                    f"axis {name!r} holds {wrong[0]!r:.60} ({type(wrong[0]).__name__}); an axis holds strings, finite "
                    "numbers, booleans and None, so that a row can say where it is"
                )
            if len(set(map(str, values))) < len(values):
                raise InputError(f"axis {name!r} repeats a value: {', '.join(map(str, values))}")

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.axes.values())

    def cells(self) -> Iterator[Cell]:
        """Walk over the grid."""
        for index, values in enumerate(itertools.product(*self.axes.values())):
            coordinates = dict(zip(self.axes, values, strict=True))
            yield Cell(index, cell_name(coordinates), coordinates)


def make_grid(axes: Mapping[str, Any]) -> Grid:
    """Make a grid of what a user wrote: a single value is an axis of one."""
    if not isinstance(axes, Mapping):
        raise InputError(f"axes are a mapping of name to values, as {{'size': [8, 16]}}, not {type(axes).__name__}")
    return Grid({str(name): _values(values) for name, values in axes.items()})


def cell_name(coordinates: Mapping[str, Plain]) -> str:
    """Return the name of a cell, ``"all"`` for a grid without axes."""
    return " ".join(f"{axis}={value}" for axis, value in coordinates.items()) or "all"


def _values(values: Any) -> tuple[Plain, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        return (values.item() if hasattr(values, "item") else values,)
    return tuple(v.item() if hasattr(v, "item") else v for v in values)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value))

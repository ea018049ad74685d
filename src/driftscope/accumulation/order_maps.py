"""The map of a result with several orders: which elements are added in which, as lines of text and as a picture."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from typing import Protocol

import numpy as np
import numpy.typing as npt

from driftscope.records.words import counted

Mask = npt.NDArray[np.bool_]
_MOST_LINES = 12
_COLOURS = (
    "#0969da",
    "#bf8700",
    "#1a7f37",
    "#cf222e",
    "#8250df",
    "#bc4c00",
    "#0a3069",
    "#4d2d00",
    "#116329",
    "#82071e",
)
_UNKNOWN_COLOUR = "#d1d9e0"
_SIDE = 320.0


class Ordered(Protocol):
    """What is known of one order: where it holds, and what it is called."""

    @property
    def applies_to(self) -> Mask: ...
    @property
    def applies(self) -> str: ...
    @property
    def family(self) -> str: ...


def letter(number: int) -> str:
    """Return the name of a class: A, B, ...; a question mark for elements whose order is not known."""
    return "?" if number < 0 else chr(ord("A") + number) if number < 26 else f"#{number + 1}"


def numbers_of(classes: Sequence[Ordered]) -> npt.NDArray[np.int64]:
    """Return the number of each element's order, ``(rows, columns)``, -1 where it is not known."""
    masks = [one.applies_to.reshape(len(one.applies_to), -1) for one in classes]
    numbers = np.full(masks[0].shape, -1, np.int64)
    for number, mask in enumerate(masks):
        numbers[mask] = number
    return numbers


def map_lines(classes: Sequence[Ordered]) -> list[str]:
    """Say row by row which columns are added in which order; equal rows together."""
    if not classes[0].applies_to.ndim:
        return []
    numbers = numbers_of(classes)
    lines = []
    for top, end in _runs(numbers):
        rows = _span("row", top, end)
        parts = [(letter(int(numbers[top, left])), left, right) for left, right in _runs(numbers[top][:, None])]
        if numbers.shape[1] == 1 or len(parts) == 1:
            lines.append(f"{rows}: {parts[0][0]}")
        else:
            lines.append(f"{rows}: " + ", ".join(f"{name} in {_span('column', a, b)}" for name, a, b in parts))
    more = len(lines) - _MOST_LINES
    return (
        lines if more <= 0 else [*lines[:_MOST_LINES], f"and {counted(more, 'more line')}: draw() shows the whole map"]
    )


def draw_map(classes: Sequence[Ordered], left: float, top: float) -> tuple[list[str], float]:
    """Return the elements of an SVG drawing of the map, with its legend, and where it ends."""
    numbers = numbers_of(classes)
    rows, columns = numbers.shape
    cell = min(_SIDE / rows, _SIDE / columns, 24.0)
    wide, high = max(columns * cell, 8.0), max(rows * cell, 8.0)
    drawn = [_text(left, top + 14, f"which element is added in which order ({rows} by {columns})", 14, 600)]
    y0 = top + 28
    for first, end in _runs(numbers):
        for a, b in _runs(numbers[first][:, None]):
            number = int(numbers[first, a])
            fill = _UNKNOWN_COLOUR if number < 0 else _COLOURS[number % len(_COLOURS)]
            drawn.append(
                f'<rect x="{left + a * wide / columns:.2f}" y="{y0 + first * high / rows:.2f}" '
                f'width="{(b - a) * wide / columns:.2f}" height="{(end - first) * high / rows:.2f}" fill="{fill}"/>'
            )
    legend = [
        (_COLOURS[number % len(_COLOURS)], f"{letter(number)}: {one.applies}: {one.family}")
        for number, one in enumerate(classes)
    ]
    if (numbers < 0).any():
        legend.append((_UNKNOWN_COLOUR, "not known"))
    y = y0 + high + 14
    for fill, words in legend:
        drawn.append(f'<rect x="{left:.1f}" y="{y:.1f}" width="12" height="12" fill="{fill}"/>')
        for line in textwrap.wrap(words, 95):
            drawn.append(_text(left + 20, y + 11, line, 12))
            y += 18
    return drawn, y + 12


def _runs(numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Return begin and end of each stretch of equal rows."""
    changes = np.flatnonzero((numbers[1:] != numbers[:-1]).any(axis=1)) + 1
    edges = [0, *changes.tolist(), len(numbers)]
    return itertools.pairwise(edges)


def _span(noun: str, begin: int, end: int) -> str:
    return f"{noun} {begin}" if end - begin == 1 else f"{noun}s {begin} to {end - 1}"


def _text(x: float, y: float, text: str, size: int, weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#1f2328" text-anchor="start" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )

"""Figures that studies share: bars on a log axis, a labelled heat map, saving so that equal rows give equal files.

Matplotlib is imported when a figure is asked for. Figures are made without pyplot: no global state, no window, and
the user's own style sheets are left alone.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import DependencyMissing, InputError

SUFFIXES = (".png", ".svg", ".pdf")

#: Okabe and Ito's colours: told apart by colour-blind readers, and by their lightness in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "--", "++")


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure of so many inches.

    Raises
    ------
    DependencyMissing
        If matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise DependencyMissing("plot", "matplotlib", "plot")
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "driftscope"  # equal figures, equal ids
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure


def saved(figure: Any, path: Path) -> Path:
    """Write a figure as .png, .svg or .pdf.

    Raises
    ------
    InputError
        For another suffix, or a place that cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot draw to {str(path)!r}: the name must end in {', '.join(SUFFIXES)}")
    # A date or a version in the file would make equal figures differ.
    dateless = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
    try:
        figure.savefig(path, metadata=dateless)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    return path


def bars(
    groups: Sequence[str], series: Mapping[str, Sequence[float]], *, title: str, label: str, log: bool = True
) -> Any:
    """Draw groups of bars, on a log axis unless told otherwise.

    Parameters
    ----------
    groups : sequence of str
        Names along the x axis.
    series : mapping of name to sequence of float
        One bar in each group, in its own colour and hatching; a zero has no bar on a log axis and is written as 0.
    """
    figure = new_figure(max(6.0, 1.4 + 0.34 * len(groups) * (len(series) + 1)), 4.4)
    axes = figure.add_subplot()
    width = 0.8 / max(len(series), 1)
    positive = [v for values in series.values() for v in values if v > 0]
    bottom = min(positive, default=1.0) / 4
    for index, (name, values) in enumerate(series.items()):
        places = [g + (index - (len(series) - 1) / 2) * width for g in range(len(groups))]
        heights = [v if v > 0 else 0.0 for v in values]
        colour = COLOURS[index % len(COLOURS)]
        axes.bar(places, heights, width * 0.92, label=name, color=colour, hatch=HATCHES[index % len(HATCHES)],
                 edgecolor="white", linewidth=0.4)  # fmt: skip
        for place, value in zip(places, values, strict=True):
            if log and value == 0:
                axes.text(place, bottom, "0", ha="center", va="bottom", fontsize=7, color=colour)
    if log and positive:
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.set_ylim(bottom=bottom)
    slanted = max(map(len, groups), default=0) > 8
    axes.set_xticks(range(len(groups)), groups, rotation=35 if slanted else 0, ha="right" if slanted else "center")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(axis="y", which="major", linewidth=0.4, color="#cccccc")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False,
        fontsize=8,
        ncols=min(len(series), 4),
        loc="upper left",
        bbox_to_anchor=(0, -0.16 if not slanted else -0.32),
    )
    return figure


def heat_map(
    panel: Any, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]],
    marks: Sequence[Sequence[str]], *, top: float, label: str,
) -> None:  # fmt: skip
    """Draw a grid of squares, light for small and dark for large values, with a mark in each.

    Parameters
    ----------
    panel : matplotlib Axes
    values : rows of float
        What colours a square; from 0 to at least ``top``. One scale of lightness, so that it prints in grey.
    marks : rows of str
        What is written in it.
    top : float
        Value of the darkest colour unless there is a larger one.
    label : str
        Of the colour bar, with its unit.
    """
    highest = max(top, *(v for row in values for v in row if v == v))
    image = panel.imshow(values, cmap="YlGnBu", vmin=0.0, vmax=highest, aspect="auto")
    panel.set_xticks(range(len(columns)), columns, rotation=40, ha="right", fontsize=7.5)
    panel.set_yticks(range(len(rows)), rows, fontsize=7.5)
    panel.tick_params(length=0)
    for i, row in enumerate(marks):
        for j, text in enumerate(row):
            dark = values[i][j] > 0.55 * highest
            mark = panel.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
            mark.set_in_layout(False)  # it lies inside its square: measuring a hundred of them takes a second
    panel.figure.colorbar(image, ax=panel, label=label, shrink=0.9, pad=0.01)

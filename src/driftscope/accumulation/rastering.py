"""A picture made of lines, circles, boxes and words, as PNG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from driftscope.errors import DependencyMissing

_DOTS_PER_INCH = 100.0


def write_png(svg: str, path: Path) -> None:
    """Write one of this package's own SVG documents as PNG, twice as large as its nominal size.

    Parameters
    ----------
    svg : str
        Made of ``rect``, ``polyline``, ``circle`` and ``text`` alone.
    path : pathlib.Path

    Raises
    ------
    DependencyMissing
        If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyMissing("drawing a tree as PNG", "matplotlib", "plot") from error
    root = ET.fromstring(svg)
    wide, high = float(root.attrib["width"]), float(root.attrib["height"])
    figure = Figure(figsize=(wide / _DOTS_PER_INCH, high / _DOTS_PER_INCH), dpi=2 * _DOTS_PER_INCH)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    axes.axis("off")
    for order, element in enumerate(root):
        draw = _DRAWN.get(element.tag.rpartition("}")[2])
        if draw is not None:
            draw(axes, element, order)
    canvas.print_png(str(path))


def _rect(axes: Any, element: ET.Element, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    at = element.attrib
    x, y, width, height = float(at.get("x", 0)), float(at.get("y", 0)), float(at["width"]), float(at["height"])
    style: dict[str, Any] = {
        "facecolor": at.get("fill", "none"),
        "edgecolor": at.get("stroke", "none"),
        "zorder": order,
    }
    radius = float(at.get("rx", 0))
    if radius:
        box = FancyBboxPatch((x, y), width, height, boxstyle=f"round,pad=0,rounding_size={radius}", **style)
        axes.add_patch(box)
    else:
        axes.add_patch(Rectangle((x, y), width, height, **style))


def _polyline(axes: Any, element: ET.Element, order: int) -> None:
    points = [tuple(map(float, point.split(","))) for point in element.attrib["points"].split()]
    xs, ys = zip(*points, strict=True)
    width = 0.72 * float(element.attrib.get("stroke-width", 1))
    axes.plot(xs, ys, color=element.attrib["stroke"], linewidth=width, zorder=order, solid_joinstyle="round")


def _circle(axes: Any, element: ET.Element, order: int) -> None:
    from matplotlib.patches import Circle

    at = element.attrib
    centre = float(at["cx"]), float(at["cy"])
    axes.add_patch(Circle(centre, float(at["r"]), facecolor=at["fill"], edgecolor=at["stroke"], zorder=order))


def _text(axes: Any, element: ET.Element, order: int) -> None:
    at = element.attrib
    axes.text(
        float(at["x"]), float(at["y"]), element.text or "", fontsize=0.68 * float(at["font-size"]), color=at["fill"],
        ha={"middle": "center", "end": "right"}.get(at.get("text-anchor", ""), "left"), va="baseline",
        fontweight="bold" if int(at.get("font-weight", 400)) >= 600 else "normal", zorder=order,
    )  # fmt: skip


_DRAWN = {"rect": _rect, "polyline": _polyline, "circle": _circle, "text": _text}

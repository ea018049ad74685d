"""The picture of the layer norm study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import InputError
from driftscope.records.kinds.study import StudyRecord
from driftscope.studies.figures import COLOURS, HATCHES, heat_map, new_figure, saved
from driftscope.studies.layer_norm_study.cell import BINS, HALF_WIDTH, NOT_AVAILABLE
from driftscope.studies.places import places
from driftscope.studies.sentences import counted, floors

_END_OF_ROUNDING = 1.5  # floors
_SHOWN = ("ttt", "ooo", "onnxruntime whole")  # whose errors are drawn as histograms


def panels(record: StudyRecord, path: Path) -> Path:
    """Draw one row for each dtype and device (of the first data set), and the implementations on all data below.

    Left: every pair of ways to run the chain in floors. Right: how the errors against float64 are distributed, in
    units in the last place of the largest result.
    """
    found = [(place, rows) for place, rows in places(record) if any(row["kind"] == "pair" for row in rows)]
    if not found:
        raise InputError("there is nothing to draw: no two ways to run the chain gave a result")
    first = [(place, rows) for place, rows in found if place["data"] == found[0][0]["data"]]
    figure = new_figure(13.0, 4.6 * (len(first) + 1))
    grid = figure.add_gridspec(len(first) + 1, 2, width_ratios=(1.25, 1.0))
    for index, (place, rows) in enumerate(first):
        _pairs(figure.add_subplot(grid[index, 0]), place, rows)
        _histogram(figure.add_subplot(grid[index, 1]), place, rows)
    _implementations(figure.add_subplot(grid[len(first), :]), found)
    figure.suptitle(
        "LayerNormalization, MatMul, Add; each by torch (t) or onnxruntime (o), or the whole graph", fontsize=12
    )
    return saved(figure, path)


def _pairs(panel: Any, place: dict[str, Any], rows: Sequence[Any]) -> None:
    names = [row["name"] for row in rows if row["kind"] == "chain" and row["verdict"] != NOT_AVAILABLE]
    found = {frozenset((row["name"], row["other"])): row for row in rows if row["kind"] == "pair"}
    values, marks = [], []
    for one in names:
        line = [found.get(frozenset((one, other))) for other in names]
        values.append([0.0 if row is None else float(row["floors"]) for row in line])
        marks.append(["=" if row is None or row["rms"] == 0 else f"{row['floors']:.2g}" for row in line])
    heat_map(
        panel,
        names,
        names,
        values,
        marks,
        top=_END_OF_ROUNDING,
        label="drift in floors (ordinary rounding ends at 1.5)",
    )
    panel.set_title(f"{place['dtype']} on {place['device']}, {place['data']} data", fontsize=10, loc="left")


def _histogram(panel: Any, place: dict[str, Any], rows: Sequence[Any]) -> None:
    width = 2 * HALF_WIDTH / BINS
    centres = [-HALF_WIDTH + width * (k + 0.5) for k in range(BINS)]
    chains = {row["name"]: row for row in rows if row["kind"] == "chain" and row.get("histogram")}
    for index, name in enumerate(name for name in _SHOWN if name in chains):
        counts = chains[name]["histogram"]
        share = [max(count, 0) / sum(counts) for count in counts]
        chain = chains[name]
        label = f"{name}: {counted(chain['roundings'], 'rounding')}, {floors(chain['floors'])}"
        style = ("-", "--", ":")[index]
        panel.step(centres, share, where="mid", color=COLOURS[index], linewidth=1.5, linestyle=style, label=label)
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.set_ylim(1e-7, 100)  # room for the legend
    panel.set_xlabel(f"error in {place['dtype']} ulp of the largest result; ends: beyond")
    panel.set_ylabel("share of the results")
    panel.grid(linewidth=0.4, color="#dddddd")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False, loc="upper left")


def _implementations(panel: Any, found: Sequence[tuple[dict[str, Any], list[Any]]]) -> None:
    groups = [f"{place['data']}\n{place['dtype']}" for place, _ in found]
    names = list(dict.fromkeys(row["name"] for _, rows in found for row in rows if row["kind"] == "implementation"))
    width = 0.8 / max(len(names), 1)
    finite = [r["floors"] for _, rows in found for r in rows if r["kind"] == "implementation" and _drawable(r)]
    top = max(finite, default=1.0)
    for index, name in enumerate(names):
        colour = COLOURS[index % len(COLOURS)]
        for group, (_, rows) in enumerate(found):
            row = next((r for r in rows if r["kind"] == "implementation" and r["name"] == name), None)
            if row is None or row["verdict"] == NOT_AVAILABLE:
                continue
            place = group + (index - (len(names) - 1) / 2) * width
            if _drawable(row):
                panel.bar(place, row["floors"], width * 0.92, color=colour, hatch=HATCHES[index], edgecolor="white",
                          linewidth=0.4)  # fmt: skip
            else:
                panel.text(place, 0.11, "NaN", rotation=90, ha="center", va="bottom", fontsize=7, color=colour)
        panel.bar([0], [0], color=colour, hatch=HATCHES[index], edgecolor="white", label=name)  # for the legend
    panel.axhline(_END_OF_ROUNDING, color="black", linewidth=0.9)
    panel.text(len(groups) - 0.5, _END_OF_ROUNDING, " ordinary rounding ends", fontsize=7, va="bottom", ha="right")
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.set_ylim(0.1, top * 4)
    panel.set_xticks(range(len(groups)), groups, fontsize=8)
    panel.set_ylabel("error against float64 in floors")
    panel.set_title("implementations of LayerNormalization by themselves", fontsize=10, loc="left")
    panel.grid(axis="y", linewidth=0.4, color="#dddddd")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=8, frameon=False, ncols=len(names), loc="upper left")


def _drawable(row: Any) -> bool:
    return row["verdict"] != NOT_AVAILABLE and 0 < float(row["floors"]) < math.inf

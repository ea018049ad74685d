"""The picture of the reduction study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import InputError
from driftscope.records.kinds.study import StudyRecord
from driftscope.studies.figures import COLOURS, HATCHES, new_figure, saved
from driftscope.studies.reduction_study.cell import VECTORS
from driftscope.studies.reduction_study.words import finished_rows


def spread_bars(record: StudyRecord, path: Path) -> Path:
    """Draw the largest spread over all sizes: one panel for each function, laws as groups, dtypes as colours.

    A short line across each bar is the spread that the error model predicts there; a 0 on the axis says that the
    result had the same bits in every order.
    """
    rows = [row for row in finished_rows(record) if row["random_spread"] == row["random_spread"]]
    functions = list(dict.fromkeys(str(row["function"]) for row in rows))
    laws = list(dict.fromkeys(str(row["law"]) for row in rows))
    dtypes = list(dict.fromkeys(str(row["dtype"]) for row in rows))
    if not rows:
        raise InputError("there is nothing to draw: no cell has a finite result")
    figure = new_figure(max(5.2, 1.2 + 1.3 * len(laws)) * min(len(functions), 2), 4.2 * ((len(functions) + 1) // 2))
    panels = figure.subplots((len(functions) + 1) // 2, min(len(functions), 2), squeeze=False).flat
    smallest = min((row["random_spread"] for row in rows if row["random_spread"] > 0), default=1e-17)
    for panel, function in zip(panels, functions, strict=False):
        _panel(panel, [row for row in rows if row["function"] == function], laws, dtypes, smallest / 8)
        panel.set_title(function, fontsize=11, loc="left")
        vector = function.removeprefix("torch.") in VECTORS
        panel.set_ylabel("largest change of an element" if vector else "largest - smallest result")
    for panel in list(panels)[len(functions) :]:
        panel.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.suptitle("Largest change of the result over random orders and all sizes", fontsize=12)
    return saved(figure, path)


def _panel(panel: Any, rows: Sequence[Any], laws: Sequence[str], dtypes: Sequence[str], bottom: float) -> None:
    width = 0.8 / len(dtypes)
    for index, dtype in enumerate(dtypes):
        colour = COLOURS[index % len(COLOURS)]
        worst = {
            law: max(here, key=lambda row: float(row["random_spread"]))
            for law in laws
            if (here := [row for row in rows if row["law"] == law and row["dtype"] == dtype])
        }
        places = [laws.index(law) + (index - (len(dtypes) - 1) / 2) * width for law in worst]
        heights = [float(row["random_spread"]) for row in worst.values()]
        expected = [float(row["predicted_spread"]) for row in worst.values()]
        panel.bar(places, heights, width * 0.92, label=dtype, color=colour, hatch=HATCHES[index % len(HATCHES)],
                  edgecolor="white", linewidth=0.4)  # fmt: skip
        shown = [(p, e) for p, e in zip(places, expected, strict=True) if e > bottom]
        panel.hlines([e for _, e in shown], [p - width / 2 for p, _ in shown], [p + width / 2 for p, _ in shown],
                     color="black", linewidth=1.4, label="predicted" if index == len(dtypes) - 1 else None)  # fmt: skip
        for place, height in zip(places, heights, strict=True):
            if height == 0:
                panel.text(place, bottom * 1.15, "0", ha="center", va="bottom", fontsize=8, color=colour)
    panel.set_yscale("log")
    panel.minorticks_off()
    panel.set_ylim(bottom=bottom)
    panel.set_xticks(range(len(laws)), laws)
    panel.set_xlabel("law of the terms")
    panel.grid(axis="y", which="major", linewidth=0.4, color="#cccccc")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)

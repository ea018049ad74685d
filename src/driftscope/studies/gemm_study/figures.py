"""The pictures of the gemm study: who differs from whom in floors, and by how much under which bias."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import InputError
from driftscope.numerics.formats import FORMATS
from driftscope.records.kinds.study import StudyRecord
from driftscope.studies.figures import COLOURS, heat_map, new_figure, saved
from driftscope.studies.gemm_study.cell import NOT_AVAILABLE
from driftscope.studies.places import pair_values, places

_END_OF_ROUNDING = 1.5  # floors
_SCALE = "drift in floors (ordinary rounding ends at 1.5)"


def heat_maps(record: StudyRecord, path: Path) -> Path:
    """Draw one row for each data set, dtype and device: the pairs in floors, and the columns over their bias."""
    found = [(place, rows) for place, rows in places(record) if any(row["kind"] == "pair" for row in rows)]
    if not found:
        raise InputError("there is nothing to draw: no two variants gave a result")
    most = max(len(_there(rows)) for _, rows in found)
    figure = new_figure(5.2 + 0.62 * most, (1.7 + 0.42 * most) * len(found))
    panels = figure.subplots(len(found), 2, squeeze=False, width_ratios=(0.62 * most, 4.4))
    for (place, rows), (left, right) in zip(found, panels, strict=True):
        names = _there(rows)
        floors, verdicts = pair_values(rows, "floors"), pair_values(rows, "verdict")
        values = [[floors[one, other] for other in names] for one in names]
        marks = [["=" if verdicts[one, other] == "same bits" else f"{floors[one, other]:.2g}" for other in names]
                 for one in names]  # fmt: skip
        heat_map(left, names, names, values, marks, top=_END_OF_ROUNDING, label=_SCALE)
        left.set_title(f"{place['dtype']} on {place['device']}, {place['data']} data", fontsize=10, loc="left")
        _by_bias(right, rows, str(place["dtype"]))
    figure.suptitle("A @ X + B in every way: pairwise drift; = are the same bits", fontsize=12)
    return saved(figure, path)


def _there(rows: Sequence[Any]) -> list[str]:
    return [row["variant"] for row in rows if row["kind"] == "variant" and row["verdict"] != NOT_AVAILABLE]


def _by_bias(panel: Any, rows: Sequence[Any], dtype: str) -> None:
    bias = next(row["bias"] for row in rows if row["kind"] == "columns")
    drawn = 0
    for one in ("F.linear", "a @ x + b"):
        pair = next((r for r in rows if r.get("by_column") and {r["variant"], r["other"]} == {one, "Gemm"}), None)
        if pair is not None:
            panel.plot(bias, pair["by_column"], ".", markersize=2.5 + 1.5 * drawn, color=COLOURS[drawn],
                       label=f"{one} and Gemm", zorder=3 - drawn)  # fmt: skip
            drawn += 1
    ascending = sorted(bias)
    ulp = [FORMATS[dtype].ulp(abs(b)) for b in ascending]
    panel.step(ascending, ulp, where="post", color="black", linewidth=0.9, label=f"one {dtype} ulp of the bias")
    panel.set_xlabel("bias of the column")
    panel.set_ylabel("largest difference in the column")
    title = "which columns differ" if drawn else "no column differs from Gemm" if "Gemm" in _there(rows) else ""
    panel.set_title(title or "Gemm is not available here", fontsize=10, loc="left")
    panel.set_ylim(top=panel.get_ylim()[1] * 1.3)  # room for the legend
    panel.grid(linewidth=0.4, color="#dddddd")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(fontsize=7, frameon=False, loc="upper left")

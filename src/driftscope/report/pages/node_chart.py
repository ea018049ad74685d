"""The way through two programs: a chart along the nodes and a table of them, from the records of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.nodes import NodeRecord
from driftscope.report import wording
from driftscope.report.pages import gauges, sheet_view
from driftscope.report.sheet import Mark, Table

WIDTH, HEIGHT = 1000.0, 120.0  # of one panel, in its own units
_TOP_FLOORS = 2500.0
_FLOORS_AT = (1.0, 1.5, 2.5, 25.0, 250.0)
_DECADES_AT = (-16, -12, -8, -4, 0)


def way_of(record: Comparison, anchor: str) -> dict[str, Any] | None:
    """Return what is drawn of the nodes of a comparison; None when none were measured. ``anchor`` begins its ids."""
    if not record.nodes:
        return None
    guilty = _guilty(record)
    return {
        "chart": _chart(record.nodes, guilty, record.thresholds.get("lifted")),
        "table": sheet_view.section(_table(record.nodes, guilty), f"{anchor}-nodes"),
        "count": wording.counted(len(record.nodes), "value"),
    }


def _guilty(record: Comparison) -> int | None:
    """Position of the node that the first finding with a node names."""
    names = [node.name for node in record.nodes]
    named = (f.where.node for f in record.findings if f.where.node and not f.note)
    return next((names.index(name) for name in named if name in names), None)


def _chart(nodes: Sequence[NodeRecord], guilty: int | None, limit: object) -> dict[str, Any]:
    """Two panels over the same axis: each side's distance from float64, and the distance between the sides."""
    step = WIDTH / max(len(nodes) - 1, 1)
    tau = _lifted_height(float(limit)) if isinstance(limit, (int, float)) and limit > 0 else None
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "error_a": _path([n.error_a for n in nodes], step, _floors_height),
        "error_b": _path([n.error_b for n in nodes], step, _floors_height),
        "lifted": _path([n.lifted for n in nodes], step, _lifted_height),
        "floors_marks": [(f"{f:g}", round(_floors_height(f), 1)) for f in _FLOORS_AT],
        "lifted_marks": [(f"1e{d}" if d else "1", round(_lifted_height(10.0**d), 1)) for d in _DECADES_AT],
        "tau": None if tau is None else round(tau, 1),
        "guilty": None if guilty is None else round(guilty * step, 1),
        "guilty_name": "" if guilty is None else wording.one_line(nodes[guilty].name),
        # A name in the right half is written to the left of its line.
        "guilty_left": guilty is not None and guilty * step > WIDTH / 2,
    }


def _floors_height(floors: float) -> float:
    position = gauges.floors_position(min(floors, _TOP_FLOORS)) or 0.0
    return HEIGHT * (1 - position / gauges.WIDTH)


def _lifted_height(drift: float) -> float:
    position = gauges.lifted_position(drift) or 0.0
    return HEIGHT * (1 - position / gauges.WIDTH)


def _path(values: Sequence[float | None], step: float, height: Callable[[float], float]) -> str:
    """Return the outline of a line through the values that were measured; the others leave a gap."""
    drawn, begun = [], False
    for index, value in enumerate(values):
        if value is None or math.isnan(value):
            begun = False
            continue
        drawn.append(f"{'L' if begun else 'M'}{index * step:.1f} {height(value):.1f}")
        begun = True
    return "".join(drawn)


def _table(nodes: Sequence[NodeRecord], guilty: int | None) -> Table:
    rows = []
    for index, node in enumerate(nodes):
        name = Mark(node.name, "bad", tip="the first finding is about this node") if index == guilty else node.name
        place = node.module or (f"{node.file}:{node.line}" if node.file else "")
        rows.append((name, node.operator, place, node.counterpart, node.lifted, node.error_a, node.error_b))
    columns = ("node of B", "operator", "module", "node of A", "in float64", "error A", "error B")
    note = (
        "In the order in which B computes. In float64: relative drift between the sides up to here. Errors: distance "
        "of each side\u2019s native value from its own float64 value, in floors; about 1 is ordinary rounding."
    )
    return Table("Nodes", columns, tuple(rows), note)

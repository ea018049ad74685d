"""The way through two programs: a chart along the nodes and a table of them, from the records of a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from driftscope.records.kinds.comparison import Comparison, NodeRecord
from driftscope.report import wording
from driftscope.report.pages import gauges, piece_graph, sheet_view
from driftscope.report.sheet import Mark, Table

WIDTH, HEIGHT = 1000.0, 150.0  # of one panel, in its own units
_TOP_FLOORS = 2500.0
_FLOORS_AT = (1.0, 1.5, 2.5, 25.0, 250.0)
_DECADES_AT = (-16, -12, -8, -4, 0)
_MOST_TIPS = 200  # columns that say what stands there when pointed at; more nodes share them


def way_of(record: Comparison, anchor: str) -> dict[str, Any] | None:
    """Return what is drawn of the nodes of a comparison; None when none were measured. ``anchor`` begins its ids."""
    if not record.nodes:
        return None
    limit = _limit(record)
    first = first_differing(record)
    return {
        "chart": _chart(record.nodes, first, limit),
        "piece": None if first is None else piece_graph.piece_of(record.nodes, first, limit),
        "table": sheet_view.section(_table(record.nodes, first), f"{anchor}-nodes"),
        "count": wording.counted(len(record.nodes), "value"),
    }


def first_differing(record: Comparison) -> int | None:
    """Position of the node that the first finding with a node names; else of the first that differs when fed."""
    names = [node.name for node in record.nodes]
    named = (f.where.node for f in record.findings if f.where.node and not f.note)
    found = next((names.index(name) for name in named if name in names), None)
    limit = _limit(record)
    if found is not None or limit is None:
        return found
    return next((i for i, node in enumerate(record.nodes) if node.fed is not None and node.fed > limit), None)


def _limit(record: Comparison) -> float | None:
    limit = record.thresholds.get("lifted")
    return float(limit) if isinstance(limit, (int, float)) and limit > 0 else None


def _chart(nodes: Sequence[NodeRecord], first: int | None, limit: float | None) -> dict[str, Any]:
    """Two panels over the same axis: the distance between the sides, and each side's distance from float64."""
    step = WIDTH / max(len(nodes) - 1, 1)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "own": _path([n.lifted for n in nodes], step, _lifted_height),
        "fed": _stems([n.fed for n in nodes], step),
        "error_a": _path([n.error_a for n in nodes], step, _floors_height),
        "error_b": _path([n.error_b for n in nodes], step, _floors_height),
        "floors_marks": [(f"{f:g}", round(_floors_height(f), 1)) for f in _FLOORS_AT],
        "lifted_marks": [(f"1e{d}" if d else "1", round(_lifted_height(10.0**d), 1)) for d in _DECADES_AT],
        "tau": None if limit is None else round(_lifted_height(limit), 1),
        "tips": _tips(nodes, step),
        "first": None if first is None else round(first * step, 1),
        "first_name": "" if first is None else wording.one_line(nodes[first].name),
        # A name in the right half is written to the left of its line.
        "first_left": first is not None and first * step > WIDTH / 2,
    }


def _floors_height(floors: float) -> float:
    position = gauges.floors_position(min(floors, _TOP_FLOORS)) or 0.0
    return HEIGHT * (1 - position / gauges.WIDTH)


def _lifted_height(drift: float) -> float:
    position = gauges.lifted_position(drift) or 0.0
    return HEIGHT * (1 - position / gauges.WIDTH)


def _path(values: Sequence[float | None], step: float, height: Callable[[float], float]) -> str:
    """Return the outline of a line through the values that were measured; it passes over the others."""
    measured = [(i, v) for i, v in enumerate(values) if v is not None and not math.isnan(v)]
    return "".join(f"{'L' if n else 'M'}{i * step:.1f} {height(v):.1f}" for n, (i, v) in enumerate(measured))


def _stems(values: Sequence[float | None], step: float) -> str:
    """Return one upright line for each value that is not zero."""
    measured = [(i, v) for i, v in enumerate(values) if v is not None and v > 0]
    return "".join(f"M{i * step:.1f} {HEIGHT:.0f}V{_lifted_height(v):.1f}" for i, v in measured)


def _tips(nodes: Sequence[NodeRecord], step: float) -> list[tuple[float, float, str]]:
    """Return columns of the chart, left edge and width, each with what it says: its node that differs most."""
    share = -(-len(nodes) // _MOST_TIPS)
    tips = []
    for start in range(0, len(nodes), share):
        part = nodes[start : start + share]
        worst = max(part, key=lambda n: (n.fed or 0.0, n.lifted or 0.0))
        tips.append((round((start - 0.5) * step, 1), round(len(part) * step, 1), tip_of(worst)))
    return tips


def tip_of(node: NodeRecord) -> str:
    """Say of a node its name, operator, module and how far apart the sides are there."""
    place = node.module or (f"{node.file}:{node.line}" if node.file else "")
    head = " · ".join(part for part in (f"{node.name} ({node.operator})", place) if part)
    if not node.counterpart:
        return wording.one_line(f"{head}: no counterpart in A")
    parts = [f"A and B differ by {wording.number(node.lifted)}"]
    if node.fed is not None:
        parts.append(f"given A's values by {wording.number(node.fed)}")
    return wording.one_line(f"{head}: {', '.join(parts)}")


def _table(nodes: Sequence[NodeRecord], first: int | None) -> Table:
    rows = []
    for index, node in enumerate(nodes):
        name = Mark(node.name, "bad", tip="the first differing node") if index == first else node.name
        place = node.module or (f"{node.file}:{node.line}" if node.file else "")
        rows.append((name, node.operator, place, node.counterpart, node.lifted, node.fed, node.error_a, node.error_b))
    columns = ("node of B", "operator", "module", "node of A", "in float64", "given A's", "error A", "error B")
    note = (
        "In the order in which B computes. In float64: relative difference between the sides up to here. Given "
        "A\u2019s: the same with B given A\u2019s values, so what this node adds. Errors: distance of each "
        "side\u2019s native value from its own float64 value, in floors; about 1 is ordinary rounding."
    )
    return Table("Nodes", columns, tuple(rows), note)

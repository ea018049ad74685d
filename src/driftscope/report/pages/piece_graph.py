"""A small graph of the place: the nodes round the first differing one, A's beside B's, drawn as SVG shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.records.kinds.comparison import NodeRecord
from driftscope.report import wording

_SHOWN = 10  # nodes of B
_ROW, _BOX, _LANE, _GAP, _MARGIN = 46.0, 34.0, 232.0, 36.0, 26.0  # sizes in the drawing's own units
_LETTERS, _LETTERS_SMALL = 27, 38  # that fit into a box

Point = tuple[float, float]


def piece_of(nodes: Sequence[NodeRecord], first: int, limit: float | None) -> dict[str, Any]:
    """Return what is drawn: boxes and lines with their positions.

    Parameters
    ----------
    nodes : sequence of NodeRecord
    first : int
        Position of the first differing node.
    limit : float or None
        Relative drift up to which two values are the same in float64.

    Returns
    -------
    dict
        ``width``, ``height``, ``boxes`` (lane, x, y, name, second line, tone, whether it is the first differing node)
        and ``lines`` (kind, path).
    """
    chosen = _around(nodes, first)
    rows = {nodes[index].name: row for row, index in enumerate(chosen)}
    partners = {nodes[i].counterpart: row for row, i in enumerate(chosen) if nodes[i].counterpart}
    boxes: list[dict[str, Any]] = []
    lines: list[tuple[str, str]] = []
    for row, index in enumerate(chosen):
        node = nodes[index]
        tone = _tone(node, index == first, limit)
        boxes.append(_box("b", row, node.name, _second(node, tone), tone, index == first))
        lines += [("flow", _edge("b", rows[name], row, set(rows.values()))) for name in node.reads if name in rows]
        if node.counterpart:
            boxes.append(_box("a", row, node.counterpart, "", "", False))
            reads = [partners[name] for name in node.counterpart_reads if name in partners]
            lines += [("flow", _edge("a", before, row, set(partners.values()))) for before in reads if before < row]
            lines.append(("pair", f"M{_left('a') + _LANE:.0f} {_middle(row):.0f}H{_left('b'):.0f}"))
    return {
        "width": round(2 * _LANE + _GAP + 2 * _MARGIN),
        "height": round(len(chosen) * _ROW + 26),
        "lane": _LANE, "box": _BOX, "a": _left("a"), "b": _left("b"), "boxes": boxes, "lines": lines,
        "more": max(0, len(nodes) - len(chosen)),
    }  # fmt: skip


def _around(nodes: Sequence[NodeRecord], first: int) -> list[int]:
    """Positions of the nodes to show: what ``first`` reads, and the nearest that are joined with it."""
    position = {node.name: index for index, node in enumerate(nodes)}
    near: dict[int, list[int]] = {index: [] for index in range(len(nodes))}
    for index, node in enumerate(nodes):
        for name in node.reads:
            if name in position:
                near[index].append(position[name])
                near[position[name]].append(index)
    if not any(near.values()):  # an older record, without what reads what
        start = max(0, min(first - _SHOWN // 2, len(nodes) - _SHOWN))
        return list(range(start, min(start + _SHOWN, len(nodes))))
    joined, waiting = {first}, [first]
    while waiting:
        fresh = [index for index in near[waiting.pop()] if index not in joined]
        joined.update(fresh)
        waiting += fresh
    # What the place reads is shown however far back it was computed; then its neighbours in the order of computing.
    reads = [i for i in near[first] if i < first][: _SHOWN // 2]
    others = sorted(joined - {first, *reads}, key=lambda i: (abs(i - first), i))
    return sorted([first, *reads, *others[: _SHOWN - 1 - len(reads)]])


def _tone(node: NodeRecord, first: bool, limit: float | None) -> str:
    if first:
        return "bad"
    if limit is None or node.lifted is None:
        return ""
    if node.fed is not None and node.fed > limit:
        return "bad"
    return "fair" if node.lifted > limit else "good"


def _second(node: NodeRecord, tone: str) -> str:
    """Write the operator, and how far apart the sides are where that matters."""
    if tone not in ("bad", "fair") or node.lifted is None:
        return node.operator
    fed = tone == "bad" and node.fed is not None
    size = f" \u00b7 differs by {wording.number(node.fed if fed else node.lifted)}"
    return f"{wording.elide(node.operator, _LETTERS_SMALL - len(size))}{size}"


def _box(lane: str, row: int, name: str, second: str, tone: str, first: bool) -> dict[str, Any]:
    return {
        "x": _left(lane), "y": round(_middle(row) - _BOX / 2, 1), "lane": lane, "tone": tone, "first": first,
        "name": wording.elide(wording.one_line(name), _LETTERS),
        "second": wording.elide(wording.one_line(second), _LETTERS_SMALL), "full": wording.one_line(name),
    }  # fmt: skip


def _left(lane: str) -> float:
    return _MARGIN + (0.0 if lane == "a" else _LANE + _GAP)


def _middle(row: int) -> float:
    return 26 + row * _ROW + _BOX / 2


def _edge(lane: str, start: int, end: int, taken: set[int]) -> str:
    """Return a line from one row to a later one: straight where nothing stands between, else in an arc outside."""
    top, bottom = _middle(start) + _BOX / 2, _middle(end) - _BOX / 2
    centre = _left(lane) + _LANE / 2
    if not taken & set(range(start + 1, end)):
        return f"M{centre:.0f} {top:.0f}V{bottom - 1:.0f}"
    side = _left(lane) if lane == "a" else _left(lane) + _LANE
    out = side + (-1 if lane == "a" else 1) * min(22, 8 + 3 * (end - start))
    high, low = f"{_middle(start):.0f}", f"{_middle(end):.0f}"
    return f"M{side:.0f} {high}C{out:.0f} {high} {out:.0f} {low} {side:.0f} {low}"

"""How far a named node is from the guilty one: steps along the edges of the graph, in either direction."""

from __future__ import annotations

from collections import deque

from onnx import ModelProto


def hops(model: ModelProto, one: str | None, other: str) -> int | None:
    """Return the number of edges between two nodes; None when there is no path, or no such node."""
    neighbours = _neighbours(model)
    if one not in neighbours:
        return None
    distance = {one: 0}
    queue = deque([one])
    while queue:
        node = queue.popleft()
        if node == other:
            return distance[node]
        for near in neighbours[node]:
            if near not in distance:
                distance[near] = distance[node] + 1
                queue.append(near)
    return None


def _neighbours(model: ModelProto) -> dict[str, set[str]]:
    makers = {value: node.name for node in model.graph.node for value in node.output if value}
    found: dict[str, set[str]] = {node.name: set() for node in model.graph.node}
    for node in model.graph.node:
        for value in node.input:
            if value in makers:
                found[node.name].add(makers[value])
                found[makers[value]].add(node.name)
    return found

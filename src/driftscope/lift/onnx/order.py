"""Nodes in an order in which each one's inputs are there.

The standard asks exporters for a topological order; onnxruntime does not insist, and tools that insert nodes (the
float16 converters) append them at the end. So the order is made here, and only a cycle is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import AttributeProto, GraphProto, NodeProto

from driftscope.errors import ProgramError


def in_order(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """Return the nodes with every writer before its readers, otherwise in the order given.

    Raises
    ------
    ProgramError
        Naming a node on a cycle.
    """
    writer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [sorted({writer[n] for n in _reads(node) if n in writer}) for node in nodes]
    if all(not wanted or wanted[-1] < index for index, wanted in enumerate(needs)):
        return nodes
    placed: list[int] = []
    state = [0] * len(nodes)  # 0 untouched, 1 on the way, 2 placed
    for start in range(len(nodes)):
        _place(start, needs, state, placed, nodes)
    return [nodes[k] for k in placed]


def _place(
    start: int, needs: Sequence[Sequence[int]], state: list[int], placed: list[int], nodes: Sequence[NodeProto]
) -> None:
    """Place a node after everything it needs. A stack of its own: graphs are deeper than Python's."""
    stack = [start]
    while stack:
        index = stack[-1]
        if state[index] == 2:
            stack.pop()
            continue
        state[index] = 1
        missing = [k for k in needs[index] if state[k] != 2]
        if not missing:
            state[index] = 2
            placed.append(index)
            stack.pop()
        elif any(state[k] == 1 for k in missing):
            node = nodes[next(k for k in missing if state[k] == 1)]
            raise ProgramError(
                f"Node {node.name or node.output[0]!r} ({node.op_type}) needs its own result: the graph has a cycle. "
                "Mend the file with its exporter."
            )
        else:
            stack.append(missing[0])


def _reads(node: NodeProto) -> Iterator[str]:
    """Names a node reads, those that its subgraphs take from around them included."""
    yield from node.input
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield from _captured(attribute.g)
        for graph in attribute.graphs:
            yield from _captured(graph)


def _captured(graph: GraphProto) -> Iterator[str]:
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    for node in graph.node:
        yield from (name for name in _reads(node) if name not in own)
    yield from (v.name for v in graph.output if v.name not in own)

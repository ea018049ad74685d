"""How large an ONNX model becomes when it is run: subgraphs inside one another, and functions that call functions.

A few kilobytes can stand for a million nodes, or for calls so deep that a runtime's stack ends. Both are measured
before any runtime sees the model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto

from driftscope.errors import ProgramError

MOST_NODES = 200_000
DEEPEST_GRAPHS = 60
# onnxruntime 1.31 ends with a segmentation fault between 1,000 and 3,000 functions inside one another.
DEEPEST_CALLS = 200

_Key = tuple[str, str, str]


def check_bounds(model: ModelProto, name: str) -> None:
    """Refuse a model that grows beyond what can be run.

    Raises
    ------
    ProgramError
        If functions call themselves or lie too deep, subgraphs lie too deep, or the nodes become too many once every
        function is written out.
    """
    check_texts(model, name)
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls: dict[_Key, list[_Key]] = {}
    own: dict[_Key, int] = {}
    for key, function in functions.items():
        own[key], calls[key] = _contents(function.node, functions.keys(), name)
    size: dict[_Key, int] = {}
    depth: dict[_Key, int] = {}
    for key in _callees_first(calls, name):
        size[key] = own[key] + sum(size[inner] for inner in calls[key])
        depth[key] = 1 + max((depth[inner] for inner in calls[key]), default=0)
    nodes, called = _contents(model.graph.node, functions.keys(), name)
    total = nodes + sum(size[key] for key in called)
    deepest = max((depth[key] for key in called), default=0)
    if total > MOST_NODES and called:
        raise ProgramError(
            f"{name} stands for {_many(total)} nodes once its functions are written out,"
            f" and {MOST_NODES:,} are run at most"
        )
    if deepest > DEEPEST_CALLS:
        raise ProgramError(
            f"{name} has functions that call functions {deepest:,} deep, and {DEEPEST_CALLS} are run at most:"
            " runtimes end with their stack"
        )


def check_texts(model: ModelProto, name: str) -> None:
    """Refuse a model with a name that is not text: protobuf hands such a name on as bytes.

    Raises
    ------
    ProgramError
        If a name or another text of the model is not UTF-8.
    """
    waiting: list[Message] = [model]
    while waiting:
        message = waiting.pop()
        kind: Any = type(message)
        if kind is TensorProto:  # listing its fields would copy its numbers
            own = (message.name, message.doc_string, *(t for e in message.external_data for t in (e.key, e.value)))
            if bytes in map(type, own):
                raise ProgramError(f"{name} is damaged: the name of a tensor in it is not UTF-8 text")
            continue
        if kind is StringStringEntryProto and bytes not in map(type, (message.key, message.value)):
            continue  # six for each node that torch exported
        if kind is ValueInfoProto and message.SerializeToString().isascii():
            continue  # no byte above 127: seven messages that need no look, and there are as many as nodes
        texts, inner = _fields(kind)
        for field, value in message.ListFields():  # those that are there: of most nodes four in eleven
            if field.number in texts:
                if type(value) is bytes or (type(value) is not str and bytes in map(type, value)):
                    raise ProgramError(f"{name} is damaged: a {field.name!r} in it is not UTF-8 text")
            elif field.number not in inner:
                continue
            elif isinstance(value, Message):
                waiting.append(value)
            else:
                waiting.extend(value)


@functools.cache
def _fields(kind: Any) -> tuple[set[int], set[int]]:
    """The fields of a kind of message that are texts, and those that are messages, by number."""
    texts, inner = set[int](), set[int]()
    of_type = {FieldDescriptor.TYPE_STRING: texts, FieldDescriptor.TYPE_MESSAGE: inner}
    for field in kind.DESCRIPTOR.fields:
        of_type.get(field.type, set()).add(field.number)
    return texts, inner


def _many(count: int) -> str:
    return f"{count:,}" if count < 10**12 else "more than a million million"


def _contents(nodes: Iterable[NodeProto], functions: Iterable[_Key], name: str) -> tuple[int, list[_Key]]:
    """Count nodes, those of subgraphs included, and list the functions they call, once for each call."""
    known = set(functions)
    count, called = 0, []
    for node in _all_nodes(nodes, name):
        key = (node.domain, node.op_type, node.overload)
        count += 1
        if key in known:
            called.append(key)
    return count, called


def _all_nodes(nodes: Iterable[NodeProto], name: str) -> Iterator[NodeProto]:
    waiting = [(node, 0) for node in nodes]
    while waiting:
        node, depth = waiting.pop()
        yield node
        for attribute in node.attribute:
            graphs: list[GraphProto] = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            if graphs and depth >= DEEPEST_GRAPHS:
                raise ProgramError(f"{name} has subgraphs more than {DEEPEST_GRAPHS} deep")
            waiting.extend((inner, depth + 1) for graph in graphs for inner in graph.node)


def _callees_first(calls: dict[_Key, list[_Key]], name: str) -> list[_Key]:
    """Functions in an order in which each comes after those it calls; no recursion, which the model could exhaust."""
    order: list[_Key] = []
    state: dict[_Key, int] = {}
    for start in calls:
        path = [(start, iter(calls[start]))] if start not in state else []
        state.setdefault(start, 1)
        while path:
            key, rest = path[-1]
            inner = next(rest, None)
            if inner is None:
                state[key] = 2
                order.append(key)
                path.pop()
            elif state.get(inner) == 1:
                raise ProgramError(
                    f"{name}: its function {inner[1][:80]!r} calls itself; functions must not be recursive"
                )
            elif inner not in state:
                state[inner] = 1
                path.append((inner, iter(calls[inner])))
    return order

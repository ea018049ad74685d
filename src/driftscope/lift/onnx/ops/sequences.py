"""Sequences and optionals: containers of values, which pass through as they are."""

from __future__ import annotations

import torch

from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT
from driftscope.lift.onnx.registry import Node, Value, axis_of, integers_of, operator


def _sequence(values: list[Value], like: Value | None = None) -> Value:
    native = values[0].format if values else (like.format if like is not None else None)
    return Value(values, native, all(v.constant for v in values))


def _integer(number: int) -> Value:
    return Value(torch.tensor(number, dtype=torch.int64), torch.int64, True)


def _truth(holds: bool) -> Value:
    return Value(torch.tensor(holds), torch.bool, True)


@operator("SequenceEmpty", values=True)
def sequence_empty(node: Node) -> list[Value]:
    """A sequence of nothing."""
    return [Value([], FORMAT_OF_ELEMENT.get(node.integer("dtype", 1)), True)]


@operator("SequenceConstruct", values=True)
def sequence_construct(node: Node, *values: Value) -> list[Value]:
    """A sequence of the given values."""
    return [_sequence(list(values))]


@operator("SequenceInsert", values=True)
def sequence_insert(node: Node, sequence: Value, value: Value, place: Value | None = None) -> list[Value]:
    """A longer sequence; without a place the value goes to the end."""
    values = list(sequence.data)
    index = len(values) if place is None else int(place.data)
    values.insert(index + len(values) if index < 0 else index, value)
    return [_sequence(values)]


@operator("SequenceErase", values=True)
def sequence_erase(node: Node, sequence: Value, place: Value | None = None) -> list[Value]:
    """A shorter sequence; without a place the last value goes."""
    values = list(sequence.data)
    del values[-1 if place is None else int(place.data)]
    return [_sequence(values, sequence)]


@operator("SequenceAt", values=True)
def sequence_at(node: Node, sequence: Value, place: Value) -> list[Value]:
    """One value of a sequence."""
    return [sequence.data[int(place.data)]]


@operator("SequenceLength", values=True)
def sequence_length(node: Node, sequence: Value) -> list[Value]:
    """How many values a sequence has."""
    return [_integer(len(sequence.data))]


@operator("ConcatFromSequence", values=True)
def concat_from_sequence(node: Node, sequence: Value) -> list[Value]:
    """Join the values of a sequence along an axis, old or new."""
    whole = sequence if sequence.constant else Value([node.lift(0, v) for v in sequence.data], sequence.format)
    tensors = [v.data for v in whole.data]
    join = torch.stack if node.integer("new_axis", 0) else torch.cat
    return [Value(join(tensors, node.integer("axis")), sequence.format, sequence.constant)]


@operator("SplitToSequence", values=True)
def split_to_sequence(node: Node, x: Value, split: Value | None = None) -> list[Value]:
    """Cut a tensor along an axis into a sequence."""
    axis = axis_of(node.integer("axis", 0), x.data.dim())
    length = x.data.shape[axis]
    if split is None:
        parts = list(x.data.split(1, axis))
        if node.integer("keepdims", 1) == 0:
            parts = [p.squeeze(axis) for p in parts]
    elif split.data.dim() == 0:
        parts = list(x.data.split(int(split.data), axis)) if length else []
    else:
        parts = list(x.data.split(integers_of(split.data), axis))
    return [_sequence([Value(p, x.format, x.constant) for p in parts], x)]


@operator("Optional", values=True)
def optional(node: Node, value: Value | None = None) -> list[Value]:
    """An optional holding a value, or nothing."""
    return [Value(None, None, True) if value is None else value]


@operator("OptionalHasElement", values=True)
def optional_has_element(node: Node, value: Value | None = None) -> list[Value]:
    """Whether an optional holds a value."""
    return [_truth(value is not None and value.data is not None)]


@operator("OptionalGetElement", values=True)
def optional_get_element(node: Node, value: Value) -> list[Value]:
    """The value an optional holds."""
    return [value]

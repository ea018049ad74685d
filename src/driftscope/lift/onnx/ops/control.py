"""Control flow: branches, loops, scans, and maps over sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, lifted_storage
from driftscope.lift.onnx.registry import Node, Value, axis_of, operator

MOST_STEPS = 10_000  # of one loop; each is evaluated node by node


def _native(node: Node, inputs: Sequence[Value | None]) -> bool:
    """Whether nothing the node sees depends on an input value."""
    return all(v is None or v.constant for v in (*inputs, *node.captured()))


def _carried(node: Node, native: bool, first: int, values: Sequence[Value | None]) -> list[Value]:
    """Initial states: lifted where the loop is, so that all iterations are evaluated alike."""
    states = [Value(None) if v is None else v for v in values]
    return states if native else [_lift(node, first + i, v) for i, v in enumerate(states)]


def _lift(node: Node, index: int, value: Value) -> Value:
    real = value.format is not None and value.format.is_floating_point
    return node.lift(index, value) if real or isinstance(value.data, list) else value


@operator("If", values=True)
def if_else(node: Node, condition: Value) -> list[Value]:
    """One of two branches."""
    outputs = node.evaluate("then_branch" if bool(condition.data) else "else_branch")
    if condition.constant:
        return outputs
    return [node.evaluation.lift(v, "") for v in outputs]


@operator("Loop", values=True)
def loop(node: Node, count: Value | None = None, condition: Value | None = None, *initial: Value) -> list[Value]:
    """Iterate a body, carrying states and stacking what each iteration yields."""
    native = _native(node, (count, condition, *initial))
    states = _carried(node, native, 2, initial)
    limit = None if count is None else int(count.data)
    going = condition is None or bool(condition.data)
    yields: list[list[Value]] = [[] for _ in range(len(node.output_names) - len(states))]
    place = torch.device("cpu") if native else node.device
    iteration = 0
    while going and (limit is None or iteration < limit):
        # Another value each time: what follows from it is no constant of the graph.
        step = Value(torch.tensor(iteration, dtype=torch.int64, device=place), torch.int64, native)
        entry = Value(torch.tensor(True, device=place), torch.bool, native)
        outputs = node.evaluate("body", [step, entry, *states])
        going = bool(outputs[0].data)
        states = outputs[1 : 1 + len(states)]
        if not native:
            states = [node.evaluation.lift(v, "") if v.format is not None else v for v in states]
        for collected, value in zip(yields, outputs[1 + len(states) :], strict=False):
            collected.append(value)
        iteration += 1
        if iteration > MOST_STEPS:
            raise node.refuse(f"it iterates more than {MOST_STEPS:,} times, which is not followed in float64")
    stacked = [_stack(node, values, 0, 1 + len(states) + i) for i, values in enumerate(yields)]
    return [*states, *stacked]


def _stack(node: Node, values: list[Value], axis: int, output: int) -> Value:
    if not values:
        return _nothing(node, output)
    constant = all(v.constant for v in values)
    if not constant:
        values = [node.evaluation.lift(v, "") for v in values]
    rank = values[0].data.dim() + 1
    return Value(torch.stack([v.data for v in values], axis_of(axis, rank)), values[0].format, constant)


def _nothing(node: Node, output: int) -> Value:
    """What no iteration yields: an empty tensor of the type the body declares."""
    declared = node.attribute("body").output[output].type.tensor_type
    native = FORMAT_OF_ELEMENT.get(declared.elem_type, torch.float32)
    shape = [d.dim_value for d in declared.shape.dim]
    return Value(torch.zeros(0, *shape, dtype=lifted_storage(native), device=node.device), native, False)


def _axes(node: Node, name: str, count: int) -> list[int]:
    return node.integers(name, [0] * count)


@operator("Scan", since=9, values=True)
def scan(node: Node, *inputs: Value) -> list[Value]:
    """Iterate a body over slices of its inputs, carrying states and stacking outputs."""
    scanned = node.integer("num_scan_inputs")
    first = len(inputs) - scanned
    native = _native(node, inputs)
    axes, directions = _axes(node, "scan_input_axes", scanned), _axes(node, "scan_input_directions", scanned)
    sequences = []
    for i, value in enumerate(_carried(node, native, first, inputs[first:])):
        axis = axis_of(axes[i], value.data.dim())
        parts = [Value(t, value.format, value.constant) for t in value.data.unbind(axis)]
        sequences.append(parts[::-1] if directions[i] else parts)
    states, yields = _iterate(node, _carried(node, native, 0, inputs[:first]), sequences, native)
    out_axes = _axes(node, "scan_output_axes", len(yields))
    backwards = _axes(node, "scan_output_directions", len(yields))
    stacked = [
        _stack(node, values[::-1] if backwards[i] else values, out_axes[i], first + i)
        for i, values in enumerate(yields)
    ]
    return [*states, *stacked]


def _iterate(
    node: Node, states: list[Value], sequences: list[list[Value]], native: bool
) -> tuple[list[Value], list[list[Value]]]:
    yields: list[list[Value]] = [[] for _ in range(len(node.output_names) - len(states))]
    for parts in zip(*sequences, strict=True):
        outputs = node.evaluate("body", [*states, *parts])
        count = len(states)
        states = outputs[:count]
        if not native:
            states = [node.evaluation.lift(v, "") for v in states]
        for collected, value in zip(yields, outputs[count:], strict=False):
            collected.append(value)
    return states, yields


@operator("Scan", since=8, values=True)
def scan_batches(node: Node, lengths: Value | None, *inputs: Value) -> list[Value]:
    """The scan of opset 8: a leading batch axis, each row scanned on its own."""
    scanned = node.integer("num_scan_inputs")
    first = len(inputs) - scanned
    native = _native(node, (lengths, *inputs))
    directions = node.integers("directions", [0] * scanned)
    values = _carried(node, native, 1, inputs)
    rows: list[list[Value]] = []
    for row in range(values[0].data.shape[0]):
        states = [Value(v.data[row], v.format, v.constant) for v in values[:first]]
        sequences = []
        for v, back in zip(values[first:], directions, strict=True):
            parts = [Value(t, v.format, v.constant) for t in v.data[row].unbind(0)]
            if lengths is not None:
                parts = parts[: int(lengths.data[row])]
            sequences.append(parts[::-1] if back else parts)
        states, yields = _iterate(node, states, sequences, native)
        rows.append([*states, *(_stack(node, v, 0, first + i) for i, v in enumerate(yields))])
    return [_stack(node, list(column), 0, i) for i, column in enumerate(zip(*rows, strict=True))]


@operator("SequenceMap", values=True)
def sequence_map(node: Node, sequence: Value, *others: Value) -> list[Value]:
    """Apply a body to every element of sequences that run along with it."""
    collected: list[list[Value]] = [[] for _ in node.output_names]
    for index, element in enumerate(sequence.data):
        along: list[Any] = [v.data[index] if isinstance(v.data, list) else v for v in others]
        for values, value in zip(collected, node.evaluate("body", [element, *along]), strict=True):
            values.append(value)
    return [
        Value(values, values[0].format if values else None, all(v.constant for v in values)) for values in collected
    ]

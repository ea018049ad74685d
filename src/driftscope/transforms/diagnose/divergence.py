"""The first operation whose output differs: the loop's calls and the transform's walked side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.lift.torch.entries import UNINITIALISED
from driftscope.transforms.agreement import Difference, tensors_differ
from driftscope.transforms.world.trace import Event


@dataclass(frozen=True)
class Divergence:
    """Where two traces part.

    Parameters
    ----------
    kind : str
        ``"path"`` (another call), ``"dtype"``, ``"value"`` (or shape) of an output, ``"answer"`` (a question about a
        tensor was answered otherwise).
    index : int
        Position in the trace.
    event : Event or None
        The transform's call; None when its trace is shorter.
    plain_events : tuple of Event
        The loop's calls at the same position, one per example.
    same_inputs, same_arguments : bool
        Whether the call was given the same tensors, and the same other arguments, in every run.
    difference : Difference or None
        How the outputs differ.
    """

    kind: str
    index: int
    event: Event | None
    plain_events: tuple[Event, ...]
    same_inputs: bool = True
    same_arguments: bool = True
    difference: Difference | None = None


def first_divergence(plain: Sequence[list[Event]], lifted: list[Event]) -> Divergence | None:
    """Walk the loop's traces and the transform's together up to the first call that differs.

    Parameters
    ----------
    plain : sequence of list of Event
        One trace per example.
    lifted : list of Event
        The transform's one trace, whose values carry all examples on their first axis where they are mapped.
    """
    lifted = collapsed([event for event in lifted if not event.raised])
    traces = [collapsed(trace) for trace in plain]
    if not traces:
        return None
    for index in range(max(len(lifted), *map(len, traces))):
        event = lifted[index] if index < len(lifted) else None
        row = tuple(trace[index] for trace in traces if index < len(trace))
        if event is None or len(row) < len(traces) or any(not _same_call(e, event) for e in row):
            return Divergence("path", index, event, row)
        found = _compare(index, event, row)
        if found is not None:
            return found
    return None


def _same_call(plain: Event, lifted: Event) -> bool:
    if plain.function_place is not None or lifted.function_place is not None:
        return plain.function_place == lifted.function_place
    return plain.operation == lifted.operation and (plain.place is None or plain.place == lifted.place)


def collapsed(trace: list[Event]) -> list[Event]:
    """Return a trace in which the calls inside one application of an ``autograd.Function`` count as one call."""
    found: list[Event] = []
    for event in trace:
        last = found[-1] if found else None
        if event.function_place is not None and last is not None and last.function_place == event.function_place:
            found[-1] = _joined(last, event)
        else:
            found.append(event)
    return found


def _joined(first: Event, then: Event) -> Event:
    return Event(
        name="autograd.Function",
        place=first.function_place,
        inputs=first.inputs,
        outputs=then.outputs or first.outputs,
        mapped_inputs=first.mapped_inputs,
        mapped_outputs=then.mapped_outputs or first.mapped_outputs,
        plain_arguments=first.plain_arguments,
        input_ids=first.input_ids,
        output_ids=then.output_ids or first.output_ids,
        function_place=first.function_place,
        raised=then.raised,
    )


def _compare(index: int, event: Event, row: tuple[Event, ...]) -> Divergence | None:
    if event.question or event.operation in UNINITIALISED:
        if event.question and any(e.plain_result != event.plain_result for e in row) and _counts(event):
            return Divergence("answer", index, event, row)
        return None
    inputs_differ = _first_difference([e.inputs for e in row], event.inputs, event.mapped_inputs)
    outputs_differ = _first_difference([e.outputs for e in row], event.outputs, event.mapped_outputs)
    same_arguments = all(e.plain_arguments == event.plain_arguments for e in row)
    # A call that was given other values shows that state was carried, even where its output hides it.
    if inputs_differ is None and outputs_differ is None and (same_arguments or not event.outputs):
        return None
    if outputs_differ is None and (inputs_differ is None or not event.in_place):
        return None
    difference = outputs_differ or inputs_differ
    kind = "dtype" if difference is not None and difference.kind == "dtype" else "value"
    return Divergence(kind, index, event, row, inputs_differ is None, same_arguments, difference)


def _counts(event: Event) -> bool:
    """Whether an answer describes the example; strides and layout flags of a mapped tensor legitimately differ."""
    return event.operation in ("storage_offset", "data_ptr", "stride", "is_contiguous") or "requires_grad" in event.name


def _first_difference(
    plain: list[tuple[Any, ...]], lifted: tuple[Any, ...], mapped: tuple[bool, ...]
) -> Difference | None:
    for position, (value, is_mapped) in enumerate(zip(lifted, mapped, strict=True)):
        column = [values[position] if position < len(values) else None for values in plain]
        found = _column_difference(column, value, is_mapped)
        if found is not None and not found.agrees:
            return found
    return None


def _column_difference(column: list[Any], value: Any, mapped: bool) -> Difference | None:
    if value is None or any(not isinstance(x, torch.Tensor) for x in column):
        return None
    for i, one in enumerate(column):
        other = value[i] if mapped and value.dim() and value.shape[0] == len(column) else value
        if mapped and (not value.dim() or value.shape[0] != len(column)):
            return None
        found = tensors_differ(one, other)
        if not found.agrees:
            return found
    return None

"""Intermediate values of an onnxruntime session, read so that reading them changes nothing.

Marking values of a *file* as outputs keeps the optimiser from fusing across them and makes the runtime store what it
would never have stored: another program is looked at. So the graph that the session really runs is saved, values are
marked in that graph, and it is run with optimisation off. Whether that was faithful is not assumed: the final outputs
must have the same bits as those of the undisturbed session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import torch

from driftscope.errors import RuntimeRefused
from driftscope.explain.locate.targets import largest_gap, same_bits
from driftscope.lift.onnx.element_types import storage
from driftscope.lift.steps import Step
from driftscope.programs.protocol import Bound, OnnxSource, Program
from driftscope.records.finding import Finding
from driftscope.records.words import counted

#: Bytes of intermediate values that one run may hold; with more, several runs share them.
HELD = 1 << 30

_LARGEST = 1_500_000_000

# Their results are no tensors, or may be none.
_NO_TENSORS = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SplitToSequence", "SequenceMap"}
    | {"Optional", "OptionalGetElement", "If", "Loop", "Scan", "StringConcat", "StringSplit", "StringNormalizer"}
)


@dataclass(slots=True)
class Observation:
    """Native intermediate values of one program, in parts that fit into memory.

    Parameters
    ----------
    program : Program
        What runs it.
    graph : onnx.ModelProto
        The graph that its session runs, with its weights.
    bound : Bound
        Its inputs.
    expected : list
        Final outputs of the undisturbed session.
    parts : list of list of str
        Names of values, one list per run.
    disturbance : float
        Largest absolute difference that observing made to a final output so far.
    faithful : bool
        Whether every final output so far had the bits of the undisturbed session.
    """

    program: Program
    graph: onnx.ModelProto
    bound: Bound
    expected: list[Any]
    parts: list[list[str]]
    disturbance: float = 0.0
    faithful: bool = True
    seen: int = field(default=0)

    def values(self) -> Iterator[dict[str, torch.Tensor]]:
        """Run once for each part and yield its values by name, in their native formats; check the final outputs."""
        for names in self.parts:
            found = self._run_marked(names)
            final = [found.pop(name) if name not in names else found[name] for name in self._final]
            if not same_bits(self.expected, final):
                self.faithful = False
                self.disturbance = max(self.disturbance, largest_gap(self.expected, final))
            self.seen += len(names)
            yield found

    def _run_marked(self, names: Sequence[str]) -> dict[str, Any]:
        """Run the graph once with these values as further outputs."""
        marked = onnx.ModelProto()
        marked.CopyFrom(self.graph)
        known = {o.name for o in self.graph.graph.output}
        marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
        observed = self.program.as_is(marked)
        return dict(observed(observed.bind(_inputs(self.bound))))

    @property
    def _final(self) -> list[str]:
        return list(dict.fromkeys(o.name for o in self.graph.graph.output))

    def finding(self, side: str) -> Finding | None:
        """Say by how much observing changed the result; None when it did not."""
        return None if self.faithful else disturbed(side, self.seen, self.disturbance)


def disturbed(side: str, values: int, by: float) -> Finding:
    """Say by how much reading intermediate values changed the final output of a side."""
    return Finding(
        "O012",
        f"reading {counted(values, 'intermediate value')} of {side} changes its final output by {by:.2g}: they say "
        "nothing about the undisturbed run, and nothing is concluded from them",
        "The runtime computes something else when values are to be read, or nothing twice alike.",
        evidence={"side": side, "values": values, "disturbance": by},
        note=True,
    )


def observe(bound: Bound, sizes: Mapping[str, int] | None = None, held: int = HELD) -> Observation:
    """Prepare to read every intermediate value of an onnxruntime program.

    Parameters
    ----------
    bound : Bound
        An ONNX model with its inputs, on a runtime that says which graph it runs.
    sizes : mapping of str to int, or None
        Bytes of each value, where known; values not listed count as nothing.
    held : int
        Bytes that one run may hold.

    Raises
    ------
    RuntimeRefused
        If the optimised graph cannot be saved or run.
    """
    program = bound.program
    source = program.optimized_source(bound)
    if source is None:
        raise RuntimeRefused(program.runtime, "load", "it does not say which graph it runs")
    graph = _in_memory(source, program)
    expected = list(program(bound).values())
    names = readable_values(graph.graph)
    return Observation(program, graph, bound, expected, _in_parts(names, sizes or {}, held))


def _in_memory(source: OnnxSource, program: Program) -> onnx.ModelProto:
    """The graph with its weights: marked graphs are handed over in memory, which protobuf limits to 2 GiB."""
    beside = source.directory is not None
    if beside and (program.onnx_model is None or program.onnx_model.size > _LARGEST):
        raise RuntimeRefused("onnxruntime", "load", "its weights are too large to be handed over in memory")
    return source.whole()


def _inputs(bound: Bound) -> Any:
    return bound.inputs if bound.inputs is not None else bound.feeds


def readable_values(graph: onnx.GraphProto) -> list[str]:
    """Names of the values that nodes of the outermost graph compute and that are tensors in their usual layout.

    Convolutions on the CPU keep their channels in blocks (NchwcTransformer), and so does what is computed from them
    until they are brought back.
    """
    names, blocked = [], set[str]()
    for node in graph.node:
        inside = node.domain == _BLOCKED or any(name in blocked for name in node.input)
        if inside and node.op_type != "ReorderOutput":
            blocked.update(node.output)
        elif node.op_type not in _NO_TENSORS:
            names += [name for name in node.output if name]
    return names


_BLOCKED = "com.microsoft.nchwc"


def _in_parts(names: Sequence[str], sizes: Mapping[str, int], held: int) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    room = held
    for name in names:
        size = sizes.get(name, 0)
        if size > room and parts[-1]:
            parts.append([])
            room = held
        parts[-1].append(name)
        room -= size
    return parts


@dataclass(slots=True)
class Sizes:
    """An observer that learns how many bytes each value natively has."""

    found: dict[str, int] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        for name, value, fmt in zip(step.output_names, step.outputs, step.formats, strict=True):
            if name and value is not None and fmt is not None:
                self.found[name] = value.numel() * torch.empty((), dtype=storage(fmt)).element_size()

"""ONNX models in float64: :func:`lift_onnx` makes a :class:`~driftscope.lift.steps.Lifted` of a model and its feeds."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from driftscope.errors import CannotLift, InputError
from driftscope.lift.constant_cache import LiftedConstants
from driftscope.lift.kept import reuse, reusing
from driftscope.lift.onnx import contrib as _contrib  # noqa: F401  (fills the table of operators)
from driftscope.lift.onnx import ops as _operators  # noqa: F401  (fills the table of operators)
from driftscope.lift.onnx.constant_values import ConstantEvaluation
from driftscope.lift.onnx.element_types import Format, is_float, lifted_storage, storage, to_format, to_storage
from driftscope.lift.onnx.evaluation import GraphEvaluation, Seen
from driftscope.lift.onnx.functions import expand
from driftscope.lift.onnx.node_results import AskedFor
from driftscope.lift.onnx.plan import GraphPlan, NodePlan, Planner, schema_defaults
from driftscope.lift.onnx.registry import Value, find_operator, strings
from driftscope.lift.onnx.stored import Stored, format_of_element
from driftscope.lift.steps import Constant, LiftedOutput, Observer, Origin, constant_of
from driftscope.records.finding import Where
from driftscope.records.paths import Path as TreePath


def lift_onnx(model: onnx.ModelProto, feeds: Mapping[str, Any], *, directory: Path | None = None) -> LiftedOnnx:
    """Make a model ready to be evaluated in float64.

    Parameters
    ----------
    model : onnx.ModelProto
        Any opset from 7 on; its file need not be valid for a runtime.
    feeds : mapping of input name to torch.Tensor
        In the dtypes the graph declares; a float64 tensor is accepted for any float input and enters as it is.
        Sequences are lists of tensors, strings arrays of objects.
    directory : Path or None
        The model's folder, from which alone external data is read.

    Returns
    -------
    LiftedOnnx

    Raises
    ------
    InputError
        If a feed is missing, unknown, or of another dtype than the graph declares.
    ProgramError
        If the graph has a cycle, is not in topological order, or a constant cannot be read.
    """
    return LiftedOnnx(model, feeds, directory)


class LiftedOnnx:
    """An ONNX model with its inputs, evaluated in float64 (see :class:`~driftscope.lift.steps.Lifted`).

    ``stored`` are constants beside those of the model.
    """

    kind = "onnx"

    def __init__(
        self, model: onnx.ModelProto, feeds: Mapping[str, Any], directory: Path | None = None,
        stored: Sequence[onnx.TensorProto] = (),
    ):  # fmt: skip
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._planner = Planner(directory, self._functions)
        opsets = {o.domain: o.version for o in model.opset_import}
        self._opsets = {"": 1, **opsets}
        self._plan: GraphPlan = self._planner.graph(model.graph, self._opsets, self._planner.names, stored)
        self._output_names = [o.name for o in model.graph.output]
        self._feeds = _bind(model.graph, feeds, self._plan)
        self._device = torch.device("cpu")
        self._seen: Seen | None = None
        self._cache = LiftedConstants(sum(math.prod(stored.shape) for stored in self._plan.stored.values()))
        # Decoded constants of single precision take half as much.
        self._planner.room.left = max(self._planner.room.left, self._cache.room // 2)
        self._former: dict[str, Sequence[int]] = {name: () for name, _, _ in self._attributes()}
        self._former |= {name: stored.shape for name, stored in self._plan.stored.items()}

    @property
    def largest(self) -> int:
        """Elements of the largest tensor that it stores or is fed."""
        fed = (value.data.numel() for value in self._feeds.values() if isinstance(value.data, torch.Tensor))
        return max((*(math.prod(stored.shape) for stored in self._plan.stored.values()), *fed), default=0)

    def attribute_numbers(self) -> list[Constant]:
        """Every float attribute of its nodes, whether or not a run meets it: no run is needed to know them."""
        return [
            Constant(name, torch.tensor(value, dtype=torch.float32), Origin.ATTRIBUTE, node.where)
            for name, value, node in self._attributes()
        ]

    def _attributes(self) -> Iterator[tuple[str, float, NodePlan]]:
        for node in self._plan.nodes:
            for name, value in {**node.defaults, **node.attributes}.items():
                if isinstance(value, float):
                    yield f"{node.name}.{name}", value, node

    def stored_tensors(self) -> list[Constant]:
        """Every stored float tensor outside branches, whether or not a run meets it."""
        return [
            Constant(name, to_format(value.data, value.format), Origin.WEIGHT, Where())
            for name, stored in self._plan.stored.items()
            for value in (stored.load(),)
            if isinstance(value.data, torch.Tensor) and is_float(value.format)
        ]

    def constants(self) -> Sequence[Constant]:
        """Every constant: stored ones, float attributes, and results of constant subgraphs at the frontier.

        Attributes and computed constants are those a run meets, so the graph is evaluated once if it has not
        been yet. A tensor that nobody reads is none. Stored values are decoded anew on every call.
        """
        seen = self._known()
        read = seen.used.keys() | seen.read.keys() | set(self._plan.outputs)
        found = [
            Constant(
                name=name,
                value=to_format(value.data, value.format),
                origin=Origin.WEIGHT,
                where=_place(seen, name),
                frontier=name in seen.used,
            )
            for name, stored in seen.stored.items()
            if name in read
            for value in (stored.load(),)
            if _is_listed(stored, value)
        ]
        idle = {node.name for node in self._plan.nodes if node.idle}
        own = (c for c in seen.attributes.values() if c.where.node not in idle)
        return [*found, *own, *seen.computed.values()]

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        """Evaluate once in float64 (see :meth:`driftscope.lift.steps.Lifted.run`)."""
        return self._outputs(self.values(observe, replace))

    def run_asked(self, names: Collection[str]) -> tuple[list[LiftedOutput], dict[str, Value]]:
        """Evaluate once as the graph is stored; also give values on the way, by name, as far as there is room."""
        asked = AskedFor(names)
        return self._outputs(self.values(asked=asked)), asked.values

    def _outputs(self, values: Sequence[Value]) -> list[LiftedOutput]:
        named = zip(self._output_names, values, strict=True)
        return [leaf for name, value in named for leaf in self._leaves(TreePath((name,)), name, value)]

    def values(
        self, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None,
        asked: AskedFor | None = None,
    ) -> list[Value]:  # fmt: skip
        """Evaluate once and return the graph's outputs as they are, sequences and strings included.

        ``asked`` takes values on the way.
        """
        replace, how = self._checked(replace or {}), reuse()
        seen = Seen()
        evaluation = GraphEvaluation(self._device, self._expand, seen, observe, replace, self._cache, how, asked)
        outputs = evaluation.graph(self._plan, self._feeds)
        # What is taken from another run meets no constants.
        if self._seen is None and not replace and how is None:
            self._seen = seen
        found = [evaluation.lift(value, "") for value in outputs]
        if asked is not None:
            asked.take_rest(evaluation.held)  # outputs, and what is stored
        evaluation.rooms.clear()
        return found

    def constant_values(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Evaluate the constant subgraphs alone, in float64 (see :meth:`~driftscope.lift.steps.Lifted`)."""
        # Tables are computed from sizes too, and these come of a run.
        sizes = self._known().sizes
        evaluation = ConstantEvaluation(self._device, self._expand, Seen(), observe, self._checked(replace or {}))
        return evaluation.values_of(self._plan, sizes)

    def with_attribute(self, step: str, name: str, value: object) -> LiftedOnnx:
        """Give the graph with another attribute of one node (see :class:`~driftscope.lift.steps.Lifted`)."""
        index, node = self._node(step)
        attributes = {**node.attributes, name: value.encode() if isinstance(value, str) else value}
        return self._edited(index, dataclasses.replace(node, attributes=attributes))

    def with_inputs(self, step: str, order: Sequence[int]) -> LiftedOnnx:
        """Give the graph with the inputs of one node in another order (see :class:`~driftscope.lift.steps.Lifted`)."""
        index, node = self._node(step)
        if len(node.inputs) < len(order):
            raise CannotLift(f"{step!r} has no {len(order)} inputs that could be exchanged")
        given = [*(node.inputs[k] for k in order), *node.inputs[len(order) :]]
        return self._edited(index, dataclasses.replace(node, inputs=given))

    def with_operator(self, step: str, operator: str) -> LiftedOnnx:
        """Give the graph with another operator in one node (see :class:`~driftscope.lift.steps.Lifted`)."""
        index, node = self._node(step)
        found = find_operator(node.domain, operator, node.version)
        if found is None or node.operator is None:
            raise CannotLift(f"{operator} cannot be evaluated in {step!r}")
        usual = schema_defaults(operator, node.domain, node.version)
        return self._edited(index, dataclasses.replace(node, op_type=operator, operator=found, defaults=usual))

    def with_values(self, change: Callable[[torch.Tensor], torch.Tensor]) -> LiftedOnnx:
        """Give the graph on other inputs (see :class:`~driftscope.lift.steps.Lifted`)."""
        moved = copy.copy(self)
        tensors = ((n, v, v.data) for n, v in self._feeds.items() if isinstance(v.data, torch.Tensor))
        moved._feeds = {**self._feeds, **{n: dataclasses.replace(v, data=change(data)) for n, v, data in tensors}}
        return moved

    def _node(self, step: str) -> tuple[int, NodePlan]:
        found = next(((k, n) for k, n in enumerate(self._plan.nodes) if n.name == step), None)
        if found is None:
            raise CannotLift(f"the graph has no node {step!r} that could be changed")
        return found

    def _edited(self, index: int, node: NodePlan) -> LiftedOnnx:
        changed = copy.copy(self)
        nodes = [*self._plan.nodes[:index], node, *self._plan.nodes[index + 1 :]]
        changed._plan = dataclasses.replace(self._plan, nodes=nodes)
        # An edited node may have none of the numbers that it had: what replaced them before has no effect.
        changed._former = self._former | self._shapes()
        changed._seen = None
        return changed

    def _known(self) -> Seen:
        """What a run meets; the graph is evaluated once if it has not been yet."""
        if self._seen is None:
            with reusing(None):
                self.run()
        return self._seen or Seen()

    def _checked(self, replace: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        if not replace:
            return replace
        # An edited graph is not run for the shapes of what its original has.
        names = {constant_of(used) for used in replace}
        shapes = self._former if names <= self._former.keys() else self._former | self._shapes()
        for used, value in replace.items():
            name = constant_of(used)
            if name not in shapes:
                raise InputError(f"The graph has no constant {name!r} to replace.")
            if tuple(value.shape) != tuple(shapes[name]):
                raise InputError(
                    f"Constant {name!r} has shape {list(shapes[name])} and its replacement {list(value.shape)}."
                )
        return replace

    def _shapes(self) -> dict[str, Sequence[int]]:
        """The shapes of its constants, by name."""
        seen = self._known()
        shapes: dict[str, Sequence[int]] = {name: stored.shape for name, stored in seen.stored.items()}
        return shapes | {name: c.value.shape for name, c in (*seen.attributes.items(), *seen.computed.items())}

    def _expand(self, plan: NodePlan, values: Sequence[Value | None]) -> Any:
        return expand(self._planner, plan, values)

    def _leaves(self, path: TreePath, name: str, value: Value) -> list[LiftedOutput]:
        if isinstance(value.data, list):
            leaves = [self._leaves(path / i, f"{name}[{i}]", v) for i, v in enumerate(value.data)]
            return [leaf for group in leaves for leaf in group]
        if not isinstance(value.data, torch.Tensor):
            return [LiftedOutput(path, name, None, None)]
        tensor = value.data if value.data.is_floating_point() else _own_integer(value.data, value.format)
        return [LiftedOutput(path, name, tensor, value.format)]


def _own_integer(tensor: torch.Tensor, format: Format) -> torch.Tensor:
    return tensor if tensor.is_complex() else to_format(tensor, format)


def _is_listed(stored: Stored, value: Value) -> bool:
    # Integers in Constant nodes are shapes and axes; an initializer may be a quantised weight.
    if not isinstance(value.data, torch.Tensor):
        return False
    return not stored.in_node or is_float(value.format)


def _place(seen: Seen, name: str) -> Where:
    reader = seen.used.get(name) or seen.read.get(name)
    return reader.where if reader is not None else Where()


def _bind(graph: onnx.GraphProto, feeds: Mapping[str, Any], plan: GraphPlan) -> dict[str, Value]:
    """Check feeds against the graph's inputs and lift them."""
    declared = {i.name: i.type for i in graph.input}
    unknown = [name for name in feeds if name not in declared]
    if unknown:
        raise InputError(
            f"The graph has no input {unknown[0]!r}; its inputs are {', '.join(map(repr, declared)) or 'none'}."
        )
    bound = {}
    for name, unique in zip(declared, plan.inputs, strict=True):
        if name in feeds:
            bound[unique] = _feed(name, feeds[name], declared[name])
        elif unique not in plan.stored:
            raise InputError(f"Input {name!r} of the graph has no value; give it a tensor.")
    return bound


def _feed(name: str, value: Any, declared: onnx.TypeProto) -> Value:
    if value is None:
        return Value(None, None, False)
    if isinstance(value, list | tuple):
        inner = declared.optional_type.elem_type if declared.HasField("optional_type") else declared
        items = [_feed(name, v, inner.sequence_type.elem_type) for v in value]
        return Value(items, items[0].format if items else None, False)
    if isinstance(value, np.ndarray):
        return Value(strings(value), None, False)
    if declared.HasField("optional_type"):
        return _feed(name, value, declared.optional_type.elem_type)
    native = format_of_element(declared.tensor_type.elem_type, name)
    if native is None or not isinstance(value, torch.Tensor):
        raise InputError(f"Input {name!r} is {type(value).__name__}, which the graph does not take; give a tensor.")
    fits = value.dtype in (native, lifted_storage(native), storage(native))
    if not fits:
        raise InputError(
            f"Input {name!r} is {str(value.dtype).removeprefix('torch.')} and the graph declares "
            f"{str(native).removeprefix('torch.')}; convert it."
        )
    # On the processor, as every program in float64.
    return Value(to_storage(value.detach().cpu()).to(lifted_storage(native)), native, False)

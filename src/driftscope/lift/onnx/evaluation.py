"""One run of a planned ONNX graph: values by name, each node evaluated natively or in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.lift.constant_cache import LiftedConstants, Rooms
from driftscope.lift.counting import counted
from driftscope.lift.formulas.terms import Number
from driftscope.lift.kept import KeptNode, Later, Reuse, bare
from driftscope.lift.onnx.element_types import is_inexact, lifted_storage
from driftscope.lift.onnx.node_results import AskedFor, as_before, default_format, stored_as, tensors
from driftscope.lift.onnx.plan import GraphPlan, NodePlan
from driftscope.lift.onnx.registry import InnerStep, Node, Operator, Result, Value
from driftscope.lift.onnx.stored import Stored
from driftscope.lift.steps import Constant, Observer, Origin, Rounding, Step, constant_of, use_of


@dataclass(slots=True)
class Seen:
    """Constants met in runs, by name."""

    attributes: dict[str, Constant] = field(default_factory=dict)
    computed: dict[str, Constant] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)
    used: dict[str, NodePlan] = field(default_factory=dict)  # stored constants that a lifted node reads
    read: dict[str, NodePlan] = field(default_factory=dict)  # stored constants that any node reads
    sizes: dict[str, Value] = field(default_factory=dict)  # what is known of inputs without their values


class GraphEvaluation:
    """Evaluates planned graphs once (the :class:`~.registry.Evaluation` that operators talk to).

    Parameters
    ----------
    device : torch.device
        Where lifted tensors live; constants are evaluated in host memory.
    expand : callable
        ``expand(plan, values)`` gives the body of a node that is a function, or None.
    seen : Seen
        Collects the constants met.
    observe : Observer or None
    replace : mapping of str to torch.Tensor
    cache : LiftedConstants or None
        Stored constants that stay lifted from one evaluation to the next.
    reuse : Reuse or None
        What another run of this graph gave, or where this one is kept.
    asked : AskedFor or None
        Takes values that would be forgotten.
    """

    def __init__(
        self,
        device: torch.device,
        expand: Callable[[NodePlan, Sequence[Value | None]], GraphPlan | Operator],
        seen: Seen,
        observe: Observer | None,
        replace: Mapping[str, torch.Tensor],
        cache: LiftedConstants | None = None,
        reuse: Reuse | None = None,
        asked: AskedFor | None = None,
    ):
        self._reuse = reuse
        self._asked = asked
        self._cache = LiftedConstants() if cache is None else cache
        self.rooms = Rooms()
        self.device = device
        self.observed = observe is not None
        self._observe = observe
        self._expand = expand
        self._seen = seen
        self._replace = replace
        self._by_use = any(constant_of(name) != name for name in replace)
        self._stored = seen.stored
        self._values: dict[str, Value] = {}
        self._index = 0
        self._begun = False
        self._interrupted: BaseException | None = None

    def graph(self, plan: GraphPlan, arguments: Mapping[str, Value]) -> list[Value]:
        """Evaluate a graph with values for its inputs; inputs not given must be stored."""
        nodes = plan.nodes if self._begun else counted(plan.nodes)
        self._begun = True
        self._stored.update(plan.stored)
        self._values.update(arguments)
        for node in nodes:
            self._node(node)
            for name in node.release:
                if self._asked is not None:
                    self._asked.take(name, self._values.get(name))
                self._values.pop(name, None)
        return [self._read(name, None) if name else Value(None) for name in plan.outputs]

    def held(self, name: str) -> Value | None:
        """A value that is there once the graph was evaluated."""
        return self._read(name, None) if name in self._values or name in self._stored else None

    def _read(self, name: str, reader: NodePlan | None) -> Value:
        value = self._values.get(name)
        if value is not None:
            return value
        stored = self._stored.get(name)
        if stored is None:
            raise CannotLift(f"value {name!r} is used before it is computed")
        if reader is not None and not reader.idle:
            self._seen.read.setdefault(name, reader)
        replacement = self._replace.get(name)
        if self._by_use and reader is not None:
            replacement = self._replace.get(use_of(name, reader.name), replacement)
        if replacement is None:
            return stored.load()
        native = stored.format
        dtype = lifted_storage(native) if native is not None else replacement.dtype
        return Value(replacement.to(device=self.device, dtype=dtype), native, constant=False)

    def _node(self, plan: NodePlan) -> None:
        values = [self._read(name, plan) if name else None for name in plan.inputs]
        operator = plan.operator
        if operator is None:
            body = self._expand(plan, values)
            if isinstance(body, GraphPlan):
                self._function(plan, body, values)
                return
            operator = body
        if operator.values:
            self._structured(plan, operator, values)
            return
        if operator.constant is None:
            constant = all(v is None or v.constant for v in values) and not self._other_numbers(plan)
        else:
            constant = operator.constant
        outputs = self._stepped(plan, operator, values, constant)
        if operator.constant:
            self._seen.sizes.update(zip(plan.outputs, outputs, strict=False))
        self._keep(plan, outputs)

    def _stepped(
        self, plan: NodePlan, operator: Operator, values: Sequence[Value | None], constant: bool
    ) -> list[Value]:
        """What a node gives, computed or as another run had it, after the observer has seen it."""
        node = Node(plan, self, [None if v is None else v.format for v in values], not constant)
        if self._reuse is None and self._observe is None:  # nobody looks
            return self._apply(node, operator, self._given(plan, operator, values, constant), constant)[0]
        reuse, held = self._reuse, [v is not None and v.constant for v in values]
        before = None if reuse is None or plan.subgraphs else reuse.begin(plan)
        fed = () if reuse is None else self._fed(plan)
        if before is not None and reuse is not None and reuse.same(before, fed):
            made, rounding, inner = list(before.made), before.rounding, before.inner
            for step in inner:
                self._ask(step)
            later = Later(lambda: tensors(self._given(plan, operator, values, constant)), len(values))
            outputs = self._step(plan, later, made, rounding, constant, held)
        else:
            given = self._given(plan, operator, values, constant)
            made, rounding = self._apply(node, operator, given, constant)
            inner = () if reuse is None else tuple(reuse.inner)
            outputs = self._step(plan, tensors(given), made, rounding, constant, held)
        if reuse is not None:
            outputs = as_before(outputs, before)
            kept = KeptNode(fed, made, bare(rounding), inner, outputs)
            reuse.keep(plan, kept, tensors(v.data for v in (*made, *outputs)))
        return outputs

    def _fed(self, plan: NodePlan) -> tuple[Any, ...]:
        """What the result of a node depends on: values on the way, and what replaces constants."""
        fed: list[Any] = [self._values.get(name) for name in plan.inputs]
        if self._replace:
            fed += [self._replace.get(name) for name in (*plan.inputs, *plan.outputs)]
            fed += [self._replace.get(use_of(name, plan.name)) for name in plan.inputs if self._by_use]
            fed += [value for name, value in self._replace.items() if name.startswith(f"{plan.name}.")]
        return tuple(fed)

    def _given(
        self, plan: NodePlan, operator: Operator, values: Sequence[Value | None], constant: bool
    ) -> Sequence[Any]:
        if constant:
            return [None if v is None else v.data for v in values]
        return self._lifted_inputs(plan, operator, values)

    def _other_numbers(self, plan: NodePlan) -> dict[str, float]:
        """Float attributes of a node that are replaced: with some, it is evaluated again, in float64."""
        names = {*plan.attributes, *plan.defaults} if self._replace else ()
        return {a: float(self._replace[full]) for a in names if (full := f"{plan.name}.{a}") in self._replace}

    def _lifted_inputs(self, plan: NodePlan, operator: Operator, values: Sequence[Value | None]) -> list[Any]:
        tensors: list[Any] = []
        for index, (name, value) in enumerate(zip(plan.inputs, values, strict=True)):
            if value is None:
                tensors.append(None)
            elif not value.constant or (index in operator.host and not is_inexact(value.format)):
                tensors.append(value.data)
            else:
                tensors.append(self._frontier(value, name, plan).data)
        return tensors

    def _apply(
        self, node: Node, operator: Operator, tensors: Sequence[Any], constant: bool
    ) -> tuple[list[Value], Rounding]:
        try:
            result = operator.function(node, *tensors)
            rounding, formats = Rounding(operator.kind), ()
            if isinstance(result, Result):
                result, rounding, formats = result.outputs, result.rounding, result.formats or ()
            data = result if isinstance(result, (tuple, list)) else (result,)
            values = []
            for index, item in enumerate(data[: len(node.output_names)]):
                given = formats[index] if index < len(formats) else None
                native = given if given is not None else default_format(item, node.formats, tensors)
                values.append(Value(stored_as(item, native, constant), native, constant))
        except Exception as error:
            if self._is_said(error):
                raise
            words = str(error).split("\n", 1)[0] or type(error).__name__
            raise CannotLift(f"{node} cannot be evaluated in float64: {words}") from error
        return values, rounding

    def _structured(self, plan: NodePlan, operator: Operator, values: Sequence[Value | None]) -> None:
        node = Node(plan, self, [None if v is None else v.format for v in values], lifted=True)
        try:
            outputs = list(operator.function(node, *values))
            if not all(isinstance(v, Value) for v in outputs):
                raise TypeError("its input is not a sequence")
        except Exception as error:
            if self._is_said(error):
                raise
            words = str(error).split("\n", 1)[0] or type(error).__name__
            raise CannotLift(f"{node} cannot be evaluated in float64: {words}") from error
        inputs = tensors(None if v is None else v.data for v in values)
        constant = bool(outputs) and all(v.constant for v in outputs)
        self._keep(plan, self._step(plan, inputs, outputs, Rounding(), constant))

    def _function(self, plan: NodePlan, body: GraphPlan, values: Sequence[Value | None]) -> None:
        padded = [*values, *[None] * (len(body.inputs) - len(values))]
        arguments = {name: v or Value(None, None, True) for name, v in zip(body.inputs, padded, strict=True)}
        outputs = self.graph(body, arguments)
        for name in (*body.inputs, *body.outputs):
            self._values.pop(name, None)
        constant = all(v.constant for v in outputs)
        inputs = tensors(None if v is None else v.data for v in values)
        self._keep(plan, self._step(plan, inputs, outputs, Rounding(), constant))

    def _keep(self, plan: NodePlan, outputs: Sequence[Value]) -> None:
        for name, value in zip(plan.outputs, outputs, strict=False):
            if not name:
                continue
            # A computed constant that is replaced, of others that are replaced: it is no constant any more.
            new = None if value.constant else self._replace.get(name)
            if new is not None and is_inexact(value.format):
                value = Value(new.to(device=self.device, dtype=torch.float64), value.format, False)
            self._values[name] = value

    def _is_said(self, error: Exception) -> bool:
        """Whether an error out of an operator goes on as it is: an observer's own, or one that says it all.

        A malformed node makes torch raise nearly anything; the rest is evidence that the node cannot be lifted.
        """
        return error is self._interrupted or isinstance(error, CannotLift | DriftscopeError | MemoryError)

    def _ask(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        if self._observe is None:
            return None
        try:
            return self._observe(step)
        except BaseException as error:
            self._interrupted = error
            raise

    def lift(self, value: Value, name: str, reader: NodePlan | None = None) -> Value:
        """Bring a constant into the lifted part of the graph, where ``reader`` uses it."""
        return self._frontier(value, name, reader) if value.constant else value

    def _frontier(self, value: Value, name: str, reader: NodePlan | None) -> Value:
        if isinstance(value.data, list):
            lifted = [self._frontier(v, f"{name}[{i}]", reader) for i, v in enumerate(value.data)]
            return Value(lifted, value.format, False)
        if not isinstance(value.data, torch.Tensor):
            return Value(value.data, value.format, False)
        if name in self._stored:
            if reader is not None and not reader.idle:
                self._seen.used.setdefault(name, reader)
        elif is_inexact(value.format) and name:
            if reader is not None and not reader.idle and name not in self._seen.computed:
                constant = Constant(name, value.data, Origin.COMPUTED, reader.where)
                self._seen.computed[name] = constant
            replacement = self._replace.get(name)
            if replacement is not None:
                return Value(replacement.to(device=self.device, dtype=torch.float64), value.format, False)
        dtype = value.data.dtype if value.format is None else lifted_storage(value.format)
        return Value(self._up_cast(value.data, dtype, name), value.format, False)

    def _up_cast(self, data: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
        """Lift a constant; a stored one stays lifted while there is room."""
        if dtype == data.dtype or name not in self._stored:
            return data.to(device=self.device, dtype=dtype)
        held = self._cache.get(name)
        if held is not None:
            return held
        if not self._cache.takes(name, data.numel()):
            room = self.rooms.up_cast(data, dtype) if self.device.type == "cpu" else None
            return data.to(device=self.device, dtype=dtype) if room is None else room
        held = data.to(device=self.device, dtype=dtype)
        self._cache.hold(name, held)
        return held

    def attribute(self, node: Node, name: str, stored: float, *, exact: bool = False) -> Number:
        """The value of a float attribute: its replacement, or what is stored, in float32 if it is not exact."""
        full = f"{node.name}.{name}"
        known = self._seen.attributes.get(full)
        if known is None:
            tensor = torch.tensor(stored, dtype=torch.float64 if exact else torch.float32)
            origin = Origin.LITERAL if exact else Origin.ATTRIBUTE
            known = Constant(full, tensor, origin, node.plan.where, node.lifted)
            self._seen.attributes[full] = known
        replacement = self._replace.get(full)
        if replacement is not None:
            return replacement.to(device=self.device, dtype=torch.float64).reshape(())
        return float(known.value) if node.lifted else stored

    def evaluate(self, node: Node, attribute: str, arguments: Sequence[Value]) -> list[Value]:
        """Evaluate a subgraph of a node."""
        plan: GraphPlan | None = node.plan.subgraphs.get(attribute)
        if plan is None:
            raise CannotLift(f"{node} has no subgraph {attribute!r}")
        if len(arguments) != len(plan.inputs):
            raise CannotLift(f"{node}: its {attribute!r} takes {len(plan.inputs)} inputs, not {len(arguments)}")
        given = dict(zip(plan.inputs, arguments, strict=True))
        outputs = self.graph(plan, given)
        own = {*plan.inputs, *(name for n in plan.nodes for name in n.outputs)}
        for name in plan.outputs:
            if name in own:
                self._values.pop(name, None)
        return outputs

    def captured(self, node: Node) -> list[Value]:
        """Outer values that a node's subgraphs read."""
        return [self._read(name, node.plan) for name in node.plan.captured]

    def inner(self, node: Node, operator: str, step: InnerStep) -> torch.Tensor:
        """Show a step inside a fused operator."""
        shown = Step(
            index=self._index,
            name=f"{node.name}/{operator}",
            operator=operator,
            where=node.plan.where,
            input_names=[""] * len(step.inputs),
            output_names=[f"{node.name}/{operator}"],
            inputs=step.inputs,
            outputs=[step.output],
            formats=[step.format],
            rounding=step.rounding,
            attributes={},
        )
        self._index += 1
        if self._reuse is not None:
            self._reuse.saw(shown, [None] * len(step.inputs))
        replaced = self._ask(shown)
        return step.output if replaced is None or replaced[0] is None else replaced[0]

    def _step(
        self,
        plan: NodePlan,
        inputs: Sequence[torch.Tensor | None],
        outputs: list[Value],
        rounding: Rounding,
        constant: bool,
        held: Sequence[bool] = (),
    ) -> list[Value]:
        if self._observe is None:
            self._index += 1
            return outputs
        step = Step(
            index=self._index,
            name=plan.name,
            operator=plan.op_type,
            where=plan.where,
            input_names=plan.inputs,
            output_names=plan.outputs,
            inputs=inputs,
            outputs=tensors(v.data for v in outputs),
            formats=[v.format for v in outputs],
            rounding=rounding,
            attributes={**plan.attributes, **self._other_numbers(plan)},
            constant=constant,
            traced=plan.traced,
            held=held,
        )
        self._index += 1
        replaced = self._ask(step)
        if replaced is None:
            return outputs
        return [
            old if new is None or constant else Value(new, old.format, False)
            for old, new in zip(outputs, replaced, strict=True)
        ]

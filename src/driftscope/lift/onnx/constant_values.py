"""The part of an ONNX graph that depends on no input, evaluated in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from driftscope.errors import CannotLift
from driftscope.lift.onnx.element_types import is_inexact
from driftscope.lift.onnx.evaluation import GraphEvaluation
from driftscope.lift.onnx.plan import GraphPlan, NodePlan
from driftscope.lift.onnx.registry import Operator, Value
from driftscope.lift.steps import Kind


class ConstantEvaluation(GraphEvaluation):
    """Evaluates the part of a graph that depends on no input, in float64."""

    def values_of(self, plan: GraphPlan, sizes: Mapping[str, Value]) -> dict[str, torch.Tensor]:
        """Give every real value that nodes compute from stored constants and ``sizes``, by name."""
        self._stored.update(plan.stored)
        self._values.update(sizes)
        found: dict[str, torch.Tensor] = {}
        for node in plan.nodes:
            operator = node.operator
            if operator is not None and (operator.constant is not None or (operator.values and not _hands_on(node))):
                continue
            if not node.inputs or not all(not name or self._knows(name) for name in node.inputs):
                continue
            try:
                self._node(node)
            except CannotLift:
                continue
            for name in node.outputs:
                value = self._values.get(name)
                if value is not None and isinstance(value.data, torch.Tensor) and is_inexact(value.format):
                    found[name] = value.data if not value.constant else self._frontier(value, name, None).data
        return found

    def _knows(self, name: str) -> bool:
        return name in self._values or name in self._stored

    def _stepped(
        self, plan: NodePlan, operator: Operator, values: Sequence[Value | None], constant: bool
    ) -> list[Value]:
        # What a function makes of whole numbers alone, as a window of its length, it rounds.
        return super()._stepped(plan, operator, values, constant and operator.kind is not Kind.FUNCTION)

    def _read(self, name: str, reader: NodePlan | None) -> Value:
        value = super()._read(name, reader)
        # A constant float is lifted from the start, so that nothing that follows is evaluated natively.
        return self._frontier(value, name, None) if value.constant and is_inexact(value.format) else value


def _hands_on(node: NodePlan) -> bool:
    """Whether a node that reads whole values, sequences too, makes one tensor of another: no list and no branch."""
    return node.op_type in ("Identity", "CastLike")

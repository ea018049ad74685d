"""Nodes without an operator of ours: model functions, function bodies of the ONNX schema, the reference evaluator."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch

from driftscope.errors import CannotLift
from driftscope.lift.onnx.element_types import ELEMENT_OF_FORMAT, STRING_ELEMENT, array_to_tensor, storage
from driftscope.lift.onnx.plan import GraphPlan, NodePlan, Planner, schema_of
from driftscope.lift.onnx.registry import Node, Operator, Result, Value, find_operator, strings
from driftscope.lift.steps import Kind

# The reference evaluator computes these in another way than the schema says.
_NOT_BY_REFERENCE = frozenset({"LayerNormalization"})
# Trees and encoders decide: they see what the native program sees, still in float64.
_DECIDING = frozenset(
    {
        "TreeEnsemble",
        "TreeEnsembleClassifier",
        "TreeEnsembleRegressor",
        "LabelEncoder",
        "CategoryMapper",
        "OneHotEncoder",
    }
)
_REFERENCE_MODULES = {"": "onnx.reference.ops", "ai.onnx.ml": "onnx.reference.ops.aionnxml"}


def expand(planner: Planner, plan: NodePlan, values: Sequence[Value | None]) -> GraphPlan | Operator:
    """Find what a node without an operator of ours stands for.

    Returns
    -------
    GraphPlan
        The body of the model's function, or of the ONNX schema's, planned for this call.
    Operator
        One that asks onnx's reference evaluator.

    Raises
    ------
    CannotLift
        Naming operator, domain and node.
    """
    local = planner.functions.get((plan.proto.domain, plan.op_type, plan.proto.overload))
    if local is not None:
        if "body" not in plan.bodies:
            plan.bodies["body"] = planner.function(local, plan, plan.opsets)
        return plan.bodies["body"]
    key = tuple(None if v is None else (v.format, _shape(v)) for v in values)
    if key not in plan.bodies:
        body = _schema_body(plan, values)
        if body is not None:
            plan.bodies[key] = planner.function(body, plan, plan.opsets)
    if key in plan.bodies:
        return plan.bodies[key]
    return _by_reference(plan)


def _shape(value: Value) -> tuple[int, ...] | None:
    return tuple(value.data.shape) if isinstance(value.data, torch.Tensor | np.ndarray) else None


def _schema_body(plan: NodePlan, values: Sequence[Value | None]) -> onnx.FunctionProto | None:
    schema = schema_of(plan.op_type, plan.domain, plan.version)
    if schema is None:
        return None
    body = None
    if schema.has_function:
        body = schema.get_function_with_opset_version(_best(schema.function_opset_versions, plan.version))
    elif schema.has_context_dependent_function:
        version = _best(schema.context_dependent_function_opset_versions, plan.version)
        types = [_type_bytes(value) for value in values]
        body = schema.get_context_dependent_function_with_opset_version(version, plan.proto.SerializeToString(), types)
    if not body:
        return None
    return body if isinstance(body, onnx.FunctionProto) else onnx.FunctionProto.FromString(body)


def _best(versions: Sequence[int], version: int) -> int:
    fitting = [v for v in versions if v <= version]
    return max(fitting) if fitting else min(versions)


def _type_bytes(value: Value | None) -> bytes:
    if value is None or not isinstance(value.data, torch.Tensor | np.ndarray):
        return bytes(onnx.TypeProto().SerializeToString())
    element = STRING_ELEMENT if value.format is None else ELEMENT_OF_FORMAT[value.format]
    return bytes(onnx.helper.make_tensor_type_proto(element, list(value.data.shape)).SerializeToString())


def _by_reference(plan: NodePlan) -> Operator:
    label = f"operator {plan.domain + '::' if plan.domain else ''}{plan.op_type}"
    where = f"domain {plan.domain or 'ai.onnx'!r}, opset {plan.version}, node {plan.name!r}"
    if plan.op_type in _NOT_BY_REFERENCE or find_operator(plan.domain, plan.op_type, 10**6) is not None:
        raise CannotLift(f"{label} has no float64 evaluation at this opset version ({where})")
    module = _REFERENCE_MODULES.get(plan.domain)
    try:
        if module is None:
            raise CannotLift(f"{label} is not an operator of ONNX")
        importlib.import_module(module).load_op(plan.domain, plan.op_type, plan.version)
    except Exception as error:  # its own errors, KeyError and NotImplementedError alike
        raise CannotLift(f"{label} has no float64 evaluation ({where})") from error
    return Operator(_reference, kind=Kind.FUNCTION)


def _reference(node: Node, *inputs: Any) -> Result | tuple[Any, ...]:
    """Evaluate one node with onnx's reference evaluator, floats in the dtype they arrive in."""
    from onnx.reference import ReferenceEvaluator

    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    plan = node.plan
    proto = onnx.NodeProto(op_type=plan.op_type, domain=plan.domain, input=names)
    proto.output.extend(f"y{i}" if name else "" for i, name in enumerate(plan.outputs))
    for attribute in plan.proto.attribute:
        if not attribute.ref_attr_name:
            proto.attribute.append(attribute)
        elif attribute.name in plan.attributes:
            proto.attribute.append(onnx.helper.make_attribute(attribute.name, plan.attributes[attribute.name]))
    feeds, infos = {}, []
    for index, (name, data) in enumerate(zip(names, inputs, strict=True)):
        if not name:
            continue
        native = node.format(index)
        decides = plan.op_type in _DECIDING and isinstance(data, torch.Tensor)
        feeds[name] = _to_numpy(node.rounded(data, index) if decides else data, native)
        element = STRING_ELEMENT if native is None else ELEMENT_OF_FORMAT[native]
        infos.append(onnx.helper.make_tensor_value_info(name, element, None))
    outputs = [onnx.helper.make_tensor_value_info(o, onnx.TensorProto.UNDEFINED, None) for o in proto.output if o]
    graph = onnx.helper.make_graph([proto], "node", infos, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(plan.domain, plan.version)])
    try:
        results = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:  # whatever it raises, the node cannot be evaluated
        raise node.refuse(str(error).split("\n", 1)[0]) from error
    return tuple(_from_numpy(result, node.device) for result in results)


def _to_numpy(data: Any, format: torch.dtype | None) -> Any:
    if not isinstance(data, torch.Tensor):
        return data
    if format is not None and not data.is_floating_point() and storage(format) != format:
        return data.cpu().numpy().astype(onnx.helper.tensor_dtype_to_np_dtype(ELEMENT_OF_FORMAT[format]))
    return data.cpu().numpy()


def _from_numpy(result: Any, device: torch.device) -> Any:
    array = np.asarray(result)
    if array.dtype == object or array.dtype.kind in "SU":
        return strings(array)
    return array_to_tensor(array).to(device)

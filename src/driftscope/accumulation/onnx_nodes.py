"""One node of an ONNX model as a kernel: the same operator, attributes and runtime, alone in a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from driftscope.accumulation.kernels import Kernel, Meter
from driftscope.accumulation.products import first_column, weight_matrix
from driftscope.errors import InputError
from driftscope.programs.loading import onnx_program
from driftscope.programs.onnx_files import model_of

Array = npt.NDArray[Any]

_TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}
_REDUCTIONS = ("ReduceSum", "ReduceMean")
_PRODUCTS = ("MatMul", "Gemm")


def open_node(text: str, n: int, dtype: str, shape: Any, threads: int | None, meter: Meter) -> Kernel:
    """Make a kernel of ``"model.onnx:output"``.

    Raises
    ------
    InputError
        If no node computes that value, or the node is no sum or product that can be asked for its order.
    """
    from driftscope.accumulation.opening import checked_rows, sizes_of

    path, _, output = text.rpartition(":")
    if dtype not in _TYPES:
        raise InputError(f"{text}: onnxruntime takes terms in {', '.join(_TYPES)} here, not {dtype}")
    model = onnx.shape_inference.infer_shapes(model_of(path).proto)
    node = next((node for node in model.graph.node if output in node.output), None)
    if node is None:
        names = [name for node in model.graph.node if node.op_type in _REDUCTIONS + _PRODUCTS for name in node.output]
        raise InputError(f"{path} computes no {output!r}; sums and products in it: {', '.join(names[:12]) or 'none'}")
    _check_type(model, node, dtype, text)
    if node.op_type in _REDUCTIONS:
        _check_axis(model, node, text)
        reduction = ReductionNode(text, node, _opsets(model), n, dtype, threads, meter)
        return checked_rows(reduction, shape)
    if node.op_type in _PRODUCTS:
        _check_product(model, node, text)
        sizes = _product_sizes(model, node, n, None if shape is None else sizes_of(shape), text)
        return ProductNode(text, node, _opsets(model), sizes, dtype, threads, meter)
    raise InputError(
        f"{text} is computed by {node.op_type}; an order can be asked of {', '.join(_REDUCTIONS + _PRODUCTS)}"
    )


class _Node(Kernel):
    def __init__(self, name: str, n: int, dtype: str, threads: int | None, meter: Meter):
        super().__init__(name, n, dtype, meter)
        self._threads = threads
        import onnxruntime

        self.library = f"onnxruntime {onnxruntime.__version__}"

    def _session(self, graph: onnx.GraphProto, opsets: list[Any]) -> Any:
        model = helper.make_model(graph, opset_imports=opsets)
        # The newest file format that every supported onnxruntime reads; the operators have their own versions.
        model.ir_version = min(model.ir_version, 10)
        return onnx_program(model, threads=self._threads).session  # type: ignore[attr-defined]


class ReductionNode(_Node):
    """ReduceSum or ReduceMean over the last axis."""

    def __init__(
        self, name: str, node: onnx.NodeProto, opsets: list[Any], n: int, dtype: str, threads: int | None, meter: Meter
    ):
        super().__init__(name, n, dtype, threads, meter)
        version = next(o.version for o in opsets if o.domain in ("", "ai.onnx"))
        as_input = version >= (13 if node.op_type == "ReduceSum" else 18)
        alone = helper.make_node(node.op_type, ["x", "axes"] if as_input else ["x"], ["y"], keepdims=0)
        if not as_input:
            alone.attribute.append(helper.make_attribute("axes", [-1]))
        kind = _TYPES[dtype]
        graph = helper.make_graph(
            [alone], "sum",
            [helper.make_tensor_value_info("x", kind, ["rows", n])],
            [helper.make_tensor_value_info("y", kind, ["rows"])],
            [numpy_helper.from_array(np.asarray([-1], np.int64), "axes")] if as_input else [],
        )  # fmt: skip
        self._run = self._session(graph, opsets)

    def run(self, x: Array) -> Array:
        return np.asarray(self._run.run(None, {"x": x})[0])


class ProductNode(_Node):
    """MatMul or Gemm of (M, K) by a constant (K, N)."""

    products = True

    def __init__(
        self, name: str, node: onnx.NodeProto, opsets: list[Any], sizes: tuple[int, int, int], dtype: str,
        threads: int | None, meter: Meter,
    ):  # fmt: skip
        super().__init__(name, sizes[1], dtype, threads, meter)
        self.shape, self.rows = sizes, sizes[0]
        self._node, self._opsets, self._columns = node, opsets, sizes[2]
        self._transposed = bool(_attribute(node, "transB", 0))
        self.use_weights(None)

    def use_weights(self, weights: Array | None) -> None:
        # A constant, as in the model: onnxruntime packs it beforehand and may choose another kernel for it.
        b = weight_matrix(self.n, self._columns, self.dtype, weights, self._transposed)
        kind, m = _TYPES[self.dtype], self.rows
        constants = [numpy_helper.from_array(b, "b")]
        if len(self._node.input) > 2 and self._node.input[2]:
            constants.append(numpy_helper.from_array(np.zeros(self._columns, b.dtype), "c"))
        alone = helper.make_node(self._node.op_type, ["x", *(c.name for c in constants)], ["y"])
        alone.attribute.extend(self._node.attribute)
        graph = helper.make_graph(
            [alone], "product",
            [helper.make_tensor_value_info("x", kind, [m, self.n])],
            [helper.make_tensor_value_info("y", kind, [m, self._columns])],
            constants,
        )  # fmt: skip
        self._run = self._session(graph, self._opsets)

    def run(self, x: Array) -> Array:
        return first_column(self, np.asarray(self._run.run(None, {"x": x})[0]))


def _opsets(model: onnx.ModelProto) -> list[Any]:
    return list(model.opset_import)


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def _value_types(model: onnx.ModelProto) -> dict[str, Any]:
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    return {value.name: value.type.tensor_type for value in values}


def _constant(model: onnx.ModelProto, name: str) -> Array | None:
    tensor = next((t for t in model.graph.initializer if t.name == name), None)
    if tensor is None:
        node = next((n for n in model.graph.node if name in n.output and n.op_type == "Constant"), None)
        tensor = None if node is None else _attribute(node, "value", None)
    return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))


def _check_type(model: onnx.ModelProto, node: onnx.NodeProto, dtype: str, text: str) -> None:
    kind = _value_types(model).get(node.output[0])
    if kind is not None and kind.elem_type not in (TensorProto.UNDEFINED, _TYPES[dtype]):
        stored = TensorProto.DataType.Name(kind.elem_type).lower()
        raise InputError(f"{text} is computed in ONNX type {stored}; give that as dtype, not {dtype}")


def _check_axis(model: onnx.ModelProto, node: onnx.NodeProto, text: str) -> None:
    axes = _attribute(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1]:
        constant = _constant(model, node.input[1])
        axes = None if constant is None else constant.ravel().tolist()
    kind = _value_types(model).get(node.input[0])
    rank = len(kind.shape.dim) if kind is not None and kind.HasField("shape") else None
    last = [-1] if rank is None else [-1, rank - 1]
    if axes is None and rank == 1:
        return
    if axes is None or len(axes) != 1 or axes[0] not in last:
        raise InputError(f"{text} reduces axes {axes}; an order can be asked of the last axis alone")


def _check_product(model: onnx.ModelProto, node: onnx.NodeProto, text: str) -> None:
    if _attribute(node, "transA", 0) or _attribute(node, "alpha", 1.0) != 1:
        raise InputError(f"{text} transposes or scales its first operand (transA, alpha); that is not supported")


def _product_sizes(
    model: onnx.ModelProto, node: onnx.NodeProto, n: int, asked: tuple[int, ...] | None, text: str
) -> tuple[int, int, int]:
    weight = _constant(model, node.input[1])
    stored = None
    if weight is not None and weight.ndim == 2:
        stored = weight.shape[::-1] if _attribute(node, "transB", 0) else weight.shape
    if asked is None:
        asked = (32, n, int(stored[1]) if stored is not None else 32)
    if len(asked) != 3 or asked[1] != n:
        raise InputError(f"{text} takes shape (M, K, N) with K = n = {n}, not {asked}")
    if stored is not None and tuple(stored) != asked[1:]:
        raise InputError(f"the weight of {text} is {tuple(stored)} (K, N), not {asked[1:]}")
    return asked[0], asked[1], asked[2]

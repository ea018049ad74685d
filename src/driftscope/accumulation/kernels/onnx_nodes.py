"""``"model.onnx:output"`` as a kernel: the node that computes that value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.onnx_calls import (
    OPERATORS,
    PRODUCTS,
    REDUCTIONS,
    TYPES,
    NodeCall,
    attribute,
    node_kernel,
)
from driftscope.accumulation.kernels.operand_layouts import Sizes, sizes_of
from driftscope.errors import InputError
from driftscope.programs.loading.external_data import is_external
from driftscope.programs.loading.onnx_files import model_of

Array = npt.NDArray[Any]


def open_node(text: str, n: int, dtype: str, shape: Any, threads: int | None, meter: Meter) -> Kernel:
    """Make a kernel of ``"model.onnx:output"``.

    Parameters
    ----------
    text : str
    n : int
        Number of terms: of a reduced axis or a normalised one, K of a product, the filter of a convolution.
    dtype : str
    shape : tuple of int or None
        ``(rows, n)``, for products ``(M, K, N)``, for a convolution the shape of the image.
    threads : int or None
    meter : Meter

    Raises
    ------
    InputError
        If no node computes that value, or the node is no sum or product that can be asked for its order.
    """

    path, _, output = text.rpartition(":")
    if dtype not in TYPES:
        raise InputError(f"{text}: onnxruntime takes terms in {', '.join(TYPES)} here, not {dtype}")
    model = _inferred(model_of(path).proto)
    node = next((node for node in model.graph.node if output in node.output), None)
    if node is None:
        names = [name for node in model.graph.node if node.op_type in OPERATORS for name in node.output[:1]]
        raise InputError(f"{path} computes no {output!r}; sums and products in it: {', '.join(names[:12]) or 'none'}")
    if node.op_type not in OPERATORS:
        raise InputError(f"{text} is computed by {node.op_type}; an order can be revealed for {', '.join(OPERATORS)}")
    _check_type(model, node, dtype, text)
    asked = None if shape is None else sizes_of(shape)
    axes: Sizes | None = None
    if node.op_type in PRODUCTS:
        shapes = _product(model, node, n, asked, text)
    elif node.op_type == "Conv":
        shapes = _convolution(model, node, n, asked, text)
    else:
        shapes, axes = _reduction(model, node, n, asked, text)
    if node.op_type in (*PRODUCTS, "Conv") and len(node.input) > 2 and node.input[2]:
        bias = _stored_shape(model, node.input[2])
        shapes.append(bias or (shapes[1][0] if node.op_type == "Conv" else 1,))
    fixed = len(node.input) < 2 or stored(model, node.input[1]) is not None
    opsets = list(model.opset_import)
    return node_kernel(text, NodeCall(_last_axis(node), opsets, shapes, axes, fixed, threads), dtype, meter)


def stored(model: onnx.ModelProto, name: str) -> onnx.TensorProto | None:
    """Return an initializer or the value of a Constant node; None for anything computed."""
    tensor = next((t for t in model.graph.initializer if t.name == name), None)
    if tensor is None:
        node = next((n for n in model.graph.node if name in n.output and n.op_type == "Constant"), None)
        tensor = None if node is None else attribute(node, "value", None)
    return tensor


def _constant(model: onnx.ModelProto, name: str) -> Array | None:
    """Return the numbers of a stored tensor; None where they lie in another file (axes never do)."""
    tensor = stored(model, name)
    return None if tensor is None or is_external(tensor) else np.asarray(numpy_helper.to_array(tensor))


def _stored_shape(model: onnx.ModelProto, name: str) -> Sizes | None:
    tensor = stored(model, name)
    return None if tensor is None else tuple(tensor.dims)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inferred types; what lies in other files is not needed for that, and not looked for."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        if is_external(tensor):
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    inside = [t for t in light.graph.initializer if not is_external(t)]
    del light.graph.initializer[:]
    light.graph.initializer.extend(inside)
    inferred = onnx.shape_inference.infer_shapes(light)
    inferred.graph.initializer.extend(t for t in model.graph.initializer if is_external(t))
    return inferred


def _last_axis(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node whose axes are those of ``(rows, n)``."""
    if node.op_type not in (*REDUCTIONS, "LayerNormalization"):
        return node
    alone = onnx.NodeProto()
    alone.CopyFrom(node)
    for each in alone.attribute:
        if each.name == "axes":
            each.ints[:] = [-1]
        elif each.name == "axis":
            each.i = -1
    return alone


def _value_types(model: onnx.ModelProto) -> dict[str, Any]:
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    return {value.name: value.type.tensor_type for value in values}


def _check_type(model: onnx.ModelProto, node: onnx.NodeProto, dtype: str, text: str) -> None:
    kind = _value_types(model).get(node.output[0])
    if kind is not None and kind.elem_type not in (TensorProto.UNDEFINED, TYPES[dtype]):
        stored = TensorProto.DataType.Name(kind.elem_type).lower()
        raise InputError(f"{text} is computed in ONNX type {stored}; give that as dtype, not {dtype}")


def _reduction(
    model: onnx.ModelProto, node: onnx.NodeProto, n: int, asked: Sizes | None, text: str
) -> tuple[list[Sizes], Sizes | None]:
    kind = _value_types(model).get(node.input[0])
    rank = len(kind.shape.dim) if kind is not None and kind.HasField("shape") else None
    as_input = node.op_type in REDUCTIONS and len(node.input) > 1 and bool(node.input[1])
    if node.op_type == "LayerNormalization":
        axes = [attribute(node, "axis", -1)]
    else:
        given = _constant(model, node.input[1]) if as_input else None
        axes = given.ravel().tolist() if given is not None else attribute(node, "axes", None)
    whole = axes is None and rank == 1
    if not whole and (axes is None or len(axes) != 1 or axes[0] not in ([-1] if rank is None else [-1, rank - 1])):
        raise InputError(f"{text} reduces axes {axes}; an order can be revealed for the last axis alone")
    if asked is not None and (len(asked) != 2 or asked[1] != n):
        raise InputError(f"{text} adds the last axis of (rows, n): shape {asked} does not end with n={n}")
    shapes: list[Sizes] = [asked or (_ROWS, n)]
    if node.op_type == "LayerNormalization":
        shapes += [(n,), (n,)]
    needs_input = as_input or (whole and _newer(model, node))
    return shapes, (-1,) if needs_input else None


#: Rows of a sum where no shape is asked for.
_ROWS = 32


def _newer(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Whether axes are an input in this version of a reduction."""
    version = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return bool(version >= (13 if node.op_type == "ReduceSum" else 18))


def _product(model: onnx.ModelProto, node: onnx.NodeProto, n: int, asked: Sizes | None, text: str) -> list[Sizes]:
    transposed = bool(attribute(node, "transB", 0))
    given = _stored_shape(model, node.input[1])
    weight = None if given is None or len(given) != 2 else given[::-1] if transposed else given
    if asked is None:
        asked = (32, n, weight[1] if weight is not None else 32)
    if len(asked) != 3 or asked[1] != n:
        raise InputError(f"{text} takes shape (M, K, N) with K = n = {n}, not {asked}")
    if weight is not None and weight != asked[1:]:
        raise InputError(f"the weight of {text} is {weight} (K, N), not {asked[1:]}")
    return [(asked[0], n), (asked[2], n) if transposed else (n, asked[2])]


def _convolution(model: onnx.ModelProto, node: onnx.NodeProto, n: int, asked: Sizes | None, text: str) -> list[Sizes]:
    filters = _stored_shape(model, node.input[1])
    if filters is None:
        raise InputError(f"{text}: the filters of this convolution are not a constant")
    terms = math.prod(filters[1:])
    if terms != n:
        raise InputError(f"a filter of {text} has {terms} terms {filters[1:]}, not n={n}")
    if asked is None:
        kind = _value_types(model).get(node.input[0])
        dims = [d.dim_value for d in kind.shape.dim] if kind is not None and kind.HasField("shape") else []
        asked = tuple(d or 1 for d in dims)
    if len(asked) != len(filters):
        raise InputError(f"{text} takes shape=(images, channels, *sizes) of its input, {len(filters)} numbers")
    return [asked, filters]

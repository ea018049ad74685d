"""Shapes: reshaping, joining, splitting, padding, and tensors made of shapes alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, array_to_tensor, storage
from driftscope.lift.onnx.registry import Node, Result, axis_of, integers_of, operator, strings


@operator("Identity", values=True)
def identity(node: Node, x: Any) -> list[Any]:
    """The value itself, whatever it is."""
    return [x]


@operator("Constant")
def constant(node: Node) -> Result:
    """A value stored in an attribute."""
    from onnx import numpy_helper

    if node.has("value"):
        array = numpy_helper.to_array(node.attribute("value"))
        if array.dtype == object or array.dtype.kind in "SU":
            return Result(strings(array))
        return Result(array_to_tensor(array), formats=[FORMAT_OF_ELEMENT[node.attribute("value").data_type]])
    if node.has("sparse_value"):
        from driftscope.lift.onnx.stored import Stored

        value = Stored(node.name, node.attribute("sparse_value")).load()
        return Result(value.data, formats=[value.format])
    for name, dtype in (("value_float", torch.float32), ("value_floats", torch.float32)):
        if node.has(name):
            return Result(torch.tensor(node.attribute(name), dtype=dtype))
    for name in ("value_int", "value_ints"):
        if node.has(name):
            return Result(torch.tensor(node.attribute(name), dtype=torch.int64))
    if node.has("value_string"):
        return Result(strings(node.text("value_string")))
    return Result(strings(node.texts("value_strings")))


@operator("Shape", constant=True)
def shape(node: Node, x: Any) -> Tensor:
    """The shape, or the part of it between ``start`` and ``end``."""
    whole = list(x.shape)
    start = node.integer("start", 0)
    end = node.integer("end") if node.has("end") else None
    return torch.tensor(whole[start:end] if start < len(whole) else [], dtype=torch.int64)


@operator("Size", constant=True)
def size(node: Node, x: Any) -> Tensor:
    """The number of elements."""
    return torch.tensor(math.prod(x.shape), dtype=torch.int64)


@operator("Reshape", since=5, host=(1,))
def reshape(node: Node, x: Any, shape: Tensor) -> Any:
    """Another shape; 0 keeps a length (unless ``allowzero``), -1 takes what is left."""
    wanted = integers_of(shape) or []
    if node.integer("allowzero", 0) == 0:
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if -1 in wanted and 0 in x.shape:
        # torch refuses -1 for empty tensors although the other lengths determine it.
        rest = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = 0 if rest == 0 else math.prod(x.shape) // rest
    return x.reshape(tuple(wanted))


@operator("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    """Two axes: all before ``axis``, all from it on."""
    axis = node.integer("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Transpose")
def transpose(node: Node, x: Any) -> Any:
    """Axes in another order; reversed where no order is given."""
    order = node.integers("perm", list(range(x.ndim))[::-1])
    return x.transpose(order) if isinstance(x, np.ndarray) else x.permute(order)


def _squeeze(x: Any, axes: list[int] | None) -> Any:
    if axes is None:
        return x.reshape(tuple(n for n in x.shape if n != 1))
    gone = {axis_of(a, x.ndim) for a in axes}
    if any(x.shape[a] != 1 for a in gone):
        raise ValueError(f"axes {sorted(gone)} of shape {list(x.shape)} are not all of length 1")
    return x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in gone))


def _unsqueeze(x: Any, axes: list[int]) -> Any:
    rank = x.ndim + len(axes)
    places = {axis_of(a, rank) for a in axes}
    old = iter(x.shape)
    return x.reshape(tuple(1 if i in places else next(old) for i in range(rank)))


@operator("Squeeze")
def squeeze_by_attribute(node: Node, x: Any) -> Any:
    """Drop axes of length 1 (axes as an attribute, up to opset 12)."""
    return _squeeze(x, node.integers("axes") if node.has("axes") else None)


@operator("Squeeze", since=13, host=(1,))
def squeeze(node: Node, x: Any, axes: Tensor | None = None) -> Any:
    """Drop axes of length 1."""
    return _squeeze(x, integers_of(axes))


@operator("Unsqueeze")
def unsqueeze_by_attribute(node: Node, x: Any) -> Any:
    """Insert axes of length 1 (axes as an attribute, up to opset 12)."""
    return _unsqueeze(x, node.integers("axes"))


@operator("Unsqueeze", since=13, host=(1,))
def unsqueeze(node: Node, x: Any, axes: Tensor) -> Any:
    """Insert axes of length 1."""
    return _unsqueeze(x, integers_of(axes) or [])


@operator("Expand", host=(1,))
def expand(node: Node, x: Any, shape: Tensor) -> Any:
    """Broadcast with a shape, both ways."""
    wanted = np.broadcast_shapes(tuple(x.shape), tuple(integers_of(shape) or []))
    return np.broadcast_to(x, wanted) if isinstance(x, np.ndarray) else x.expand(wanted)


@operator("Tile", since=6, host=(1,))
def tile(node: Node, x: Tensor, repeats: Tensor) -> Any:
    """Repeat along every axis."""
    counts = integers_of(repeats) or []
    return np.tile(x, counts) if isinstance(x, np.ndarray) else x.repeat(counts)


@operator("Concat")
def concat(node: Node, *inputs: Any) -> Any:
    """Join along an axis."""
    axis = node.integer("axis", 1)
    if isinstance(inputs[0], np.ndarray):
        return np.concatenate(inputs, axis)
    return torch.cat(inputs, axis)


def split_sizes(total: int, parts: int) -> list[int]:
    """Sizes of parts as equal as they can be, the last one the smallest."""
    size = math.ceil(total / parts)
    return [max(min(size, total - i * size), 0) for i in range(parts)]


@operator("Split", since=2)
def split_by_attribute(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    """Cut along an axis (sizes as an attribute, up to opset 12)."""
    axis = node.integer("axis", 0)
    sizes = node.integers("split", []) or split_sizes(x.shape[axis], len(node.output_names))
    return torch.split(x, sizes, axis)


@operator("Split", since=13, host=(1,))
def split(node: Node, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Cut along an axis into given sizes or equal parts."""
    axis = node.integer("axis", 0)
    parts = node.integer("num_outputs", len(node.output_names))
    return torch.split(x, integers_of(sizes) or split_sizes(x.shape[axis], parts), axis)


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    """Blocks of channels become blocks of pixels."""
    block = node.integer("blocksize")
    n, c, h, w = x.shape
    if node.text("mode", "DCR") == "DCR":
        y = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // block**2, block, block, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // block**2, h * block, w * block)


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    """Blocks of pixels become blocks of channels."""
    block = node.integer("blocksize")
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // block, block, w // block, block)
    order = (0, 3, 5, 1, 2, 4) if node.attribute("mode", "DCR") in ("DCR", b"DCR") else (0, 1, 3, 5, 2, 4)
    return y.permute(order).reshape(n, c * block**2, h // block, w // block)


# -- tensors of shapes alone ----------------------------------------------------------------------------------


@operator("ConstantOfShape", host=(0,))
def constant_of_shape(node: Node, shape: Tensor) -> Result:
    """A shape filled with one value."""
    wanted = integers_of(shape) or []
    if not node.has("value"):
        return Result(torch.zeros(wanted, device=node.device), formats=[torch.float32])
    native = FORMAT_OF_ELEMENT[node.attribute("value").data_type]
    return Result(node.tensor("value").reshape(()).expand(wanted), formats=[native])


@operator("EyeLike")
def eye_like(node: Node, x: Tensor) -> Result:
    """Ones on the ``k``-th diagonal of a matrix of the same shape."""
    native = FORMAT_OF_ELEMENT[node.integer("dtype")] if node.has("dtype") else node.format(0) or x.dtype
    ones = torch.ones(tuple(x.shape), dtype=torch.float64, device=x.device)
    k = node.integer("k", 0)
    return Result((torch.triu(ones, k) - torch.triu(ones, k + 1)).to(storage(native)), formats=[native])


@operator("Range", host=(0, 1, 2))
def arange(node: Node, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """``start, start + delta, ...`` below ``limit``; native values decide how many."""
    first, last, step = (node.rounded(t, i).reshape(()) for i, t in enumerate((start, limit, delta)))
    wide = torch.float64 if first.is_floating_point() else torch.int64
    count = max(math.ceil((last.to(wide) - first.to(wide)).item() / step.to(wide).item()), 0)
    steps = torch.arange(count, device=start.device)
    return (start.reshape(()) + steps.to(start.dtype) * delta.reshape(())).to(node.device)


# -- padding and cutting --------------------------------------------------------------------------------------


def _pad(x: Tensor, pads: list[int], axes: list[int], mode: str, value: Any) -> Tensor:
    """Pad (or crop, where negative) some axes, begins first."""
    half = len(pads) // 2
    for begin, end, axis in zip(pads[:half], pads[half:], axes, strict=True):
        length = x.shape[axis]
        if mode == "constant":
            flat = [0] * (2 * (x.dim() - axis - 1)) + [begin, end]
            if isinstance(value, Tensor) and value.requires_grad:
                inside = F.pad(torch.ones_like(x), flat, value=0.0)
                x = F.pad(x, flat, value=0.0) + (1 - inside) * value
            else:
                x = F.pad(x, flat, value=value.item() if isinstance(value, Tensor) else value)
        else:
            x = x.index_select(axis, _mirrored(begin, end, length, mode).to(x.device))
    return x


def _mirrored(begin: int, end: int, length: int, mode: str) -> Tensor:
    index = torch.arange(-begin, length + end)
    if mode == "edge":
        return index.clamp(0, length - 1)
    if mode == "wrap":
        return index % length
    period = max(2 * (length - 1), 1)
    index = index % period
    return torch.where(index < length, index, period - index)


@operator("Pad", since=2)
def pad_by_attributes(node: Node, x: Tensor) -> Tensor:
    """Pad every axis (pads as an attribute, up to opset 10)."""
    value = node.number("value", 0.0)
    return _pad(x, node.integers("pads"), list(range(x.dim())), node.text("mode", "constant"), value)


@operator("Pad", since=11, host=(1, 3))
def pad(node: Node, x: Tensor, pads: Tensor, value: Tensor | None = None, axes: Tensor | None = None) -> Result:
    """Pad some axes with a constant, by the edge, mirrored, or around."""
    places = integers_of(axes)
    places = list(range(x.dim())) if places is None else [axis_of(a, x.dim()) for a in places]
    filler: Any = 0 if value is None else value.reshape(())
    result = _pad(x, integers_of(pads) or [], places, node.text("mode", "constant"), filler)
    return Result(result, formats=[node.format(0)])


@operator("Trilu", host=(1,))
def trilu(node: Node, x: Tensor, k: Tensor | None = None) -> Tensor:
    """Upper or lower triangle of matrices."""
    diagonal = 0 if k is None else int(k)
    return torch.triu(x, diagonal) if node.integer("upper", 1) else torch.tril(x, diagonal)


@operator("CenterCropPad", host=(1,))
def center_crop_pad(node: Node, x: Tensor, shape: Tensor) -> Tensor:
    """Crop or pad axes about their centre to given lengths."""
    wanted = integers_of(shape) or []
    axes = [axis_of(a, x.dim()) for a in node.integers("axes", list(range(x.dim())))]
    for axis, length in zip(axes, wanted, strict=True):
        surplus = x.shape[axis] - length
        if surplus > 0:
            x = x.narrow(axis, surplus // 2, length)
        elif surplus < 0:
            x = _pad(x, [-surplus // 2, -surplus - (-surplus // 2)], [axis], "constant", 0)
    return x
